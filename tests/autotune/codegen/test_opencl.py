"""OpenCL C of every operator, run by whatever device there is: PoCL on a CPU will do."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from children import ROOT, folders
from grid_cases import SMALL, case, masked_add, program, sampled
from helpers import inputs
from needs import missing

import autotune as at
from autotune import backends
from autotune.backends.drivers import opencl
from autotune.backends.drivers.object import DeviceObject
from autotune.codegen.grid_code import GridCode, grid_code
from autotune.codegen.simt.emit import Generated
from autotune.codegen.simt.opencl import OPENCL, generate
from schedules import te
from schedules.dtypes import DTYPES
from schedules.ir.grid import GridProgram
from schedules.model import Target


def shared_bytes(text: str) -> int:
    """Of the arrays that threads share, those of all kernels together."""
    kinds = {OPENCL.types[name]: row.itemsize for name, row in DTYPES.items()}
    return sum(kinds[kind] * int(n) for kind, n in re.findall(r"__local (\w+) \w+\[(\d+)\]", text))


def check(op: str, each: int, dtype: str = "float32") -> None:
    if opencl.context() is None:
        missing("opencl")
    c = masked_add(1003) if op == "masked add" else case(op, dtype)
    room = opencl.device().attributes()["shared_bytes"]
    for name, trace in sampled(c.dag, each, seed=5):
        outputs = c.poisoned()
        p = program(c.dag, trace)
        if shared_bytes(generate(p).text) > room:  # the simulator has less than the target of these schedules
            continue
        loaded = DeviceObject(grid_code(p, "opencl", generate(p)).to_bytes())
        loaded.run([x.ctypes.data for x in (*c.inputs, *outputs)])
        loaded.close()
        c.check(outputs, name)


def few(quick: tuple[str, ...]) -> list[Any]:
    """All operators, those that are not ``quick`` behind the slow marker: each takes seconds to compile."""
    return [op if op in quick else pytest.param(op, marks=pytest.mark.soak) for op in ("masked add", *SMALL)]


KINDS = ("masked add", "add", "permute", "matmul", "conv2d", "conv2d_transpose", "depthwise_conv2d")
ROWS = ("max_pool2d", "softmax", "layer_norm", "norm2", "argmax")


@pytest.mark.fast("masked add", "softmax", "norm2")
@pytest.mark.parametrize("op", few((*KINDS, *ROWS)))
def test_a_schedule_of_every_operator(op: str) -> None:
    check(op, 1)


@pytest.mark.fast("softmax")
@pytest.mark.parametrize("op", few(("add", "matmul", "depthwise_conv2d", "softmax", "max_pool2d"))[1:])
def test_a_schedule_of_every_operator_in_float16(op: str) -> None:
    check(op, 1, "float16")


# The least that PoCL 3.0 got wrong: what all work-items convert alike, in a loop that follows a barrier.
ALIKE = (
    OPENCL.prelude
    + """
