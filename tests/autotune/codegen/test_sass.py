"""Counts of instructions in machine code, and code that keeps matrix units waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from grid_cases import turned
from needs import missing

import autotune as at
from autotune import backends
from autotune.backends.cuda import check_registers, with_asked
from autotune.codegen.simt import nvrtc, sass
from autotune.report.explain import gpu
from schedules import te
from schedules.instructions import Instruction
from schedules.ir import Intrinsic, Seq
from schedules.ir.grid import GridProgram

LISTING = """\
\t.headerflags\t@"EF_CUDA_TEXMODE_UNIFIED EF_CUDA_64BIT_ADDRESS EF_CUDA_SM80"
.text.kernel0:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/               @P0 EXIT ;
        /*0020*/              @!P0 BRA `(.L_x_1) ;
        /*0030*/                   HFMA2.MMA R2, -RZ, RZ, 0, 0 ;
        /*0040*/             @!UP0 LDSM.16.M88.4 R4, [R8] ;
        /*0050*/              @!PT LDS RZ, [RZ] ;
.L_x_1:
        /*0060*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
.text.kernel1_more:
        /*12340*/                  LDGSTS.E.BYPASS.128 [R1], [R2.64] ;
"""
WAITS = r"""
extern "C" __global__ void kernel0(float *out, unsigned long long a, unsigned long long b) {
  float d[4] = {};
  for (int i = 0; i < 4; ++i) {
    asm volatile("wgmma.fence.sync.aligned;");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
    asm volatile("wgmma.commit_group.sync.aligned;");
    AGAIN
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;");
  out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
"""


def test_instructions_are_counted_by_kernel() -> None:
    assert sass.counted(LISTING) == {
        "kernel0": {"HMMA": 1, "LDS": 1, "LDSM": 1, "instructions": 7},
        "kernel1_more": {"LDGSTS": 1, "instructions": 1},
    }
    assert sass.counted("") == {}


def test_nothing_is_counted_without_the_disassembler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "tool", lambda: None)
    assert sass.counts(b"\x7fELF") == {}


def test_compiled_code_is_counted() -> None:
    if sass.tool() is None:
        missing("nvdisasm")
    if not nvrtc.available():
        missing("nvrtc")
    text = 'extern "C" __global__ void kernel0(float *x) { x[threadIdx.x] = fmaf(x[threadIdx.x], 3, 5); }'
    (counted,) = sass.counts(nvrtc.compile_cubin(text, "sm_80").data).values()
    assert counted["LDG"] == counted["STG"] == counted["FFMA"] == 1
    assert 5 < counted["instructions"] < 40
    assert sass.counts(b"no cubin") == {}


def test_code_whose_compiler_waits_between_products_is_refused() -> None:
    if not nvrtc.available():
        missing("nvrtc")
    nvrtc.compile_cubin(WAITS.replace("AGAIN", 'asm volatile("wgmma.wait_group.sync.aligned 0;");'), "sm_90a")
    with pytest.raises(
        at.CompileError, match=r"NVRTC 13 slows the matrix units down for sm_90a: \(C75\d\d\) "
    ):
        nvrtc.compile_cubin(WAITS.replace("AGAIN", "d[0] *= 2;"), "sm_90a")


def together(threads: int) -> GridProgram:
    """A kernel with an instruction that so many threads do together."""
    _, p = turned(200)
    x = te.placeholder((32,), "float32", "x")
    meaning = te.dag([x, te.compute((32,), lambda i: x[i], "y")])
    one = Intrinsic(Instruction("move", "y = x", meaning, threads=threads), (), Seq(()))
    (k,) = p.kernels
    return replace(p, kernels=(replace(k, body=Seq((k.body, one))),))


def test_a_kernel_of_matrix_units_keeps_no_register_in_memory() -> None:
    facts: dict[str, Any] = {"registers": 255, "shared_bytes": 0, "spill_bytes": 0, "stack_bytes": 0}
    check_registers(together(32), {"kernel0": facts})
    for what, n in (("spill", 4), ("stack", 16)):
        kept = {"kernel0": {**facts, f"{what}_bytes": n}}
        check_registers(together(1), kept)
        with pytest.raises(
            at.CompileError, match=rf"kernel0 uses matrix .* \({n} bytes of {what} a thread\); us"
        ):
            check_registers(together(32), kept)


def test_memory_that_is_asked_for_is_a_fact() -> None:
    facts = {"a": {"shared_bytes": 8}, "b": {"shared_bytes": 8}}
    assert with_asked(facts, {"b": 50_000}) == {"a": {"shared_bytes": 8}, "b": {"shared_bytes": 50_008}}


def test_explanations_have_what_the_compiler_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    if not nvrtc.available():
        missing("nvrtc")
    monkeypatch.setattr(sass, "counts", lambda cubin: {"kernel0": {"LDS": 3, "instructions": 1234}})
    x = te.placeholder((6400,), "float32", "x")
    s = at.Schedule([x, te.compute((6400,), lambda i: x[i] * 2.0, "y")], backends.parse("h100"))
    block, thread = s.split("y_i", 64)
    s.bind(block, "blockIdx.x")
    s.bind(thread, "threadIdx.x")
    e = at.explain(s)
    assert 0 < e.number("compiled", "registers") < 64
    assert e.number("compiled", "spill_bytes") == e.number("compiled", "shared_bytes") == 0
    assert "nothing spilled  [compiler]" in e.text(10_000) and "1,234: 3 LDS  [compiler]" in e.text(10_000)
    kept = {"registers": 255, "shared_bytes": 1, "spill_bytes": 8, "stack_bytes": 16}
    (row,) = gpu._compiled(kept)
    assert row.text.endswith("8 bytes a thread spilled, 16 bytes a thread on its stack"), row.text
    assert gpu.compiled(s, backends.parse("h100-emulator")) == {}


@pytest.mark.slow
@pytest.mark.usefixtures("usual_recursion")
def test_what_is_nested_too_deeply_is_explained_without_a_compiler() -> None:
    a = te.placeholder((3,), "float32", "A")

    def chosen(i: te.Expr) -> te.Expr:
        x = a[i]
        for _ in range(400):
            x = te.select(a[2 - i] < 2, x, a[i])
        return x

    s = at.Schedule([a, te.compute((3,), chosen, "C")], backends.parse("h100"))
    s.bind("C_i", "threadIdx.x")
    with pytest.raises(at.ScheduleError, match="nests loops or an expression too deeply"):
        at.compile_for(s, "h100")
    assert gpu.compiled(s, backends.parse("h100")) == {}
