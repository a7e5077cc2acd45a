"""What the lanes of a warp do together, for the interpreter of grids: each gives its elements of what an
instruction reads, the instruction's meaning is computed, and each takes its elements of the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from schedules.dtypes import DTYPES
from schedules.expr import Binary, Expr, Var
from schedules.ir.instruction import Instruction
from schedules.ir.interp import Compiler, Env, Memory
from schedules.ir.nodes import Intrinsic, Stmt

Elements = dict[str, list[Any]]  # of one lane, by operand
LANE = ".lane"  # the element, of those that a thread reads or writes side by side
PHASE = ".phase"  # which lanes' rows are read at a time
ROWS = 8  # so many lanes'


def give_and_take(
    code: Compiler, s: Intrinsic
) -> tuple[Callable[[Env, int], Elements], Callable[[Env, Elements], None]]:
    """What one lane does for an instruction of all of them: (what it gives, as lane of this number; what it
    does with what it has of the result). ``code``: of the statements around."""
    sizes = {o.name: s.instruction.layouts[o.name].size for o in s.operands}
    at = {o.name: _from(o.indices, code.mem.arrays[o.buffer].shape) for o in s.operands}
    read = [(o.name, code.load(o.buffer, at[o.name])) for o in s.operands]
    result = next(o for o in s.operands if o.name == s.instruction.result.name)
    put = code.place(result.buffer, at[result.name])

    def each(env: Env, n: int) -> Iterator[int]:
        for env[LANE] in range(n):
            yield env[LANE]
        del env[LANE]

    def give(env: Env, lane: int) -> Elements:
        env[PHASE] = lane // ROWS
        out = {name: [load(env) for _ in each(env, sizes[name])] for name, load in read}
        del env[PHASE]
        return out

    def take(env: Env, new: Elements) -> None:
        for i in each(env, sizes[result.name]):
            put(env)(new[result.name][i])

    return give, take


def _from(indices: tuple[Expr, ...], shape: Sequence[int]) -> tuple[Expr, ...]:
    """The place of element `LANE` of those that begin at a place: they lie along the last dimension that has
    more than one."""
    along = max((d for d, n in enumerate(shape) if n > 1), default=len(shape) - 1)
    return tuple(Binary("+", i, Var(LANE)) if d == along else i for d, i in enumerate(indices))


def together(ins: Instruction, lanes: Sequence[Elements]) -> list[Elements]:
    """What each lane has of an instruction's result, by its meaning. ``lanes``: what each has of its
    operands, places as of its layouts."""
    inside = Memory()
    for t in ins.operands:
        layout = ins.layouts[t.name]
        whole = np.empty(t.shape, DTYPES[t.dtype].numpy)
        for lane, own in enumerate(lanes):
            for n, v in enumerate(own[t.name]):
                whole[layout.at(lane, n)] = v
        inside.add(t.name, whole, known=True)
    Compiler(inside, None).stmt(ins.loops)({})
    name = ins.result.name
    out, layout = inside.arrays[name], ins.layouts[name]
    return [{name: [out[layout.at(x, n)] for n in range(layout.size)]} for x in range(len(lanes))]


def is_collective(s: Stmt) -> bool:
    """Whether the lanes of a warp do a statement together."""
    return isinstance(s, Intrinsic) and s.instruction.collective