__kernel __attribute__((reqd_work_group_size(4, 1, 1)))
void kernel0(__global const ushort *restrict x, __global ushort *restrict y) {
  __local ushort s[16];
  const int i = AT_LOCAL_x;
  for (int j = 0; j < 4; ++j) s[i * 4 + j] = x[i * 4 + j];
  barrier(CLK_LOCAL_MEM_FENCE);
  float a[4];
  for (int j = 0; j < 4; ++j) a[j] = 0.0f;
  for (int r = 0; r < 3; ++r) {
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float own = at_widen_float16(at_round_float16(at_widen_float16(s[r]) * 0.5f));
      a[j] += at_widen_float16(s[r + i + j]) * own;
    }
  }
  for (int j = 0; j < 4; ++j) y[i * 4 + j] = at_round_float16(a[j]);
}
"""
)


def test_what_work_items_convert_alike_is_each_ones_own() -> None:
    if opencl.context() is None:
        missing("opencl")
    import pyopencl as cl

    here = opencl.device()
    x, y = np.arange(1, 17, dtype="f2"), np.full(16, np.nan, "f2")
    memory = [here.allocate(x.nbytes), here.allocate(y.nbytes)]
    here.upload(memory[0], x)
    kernel = cl.Program(opencl.context(), ALIKE).build().kernel0
    kernel(here.queue, (4,), (4,), *memory)
    here.download(y, memory[1])
    taps = np.lib.stride_tricks.sliding_window_view(x, 3)
    np.testing.assert_array_equal(y, [taps[i + j] @ x[:3] / 2 for i in range(4) for j in range(4)])


def test_a_window_as_nested_maxima_is_no_larger_for_the_driver() -> None:
    """Functions, where macros would repeat both arguments at each of 24 levels."""
    if opencl.context() is None:
        missing("opencl")
    x = te.placeholder((9, 9), "float32", name="x")
    window = [(a, b) for a in range(5) for b in range(5)]
    y = te.compute((5, 5), lambda i, j: reduce(te.maximum, [x[i + a, j + b] for a, b in window]), name="y")
    dag = te.dag([x, y])
    (data,) = inputs(dag)
    p, out = program(dag, next(sampled(dag, 1))[1]), np.full((5, 5), np.nan, "float32")
    loaded = DeviceObject(grid_code(p, "opencl", generate(p)).to_bytes())
    loaded.run([data.ctypes.data, out.ctypes.data])
    loaded.close()
    np.testing.assert_array_equal(out, np.lib.stride_tricks.sliding_window_view(data, (5, 5)).max((2, 3)))


@pytest.mark.slow
def test_tune_then_load(tmp_path: Path) -> None:
    if opencl.context() is None:
        missing("opencl")
    db = tmp_path / "tuning.db"
    shape = {"m": 19, "n": 21, "k": 18}
    result = at.tune("matmul", target="opencl", trials=4, budget_s=60, db=db, **shape)
    # PoCL compiles a kernel when it is run first: one that is all unrolled may take too long
    assert result.measured == 4 and result.best is not None and not set(result.failed) - {"slow", "timeout"}
    kernel = at.load("matmul", target="opencl", db=db, **shape)
    a, b = (np.arange(n, dtype="f4").reshape(s) % 7 for n, s in ((19 * 18, (19, 18)), (18 * 21, (18, 21))))
    np.testing.assert_array_equal(kernel(a, b), a @ b)
    assert "__kernel" in kernel.source() and kernel.time() > 0
    with pytest.raises(at.ArgumentError):
        kernel(a, a)
    with pytest.warns(UserWarning, match="no tuned kernel"):
        default = at.load("matmul", target="opencl", db=db, m=3, n=4, k=5, fallback=True)
    np.testing.assert_array_equal(default(a[:3, :5].copy(), b[:5, :4].copy()), a[:3, :5] @ b[:5, :4])


def test_a_target_of_another_device_is_not_run_here() -> None:
    if opencl.context() is None:
        missing("opencl")
    here = backends.parse("opencl")
    assert backends.runnable(here) and here.limit("sms") > 0
    assert not backends.runnable(Target("opencl", "Adreno-740"))


def test_code_comes_back_from_bytes() -> None:
    c = case("softmax")
    p = program(c.dag, next(sampled(c.dag, 1))[1])
    code = grid_code(p, "opencl", generate(p))
    assert GridCode.from_bytes(code.to_bytes()) == code
    for bad in (code.to_bytes()[:40], code.to_bytes().replace(b'"params"', b'"parms"')):
        with pytest.raises(at.CompileError, match="damaged code for a device"):
            GridCode.from_bytes(bad)
    with pytest.raises(at.CompileError, match="no device here runs code for vulkan"):
        DeviceObject(code.to_bytes().replace(b'"kind": "opencl"', b'"kind": "vulkan"'))


@pytest.mark.soak
@pytest.mark.parametrize("op", ["masked add", *SMALL])
def test_twenty_schedules_of_every_operator(op: str) -> None:
    """In a process of their own: PoCL 3.0 splits some kernels at their barriers wrongly, and then says so and
    ends the process, or goes on with wrong results. What it fails at has to be right on the simulator."""
    if opencl.context() is None:
        missing("opencl")
    code = f"import sys; sys.path[:0] = {folders(__file__)!r}; import test_opencl as t; t.check({op!r}, 20)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        if shutil.which("oclgrind") is None:
            pytest.fail(done.stderr[-2000:])
        under_oclgrind(f"t.check({op!r}, 20)")


def under_oclgrind(code: str, *, sound: bool = True) -> str:
    """What a simulator of devices says while it runs a call of this module: of races, nothing of results."""
    if shutil.which("oclgrind") is None:
        missing("oclgrind")
    code = (
        f"import sys; sys.path[:0] = {folders(__file__)!r}; import test_opencl as t; "
        f"assert t.opencl.device().name() == 'Oclgrind Simulator'; {code}"
    )
    done = subprocess.run(
        ["oclgrind", "--data-races", sys.executable, "-c", code],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    # the simulator itself has been seen to die of what a wrong program does
    assert done.returncode == 0 or not sound, done.stderr[-2000:]
    return (done.stdout + done.stderr).lower()


@pytest.mark.slow
@pytest.mark.parametrize("op", ["masked add", "matmul", "softmax", "conv2d", "reduce_sum", "attention"])
def test_no_data_races_under_oclgrind(op: str) -> None:
    assert "data race" not in under_oclgrind(f"t.check({op!r}, 1)")


@pytest.mark.soak
@pytest.mark.parametrize("op", SMALL)
def test_no_data_races_of_any_operator_under_oclgrind(op: str) -> None:
    assert "data race" not in under_oclgrind(f"t.check({op!r}, 4)")


def with_barriers(op: str) -> tuple[GridProgram, Generated]:
    """A kernel of several threads with as many barriers as sampled schedules have."""
    programs = [program(case(op).dag, t) for _, t in sampled(case(op).dag, 8)]
    found = [(p, generate(p)) for p in programs if len(p.kernels) == 1 and p.kernels[0].threads > 8]
    return max(found, key=lambda x: x[1].text.count(OPENCL.barrier))


def without_a_barrier(op: str, n: int) -> None:
    """Run an operator whose text lacks a barrier, which PoCL may not notice."""
    c, (p, made) = case(op), with_barriers(op)
    parts = made.text.split(OPENCL.barrier)
    text = OPENCL.barrier.join(parts[: n + 1]) + ";" + OPENCL.barrier.join(parts[n + 1 :])
    loaded = DeviceObject(grid_code(p, "opencl", replace(made, text=text)).to_bytes())
    loaded.run([x.ctypes.data for x in (*c.inputs, *c.poisoned())])


@pytest.mark.slow
@pytest.mark.parametrize("op", ["matmul", "softmax"])
def test_oclgrind_finds_any_missing_barrier(op: str) -> None:
    count = with_barriers(op)[1].text.count(OPENCL.barrier)
    assert count >= 2
    for n in range(count):
        said = under_oclgrind(f"t.without_a_barrier({op!r}, {n})", sound=False)
        assert "data race at local memory" in said, f"barrier {n} can be left out"


def test_the_folder_of_pocls_wheel_is_not_pyopencl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel installs ``pyopencl/.libs``, which Python takes for a package."""
    (tmp_path / "pyopencl").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "pyopencl", raising=False)
    assert opencl.context.__wrapped__() is None


def test_a_device_that_refuses_every_program_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """PoCL of LLVM 14 offers a Zen 5, whose name its compiler does not know."""
    if opencl.context() is None:
        missing("opencl")
    cl = sys.modules["pyopencl"]

    class Refused:
        def __init__(self, context: object, source: str) -> None:
            pass

        def build(self, options: object) -> None:
            raise cl.Error("BUILD_PROGRAM_FAILURE")

    monkeypatch.setattr(cl, "Program", Refused)
    assert opencl.context.__wrapped__() is None
