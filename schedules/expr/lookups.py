"""Tables of few numbers as expressions: comparisons of the index, of which generators make a table again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from schedules.expr.nodes import INDEX, Compare, Const, Expr, Select, children, dtype_of, select

# Most entries: codes of 4 bits.
MOST_ENTRIES = 16


@dataclass(frozen=True)
class Lookup:
    """``values[index]``; below 0 the first of them, beyond the last the last."""

    index: Expr
    values: tuple[Const, ...]


def lookup(values: Sequence[Const], index: Expr) -> Expr:
    """The entry of a table at an index, by as few comparisons as tell it."""
    middle = len(values) // 2
    return _below(values, index, 0, middle) if len(values) > 1 else values[0]


def _below(values: Sequence[Const], index: Expr, first: int, middle: int) -> Expr:
    """The entry, of those from number ``first`` on. ``middle``: the first of the second half."""
    low, high = values[:middle], values[middle:]
    sides = [
        x[0] if len(x) == 1 else _below(x, index, at, len(x) // 2)
        for x, at in ((low, first), (high, first + middle))
    ]
    return select(Compare("<", index, Const(first + middle, dtype_of(index))), *sides)


@lru_cache(maxsize=256)
def lookup_of(e: Expr) -> Lookup | None:
    """The table of three numbers or more that an expression asks, as `lookup` makes it; None for others."""
    if not isinstance(e, Select) or not isinstance(e.cond, Compare) or dtype_of(e.cond.a) == INDEX:
        return None
    index, values = e.cond.a, list[Const]()
    return Lookup(index, tuple(values)) if _gather(e, index, values) and len(values) > 2 else None


def code_size(e: Expr) -> int:
    """About how much code an expression is: its nodes; of a table the entries, and its index once."""
    if isinstance(e, Select) and (table := lookup_of(e)) is not None:
        return len(table.values) + code_size(table.index)
    return 1 + sum(map(code_size, children(e)))


def _gather(e: Expr, index: Expr, values: list[Const]) -> bool:
    """Whether an expression is the entries that follow ``values`` by comparisons of the index. Appends
    them."""
    if isinstance(e, Const):
        values.append(e)
        return len(values) <= MOST_ENTRIES
    match e:
        case Select(cond=Compare(op="<", a=a, b=Const(value=int(end))), a=low, b=high) if a == index:
            return _gather(low, index, values) and len(values) == end and _gather(high, index, values)
    return False
