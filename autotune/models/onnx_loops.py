"""Scan and Loop of ONNX as scans of te: the body is lowered once, and its stages get an axis of steps.

What a step carries on keeps its shape, and the number of steps is known at import. So a loop is one kernel,
however many steps it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.errors import ModelError
from autotune.models.onnx_file import to_array
from autotune.models.operators.axes import positive, reshape
from autotune.models.operators.base import UnsupportedForm, axis_names
from autotune.models.operators.known import KnownTensor
from autotune.models.operators.movement import flip, part, transpose
from schedules import expr as E
from schedules import te
from schedules.expr import Expr, Var
from schedules.loads import with_loads
from schedules.ops.axes import named
from schedules.te.tensors import Key, Op, TensorLoad, discover, key

if TYPE_CHECKING:
    from autotune.models.onnx_scope import OnnxLowering, OnnxScope, Scoped

STEPS = "steps"  # the axis of steps
MOST_STEPS = 1 << 24  # of a Loop: more are surely a mistake in the file
# An element of what a body is given, at a step and indices.
Read = Callable[[Expr, tuple[Expr, ...]], Expr]


@dataclass(frozen=True)
class _Body:
    """The graph in a node. ``steps``: how often it runs. ``first``: its states before the first step.
    ``given``: {its other input: shape, dtype and elements at each step}."""

    graph: Any
    steps: int
    first: Sequence[te.Tensor]
    given: Mapping[str, tuple[tuple[int, ...], str, Read]]


def scan_outputs(
    lowering: OnnxLowering, proto: Any, version: int, values: Mapping[str, Scoped], scope: OnnxScope,
    path: str,
) -> list[Scoped]:  # fmt: skip
    """The outputs of a Scan. Raises UnsupportedForm."""
    how = {a.name: a for a in proto.attribute}
    body, scans = how["body"].g, how["num_scan_inputs"].i
    if version < 9:
        raise UnsupportedForm("version 8 has batches of sequences; convert the model to opset 9")
    given = [_tensor(lowering, values, name) for name in proto.input]
    states, xs = given[: len(given) - scans], given[len(given) - scans :]
    outs = len(body.output) - len(states)

    def listed(name: str, count: int) -> list[int]:
        return list(how[name].ints) if name in how else [0] * count

    axes = [positive(a, x.ndim) for a, x in zip(listed("scan_input_axes", scans), xs, strict=True)]
    backwards = listed("scan_input_directions", scans)
    steps = {x.shape[a] for x, a in zip(xs, axes, strict=True)}
    if len(steps) != 1:
        raise ValueError(f"its inputs have {sorted(steps)} steps; they must have as many")
    (count,) = steps

    def reads(x: te.Tensor, axis: int, back: int) -> Read:
        def read(t: Expr, at: tuple[Expr, ...]) -> Expr:
            return x[(*at[:axis], count - 1 - t if back else t, *at[axis:])]

        return read

    names = [i.name for i in body.input][len(states) :]
    slices = {
        name: ((*x.shape[:a], *x.shape[a + 1 :]), x.dtype, reads(x, a, back))
        for name, x, a, back in zip(names, xs, axes, backwards, strict=True)
    }
    made = _run(lowering, _Body(body, count, states, slices), 0, scope, path)
    shown: list[Scoped] = [_last(t) for t in made[: len(states)]]
    turned = listed("scan_output_directions", outs)
    for y, axis, back in zip(made[len(states) :], listed("scan_output_axes", outs), turned, strict=True):
        y = flip(y, [0]) if back else y
        a = positive(axis, y.ndim)
        shown.append(transpose(y, (*range(1, a + 1), 0, *range(a + 1, y.ndim))))
    return shown


def loop_outputs(
    lowering: OnnxLowering, proto: Any, values: Mapping[str, Scoped], scope: OnnxScope, path: str
) -> list[Scoped]:
    """The outputs of a Loop whose number of steps is known. Raises UnsupportedForm."""
    body = {a.name: a.g for a in proto.attribute}["body"]
    names = [*proto.input, "", ""]
    limit, cond = (values.get(n) if n else None for n in names[:2])
    if not isinstance(limit, KnownTensor):
        raise UnsupportedForm("control flow is not supported: its number of steps is not known at import")
    if cond is not None and not (isinstance(cond, KnownTensor) and bool(cond.array().all())):
        raise UnsupportedForm("control flow is not supported: its condition is not known to hold at import")
    steps = int(limit.array().item())
    if not 1 <= steps <= MOST_STEPS:
        raise UnsupportedForm(f"it has {steps} steps; from 1 to {MOST_STEPS} are taken")
    first = [_tensor(lowering, values, name) for name in proto.input[2:]]
    number = body.input[0].name

    def read(t: Expr, at: tuple[Expr, ...]) -> Expr:
        return te.cast(t, "int64")

    inner = replace(scope, values={**scope.values, body.input[1].name: KnownTensor(np.array(True))})
    made = _run(lowering, _Body(body, steps, first, {number: ((), "int64", read)}), 1, inner, path)
    return [*(_last(t) for t in made[: len(first)]), *made[len(first) :]]


def _run(
    lowering: OnnxLowering, body: _Body, conditions: int, scope: OnnxScope, path: str
) -> list[te.Tensor]:
    """What each step makes: the states, then the others, with an axis of steps in front. ``conditions``: how
    many outputs of the body come before them, each of which says whether there is a next step."""
    states, inner, given = [], dict(scope.values), dict[te.Tensor, Read]()
    at_first = {i.name: i for i in body.graph.input if i.name not in body.given}
    carried = [n for n in at_first if not (conditions and n == body.graph.input[1].name)]
    if len(carried) != len(body.first):
        raise ModelError(f"{len(body.first)} states for the {len(carried)} of its body")
    for name, first in zip(carried, body.first, strict=True):
        state = te.state((body.steps, *first.shape), first.dtype, partial(_first, first), 0)
        states.append(state)
        inner[name] = own = te.placeholder(first.shape, first.dtype)
        given[own] = partial(_before, state)
    for name, (shape, dtype, read) in body.given.items():
        inner[name] = own = te.placeholder(shape, dtype)
        given[own] = read
    for t in body.graph.initializer:
        inner[t.name] = KnownTensor(to_array(t, f"initializer {t.name!r} of its body", None))
    wanted = [o.name for o in body.graph.output]
    depth = replace(scope, values=inner, path=path, depth=scope.depth + 1)
    found = lowering.body(depth, body.graph.node, wanted, "its body")
    for cond in found[:conditions]:
        if not (isinstance(cond, KnownTensor) and bool(cond.array().all())):
            raise UnsupportedForm("control flow is not supported: each step says whether there is a next")
    results = [_as_tensor(lowering, x) for x in found[conditions:]]
    for x, first in zip(results, body.first, strict=False):
        if x.shape != first.shape or x.dtype != first.dtype:
            raise UnsupportedForm(
                f"a step makes {x.dtype}{list(x.shape)} of a state of {first.dtype}{list(first.shape)}; a "
                "state must keep its shape and its type"
            )
    every = in_steps(results, body.steps, given)
    kept = te.scan(states, every[: len(states)]) if states else ()
    return [*kept, *every[len(states) :]]


def _first(start: te.Tensor, t: Expr, *at: Expr) -> Expr:
    return start[at]


def _before(state: te.Tensor, t: Expr, at: tuple[Expr, ...]) -> Expr:
    """An element of a state as the step before left it."""
    assert state.carry is not None
    return state.carry.read(state, (t - 1, *at))


def in_steps(results: Sequence[te.Tensor], steps: int, given: Mapping[te.Tensor, Read]) -> list[te.Tensor]:
    """What tensors are at each step, with an axis of steps in front. ``given``: what placeholders are there.
    Stages that depend on none of them stay as they are. Raises UnsupportedForm for loops inside of loops."""
    ops, _ = discover([t.op for t in results if t.op is not None])
    now: dict[Key, Op] = {}

    def reading(t: Expr) -> Callable[[Any], Expr | None]:
        def change(x: TensorLoad) -> Expr | None:
            if x.tensor in given:
                return given[x.tensor](t, x.indices)
            op = now.get(key(x.tensor))
            if op is None:
                return None
            shape = tuple(n for _, n in op.axes)
            made = te.Tensor(shape, x.dtype, x.tensor.name, op, x.tensor.index)
            return TensorLoad(x.buffer, (t, *x.indices), x.dtype, made)

        return change

    for op in ops:
        read = op.reads()
        if not any(x in given or key(x) in now for x in read):
            continue
        if op.places or any(x.carry is not None for x in read):
            raise UnsupportedForm("it has a loop, or a scatter, inside")
        taken = {v for v, _ in (*op.axes, *op.reduce_axes)}
        axis = next(n for n in (STEPS, *(f"{STEPS}_{k}" for k in range(len(taken) + 1))) if n not in taken)
        values = tuple(with_loads(v, reading(Var(axis))) for v in op.values)
        new = replace(op, axes=((axis, steps), *op.axes), values=values)
        now |= {(op, n): new for n in range(len(values))}

    def whole(t: te.Tensor) -> te.Tensor:
        op, shape = now.get(key(t)), (steps, *t.shape)
        if op is not None:
            return te.Tensor(shape, t.dtype, t.name, op, t.index)

        def value(at: Expr, *own: Expr) -> Expr:
            return E.widen(given[t](at, own)) if t in given else t[own]

        stored = lambda *at: te.cast(value(*at), t.dtype)  # noqa: E731
        return te.compute(shape, named([STEPS, *axis_names(t.ndim)], stored), t.name or "kept")

    return [whole(t) for t in results]


def _last(t: te.Tensor) -> te.Tensor:
    """What the last step makes."""
    return reshape(part(t, 0, t.shape[0] - 1, 1), t.shape[1:])


def _tensor(lowering: OnnxLowering, values: Mapping[str, Scoped], name: str) -> te.Tensor:
    return _as_tensor(lowering, values.get(name))


def _as_tensor(lowering: OnnxLowering, x: Scoped) -> te.Tensor:
    if isinstance(x, KnownTensor):
        return lowering.constant(x)
    if not isinstance(x, te.Tensor):
        raise UnsupportedForm("it has an input, or an output of its body, that is no tensor")
    return x
