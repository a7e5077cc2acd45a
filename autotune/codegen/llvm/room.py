"""How many vectors a loop may have loaded before it begins, without what it computes losing registers."""

from __future__ import annotations

from collections.abc import Iterator

from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.ir import Loop, Stmt, Store, const, kids, walk
from schedules.ir.exprs import loads

OTHERS = 2  # registers for what streams through
LEAST = 2


def room(loop: Loop, registers: int, vector_bytes: int) -> int:
    """Registers that are left beside what an iteration of ``loop`` accumulates, which stays in them. What
    more is loaded before the loop waits on the stack: as whole vectors, even where an element for all lanes
    would have come with the instruction that uses it."""
    read = {x.buffer for s in walk(loop.body) for x in loads(s)}
    kept: dict[str, int] = {}
    for buffer, vectors in _stored(loop.body, (), vector_bytes):
        if buffer in read:
            kept[buffer] = max(kept.get(buffer, 0), vectors)
    return max(registers - OTHERS - sum(kept.values()), LEAST)


def _stored(s: Stmt, inside: tuple[Loop, ...], vector_bytes: int) -> Iterator[tuple[str, int]]:
    """The buffer of each store, and how many vectors of it are stored; ``inside``: the loops around it that
    are written out."""
    if isinstance(s, Store):
        variables = frozenset().union(*(E.variables(i) for i in s.indices))
        count = 1
        for loop in inside:
            if loop.var in variables:
                extent = const(loop.extent) or 1
                size = extent * DTYPES[E.dtype_of(s.value)].itemsize
                count *= extent if loop.kind == "unroll" else -(-size // vector_bytes)
        yield s.buffer, count
    elif isinstance(s, Loop) and s.kind in ("unroll", "vectorize"):
        inside = (*inside, s)
    for x in kids(s):
        yield from _stored(x, inside, vector_bytes)
