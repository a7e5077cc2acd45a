"""The peak of an instruction: how many a second this CPU can do, of independent ones on registers.

The loop is a schedule of the instruction's own meaning, compiled as a tuned kernel is. So every instruction
has one, with whatever registers it has.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autotune.backends.peaks.cpu_peaks import CHAINS, STEPS, KernelLoop, LoopsTogether
from autotune.backends.peaks.scheduled_loop import loaded
from schedules.dtypes import is_float
from schedules.instructions import Instruction
from schedules.model import Target
from schedules.schedule import Schedule
from schedules.te.chains import CHAIN
from schedules.te.compute_dag import Axis, ComputeDAG

# Additions to each result in one body: operands are loaded once for them.
AT_ONCE = 8


class InstructionLoop(KernelLoop):
    """The loop of an instruction that adds products: some results in registers, to each of which it adds
    `STEPS` times a run, or as many terms as one chain of float additions has. ``operations``: of a run.

    ``ins``: one that reduces, and has a text for LLVM; ``target`` has its features.

    >>> InstructionLoop(INSTRUCTIONS["vpdpbusd"], target).rate(100)  # operations a second
    6.3e11
    """

    def __init__(self, ins: Instruction, target: Target) -> None:
        steps = CHAIN // ins.terms if is_float(ins.result.dtype) else STEPS  # longer float sums are cut
        held = CHAINS if ins.registers is None else ins.registers.count - len(ins.meaning.inputs)
        one = replace(target, threads=1)
        s = _schedule(ins, held, steps, one)
        self.operations = ins.operations * held * steps
        arrays = [np.ones(t.shape, t.dtype) for t in s.dag.params]
        super().__init__(loaded(s.dag, s.trace, one), arrays)

    def rate(self, runs: int, cpu_clock: bool = False) -> float:
        """Operations a second, now. ``cpu_clock``: of the thread's CPU time."""
        return self.operations * runs / self.seconds(runs, cpu_clock)


class InstructionLoops(LoopsTogether):
    """The loop of an instruction on ``target.threads`` threads at once."""

    def __init__(self, target: Target, ins: Instruction) -> None:
        loop = InstructionLoop(ins, target)
        super().__init__(loop, target.threads, loop.operations)


def _repeated(ins: Instruction, held: int, steps: int) -> ComputeDAG:
    """``held`` results of the instruction, each of which has what it adds ``steps`` times over."""
    stage, out = ins.meaning.stages[0], ins.result
    axes, sums = Axis("peak_n", held), Axis("peak_step", steps)
    made = replace(
        stage,
        outputs=(replace(out, shape=(held, *out.shape)),),
        axes=(axes, *stage.axes),
        reduce_axes=(sums, *stage.reduce_axes),
    )
    return ComputeDAG(ins.meaning.inputs, (made,), (out.name,))


def _schedule(ins: Instruction, held: int, steps: int, target: Target) -> Schedule:
    """``for step: for n: ins(..., c[n])``, with all of c in registers."""
    s, name, rank = Schedule(_repeated(ins, held, steps), target), ins.result.name, len(ins.result.shape)
    copied = s.loops(s.cache_write(name, "local"))
    s.unroll(copied[0])
    s.vectorize(copied[-1])
    n, *rest = s.loops(name)
    one, step, terms = rest[:rank], rest[rank], rest[rank + 1 :]
    outer, inner = s.split(step, (None, AT_ONCE))
    s.reorder(outer, inner, n, *one, *terms)
    for loop in (inner, n):
        s.unroll(loop)
    init = s.decompose_reduction(name, outer)
    if ins.start is not None:
        s.tensorize(s.loops(init)[-rank], ins.start)
    else:
        s.vectorize(s.loops(init)[-1])
    s.tensorize(one[0], ins)
    return s
