"""Programs of grids with a statement left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from schedules.ir import Barrier, Guard, Seq, Stmt, seq, walk, with_body
from schedules.ir.grid import GridProgram


def changed(p: GridProgram, change: Callable[[Stmt], Stmt]) -> GridProgram:
    return replace(p, kernels=tuple(replace(k, body=change(k.body)) for k in p.kernels))


def without(p: GridProgram, kind: type, number: int) -> GridProgram:
    """The program without its ``number``-th barrier or guard."""
    count = iter(range(1000))

    def go(s: Stmt) -> Stmt:
        if isinstance(s, Seq) and kind is Barrier:
            return seq(*[go(x) for x in s.stmts if not (isinstance(x, Barrier) and next(count) == number)])
        if isinstance(s, Guard) and kind is Guard and next(count) == number:
            return go(s.body)
        return with_body(s, go)

    return changed(p, go)


def count(p: GridProgram, kind: type) -> int:
    return sum(isinstance(x, kind) for k in p.kernels for x in walk(k.body))
