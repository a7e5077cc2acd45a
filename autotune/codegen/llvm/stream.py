"""Streaming stores: results written around the caches, where their arrays are aligned for it.

Only the call shows how an array lies, so what writes a streamed result is there twice, under a test: with
streaming stores and without. Nothing else is: writing is a small part of most kernels, and a compiler takes
twice as long for all of it twice.
"""

from __future__ import annotations

from schedules.ir import Loop, Stmt, Store, kids

STREAM_ALIGN = 16  # bytes: numpy's arrays are that, and vectors of more are written in pieces of it
FENCE = "  fence seq_cst"  # after streaming stores, before anyone is told that they were made


def forks(s: Stmt, streamed: tuple[str, ...]) -> frozenset[int]:
    """Identities of the statements of ``s`` that are to be there twice: the largest that write streamed
    buffers and nothing else, and innermost loops that write one among others, so that none tests anything."""
    found: set[int] = set()
    if not streamed:
        return frozenset()

    def go(x: Stmt) -> tuple[bool, bool, bool]:
        """Whether it writes streamed buffers, whether others, and whether a loop runs in it."""
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
