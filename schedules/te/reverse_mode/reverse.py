"""The way back from outputs to inputs: each stage hands the gradient of what it makes to what it reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from schedules import expr as E
from schedules.dtypes import computed
from schedules.errors import WorkloadError
from schedules.expr import Const, Expr, Var
from schedules.te.dims import Dim
from schedules.te.domains import masked_op, require_plain
from schedules.te.inside import check_loads
from schedules.te.language import placeholder
from schedules.te.reverse_mode.copies import without_copies
from schedules.te.reverse_mode.domains import with_domains
from schedules.te.reverse_mode.gather import gather
from schedules.te.reverse_mode.graph import (
    Rewrite,
    active,
    added,
    in_groups,
    like,
    load,
    placed,
    reads,
    rebuilt,
    stage,
    stages,
    states_of,
    targets,
    zero,
)
from schedules.te.reverse_mode.invariance import without_effect
from schedules.te.reverse_mode.pads import padded
from schedules.te.reverse_mode.phases import in_phases
from schedules.te.reverse_mode.push import is_gathered, push
from schedules.te.reverse_mode.reductions import own_element, values_gradients
from schedules.te.reverse_mode.sized import sizes_in, with_open_sizes
from schedules.te.reverse_mode.slopes import Term, terms
from schedules.te.reverse_mode.trim import trimmed
from schedules.te.reverse_mode.unroll import written_out
from schedules.te.scalars import cast
from schedules.te.size import check_size
from schedules.te.tensors import Key, Op, Tensor, TensorLoad, discover, key

Tensors = Tensor | Sequence[Tensor]
# What makes gradients good to compute, in order. Each keeps the values.
PASSES: tuple[Rewrite, ...] = (
    without_copies,
    trimmed,
    in_phases,
    written_out,
    padded,
    trimmed,
    without_copies,
)


def gradient(
    outputs: Tensors,
    inputs: Tensors,
    output_gradients: Tensors | None = None,
    saved: Sequence[Tensor] = (),
) -> list[Tensor]:
    """The gradients of ``outputs`` with respect to ``inputs``, as tensors like any others.

    ``outputs``: one tensor or several, floating point. ``inputs``: placeholders or stages, floating point.
    ``output_gradients``: for each output a tensor of its shape and dtype, such as a placeholder; without them
    all are 1, so that the result is the gradient of the sum of all outputs. Returns a tensor for each input,
    of its shape and dtype: the sum over outputs of output_gradient times d output / d input.

    The result reads what the derivatives depend on: inputs, and stages of the forward pass, which are thereby
    computed again. ``saved``: tensors of the forward pass that the caller keeps instead. In their place the
    result reads placeholders of their names, shapes and dtypes. `te.inputs` lists all placeholders that a
    result reads.

    Conventions: of two operands of a maximum or minimum that tie each gets half (torch.maximum), but against
    what is no input, as in ``te.maximum(x, 0.0)``, a tie gives nothing (torch's relu). The n equal maxima of
    a `te.max` get an n-th each (torch.amax). te.abs has slope 0 at 0. Integers, comparisons, and te.floor,
    te.ceil and te.round pass no gradient. float16 and bfloat16 are computed with as float32 up to the result.

    Of a scan it is a scan the other way, which reads all states of the forward one. Those are computed first;
    list them in ``saved`` where they are kept.

    Open sizes stay open, but with a scan. Raises `WorkloadError`: an input that no output depends on, shapes
    or dtypes that do not fit, other sizes that vary, open ones whose gradient is another expression at some
    size, and reducers over tuples whose parts depend on each other, such as an argmax.

    >>> x, w = te.placeholder((8, 16), name="x"), te.placeholder((16, 4), name="w")
    >>> k = te.reduce_axis(16, "k")
    >>> y = te.compute((8, 4), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), "y")
    >>> dy = te.placeholder(y.shape, name="dy")
    >>> dx, dw = te.gradient(y, [x, w], dy)
    >>> [t.name for t in te.inputs(dx)]
    ['dy', 'w']

    Source: reverse mode as in Griewank and Walther, *Evaluating Derivatives*, 2008; as sums over the points
    that read an element instead of scatters: Li et al., *Differentiable programming for image processing and
    deep learning in Halide*, 2018.
    """
    outs, ins = tensors_of(outputs, "outputs"), tensors_of(inputs, "inputs")
    kept = tensors_of(saved, "saved")
    heads = _heads(outs, output_gradients)
    roots = [*outs, *ins, *kept, *(h for h in heads if isinstance(h, Tensor))]
    dims = sizes_in(roots)
    _check_sizes(dims, outs)

    def derive(form: Callable[[Tensor], Tensor]) -> list[Tensor]:
        seeds = [form(h) if isinstance(h, Tensor) else h for h in heads]
        of_outs, of_ins, of_kept = (list(map(form, ts)) for ts in (outs, ins, kept))
        return _derived(of_outs, of_ins, of_kept, seeds, not dims)  # scatters have fixed sizes

    return with_open_sizes(roots, dims, derive) if dims else inside(derive(lambda t: t))


def _check_sizes(dims: Sequence[Dim], outs: Sequence[Tensor]) -> None:
    """Raise `WorkloadError` for sizes with which there is no gradient."""
    remedy = "differentiate it at each size, with numbers for its sizes"
    if any(d.open is False for d in dims):
        raise _refused(f"the expression has sizes that vary; {remedy}")
    if dims and any(map(states_of, in_groups(stages(outs)))):
        raise _refused(f"the expression has a scan and sizes that vary; {remedy}")


def inside(results: list[Tensor], what: str = "a gradient") -> list[Tensor]:
    """The derivatives, whose loads are proved inside. Raises `WorkloadError`."""
    for op in stages(results):
        extents = dict((*op.axes, *op.reduce_axes))
        name = op.names[0] or what
        read_by = (*op.values, *op.places)
        check_loads(name, read_by, extents, lambda e: e.tensor.shape, op.where)  # type: ignore[attr-defined]
    return results


def _derived(
    outs: Sequence[Tensor],
    ins: Sequence[Tensor],
    kept: Sequence[Tensor],
    heads: Sequence[Tensor | Const],
    pushes: bool,
) -> list[Tensor]:
    """The gradients, of what is checked. ``pushes``: as of `_Reverse`."""
    ops, _ = discover([t.op for t in outs if t.op is not None])
    for op in ops:
        require_plain(op, "te.gradient", but="places" if op.places else "where")
    seeds = [E.widen(load(h)) if isinstance(h, Tensor) else h for h in heads]
    found = _Reverse(ops, outs, seeds, {key(t) for t in ins}, pushes)
    results = [found.gradient(t) for t in ins]
    fixed = {*ops, *stages([h for h in heads if isinstance(h, Tensor)])}
    scans = any(map(states_of, in_groups(ops)))
    for rewrite in (without_copies,) if scans else PASSES:
        results = rewrite(results, fixed)
    results = cut(_named(results, ins, fixed), kept)
    return with_domains(results, fixed) if any(op.where for op in ops) else results


def inputs(tensors: Tensors) -> list[Tensor]:
    """The placeholders that tensors are computed from, each once, in the order in which they are met. For
    `dag` and for tuning: ``at.tune([*te.inputs(dx), dx])``. Raises `WorkloadError` for what is no tensor.

    >>> x, y = te.placeholder((8,), name="x"), te.placeholder((8,), name="y")
    >>> te.inputs(te.compute((8,), lambda i: x[i] * y[i], name="z"))
    [tensor x[8] float32, tensor y[8] float32]
    """
    ts = tensors_of(tensors, "tensors", "te.inputs")
    _, leaves = discover([t.op for t in ts if t.op is not None])
    return list(dict.fromkeys([*(t for t in ts if t.op is None), *leaves]))


def cut(tensors: Tensors, stages: Tensors) -> list[Tensor]:
    """The tensors with placeholders in the place of ``stages``, of their names, shapes and dtypes: what is
    left to compute where these are known. So a long expression becomes several kernels. Raises
    `WorkloadError` for what is no tensor.

    >>> x = te.placeholder((8,), name="x")
    >>> y = te.compute((8,), lambda i: te.exp(x[i]), name="y")
    >>> z = te.compute((8,), lambda i: y[i] + 1.0, name="z")
    >>> (rest,) = te.cut(z, [y])
    >>> te.inputs(rest)
    [tensor y[8] float32]
    """
    known = tensors_of(stages, "stages", "te.cut")
    given = {key(t): placeholder(t.shape, t.dtype, t.name) for t in known}
    return rebuilt(tensors_of(tensors, "tensors", "te.cut"), given=given)


class _Reverse:
    """The gradients of all tensors between outputs and inputs."""

    def __init__(
        self,
        ops: Sequence[Op],
        outs: Sequence[Tensor],
        heads: Sequence[Expr],
        wanted: set[Key],
        pushes: bool = True,
    ) -> None:
        self.pushes = pushes  # whether what is gathered gets its gradient by scatters
        self.parts: dict[Key, list[Expr]] = {}  # what readers give, over i0, i1, ...
        self.totals: dict[Key, Expr] = {}
        self.names: dict[Key, str | None] = {}
        self.active = active(ops, wanted)  # what changes with an input
        groups = in_groups(ops)
        scans = any(map(states_of, groups))
        self.still: set[Key] = set() if scans else without_effect(ops, outs) - wanted
        for t, head in zip(outs, heads, strict=True):
            self.give(t, head)
        for group in reversed(groups):
            states = states_of(group)
            coming = self.through_steps(group, states)
            for op in reversed(group):
                for n in range(len(op.values)):
                    if (op, n) in coming:
                        self.arrived(coming[op, n], (op, n))
                self.back(op, partial(_not_of, states))

    def is_active(self, x: TensorLoad) -> bool:
        """Whether a load changes with an input, and has a derivative."""
        return key(x.tensor) in self.active and E.is_float(x.dtype)

    def moves(self, x: TensorLoad) -> bool:
        """Whether a load needs a gradient."""
        return self.is_active(x) and key(x.tensor) not in self.still

    def give(self, t: Tensor, part: Expr) -> None:
        self.parts.setdefault(key(t), []).append(part)
        self.names[key(t)] = t.name

    def total(self, t: Key, shape: Sequence[int]) -> Expr | None:
        """The whole gradient of a tensor: an element of a stage, or a literal."""
        if t not in self.totals:
            parts = self.parts.get(t)
            if parts is None:
                return None
            value = added(parts)
            plain = isinstance(value, Const) or (
                isinstance(value, TensorLoad) and value.indices == targets(len(shape))
            )
            self.totals[t] = value if plain else load(_named_stage(shape, value, self.names[t]))
        return self.totals[t]

    def gradient(self, t: Tensor) -> Tensor:
        """The gradient of an input as a stage."""
        value = self.total(key(t), t.shape)
        if value is None:
            raise _refused(f"no output depends on input {t!r} by what has a derivative; leave it out")
        if isinstance(value, TensorLoad) and value.tensor.op is not None:
            return value.tensor
        return _named_stage(t.shape, value, t.name)

    def through_steps(self, group: Sequence[Op], states: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
        """Hand what the stages of a scan give to the states that they read. Gradients of these stages are not
        known yet: they are states of a scan that runs the other way, which are returned, by stage."""
        coming: dict[Key, Tensor] = {}
        for op in group if states else ():
            if not any(self.moves(x) and states.get(key(x.tensor)) is x.tensor for x in reads(op)):
                continue
            carry = next(iter(states.values())).carry
            assert carry is not None
            back = replace(carry, step=-carry.step, stored=[])
            shape = tuple(n for _, n in op.axes)
            for n in range(len(op.values)):
                if (op, n) in self.active:
                    dtype = computed(E.dtype_of(op.values[n]))
                    coming[op, n] = Tensor(shape, dtype, derived_name(op.names[n]), carry=back)
                    back = replace(back, stored=[])
            heads = {n: load(coming[op, n]) for n in range(len(op.values)) if (op, n) in coming}
            self.hand(op, heads, lambda x: states.get(key(x.tensor)) is x.tensor)
        return coming

    def arrived(self, coming: Tensor, t: Key) -> None:
        """The gradient of a stage of a scan is known: it is what each step back stores."""
        assert coming.carry is not None
        value = self.total(t, coming.shape)
        made = value.tensor if isinstance(value, TensorLoad) else None
        if made is None or made.op is None or made.dtype != coming.dtype:
            value = zero(coming.dtype) if value is None else value
            made = stage(coming.shape, cast(E.widen(value), coming.dtype), name=coming.name)
            self.totals[t] = load(made)
        coming.carry.stored.append(made)

    def back(self, op: Op, wanted: Callable[[TensorLoad], bool]) -> None:
        """Hand the gradients of a stage's outputs to what it reads, where that is ``wanted``."""
        shape = tuple(n for _, n in op.axes)
        given = {n: self.total((op, n), shape) for n in range(len(op.values)) if (op, n) in self.active}
        self.hand(op, {n: g for n, g in given.items() if g is not None}, wanted)

    def hand(self, op: Op, given: Mapping[int, Expr], wanted: Callable[[TensorLoad], bool]) -> None:
        """Hand gradients of a stage's outputs, over i0, i1, ..., to what it reads and is ``wanted``."""
        own = op.places or tuple(Var(v) for v, _ in op.axes)
        env: dict[str, Expr] = {to.name: p for p, to in zip(own, targets(len(own)), strict=True)}
        steps = any(
            x.tensor.carry is not None for x in reads(op)
        )  # what those of a scan make stays in its order
        heads = {n: placed(E.widen(g), env) for n, g in given.items()}

        def moves(x: TensorLoad) -> bool:
            return self.moves(x) and wanted(x)

        if not heads or not any(map(moves, reads(op))):
            return
        parts: dict[TensorLoad, list[Term]] = {}
        values = masked_op(op).values
        for n, head in values_gradients(op, heads, values).items():
            value = values[n]
            stored = own_element(op, n) if op.reducer is None else None
            for x, found in terms(value, head, stored, self.moves).items():
                if wanted(x):
                    parts.setdefault(x, []).extend(found)
        points = _points(op)
        for x, found in parts.items():
            pushes = self.pushes and is_gathered(x) and (x.tensor.op is None or not steps)
            part = (push if pushes else gather)(points, x, found, derived_name(x.tensor.name))
            if part is not None:
                self.give(x.tensor, part)


