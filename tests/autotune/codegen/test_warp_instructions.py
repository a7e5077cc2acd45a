"""Instructions of warps: emulated, where each is written by NVIDIA's tables, and as machine code."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from grid_cases import need_cxx
from needs import missing
from warp_cases import CASES, F16, WarpCase

from autotune.codegen.simt import cuda, emulator, nvrtc, opencl, sass
from autotune.errors import CompileError
from schedules.instructions import INSTRUCTIONS
from schedules.passes.simt import lower_simt

ORDERS = ("early", "late", "random")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_registers_lie_as_nvidia_says(name: str) -> None:
    """The layouts here, and the emulator's instructions, were written apart from each other."""
    need_cxx()
    c = CASES[name]
    p = lower_simt(c.schedule().nest)
    obj = emulator.build(p)
    for order in ORDERS:
        arrays = c.named(c.inputs())
        assert emulator.run(obj, p, list(arrays.values()), order=order) is None
        assert np.array_equal(arrays["y"], c.expected(c.inputs()))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90", "sm_120"])
def test_instructions_are_compiled_and_fragments_are_registers(arch: str) -> None:
    if not nvrtc.available():
        missing("nvrtc")
    for name, c in CASES.items():
        text = cuda.source(lower_simt(c.schedule().nest))
        calls = Counter(x for x in INSTRUCTIONS.values() if x.threads > 1 and x.name in (c.product, *c.loads))
        assert all(text.count(re.search(r"at_(mma|ldm)\w+\(", x.spellings["cuda"])[0]) > 1 for x in calls), (
            name
        )
        (facts,) = nvrtc.compile_cubin(text, arch).facts.values()
        assert facts["stack_bytes"] == facts["spill_bytes"] == 0, name


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("name", "unit"), [("f16", "HMMA"), ("bf16", "HMMA"), ("tf32", "HMMA"), ("int8 uint8", "IMMA")]
)
def test_a_call_is_one_instruction(name: str, unit: str, arch: str) -> None:
    if not nvrtc.available() or sass.tool() is None:
        missing("nvdisasm")
    text = cuda.source(lower_simt(CASES[name].schedule().nest))
    (counts,) = sass.counts(nvrtc.compile_cubin(text, arch).data).values()
    assert counts[unit] > 0 and counts["LDSM"] > 0
    assert not {"LDL", "STL"} & set(counts)


@pytest.mark.slow
def test_a_large_tile_stays_in_registers() -> None:
    if not nvrtc.available():
        missing("nvrtc")
    loads = ("ldmatrix_float16_a", "ldmatrix_float16_b_trans")
    c = WarpCase(F16, loads, size=(4096, 4096, 4096), tile=(64, 64), warps=(2, 4), depth=64, stages=3)
    (facts,) = nvrtc.compile_cubin(cuda.source(lower_simt(c.schedule().nest)), "sm_80").facts.values()
    assert facts["registers"] <= 255 and facts["stack_bytes"] == facts["spill_bytes"] == 0


def test_a_language_without_the_instruction_says_so() -> None:
    c = WarpCase(F16, size=(16, 16, 16), warps=(1, 1), depth=16)
    with pytest.raises(CompileError, match=f"OpenCL C: no instruction {F16}"):
        opencl.source(lower_simt(c.schedule().nest))
    assert "at_mma" not in opencl.source(lower_simt(c.schedule().nest, ()))
