"""skip_zeros: leave out steps of a sum that add 0."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from schedules import expr as E
from schedules.expr import Const, Expr, Select
from schedules.ir import Block, Nest
from schedules.ir.nest import find_block, replace_stmt
from schedules.model import Target
from schedules.primitives.base import Primitive


def zero_steps(b: Block) -> tuple[tuple[Expr, ...], Expr] | None:
    """(conditions on axes under which a step of a sum may add something, what it then adds); None if a block
    is no sum of one output, or has no such condition."""
    if b.reducer is None or len(b.writes) != 1 or b.reducer.operation(0) != "+":
        return None
    match b.values[0]:
        case Select(cond=c, a=a, b=Const(value=0)):
            return tuple(E.conjuncts(c)), a
    return None


@dataclass(frozen=True)
class SkipZeros(Primitive[None]):
    """Leave out the steps of a sum whose condition makes them 0.

    Before: ``for a: for t in range(2): for c: y[a] += select(a + 2 * t < 3, x[t, c] * w[a, t, c], 0)``.
    After, when it is lowered::

        for a:
          for t in range(min(2, (4 - a) // 2)):
            for c: y[a] += x[t, c] * w[a, t, c]

    Legal for a sum of one output whose value is a select with 0 as its other side. The condition may read
    data, as of where a row of a sparse matrix ends. A sum begins with +0, which adding 0 leaves as it is.
    Cost: a branch in each loop that the condition depends on, if that is unrolled or has lanes.

    >>> v, t = te.placeholder((3,), name="v"), te.reduce_axis(2, "t")
    >>> u = te.compute((2,), lambda a: te.sum(te.select(a + 2 * t < 3, v[t + a], 0.0), axis=t), "u")
    >>> at.Schedule([v, u]).skip_zeros("u")
    """

    name: ClassVar[str] = "skip_zeros"
    block: str

    def sentence(self) -> str:
        return f"Leave out the steps of `{self.block}` that add 0."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        b = find_block(nest, self.block)
        if b.reducer is None:
            raise self.refused("it is not a reduction")
        if zero_steps(b) is None:
            raise self.refused("it is no sum of one output that adds a select of a value and 0; write it so")

    def apply(self, nest: Nest) -> Nest:
        b = find_block(nest, self.block)
        found = zero_steps(b)
        assert found is not None
        conditions, value = found
        return replace_stmt(nest, b, replace(b, values=(value,), where=(*b.where, *conditions)))
