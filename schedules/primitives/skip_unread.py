"""skip_unread: leave out the points of a stage that nothing reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from schedules import affine
from schedules import expr as E
from schedules.expr import Compare, Const, Expr, Var, is_float
from schedules.ir import Nest
from schedules.ir.nest import DOMAIN, find_block, of_kind, replace_stmt
from schedules.ir.unread import made_where, read_where
from schedules.model import Target
from schedules.primitives.base import Factor, Primitive, as_expr


@dataclass(frozen=True)
class SkipUnread(Primitive[None]):
    name: ClassVar[str] = "skip_unread"
    block: str
    tiles: tuple[Factor, ...]

    def sentence(self) -> str:
        return f"Leave out what `{self.block}` makes and nothing reads."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        b = find_block(nest, self.block)
        if len(self.tiles) != len(of_kind(b, "spatial")):
            raise self.refused("give the size of a tile for each of its axes")
        if not all(is_float(nest.buffer(w.buffer).dtype) for w in b.writes):
            raise self.refused("it makes integers")
        if not made_where(b, read_where(nest)):
            raise self.refused("nothing is known to be unread")

    def apply(self, nest: Nest) -> Nest:
        b = find_block(nest, self.block)
        tiles = {i.var: as_expr(t) for (i, _), t in zip(of_kind(b, "spatial"), self.tiles, strict=True)}
        where = tuple(self._coarse(c, tiles) for c in made_where(b, read_where(nest)))
        marks = tuple(dict.fromkeys((*b.annotations, (DOMAIN, 1))))
        return replace_stmt(nest, b, replace(b, where=(*b.where, *where), annotations=marks))

    @staticmethod
    def _coarse(c: Expr, tiles: dict[str, Expr]) -> Expr:
        assert isinstance(c, Compare)
        terms, rest = affine.linear(c.a - c.b)
        out: Expr = rest
        for v, k in terms.items():
            assert isinstance(v, Var) and isinstance(k, Const)
            t = tiles.get(v.name, Const(1))
            first = v if t == Const(1) else v // t * t
            out = out + k * (first if k.value > 0 else first + (t - 1))
        return E.compare(c.op, out, 0)
