"""How often the loops of a program run, and which programs run too often for what they compute."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.backends.building import from_trace
from autotune.targets import from_name
from schedules import ops, te
from schedules.errors import ScheduleError
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG

TARGETS = ("x86-64-v3", "cuda-emulator")


def plus_one() -> ComputeDAG:
    a = te.placeholder((16, 16), name="A")
    return te.dag([a, te.compute((16, 16), lambda i, j: a[i, j] + 1.0, "B")])


def rounded_up(target: str, far: int) -> Schedule:
    """A loop of 16 iterations in ``far`` parts of 4, shared among threads."""
    s = Schedule(plus_one())
    outer, _ = s.split("B_i", [far, 4])
    if target == "x86-64-v3":
        s.parallel(outer)
    else:
        s.bind(outer, "blockIdx.x")
    return s


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("far", [4, 5, 1 << 10, 1 << 20])
def test_what_is_rounded_up_is_legal(target: str, far: int) -> None:
    """The last blocks of a grid have fewer iterations: how many follows from the number of the block."""
    s = rounded_up(target, far)
    from_trace.check_legal(s.dag, s.trace, from_name(target))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("far", [1 << 33, 1 << 60])
def test_what_is_nearly_all_padding_is_refused(target: str, far: int) -> None:
    s = rounded_up(target, far)
    with pytest.raises(ScheduleError, match="the loops run .* times, where the expression has 256 elements"):
        from_trace.check_legal(s.dag, s.trace, from_name(target))


def test_parts_of_parts_are_counted_however_many() -> None:
    """Their number is beyond floats."""
    s, loop = Schedule(plus_one()), "B_i"
    for _ in range(40):
        loop = s.split(loop, [2**31, 2**31])[1]
    with pytest.raises(ScheduleError, match=r"the loops run 1\.07e\+301 times"):
        from_trace.check_legal(s.dag, s.trace, from_name("x86-64-v3"))


@pytest.mark.slow
def test_samples_of_a_grid_whose_tails_depend_on_its_blocks_are_legal() -> None:
    shape = {"h": 3, "w": 3, "ci": 512, "co": 512, "k": 7, "stride": 5}
    dag, target = ops.workload("conv2d_transpose", shape).dag, from_name("cuda-emulator")
    found, rng = derive(dag, target), np.random.default_rng(0)
    for sketch in range(len(found.sketches)):
        rows = found.sample(sketch, 12, rng)
        for row in rows[found.valid(sketch, rows)][:3]:
            from_trace.check_legal(dag, found.trace(sketch, row), target)
