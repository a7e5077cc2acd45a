"""How loops that are one instruction look to the estimates: as vectors that cost as much.

The axes of the result are the lanes of one register. What an operand has for a lane is one element of as many
bytes: a pair of bfloat16 is a float32. So a product by an instruction has the facts of one of vectors, with
shorter sums, and a copy that interleaves has those of a copy of pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Const, Expr
from schedules.ir import Loop, const
from schedules.ir.instruction import Instruction
from schedules.space.estimate.traffic import BlockAccess

# {bytes: a dtype of as many}
WORDS = {d.itemsize: name for name, d in DTYPES.items() if d.kind == "float"}


@dataclass(frozen=True)
class Instructed:
    """The loops of a block that are one instruction: those over lanes of its result, and those over the terms
    of a lane, that is, of a sum or of what a copy brings together."""

    instruction: Instruction
    lanes: tuple[Loop, ...]
    terms: tuple[Loop, ...]

    @staticmethod
    def of(
        loops: Sequence[Loop], red: Collection[str], written: Callable[[], BlockAccess]
    ) -> Instructed | None:
        """Those among the loops around a block; None if none are. ``red``: loops of a reduction.
        ``written``: gives what the block writes."""
        marked = next((k for k, x in enumerate(loops) if x.instruction is not None), None)
        if marked is None:
            return None
        one, ins = loops[marked:], loops[marked].instruction
        assert ins is not None
        terms = tuple(x for x in one if x.var in red) or _brought_together(one, written())
        return Instructed(ins, tuple(x for x in one if x not in terms), terms)

    @property
    def names(self) -> frozenset[str]:
        """Of its loops."""
        return frozenset(x.var for x in (*self.lanes, *self.terms))

    @property
    def width(self) -> int:
        """Lanes of the result."""
        return prod(_extents(self.lanes))

    def stride(self, at: tuple[Expr, ...]) -> Const:
        """Elements between neighbouring lanes of an access: its lanes fill a register, or all are one."""
        return Const(int(any(_moves(x, at) for x in self.lanes)))

    def pieces(self, place: BlockAccess) -> float:
        """Rows that may lie apart from each other, for each element of an access that `merged` has."""
        ins = self.instruction
        for t in (ins.result,) if place.write else ins.meaning.inputs:
            if t.dtype == place.buffer.dtype and sorted(t.shape) == sorted(self._extents_in(place.at)):
                rows = [n for d, n in enumerate(t.shape) if (t.name, d) in ins.free]
                return prod(rows) * self._each(place) / prod(t.shape) if rows else 0.0
        return 0.0

    def merged(self, place: BlockAccess) -> BlockAccess:
        """An access by elements that are what a lane has, where these lie side by side in a row."""
        each = self._each(place)
        inside = {x.var: (0, n - 1) for x, n in zip(self.terms, _extents(self.terms), strict=True)}
        buf, at, write = place._replace(at=tuple(affine.simplify(i, inside) for i in place.at))
        if each == 1:
            return BlockAccess(buf, at, write)
        dtype = WORDS[DTYPES[buf.dtype].itemsize * each]
        columns = affine.simplify(E.ceildiv(buf.shape[-1], Const(each)), {})
        if columns == Const(1):
            return BlockAccess(replace(buf, shape=buf.shape[:-1], dtype=dtype), at[:-1], write)
        last = affine.simplify(at[-1] // each, inside)
        buf = replace(buf, shape=(*buf.shape[:-1], columns), dtype=dtype)
        return BlockAccess(buf, (*at[:-1], last), write)

    def _each(self, place: BlockAccess) -> int:
        """Elements of a buffer that are one of `merged`."""
        held = prod(self._extents_in(place.at))
        each = held // self.width if self.stride(place.at) == Const(1) else held
        beside = place.at and any(_moves(x, place.at[-1:]) for x in self.terms)
        return each if beside and each and DTYPES[place.buffer.dtype].itemsize * each in WORDS else 1

    def _extents_in(self, at: tuple[Expr, ...]) -> list[int]:
        """Extents of the loops that an access moves with."""
        return _extents(x for x in (*self.lanes, *self.terms) if _moves(x, at))


def _brought_together(loops: Sequence[Loop], written: BlockAccess) -> tuple[Loop, ...]:
    """The loop of a copy over the last dimension that it writes, if that is a word."""
    buf, at, _ = written
    found = [x for x in loops if _moves(x, at[-1:])]
    if len(found) == 1 and buf.shape[-1] == found[0].extent and len(at) > 1:
        if DTYPES[buf.dtype].itemsize * _extents(found)[0] in WORDS:
            return tuple(found)
    return ()


def _moves(x: Loop, at: tuple[Expr, ...]) -> bool:
    return any(x.var in E.variables(i) for i in at)


def _extents(loops: Iterable[Loop]) -> list[int]:
    return [const(x.extent) or 1 for x in loops]
