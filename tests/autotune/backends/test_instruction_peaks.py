"""The loop that measures the peak of an instruction."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from autotune.backends.peaks.instruction_peaks import InstructionLoop, InstructionLoops, _schedule
from autotune.codegen.llvm.intrinsic import has
from autotune.targets import detect
from schedules.instructions import INSTRUCTIONS, Instruction
from schedules.ir import Intrinsic, walk
from schedules.ir.interp import run
from schedules.model import Target
from schedules.passes.lower import lower

ADDING = [x.name for x in INSTRUCTIONS.values() if x.meaning.stages[0].reducer is not None]
ANY = Target("cpu", "x86-64-v4")


def terms(ins: Instruction) -> int:
    return prod(a.extent for a in ins.meaning.stages[0].reduce_axes)


@pytest.mark.parametrize("name", ADDING)
def test_the_loop_is_the_instruction_alone(name: str) -> None:
    """Each result has what one of them adds, as often as there are steps."""
    ins = INSTRUCTIONS[name]
    s = _schedule(ins, 2, 16, ANY)
    f = lower(s.nest)
    found = {x.instruction.name for x in walk(f.body) if isinstance(x, Intrinsic)}
    assert found == {ins.name} | ({ins.start.name} if ins.start is not None else set())
    if ins.operations > 1024:  # too many for the interpreter: only compiled, below
        return
    arrays = {t.name: np.ones(t.shape, t.dtype) for t in s.dag.params}
    run(f, arrays)
    assert (arrays[ins.result.name] == 16 * terms(ins)).all()


@pytest.mark.parametrize("name", ADDING)
def test_it_runs_where_there_is_one(name: str) -> None:
    ins, here = INSTRUCTIONS[name], detect(threads=1)
    if not has(ins, here.features):
        pytest.skip(f"this CPU has no {', '.join(ins.features)}")
    loop = InstructionLoop(ins, here)
    held = 12 if ins.registers is None else ins.registers.count - 2
    steps, rest = divmod(loop.operations, held * ins.operations)
    assert loop.rate(2) > 0 and loop.rate(2, cpu_clock=True) > 0 and not rest
    assert (loop.arrays[-1] == steps * terms(ins)).all()
    assert InstructionLoops(here, ins).flops_a_second() > 0
