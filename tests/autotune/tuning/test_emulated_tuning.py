"""The whole tuning loop on an emulated GPU, and machine code for GPUs that are not here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_runner import run
from grid_cases import TARGET, case, need_cxx, sampled
from needs import missing

import autotune as at
from autotune import backends
from autotune.backends.building.from_trace import build_object
from autotune.codegen.llvm.compile import load_object
from autotune.codegen.simt import nvrtc
from schedules.model import Target
from schedules.schedule import Schedule


@pytest.fixture
def gxx() -> None:
    need_cxx()


@pytest.mark.slow
@pytest.mark.usefixtures("gxx")
def test_tune_then_load(tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    shape = {"m": 19, "n": 21, "k": 18}
    result = at.tune("matmul", target="cuda-emulator", trials=6, budget_s=60, db=db, **shape)
    assert result.measured == 6 and result.best is not None
    assert not set(result.failed) - {"slow"}  # nothing infeasible, nothing wrong
    assert result.best.share_of_peak is None
    kernel = at.load("matmul", target="cuda-emulator", db=db, **shape)
    a, b = (np.arange(n, dtype="f4").reshape(s) % 7 for n, s in ((19 * 18, (19, 18)), (18 * 21, (18, 21))))
    np.testing.assert_array_equal(kernel(a, b), a @ b)
    assert "__global__" in kernel.source()
    with pytest.raises(at.KernelNotFound):
        at.load("matmul", db=db, **shape)  # a kernel for another target is none for this CPU


@pytest.mark.slow
@pytest.mark.usefixtures("gxx")
def test_the_command_line_takes_the_target(tmp_path: Path) -> None:
    db = ["--db", tmp_path / "tuning.db", "--target", "cuda-emulator"]
    ran = run("tune", "softmax", "--shape", "m=6,n=40", "--trials", 3, *db, "--json")
    assert ran.status == 0 and ran.json["task"]["target"]["arch"] == "emulator"
    assert "__global__" in run("best", "softmax", "--shape", "m=6,n=40", *db, "--source").out


@pytest.mark.usefixtures("gxx")
def test_objects_have_the_entry_of_a_cpu_kernel() -> None:
    c = case("rms_norm")
    trace = next(sampled(c.dag, 1))[1]
    loaded = load_object(build_object(c.dag, trace, TARGET))
    outputs = c.poisoned()
    loaded.run([x.ctypes.data for x in (*c.inputs, *outputs)])
    c.check(outputs, "rms_norm")


EMULATED = ["cuda-emulator", "a100-emulator", "h100-emulator"]


@pytest.mark.parametrize("name", ["v100", "t4", "a100", "rtx4090", "h100", "h200", "b200", *EMULATED])
def test_described_targets(name: str) -> None:
    target = backends.parse(name)
    assert target.kind == "cuda" and target.limit("block_threads") == 1024
    assert backends.parse(name, 4) == target  # threads are a CPU's
    if name in EMULATED:
        assert backends.of(target) is backends.named("emulator")
    elif not backends.named("cuda").available():
        assert not backends.runnable(target)
        with pytest.raises(at.TargetError, match="cannot run code"):
            backends.check_here(target)


@pytest.mark.parametrize("name", ["v100", "t4", "a100", "rtx4090", "h100", "h200", "b200"])
def test_machine_code_without_a_device(name: str) -> None:
    if not nvrtc.available(12 if name == "v100" else 13):
        missing("nvrtc12" if name == "v100" else "nvrtc")
    c = case("softmax")
    trace = next(sampled(c.dag, 1))[1]
    made = at.compile_for(Schedule.replay(c.dag, trace, TARGET), name)
    assert made.cubin[:4] == b"\x7fELF"
    assert 0 < made.facts["kernel0"]["registers"] <= 255
    assert "__global__" in made.source


def test_what_compiles_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_path", lambda version: None)
    nvrtc._library.cache_clear()
    for arch, extra in (("sm_70", "cuda12"), ("sm_75", "cuda"), ("sm_90a", "cuda")):
        with pytest.raises(at.CompileError, match=rf"autotune-compiler\[{extra}\]"):
            nvrtc.compile_cubin("", arch)


def test_code_that_is_wrong_is_refused_with_the_compilers_words() -> None:
    if not nvrtc.available():
        missing("nvrtc")
    with pytest.raises(at.CompileError, match=r"NVRTC 13 refused .* sm_80: kernel.cu\(1\): error"):
        nvrtc.compile_cubin("__global__ void f( {", "sm_80")
    with pytest.raises(at.CompileError, match="gpu-architecture"):
        nvrtc.compile_cubin("", "sm_999")


def test_only_described_gpus_are_compiled_for() -> None:
    s = at.Schedule(case("add").dag)
    assert "__kernel" in at.compile_for(s, "adreno-740").source
    for target in ("cpu", "cuda-emulator", Target("metal", "any")):
        with pytest.raises(at.TargetError, match="no described GPU|no backend for targets of kind .metal."):
            at.compile_for(s, target)


def test_what_ptxas_says_is_read() -> None:
    log = (
        "ptxas info    : Compiling entry function 'kernel0' for 'sm_80'\n"
        "ptxas info    : Function properties for kernel0\n"
        "    32 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 62 registers, used 1 barriers, 768 bytes smem, 376 bytes cmem[0]\n"
    )
    assert nvrtc.facts(log) == {
        "kernel0": {"registers": 62, "shared_bytes": 768, "stack_bytes": 32, "spill_bytes": 4}
    }
