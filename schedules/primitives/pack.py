"""pack: change the layout of a cached tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from schedules import expr as E
from schedules.dtypes import holds, is_integer
from schedules.expr import Binary, Cast, Const, Expr, Load, Var
from schedules.ir import Access, Block, Buffer, Iter, Nest, const
from schedules.ir.nest import (
    loops_of,
    map_blocks,
    only_block,
    redirect_reads,
    replace_stmt,
    set_buffer,
    subtree_of,
    wrap_loops,
    writers,
)
from schedules.model import Target
from schedules.primitives.base import (
    Factor,
    Primitive,
    as_expr,
    as_tuple,
    require_buffer,
    require_extent,
    require_new,
)


@dataclass(frozen=True)
class Pack(Primitive[list[str]]):
    """Store a copied tensor in tiles, padded with zeros to whole tiles.

    ``tiles``: for each dimension the tile size, or 0 to leave the dimension whole. The new dimensions are
    first one for each old dimension (its number of tiles, or its extent), then the tile sizes in order.
    ``order`` permutes them, outermost first. ``pack(B_global, [0, 16], [1, 0, 2])`` of B[k, n] gives
    ``B_global[n // 16, k, n % 16]``: the panels of a packed matrix multiplication. An empty ``order`` leaves
    the dimensions as they are, and only pads them: ``pack(B_global, [0, 16], [])`` gives ``B_global[k, n]``.

    Legal for a buffer made by `CacheRead` or `CacheReadOffset` whose copy still has its own plain loops,
    which hold nothing else. Cost: the copy gathers, and the consumer then reads with unit stride. Loops of
    the copy are called ``<block>_p0, ...``.

    >>> s.cache_read("y", "w")
    'w_global'
    >>> s.pack("w_global", [0, 16], [1, 0, 2])
    ['w_global_p0', 'w_global_p1', 'w_global_p2']
    >>> s.loops("w_global")
    ['w_global_p0', 'w_global_p1', 'w_global_p2']
    """

    name: ClassVar[str] = "pack"
    buffer: str
    tiles: tuple[int | E.Hole, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, buffer: str, tiles: Sequence[Factor], order: Sequence[int]) -> Pack:
        """As `Schedule` has it."""
        return cls(buffer, as_tuple(tiles), as_tuple(order))

    def result(self) -> list[str]:
        return [f"{self.buffer}_p{d}" for d in range(len(self.order or self.tiles))]

    def sentence(self) -> str:
        tiled = ", ".join(f"dimension {d} by {t}" for d, t in enumerate(self.tiles) if t != 0)
        order = ", ".join(map(str, self.order))
        if not self.order:
            return f"Pad `{self.buffer}` with zeros to whole tiles ({tiled or 'none'})."
        return (
            f"Store `{self.buffer}` in tiles ({tiled or 'none'}), its dimensions in the order {order}, "
            "padded with zeros."
        )

    def check(self, nest: Nest, target: Target | None = None) -> None:
        require_buffer(nest, self.buffer, self.name)
        copy_of(nest, self.buffer, self, "packed")
        rank = len(nest.buffer(self.buffer).shape)
        if len(self.tiles) != rank:
            raise self.refused(
                f"{len(self.tiles)} tile sizes for {rank} dimensions; use 0 for a dimension left whole"
            )
        if any(isinstance(t, int) and t < 0 for t in self.tiles):
            raise self.refused(f"tile sizes {list(self.tiles)} must be >= 0")
        require_extent(max((t for t in self.tiles if isinstance(t, int)), default=0), f"pack {self.buffer}")
        require_new(nest, tuple(self.result()), f"pack {self.buffer}")
        n = rank + sum(t != 0 for t in self.tiles) if self.order else 0
        if sorted(self.order) != list(range(n)):
            raise self.refused(f"order {list(self.order)} is not a permutation of 0..{n - 1}")

    def _index(self, shape: tuple[Expr, ...], at: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Packed indices of an element of a buffer with this shape. A dimension within one tile is not
        divided: the proof that it is may need what holes are."""
        if not self.order:
            return at
        extents = zip(shape, self.tiles, strict=True)
        within = [isinstance(t, int) and (size := const(n)) is not None and size <= t for n, t in extents]
        each = list(zip(at, self.tiles, within, strict=True))
        outer = [i if t == 0 else Const(0) if one else i // as_expr(t) for i, t, one in each]
        inner = [i if one else i % as_expr(t) for i, t, one in each if t != 0]
        both = outer + inner
        return tuple(both[o] for o in self.order)

    def apply(self, nest: Nest) -> Nest:
        copy = copy_of(nest, self.buffer, self, "packed")
        old = nest.buffer(self.buffer)
        src = copy.values[0]
        outer = [
            n if t == 0 else E.ceildiv(n, as_expr(t)) for n, t in zip(old.shape, self.tiles, strict=True)
        ]
        inner = [as_expr(t) for t in self.tiles if t != 0]
        shape = tuple((outer + inner)[o] for o in self.order)
        if not self.order:
            shape = tuple(n if t == 0 else n * as_expr(t) for n, t in zip(outer, self.tiles, strict=True))
        iters = tuple(Iter(f"p{d}", n, "spatial") for d, n in enumerate(shape))
        place = {o: Var(iters[d].var) for d, o in enumerate(self.order or range(len(shape)))}
        at: list[Expr] = []
        conds: list[Expr] = []
        n_inner = len(old.shape)
        for d, (n, t) in enumerate(zip(old.shape, self.tiles, strict=True)):
            i: Expr = place[d]
            if t != 0 and self.order:
                i = i * as_expr(t) + place[n_inner]
                n_inner += 1
            at.append(i)
            conds += [i < n] if t != 0 else []
        value = E.substitute(src, dict(zip((i.var for i in copy.iters), at, strict=True)))
        zero = Const(0.0 if E.is_float(old.dtype) else 0, old.dtype)
        new = Block(
            copy.name,
            iters,
            tuple(Const(0) for _ in iters),
            (Access(old.name, tuple(Var(i.var) for i in iters)),),
            (E.select(E.all_of(*conds), value, zero),),
        )
        stmt = wrap_loops(new, self.result())
        nest = replace_stmt(nest, subtree_of(nest, copy.name), stmt)
        index = partial(self._index, old.shape)
        nest = map_blocks(
            nest, lambda b: b if b.name == new.name else redirect_reads(b, old.name, old.name, index)
        )
        return set_buffer(nest, Buffer(old.name, shape, old.dtype, old.scope))


def copy_of(nest: Nest, buffer: str, of: Primitive[Any], done: str) -> Block:
    """The block that makes ``buffer`` by copying another, in plain loops of its own. ``of``: the primitive
    that asks. ``done``: what it does to a buffer, as a participle. Raises ScheduleError."""
    ws = writers(nest, buffer)
    if buffer in nest.params or len(ws) != 1:
        raise of.refused(f"only a buffer made by cache_read can be {done}; cache_read it first")
    b = ws[0]
    if b.reducer is not None or len(b.values) != 1 or not _is_copy(b.values[0]):
        raise of.refused(f"block {b.name} computes it; cache_read it and {of.name} the copy")
    if subtree_of(nest, b.name) is b or tuple(Var(s.var) for s in loops_of(nest, b.name)) != b.binds:
        raise of.refused(f"block {b.name} is scheduled already; {of.name} it first")
    only_block(loops_of(nest, b.name)[0], b.name, of.name)
    if b.writes[0].indices != tuple(Var(i.var) for i in b.iters):
        raise of.refused(f"its dimensions were reordered; leave out reorder_storage, and {of.name} it first")
    return b


def _is_copy(e: Expr) -> bool:
    """Whether a value is an element of another buffer, in a wider dtype (`widen`), or an integer with a
    number added (`cache_read_offset`)."""
    match e:
        case Cast(dtype=d, a=Binary(op="+", a=Cast(a=x), b=Const())) if is_integer(d):
            return isinstance(x, Load)
    x = e
    while isinstance(x, Cast):
        x = x.a
    return isinstance(x, Load) and holds(E.dtype_of(e), x.dtype)
