"""unfold: store a copied tensor once for each place at which a window reads it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Load, Var
from schedules.ir import Access, Block, Iter, Nest
from schedules.ir.nest import (
    axis_ranges,
    find_loop,
    fresh_each,
    readers,
    reads,
    redirect_reads,
    replace_stmt,
    set_buffer,
    subtree_of,
    whole_axis,
    wrap_loops,
)
from schedules.loads import Indices
from schedules.model import Target
from schedules.primitives.base import Primitive, as_tuple, listed, require_buffer
from schedules.primitives.pack import copy_of


@dataclass(frozen=True)
class Unfold(Primitive[None]):
    """Give axes of the block that reads a copied tensor dimensions of their own in the copy. ``loops``: the
    loops that they are.

    Before: ``P_global[x0, x1] = P[x0, x1]; C[i, o] += P_global[2 * i + k // 3, k % 3] * W[k, o]``. After
    ``unfold("P_global", ["C_k"])``::

        P_global[u0, u1] = P[2 * u0 + u1 // 3, u1 % 3]
        C[i, o] += P_global[i, k] * W[k, o]

    Each index in which one of the axes stands is opened: all axes in it become dimensions, which stand where
    the first such index stood. So what a window reads is stored once for each place of the window (im2col:
    Chellapilla et al., "High Performance Convolutional Neural Networks for Document Processing", 2006), and
    digits of an axis are one dimension.

    Legal for a buffer made by `CacheRead` or `CacheReadOffset` whose copy still has its own plain loops,
    which hold nothing else, and that one block reads at one place, inside of it wherever the axes are. The
    loops are axes of that block from beginning to end. Cost: the copy is larger where windows overlap. Loops
    of the copy are called ``<block>_u0, ...``.

    >>> s.cache_read("y", "x")
    'x_global'
    >>> s.unfold("x_global", ["y_k"])
    """

    name: ClassVar[str] = "unfold"
    buffer: str
    loops: tuple[str, ...]

    @classmethod
    def of(cls, buffer: str, loops: Sequence[str]) -> Unfold:
        """As `Schedule` has it."""
        return cls(buffer, as_tuple(loops))

    def sentence(self) -> str:
        return f"Store `{self.buffer}` once for each place at which the loops {listed(self.loops)} read it."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        require_buffer(nest, self.buffer, self.name)
        copy_of(nest, self.buffer, self, "unfolded")
        b, read = self._reader(nest)
        axes = self._axes(nest, b)
        used = {v for i in read.indices for v in E.variables(i)}
        idle = [v for v, a in zip(self.loops, axes, strict=True) if a not in used]
        if idle or not axes:
            raise self.refused(
                f"{' '.join(idle) or 'no loop'} does not move what {b.name} reads of it; name loops that do"
            )
        out = Unfolding.of(b, read, axes).leaving(nest, b)
        if out is not None:
            raise self.refused(
                f"{b.name} reads it at {E.show(out)}, which is not known to stay inside of it; pad what it "
                "copies first, and unfold before other steps"
            )

    def _reader(self, nest: Nest) -> tuple[Block, Load]:
        """The block that reads the copy, and where."""
        found = [(b, x) for b in readers(nest, self.buffer) for x in dict.fromkeys(reads(b))]
        mine = [(b, x) for b, x in found if x.buffer == self.buffer]
        if len(mine) != 1:
            raise self.refused(f"it is read at {len(mine)} places; give each its own copy by cache_read_part")
        b, read = mine[0]
        if any(map(E.loads, read.indices)):
            raise self.refused(f"{b.name} gathers from it, so that the place of a read is not known")
        return b, read

    def _axes(self, nest: Nest, b: Block) -> list[str]:
        """The axes of the block that the loops are. Raises ScheduleError."""
        places = [whole_axis(b, find_loop(nest, v)) for v in self.loops]
        for v, at in zip(self.loops, places, strict=True):
            if at is None:
                raise self.refused(
                    f"loop {v} is not a whole axis of block {b.name}, which reads it; unfold before other "
                    "steps"
                )
        return [b.iters[at].var for at in places if at is not None]

    def apply(self, nest: Nest) -> Nest:
        (b, read), old = self._reader(nest), nest.buffer(self.buffer)
        how, copy = Unfolding.of(b, read, self._axes(nest, b)), copy_of(nest, self.buffer, self, "unfolded")
        extents = {i.var: i.extent for i in b.iters}
        shape = how.placed(old.shape, [extents[v] for v in how.axes])
        iters = tuple(Iter(f"u{d}", n, "spatial") for d, n in enumerate(shape))
        here = tuple(Var(i.var) for i in iters)
        value = E.substitute(
            copy.values[0], dict(zip((i.var for i in copy.iters), how.source(here), strict=True))
        )
        new = Block(copy.name, iters, (Const(0),) * len(iters), (Access(old.name, here),), (value,))
        loops = wrap_loops(new, fresh_each(nest, (f"{copy.name}_{i.var}" for i in iters)))
        nest = replace_stmt(nest, subtree_of(nest, copy.name), loops)
        nest = replace_stmt(nest, b, redirect_reads(b, old.name, old.name, lambda _: how.place))
        return set_buffer(nest, replace(old, shape=shape))


@dataclass(frozen=True)
class Unfolding:
    """A read whose copy has dimensions for axes. ``opened``: the indices that these are instead of.
    ``axes``: all axes of the block in them."""

    read: Load
    opened: tuple[int, ...]
    axes: tuple[str, ...]

    @staticmethod
    def of(b: Block, read: Load, axes: Collection[str]) -> Unfolding:
        """``axes``: of the block; the read has one or more of them."""
        opened = tuple(k for k, i in enumerate(read.indices) if not E.variables(i).isdisjoint(axes))
        inside = {v for k in opened for v in E.variables(read.indices[k])}
        return Unfolding(read, opened, tuple(i.var for i in b.iters if i.var in inside))

    def placed(self, old: Sequence[Expr], new: Sequence[Expr]) -> Indices:
        """Of each old dimension, and of each new one: of the dimensions of the copy."""
        kept = [(k, e) for k, e in enumerate(old) if k not in self.opened]
        before = [e for k, e in kept if k < self.opened[0]]
        return (*before, *new, *(e for k, e in kept if k > self.opened[0]))

    @property
    def place(self) -> Indices:
        """What the block reads of the copy."""
        return self.placed(self.read.indices, [Var(v) for v in self.axes])

    def source(self, at: Indices) -> Indices:
        """What lies at ``at``, by the old indices."""
        first, count = self.opened[0], len(self.axes)
        axes = dict(zip(self.axes, at[first : first + count], strict=True))
        kept = iter((*at[:first], *at[first + count :]))
        every = enumerate(self.read.indices)
        return tuple(E.substitute(i, axes) if k in self.opened else next(kept) for k, i in every)

    def leaving(self, nest: Nest, b: Block) -> Expr | None:
        """An opened index that may lie outside of the buffer for some of its axes; None if none does."""
        ranges, shape = axis_ranges(b.iters), nest.buffer(self.read.buffer).shape
        for k in self.opened:
            at, n = affine.bounds(self.read.indices[k], ranges), shape[k]
            if at is None or not isinstance(n, Const) or at[0] < 0 or at[1] >= n.value:
                return self.read.indices[k]
        return None
