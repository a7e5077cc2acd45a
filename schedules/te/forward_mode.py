"""Derivatives of tensor expressions along a direction, as tensor expressions (`te.jvp`).

Each stage gets a stage beside it: the sum over what it reads of the slope times the tangent of what is read.
Slopes are those of the way back (`reverse_mode.slopes`, `reverse_mode.reductions`), so that both agree where
there is no derivative. A state of a scan has a state of tangents, which runs in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from schedules import expr as E
from schedules.dtypes import computed
from schedules.errors import WorkloadError
from schedules.expr import Const
from schedules.te.domains import masked_op
from schedules.te.language import placeholder
from schedules.te.reverse_mode.graph import (
    active,
    added,
    at,
    guarded,
    like,
    load,
    reads,
    rebuilt,
    stage,
    zero,
)
from schedules.te.reverse_mode.reductions import own_element, values_gradients
from schedules.te.reverse_mode.reverse import inside, tensors_of
from schedules.te.reverse_mode.sized import sizes_in
from schedules.te.reverse_mode.slopes import terms, times
from schedules.te.scalars import cast
from schedules.te.size import check_size
from schedules.te.tensors import Key, Op, Tensor, TensorLoad, discover, key

Tensors = Tensor | Sequence[Tensor]
WHAT = "te.jvp"


def jvp(outputs: Tensors, inputs: Tensors, tangents: Tensors | None = None) -> list[Tensor]:
    """The tangents of ``outputs`` where ``inputs`` move along ``tangents``, as tensors like any others.

    ``outputs``: one tensor or several, floating point. ``inputs``: placeholders or stages, floating point.
    ``tangents``: for each input a tensor of its shape and dtype; without them placeholders, named as the
    inputs with ``_dot`` behind. Returns a tensor for each output, of its shape and dtype: the sum over inputs
    of d output / d input times the input's tangent.

    The result reads inputs, tangents and stages of the expression, which are thereby computed again: `te.cut`
    puts placeholders in the place of those that the caller keeps. `te.inputs` lists all that it reads. One
    call costs about twice the expression, whatever the number of outputs; `gradient` is for many inputs.

    Conventions are those of `gradient`, and both are transposes of each other: the sum of w · jvp(v) is that
    of gradient(w) · v. Of two operands of a maximum or minimum that tie each moves it by half, but against
    what is no input, as in ``te.maximum(x, 0.0)``, a tie moves nothing. The n equal maxima of a `te.max` move
    it by an n-th each. te.abs has slope 0 at 0. Integers, comparisons, and te.floor, te.ceil and te.round
    have no tangent. float16 and bfloat16 are computed with as float32 up to the result.

    Open sizes stay open. The tangent of a scan is a scan in the same order. Raises `WorkloadError`: an output
    that depends on no input by what has a derivative, shapes or dtypes that do not fit, and reducers over
    tuples whose parts depend on each other, such as an argmax.

    >>> x = te.placeholder((8,), name="x")
    >>> y = te.compute((8,), lambda i: te.exp(x[i]), name="y")
    >>> (y_dot,) = te.jvp(y, x)
    >>> [t.name for t in te.inputs(y_dot)], y_dot.name
    (['x_dot', 'x'], 'y_dot')
    """
    outs, ins = tensors_of(outputs, "outputs", WHAT), tensors_of(inputs, "inputs", WHAT)
    seeds = _seeds(ins, tangents)
    ops, _ = discover([t.op for t in outs if t.op is not None])
    found = _Forward(ops, dict(zip(map(key, ins), seeds, strict=True)))
    results = [found.result(t) for t in outs]
    if not sizes_in([*outs, *ins, *seeds]):
        inside(results, "a tangent")
    return _named(results, outs, {*ops, *discover([t.op for t in seeds if t.op is not None])[0]})


class _Forward:
    """The tangents of all tensors between inputs and outputs. ``seeds``: those of inputs."""

    def __init__(self, ops: Sequence[Op], seeds: dict[Key, Tensor]) -> None:
        self.of: dict[Key, Tensor] = dict(seeds)
        self.active = active(ops, seeds)
        states = {key(x.tensor): x.tensor for op in ops for x in reads(op) if x.tensor.carry is not None}
        for k, s in states.items():
            if k in self.active and k not in seeds:
                assert s.carry is not None
                carry = replace(s.carry, stored=[])
                self.of[k] = Tensor(s.shape, computed(s.dtype), dot_name(s.name), carry=carry)
        for op in ops:
            for n in range(len(op.values)):
                if (op, n) in self.active and (op, n) not in seeds:
                    self.add(op, n)

    def moves(self, x: TensorLoad) -> bool:
        return key(x.tensor) in self.active and E.is_float(x.dtype)

    def add(self, op: Op, n: int) -> None:
        """The tangent of an output of a stage."""
        name = dot_name(op.names[n])
        values = masked_op(op).values
        slope = values_gradients(op, {n: Const(1.0, computed(E.dtype_of(values[n])))}, values, WHAT)[n]
        stored = own_element(op, n) if op.reducer is None else None
        parts = [
            guarded(part.conditions, times(part.value, E.widen(at(self.of[key(x.tensor)], x.indices))))
            for x, found in terms(values[n], slope, stored, self.moves, WHAT).items()
            for part in found
        ]
        dtype = computed(E.dtype_of(op.values[n]))
        value = cast(added(parts), dtype) if parts else zero(dtype)
        check_size([value], f"{WHAT} of {op.names[n] or 'a stage'}")
        made = like(op, value, names=(name,))
        if op.reducer is not None:
            summed = stage((1,), zero(dtype), {"r0": 2}).op
            assert summed is not None and made.op is not None
            made = like(replace(made.op, reducer=summed.reducer), value)
        state = self.of.get((op, n))
        if state is not None:
            assert state.carry is not None
            state.carry.stored.append(made)
        self.of[op, n] = made

    def result(self, t: Tensor) -> Tensor:
        found = self.of.get(key(t))
        if found is None:
            raise WorkloadError(
                f"{WHAT}: output {t!r} depends on none of the inputs by what has a derivative; give one that "
                "it depends on, or leave the output out"
            )
        return found


def dot_name(name: str | None) -> str | None:
    """The name of the tangent of a tensor."""
    return f"{name}_dot" if name else None


def _seeds(ins: Sequence[Tensor], given: object) -> list[Tensor]:
    """The tangents of the inputs. Raises `WorkloadError`."""
    if given is None:
        return [placeholder(t.shape, t.dtype, dot_name(t.name)) for t in ins]
    seeds: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    if len(seeds) != len(ins):
        raise WorkloadError(f"{WHAT}: {len(seeds)} tangents for {len(ins)} inputs; give one for each")
    for s, t in zip(seeds, ins, strict=True):
        if not isinstance(s, Tensor):
            raise WorkloadError(
                f"{WHAT}: tangents are te tensors, not a {type(s).__name__}; kernels take the arrays"
            )
        if s.shape != t.shape or s.dtype != t.dtype:
            raise WorkloadError(
                f"{WHAT}: the tangent {s!r} does not fit {t!r}; give one of its shape and dtype"
            )
    return seeds


def _named(results: Sequence[Tensor], outs: Sequence[Tensor], fixed: set[Op]) -> list[Tensor]:
    """The results in their outputs' dtypes, each a stage of its own."""
    out: list[Tensor] = []
    for r, t in zip(results, outs, strict=True):
        if r.dtype != t.dtype or r.op is None or r.op in fixed:
            r = stage(t.shape, cast(E.widen(load(r)), t.dtype), name=dot_name(t.name))
        out.append(r)
    return rebuilt(out)
