"""The loop that measures the peak of an instruction."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest

from autotune.backends.building.from_trace import build_object
from autotune.backends.building.object_cache import ObjectCache
from autotune.backends.peaks import scheduled_loop
from autotune.backends.peaks.cpu_peaks import STEPS
from autotune.backends.peaks.instruction_peaks import InstructionLoop, InstructionLoops, _schedule
from autotune.codegen.llvm.intrinsic import has
from autotune.targets import detect
from schedules.instructions import INSTRUCTIONS, Instruction
from schedules.ir import Intrinsic, walk
from schedules.ir.interp import run
from schedules.model import Target, Trace
from schedules.passes.lower import lower
from schedules.te.compute_dag import ComputeDAG

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


def test_a_loop_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Then it is found in the cache of objects, and all threads run the same code on arrays of their own."""
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path))
    ins, here = INSTRUCTIONS["vpdpbusd"], detect(threads=1)
    built: list[ComputeDAG] = []

    def build(dag: ComputeDAG, trace: Trace, target: Target) -> bytes:
        built.append(dag)
        return build_object(dag, trace, target)

    monkeypatch.setattr(scheduled_loop, "build_object", build)
    assert InstructionLoops(here, ins).flops_a_second() > 0 and len(built) == 1
    first, second = InstructionLoop(ins, here), InstructionLoop(ins, here)
    other = second.on_arrays_of_its_own()
    assert other.seconds(1) > 0 and len(built) == 1
    assert (other.arrays[-1] == 4 * STEPS).all() and (second.arrays[-1] == 1).all() and first.rate(1) > 0


def test_what_cannot_be_loaded_is_compiled_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(ObjectCache, "get", lambda self, key: b"no object")
    assert InstructionLoop(INSTRUCTIONS["vpdpbusd"], detect(threads=1)).rate(1) > 0
