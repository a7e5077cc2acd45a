"""Loops that are marked as an instruction become one."""

from __future__ import annotations

from collections.abc import Mapping

from schedules.instructions.match import NoMatch, match
from schedules.ir import Alloc, Buffer, Intrinsic, Loop, Stmt, with_body
from schedules.ir.strides import known_strides

Strides = Mapping[str, tuple[int, ...]]


def tensorize(s: Stmt, params: tuple[Buffer, ...], tails: bool = False, grid: bool = False) -> Stmt:
    """``s`` with every marked loop as its instruction; in a ``grid`` those that the lanes of a warp do
    together. A copy of it that is a tail stays a loop. Raises NoMatch where none of the loops marked with an
    instruction is it, unless all of them may be ``tails``."""
    made: set[str] = set()
    refused: dict[str, NoMatch] = {}

    def go(x: Stmt, strides: Strides) -> Stmt:
        if isinstance(x, Alloc):
            inner = {**strides, x.buffer.name: known_strides(x.buffer)}
            return with_body(x, lambda y: go(y, inner))
        if isinstance(x, Loop) and (ins := x.instruction) is not None and (ins.collective or not grid):
            try:
                found = Intrinsic(ins, match(x, ins, strides), x)
            except NoMatch as err:
                refused.setdefault(ins.name, err)
                return x
            made.add(ins.name)
            return found
        return with_body(x, lambda y: go(y, strides))

    out = go(s, {b.name: known_strides(b) for b in params})
    for name, err in refused.items():
        if name not in made and not tails:
            raise err
    return out
