"""Neighbouring axes that go on in memory are merged before other rules look, so that these see few long axes
where an expression has many short ones: the height and width of an image, the axes of a mean over a group of
channels.

Two axes are merged if every access of their stage that has one of them steps through memory along the first
as along the end of the second. That must hold in all stages which share a buffer, as its dimensions are
merged with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Load, Var
from schedules.ir import Block, Nest, blocks, const
from schedules.ir.nest import behind, is_scatter, places_of
from schedules.ir.strides import goes_on
from schedules.space.sketch_builder import SketchBuilder

# (stage, n): its axes n and n + 1. (buffer, n): its dimensions n and n + 1.
Pair = tuple[str, int]


def merge_neighbours(d: SketchBuilder) -> None:
    """Merge all axes and dimensions that can be. Call it before any stage is scheduled."""
    axes, dims = _mergeable(d.s.nest, d.inner)
    for b in blocks(d.s.nest.body):
        loops = [x.var for x in d.loops(b.name)]
        for first, count in _runs(axes, b.name):
            merged = d.s.merge_axes(*loops[first : first + count])
            own = {(b.name, i.var) for i in b.iters[first : first + count]}
            if own & d.open:
                now = d.block(b.name)
                d.open -= own
                d.open |= {(b.name, i.var) for i in now.iters if merged in behind(now, i.var)}
    for buffer in [b.name for b in d.s.nest.buffers]:
        for first, count in reversed(_runs(dims, buffer)):  # the last first: the others keep their places
            d.s.merge_dims(buffer, first, count)


def _runs(pairs: set[Pair], name: str) -> list[tuple[int, int]]:
    """The merged pairs of one stage or buffer as (first, count) of what becomes one."""
    out: list[tuple[int, int]] = []
    for n in sorted(k for where, k in pairs if where == name):
        if out and sum(out[-1]) == n + 1:
            out[-1] = out[-1][0], out[-1][1] + 1
        else:
            out.append((n, 2))
    return out


def _mergeable(nest: Nest, apart: frozenset[Pair]) -> tuple[set[Pair], set[Pair]]:
    """The largest sets of pairs of axes and of dimensions that can be merged together: what contradicts
    another is struck until nothing does. ``apart``: pairs that stay."""
    stages = [_Uses.of(b) for b in blocks(nest.body)]
    axes = {(s.block.name, n) for s in stages for n in s.pairs()} - apart
    dims = {
        (b.name, n)
        for b in nest.buffers
        for n in range(len(b.shape) - 1)
        if min(const(b.shape[n]) or 0, const(b.shape[n + 1]) or 0) > 1 and goes_on(b, n)
    } - apart
    before = -1
    while before != len(axes) + len(dims):
        before = len(axes) + len(dims)
        kept = [(s, n) for s in stages for n in s.pairs() if (s.block.name, n) in axes]
        axes = {(s.block.name, n) for s, n in kept if s.merges(nest, n, dims)}
        dims = {(name, n) for name, n in dims if all(s.takes(nest, name, n, axes) for s in stages)}
    wanted = {x for s in stages for n in s.pairs() if (s.block.name, n) in axes for x in s.needs(n)}
    return axes, dims & wanted


@dataclass(frozen=True)
class _Uses:
    """Where a stage uses its axes. ``loads``: what it reads. ``others``: indices that stand elsewhere, as in
    conditions and as values."""

    block: Block
    loads: tuple[Load, ...]
    others: tuple[Expr, ...]

    @staticmethod
    def of(b: Block) -> _Uses:
        found = [
            x for v in (*b.values, *b.where, *(places_of(b) if is_scatter(b) else ())) for x in _parts(v)
        ]
        loads = tuple(dict.fromkeys(x for x in found if isinstance(x, Load)))
        return _Uses(b, loads, tuple(dict.fromkeys(x for x in found if not isinstance(x, Load))))

    def pairs(self) -> list[int]:
        """Neighbouring axes of one kind, both longer than 1."""
        its = () if is_scatter(self.block) else self.block.iters
        return [
            n
            for n, (a, b) in enumerate(pairwise(its))
            if a.kind == b.kind and min(const(a.extent) or 0, const(b.extent) or 0) > 1
        ]

    def merges(self, nest: Nest, n: int, dims: set[Pair]) -> bool:
        """Whether axes ``n`` and ``n + 1`` can be merged with these dimensions."""
        outer, inner = self.block.iters[n], self.block.iters[n + 1]
        if outer.kind == "spatial" and any((w.buffer, n) not in dims for w in self.block.writes):
            return False
        for e in self.others:
            if not _goes_on(e, outer.var, inner.var, inner.extent):
                return False
        for x in self.loads:
            at = self._dimension(x, n)
            if at is None or (at >= 0 and (x.buffer, at) not in dims):
                return False
            if at >= 0 and nest.buffer(x.buffer).shape[at + 1] != inner.extent:
                return False
        return True

    def _dimension(self, x: Load, n: int) -> int | None:
        """The dimension that axis ``n`` moves along in a load, if ``n + 1`` alone moves along the next one;
        -1 if neither axis is in it. None if they do not go on from each other, as overlapping windows."""
        outer, inner = self.block.iters[n], self.block.iters[n + 1]
        used = [E.variables(i) & {outer.var, inner.var} for i in x.indices]
        if not any(used):
            return -1
        at = next((k for k, i in enumerate(x.indices) if i == Var(inner.var)), 0) - 1
        if at < 0 or any(used[:at]) or any(used[at + 2 :]) or used[at] != {outer.var}:
            return None
        terms, start = affine.linear(x.indices[at])
        terms = {a: c for a, c in terms.items() if (a, c) != (Var(outer.var), Const(1))}
        if any(outer.var in E.variables(a) for a in terms):
            return None
        whole = const(outer.extent) or 1
        return at if all((const(c) or 0) % whole == 0 for c in (*terms.values(), start)) else None

    def takes(self, nest: Nest, buffer: str, n: int, axes: set[Pair]) -> bool:
        """Whether the stage allows that dimensions ``n`` and ``n + 1`` of a buffer are merged: it goes over
        them by merged axes, or reads an argument elementwise."""
        b = self.block
        if any(w.buffer == buffer for w in b.writes) and (b.name, n) not in axes:
            return False
        for x in self.loads:
            if x.buffer != buffer or (b.reducer is None and buffer in nest.params):
                continue
            if not any((b.name, k) in axes and self._dimension(x, k) == n for k in self.pairs()):
                return False
        return True

    def needs(self, n: int) -> Iterator[Pair]:
        """The dimensions that are merged with axes ``n`` and ``n + 1``."""
        for x in self.loads:
            at = self._dimension(x, n)
            if at is not None and at >= 0:
                yield x.buffer, at
        if self.block.iters[n].kind == "spatial":
            for w in self.block.writes:
                yield w.buffer, n


def _parts(e: Expr) -> Iterator[Expr]:
    """The loads in an expression, and the largest indices that are none of a load."""
    if isinstance(e, Load):
        yield e
        for i in e.indices:
            yield from (x for x in E.loads(i))
    elif E.dtype_of(e) == E.INDEX:
        yield e
    else:
        for k in E.children(e):
            yield from _parts(k)


def _goes_on(e: Expr, outer: str, inner: str, extent: Expr) -> bool:
    """Whether an index takes as large a step along ``outer`` as along all of ``inner``."""
    if not E.variables(e) & {outer, inner}:
        return True
    terms, _ = affine.linear(e)
    if any(E.variables(a) & {outer, inner} for a in terms if not isinstance(a, Var)):
        return False
    return terms.get(Var(outer), Const(0)) == terms.get(Var(inner), Const(0)) * extent
