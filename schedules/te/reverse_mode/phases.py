"""Sums over every s-th point become s sums over all points: the phases of a stride.

The gradient of what a window with stride s reads is, at i, a sum of those taps t for which i - t is a
multiple of s. For all i of one remainder these are the same taps. So each remainder gets a stage of its own,
a plain sum of products without a condition, and a last stage interleaves them (Dumoulin and Visin, *A guide
to convolution arithmetic for deep learning*, 2016, chapter 4)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from schedules import affine
from schedules import expr as E
from schedules.expr import Binary, Const, Expr, Var
from schedules.te.reverse_mode.graph import (
    Ranges,
    at,
    guarded,
    guards,
    like,
    loads,
    placed,
    rebuilt,
    stage,
    targets,
    tidy,
    zero,
)
from schedules.te.tensors import Op, Tensor

# Most stages that one is divided into.
MOST = 16


@dataclass(frozen=True, slots=True)
class _Stride:
    """Along ``axis`` there are ``size`` phases. ``tap``: the summed axis whose steps they take, if any, with
    steps of ``step``."""

    axis: str
    size: int
    tap: str | None
    step: int


def in_phases(roots: Sequence[Tensor], fixed: Collection[Op]) -> list[Tensor]:
    """The same tensors; sums with strides are done in phases."""

    def change(old: Op, new: Op) -> Tensor | None:
        return None if old in fixed or new.reducer is None or new.places else _divided(new)

    return rebuilt(roots, change)


def _divided(op: Op) -> Tensor | None:
    """A sum as the interleaved phases of its strides, None where it has none or too many."""
    strides = _strides(op)
    if not strides or math.prod(s.size for s in strides) > MOST:
        return None
    try:
        phases = {
            rests: _phase(op, strides, rests)
            for rests in itertools.product(*(range(s.size) for s in strides))
        }
    except _NoBox:
        return None
    return stage([n for _, n in op.axes], _interleaved(op, strides, phases), name=op.names[0])


def _strides(op: Op) -> list[_Stride]:
    """The strides of a sum: where it is a condition that a place is a multiple, and where windows do not
    overlap, so that an axis has a quotient and a remainder as indices."""
    spatial, reduce = dict(op.axes), dict(op.reduce_axes)
    conds, value = guards(op.values[0])
    divided = [x for c in conds for x in E.walk(c) if isinstance(x, Binary) and x.op == "%"]
    indices = dict.fromkeys(i for x in loads(value) for i in x.indices if isinstance(i, Binary))
    for v, _ in op.axes[:-1]:
        divided += [i for i in indices if i.op == "%" and i.a == Var(v) and Binary("//", i.a, i.b) in indices]
    found: dict[str, _Stride] = {}
    for x in divided:
        terms, _ = affine.linear(x.a)
        factors = {
            a.name: int(c.value) for a, c in terms.items() if isinstance(a, Var) and isinstance(c, Const)
        }
        if len(factors) < len(terms) or not isinstance(x.b, Const):
            return []
        m = int(x.b.value)
        ours = [v for v in factors if v in spatial]
        taps = [v for v in factors if v in reduce and factors[v] % m]
        if len(ours) != 1 or abs(factors[ours[0]]) != 1 or len(taps) > 1:
            return []
        step = m // math.gcd(m, factors[taps[0]]) if taps else 1
        new = _Stride(ours[0], m, taps[0] if taps else None, step)
        if found.setdefault(new.axis, new) != new:
            return []
    every = [s.tap for s in found.values() if s.tap]
    return list(found.values()) if len(set(every)) == len(every) else []


class _NoBox(Exception):
    """The taps of a phase are not every n-th one."""


def _phase(op: Op, strides: Sequence[_Stride], rests: Sequence[int]) -> Tensor | None:
    """The phase of these remainders, None where it is 0. Raises `_NoBox`."""
    env: dict[str, Expr] = {}
    axes, reduce = dict(op.axes), dict(op.reduce_axes)
    for s, rest in zip(strides, rests, strict=True):
        axes[s.axis] = -(-(axes[s.axis] - rest) // s.size)
        if axes[s.axis] < 1:
            return None
        env[s.axis] = Var(s.axis) * s.size + rest
    found: list[Tensor] = []
    taps = [s for s in strides if s.tap]
    for starts in itertools.product(*(range(min(s.step, reduce[s.tap])) for s in taps if s.tap)):
        sizes = dict(reduce)
        for s, start in zip(taps, starts, strict=True):
            assert s.tap is not None
            sizes[s.tap] = -(-(reduce[s.tap] - start) // s.step)
            env[s.tap] = Var(s.tap) * s.step + start
        ranges: Ranges = {v: (0, n - 1) for v, n in (axes | sizes).items()}
        value = tidy(placed(op.values[0], env), ranges)
        if isinstance(value, Const) and value.value == 0:
            continue
        found.append(_without_ones(op, value, axes, sizes, "".join(map(str, rests))))
        if len(found) > 1 or any(_is_congruence(c) for c in guards(value)[0]):
            raise _NoBox
    return found[0] if found else None


def _is_congruence(c: Expr) -> bool:
    return any(isinstance(x, Binary) and x.op == "%" for x in E.walk(c))


def _without_ones(op: Op, value: Expr, axes: dict[str, int], sizes: dict[str, int], which: str) -> Tensor:
    """A stage that sums over the axes that are longer than 1."""
    value = placed(value, {v: Const(0) for v, n in sizes.items() if n == 1})
    name = f"{op.names[0]}_phase{which}" if op.names[0] else None
    left = tuple((v, n) for v, n in sizes.items() if n > 1)
    return like(op, value, axes=tuple(axes.items()), reduce_axes=left, names=(name,))


def _interleaved(op: Op, strides: Sequence[_Stride], phases: Mapping[tuple[int, ...], Tensor | None]) -> Expr:
    """The element of the phase that the remainders of ``i0, i1, …`` tell."""
    axes = {v: t for (v, _), t in zip(op.axes, targets(len(op.axes)), strict=True)}
    size = {s.axis: s.size for s in strides}
    index = [t // size[v] if v in size else t for v, t in axes.items()]
    rest = [axes[s.axis] % s.size for s in strides]
    some = [(rests, t) for rests, t in phases.items() if t is not None]
    if len(some) == 1:
        ((rests, only),) = some
        conds = [E.compare("==", r, n) for r, n in zip(rest, rests, strict=True)]
        return guarded(conds, at(only, index))

    def choose(k: int, rests: tuple[int, ...]) -> Expr:
        if k == len(strides):
            t = phases[rests]
            return zero(E.dtype_of(op.values[0])) if t is None else at(t, index)
        # The last is the first phase, which has a point for each of the others': its place needs no proof.
        value = choose(k + 1, (*rests, 0))
        for n in range(strides[k].size - 1, 0, -1):
            other = choose(k + 1, (*rests, n))
            if other != value:
                value = E.select(E.compare("==", rest[k], n), other, value)
        return value

    return choose(0, ())
