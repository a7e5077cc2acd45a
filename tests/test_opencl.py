"""OpenCL C of every operator, run by whatever device there is: PoCL on a CPU will do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from grid_cases import SMALL, case, masked_add, missing, program, sampled

from autotune.devices import opencl


def check(op: str, each: int) -> None:
    if opencl.context() is None:
        missing("opencl")
    c = masked_add(1003) if op == "masked add" else case(op)
    for name, trace in sampled(c.dag, each, seed=5):
        outputs = c.poisoned()
        opencl.Loaded(program(c.dag, trace)).run([*c.inputs, *outputs])
        c.check(outputs, name)


@pytest.mark.parametrize("op", ["masked add", *SMALL])
def test_a_schedule_of_every_operator(op: str) -> None:
    check(op, 1)


@pytest.mark.slow
@pytest.mark.parametrize("op", ["masked add", *SMALL])
def test_twenty_schedules_of_every_operator(op: str) -> None:
    check(op, 20)


@pytest.mark.slow
@pytest.mark.parametrize("op", ["matmul", "softmax", "conv2d"])
def test_no_data_races_under_oclgrind(op: str) -> None:
    if shutil.which("oclgrind") is None:
        pytest.skip("oclgrind is not installed")
    here = Path(__file__).parent
    code = f"import sys; sys.path.insert(0, {str(here)!r}); import test_opencl; test_opencl.check({op!r}, 1)"
    done = subprocess.run(
        ["oclgrind", "--data-races", sys.executable, "-c", code],
        capture_output=True, text=True, check=False, cwd=here.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "data race" not in (done.stdout + done.stderr).lower(), done.stderr[:2000]
