"""Counts the vectors that may be loaded before a loop without taking registers from what it computes."""

from __future__ import annotations

from collections.abc import Iterator

from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.ir import Loop, Stmt, Store, const, kids, walk
from schedules.ir.exprs import loads

# Registers for operands that stream through.
OTHERS = 2
# Least result.
LEAST = 2


def room(loop: Loop, registers: int, vector_bytes: int) -> int:
    """Registers left beside the accumulators of an iteration of ``loop``. More loads before the loop would be
    spilled to the stack, as whole vectors, even where a broadcast would have been part of the instruction
    that uses it."""
    read = {x.buffer for s in walk(loop.body) for x in loads(s)}
    kept: dict[str, int] = {}
    for buffer, vectors in _stored(loop.body, (), vector_bytes):
        if buffer in read:
            kept[buffer] = max(kept.get(buffer, 0), vectors)
    return max(registers - OTHERS - sum(kept.values()), LEAST)


def _stored(s: Stmt, inside: tuple[Loop, ...], vector_bytes: int) -> Iterator[tuple[str, int]]:
    """(buffer, vectors stored) of each store. ``inside``: the unrolled and vectorized loops around it."""
    if isinstance(s, Store):
        count = 1
        for loop in inside:
            if any(loop.var in E.variables(i) for i in s.indices):
                extent = const(loop.extent) or 1
                size = extent * DTYPES[E.dtype_of(s.value)].itemsize
                count *= extent if loop.kind == "unroll" else -(-size // vector_bytes)
        yield s.buffer, count
    elif isinstance(s, Loop) and s.kind in ("unroll", "vectorize"):
        inside = (*inside, s)
    for x in kids(s):
        yield from _stored(x, inside, vector_bytes)
