"""Streaming stores: results written around the caches, if their arrays are aligned for it (ADR 24).

Only the call shows the alignment, so statements that write a streamed result are emitted twice, under a test:
with and without streaming stores. Other code is emitted once, because compiling everything twice takes twice
as long.
"""

from __future__ import annotations

from schedules.ir import Loop, Stmt, Store, kids

# Alignment of streaming stores (bytes). numpy's arrays have it, and wider vectors are written in such pieces.
STREAM_ALIGN = 16
# Emitted after streaming stores, before another thread is told that they are done.
FENCE = "  fence seq_cst"


def forks(s: Stmt, streamed: tuple[str, ...]) -> frozenset[int]:
    """Identities of the statements of ``s`` that are emitted twice: the largest that write only streamed
    buffers, and innermost loops that also write others, so that no iteration tests the alignment."""
    found: set[int] = set()
    if not streamed:
        return frozenset()

    def go(x: Stmt) -> tuple[bool, bool, bool]:
        """(writes streamed buffers, writes others, has a loop)."""
        if isinstance(x, Store):
            return x.buffer in streamed, x.buffer not in streamed, False
        inside = [go(k) for k in kids(x)]
        some, others, loops = (any(column) for column in zip(*inside)) if inside else (False,) * 3
        runs = isinstance(x, Loop) and x.kind not in ("unroll", "vectorize")
        whole = isinstance(x, Loop) and (x.kind == "vectorize" or (runs and not loops))
        if some and (whole or not others):
            found.add(id(x))
        return some, others, loops or runs

    go(s)
    return frozenset(found)