def _points(op: Op) -> Op:
    """The stage over the axes of its terms: a scattered dimension has none."""
    if not op.places:
        return op
    axes = tuple((v, n) for (v, n), p in zip(op.axes, op.places, strict=True) if p == Var(v))
    return replace(op, axes=axes, places=())


def _not_of(states: Mapping[Key, Tensor], x: TensorLoad) -> bool:
    """Whether a load reads none of these states."""
    return states.get(key(x.tensor)) is not x.tensor


def _refused(why: str) -> WorkloadError:
    return WorkloadError(f"te.gradient: {why}")


def derived_name(name: str | None) -> str | None:
    """The name of the gradient of a tensor."""
    return f"d{name}" if name else None


def _named_stage(shape: Sequence[int], value: Expr, name: str | None) -> Tensor:
    check_size([value], f"te.gradient of {name or 'a tensor'}")
    return stage(shape, value, name=derived_name(name))


def _named(results: Sequence[Tensor], ins: Sequence[Tensor], fixed: Collection[Op]) -> list[Tensor]:
    """The results in their inputs' dtypes, each a stage of its own, under names that no other stage has."""
    out: list[Tensor] = []
    for r, t in zip(results, ins, strict=True):
        if r.dtype != t.dtype or r.op in fixed or any(r is o for o in out):
            r = stage(t.shape, cast(load(r), t.dtype))
        out.append(r)
    mine = {r.op: derived_name(t.name) for r, t in zip(out, ins, strict=True)}
    taken = {n for n in mine.values() if n}

    def rename(old: Op, new: Op) -> Tensor | None:
        if old in fixed:
            return None
        (name,) = old.names
        if old in mine:
            name = mine[old]
        elif name in taken:
            name = f"{name}_part"
        return like(new, new.values[0], names=(name,)) if (name,) != new.names else None

    return rebuilt(out, rename)


