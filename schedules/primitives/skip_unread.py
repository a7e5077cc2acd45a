"""skip_unread: leave out the points of a block that nothing reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from schedules import affine
from schedules import expr as E
from schedules.expr import Compare, Const, Expr, Var, is_float
from schedules.ir import Nest
from schedules.ir.nest import DOMAIN, find_block, of_kind, replace_stmt
from schedules.ir.unread import made_where, read_where
from schedules.model import Target
from schedules.primitives.base import Factor, Primitive, as_expr, as_tuple


@dataclass(frozen=True)
class SkipUnread(Primitive[None]):
    """Leave out the points of a block that nothing reads, in whole tiles of its spatial axes. ``tiles``: how
    many points of each axis a tile has.

    Before: ``for i: for j: B[i, j] = f(i, j)``, of which ``select(j <= i, B[i, j], 0)`` is read. After
    ``skip_unread(B, (1, 4))``, when it is lowered::

        for i:
          for j in range(i // 4 * 4 + 4): B[i, j] = f(i, j)

    Legal for a block that makes floating point of which conditions on axes tell what is read: those of
    selects and of domains of its readers, and what these make is read themselves. A reduction that is left
    out still starts. Cost: conditions around the tiles; with tiles of 1 around each point.

    >>> v = te.placeholder((8, 8), name="v")
    >>> b = te.compute((8, 8), lambda i, j: te.exp(v[i, j]), name="b")
    >>> t = te.compute((8, 8), lambda i, j: te.select(j <= i, b[i, j], 0.0), name="t")
    >>> at.Schedule([v, t]).skip_unread("b", (1, 4))
    """

    name: ClassVar[str] = "skip_unread"
    block: str
    tiles: tuple[Factor, ...]

    @classmethod
    def of(cls, block: str, tiles: Iterable[Factor]) -> SkipUnread:
        """As `Schedule` has it."""
        return cls(block, as_tuple(tiles))

    def sentence(self) -> str:
        tile = " by ".join(map(str, self.tiles))
        return f"Leave out the points of `{self.block}` that nothing reads, in tiles of {tile}."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        b = find_block(nest, self.block)
        if len(self.tiles) != (axes := len(of_kind(b, "spatial"))):
            raise self.refused(
                f"it has {axes} axes, and {len(self.tiles)} tiles are given; give one for each axis"
            )
        for t in self.tiles:
            if isinstance(t, int) and not 1 <= t < 1 << 31:
                raise self.refused(f"a tile has {t} points; give 1 or more, fewer than 2**31")
        for w in b.writes:
            if not is_float(nest.buffer(w.buffer).dtype):
                raise self.refused(
                    f"it makes {w.buffer}, integers, which may be places or divide; leave it whole"
                )
        if not made_where(b, read_where(nest)):
            raise self.refused("something may read each point of it; leave it whole")

    def apply(self, nest: Nest) -> Nest:
        b = find_block(nest, self.block)
        tiles = {i.var: as_expr(t) for (i, _), t in zip(of_kind(b, "spatial"), self.tiles, strict=True)}
        where = tuple(_of_tiles(c, tiles) for c in made_where(b, read_where(nest)))
        marks = tuple(dict.fromkeys((*b.annotations, (DOMAIN, 1))))
        return replace_stmt(nest, b, replace(b, where=(*b.where, *where), annotations=marks))


def _of_tiles(c: Expr, tiles: Mapping[str, Expr]) -> Expr:
    """A condition that holds at all points of tiles if it holds at one. It is implied by ``c``."""
    assert isinstance(c, Compare)
    terms, rest = affine.linear(c.a - c.b)
    least: Expr = rest
    for v, k in terms.items():
        assert isinstance(v, Var) and isinstance(k, Const)
        n = tiles[v.name]
        first = v if n == Const(1) else v // n * n
        least = least + k * (first if int(k.value) > 0 else first + (n - 1))
    return E.compare(c.op, least, 0)