def tensors_of(given: object, what: str, of: str = "te.gradient") -> list[Tensor]:
    """One tensor or several as a list. Raises `WorkloadError`."""
    ts: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    for t in ts:
        if not isinstance(t, Tensor):
            raise WorkloadError(f"{of}: {what} are te tensors, not {t!r} ({type(t).__name__})")
    if of in ("te.gradient", "te.jvp"):
        for n, t in enumerate(ts):
            if what != "saved" and not E.is_float(t.dtype):
                raise WorkloadError(f"{of}: {t!r} of {what} is not floating point, and has no derivative")
            if any(key(t) == key(u) for u in ts[:n]):
                raise WorkloadError(f"{of}: {t!r} stands twice in {what}; list it once")
        if not ts and what != "saved":
            raise WorkloadError(f"{of}: {what} is empty; give at least one tensor")
    return ts


def _heads(outs: Sequence[Tensor], given: object) -> list[Tensor | Const]:
    """The gradients of the outputs. Raises `WorkloadError`."""
    if given is None:
        return [Const(1.0, computed(t.dtype)) for t in outs]
    heads: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    if len(heads) != len(outs):
        raise _refused(f"{len(heads)} output_gradients for {len(outs)} outputs; give one for each")
    for h, t in zip(heads, outs, strict=True):
        if not isinstance(h, Tensor):
            raise _refused(f"output_gradients are te tensors, not {h!r} ({type(h).__name__})")
        if h.shape != t.shape or h.dtype != t.dtype:
            raise _refused(f"the output gradient {h!r} does not fit {t!r}; give one of its shape and dtype")
    return heads
