"""Instructions in compiled code: the same results as their meanings, on CPUs that have them and on others."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from dot_products import DOTS, product, tensorized
from helpers import check_compiled, execute, host

from autotune import backends
from autotune.backends.building.from_trace import emit_module
from autotune.codegen.llvm.compile import assembly
from autotune.codegen.llvm.intrinsic import has
from autotune.measure.inputs import random_inputs
from autotune.targets.features import ARM_NAMES
from schedules import te
from schedules.dtypes import DTYPES
from schedules.instructions import INSTRUCTIONS, Instruction
from schedules.model import Target
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate

FLOATS = [DTYPES[d].numpy for d in ("bfloat16", "float16", "float32")]


def whole(dag: ComputeDAG) -> list[np.ndarray]:
    """Whole numbers whose sums are exact; of integers up to their ends."""
    rng = np.random.default_rng(0)
    drawn = random_inputs(dag)
    return [rng.integers(-8, 9, x.shape).astype(x.dtype) if x.dtype in FLOATS else x for x in drawn]


def need(ins: Instruction) -> Target:
    """This CPU, where it has the instruction."""
    here = host()
    if not has(ins, here.features):
        pytest.skip(f"this CPU has no {', '.join(ins.features)}")
    return here


def lacking(ins: Instruction) -> Target:
    """This CPU without the instruction."""
    here = host()
    return replace(here, features=tuple(f for f in here.features if f not in ins.features))


def mnemonic(name: str) -> str:
    """What an assembler calls it."""
    return "vfmadd" if name == "fma_bfloat16" else name.split("_")[0]


def alone(ins: Instruction) -> Schedule:
    s = Schedule(ins.meaning)
    (name,) = s.blocks()
    if ins.meaning.stages[0].reducer is not None:
        s.decompose_reduction(name, s.loops(name)[0])
    s.tensorize(s.loops(name)[0], ins)
    return s


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_an_instruction_does_what_it_means(name: str) -> None:
    ins = INSTRUCTIONS[name]
    inputs = whole(ins.meaning)
    check_compiled(ins.meaning, alone(ins).trace, need(ins), inputs, evaluate(ins.meaning, inputs))


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_a_cpu_without_it_runs_its_loops(name: str) -> None:
    ins = INSTRUCTIONS[name]
    inputs = whole(ins.meaning)
    want = evaluate(ins.meaning, inputs)
    check_compiled(ins.meaning, alone(ins).trace, lacking(ins), inputs, want)
    if ins.features and mnemonic(name) not in ("vfmadd", "vpmaddwd"):
        assert mnemonic(name) not in assembly_of(ins.meaning, alone(ins), lacking(ins))


def assembly_of(dag: ComputeDAG, s: Schedule, target: Target) -> str:
    return assembly(emit_module(dag, s.trace, target).text, target)


@pytest.mark.parametrize(
    "name",
    [
        n
        for n, x in INSTRUCTIONS.items()
        if x.features and "llvm" in x.spellings and not set(ARM_NAMES) & set(x.features)
    ],
)
def test_an_instruction_of_x86_is_compiled_as_itself(name: str) -> None:
    """For a described target, on any host."""
    ins = INSTRUCTIONS[name]
    features = tuple(sorted({"avx", "avx2", "f16c", "fma", *ins.features}))
    target = Target("cpu", "x86-64-v3", "x86_64-unknown-linux-gnu", features)
    text = assembly_of(ins.meaning, alone(ins), target)
    found = [line for line in text.splitlines() if re.search(rf"\b{mnemonic(name)}", line)]
    halves = mnemonic(name) == "vfmadd" or name.startswith("vpmaddwd_")  # even terms, then odd ones
    assert len(found) == (2 if halves and "int16" not in {t.dtype for t in ins.meaning.inputs} else 1)
    lanes = ins.result.shape[-1]
    if ins.registers is None:
        assert all(("%zmm" if lanes == 16 else "%ymm") in line for line in found)


def test_a_better_one_stands_in_the_place_of_another() -> None:
    def offered(*features: str) -> set[str]:
        return {n for n, x in INSTRUCTIONS.items() if x.features and x.offered(features)}

    def wide(*signs: str) -> set[str]:
        return {f"vpmaddwd_{s}" for s in signs}

    every = ("u8u8", "u8s8", "s8u8", "s8s8")
    assert offered("avx2", "fma") == {"fma_bfloat16", "vpmaddwd", *wide(*every)}
    ymm = {"vpdpbusd_ymm", "vpdpbusd_ymm_turned"}
    assert offered("avx2", "avxvnni") == ymm | wide("u8u8", "s8s8") | {"vpmaddwd"}
    assert offered("avx2", "avxvnni", "avxvnniint8") == ymm | {"vpdpbssd", "vpdpbuud", "vpmaddwd"}
    server = ("avx2", "fma", "avxvnni", "avx512f", "avx512bw", "avx512vnni", "avx512bf16")
    zmm = {"vdpbf16ps", "vpdpbusd", "vpdpbusd_turned"}
    assert offered(*server) == zmm | wide("u8u8_zmm", "s8s8_zmm") | {"vpmaddwd_zmm"}


@pytest.mark.fast("1-8-32-32-*", "2-7-48-40-v*pb*")
@pytest.mark.parametrize("name", DOTS)
@pytest.mark.parametrize(("m", "n", "k"), [(8, 32, 32), (7, 48, 40), (1, 16, 8), (13, 64, 64)])
@pytest.mark.parametrize("threads", [1, 2])
def test_products_are_right(name: str, m: int, n: int, k: int, threads: int) -> None:
    ins = INSTRUCTIONS[name]
    dag = product(ins, m, n, k)
    s = tensorized(dag, ins, min(m, 4), 1, 2, partition=m > 4)
    if threads > 1:
        s.parallel(s.loops("c_write")[0])
    inputs = whole(dag)
    want = evaluate(dag, inputs)
    for target in (lacking(ins), *([host()] if has(ins, host().features) else [])):
        check_compiled(dag, s.trace, replace(target, threads=threads), inputs, want)


@pytest.mark.parametrize("name", ["vdpbf16ps", "vpdpbusd"])
def test_accumulators_stay_in_registers(name: str) -> None:
    """In the loop over k: one instruction a tile and step, and none of them stores."""
    ins = INSTRUCTIONS[name]
    need(ins)
    here = backends.parse("cpu", 1)  # with the width of its vectors
    dag = product(ins, 16, 64, 512)
    text = assembly_of(dag, tensorized(dag, ins, 4, 4, 4), here).splitlines()
    lines = [n for n, line in enumerate(text) if name in line]
    assert len(lines) == 4 * 4 * 4
    assert not any("(%rsp)" in line and "zmm" in line for line in text[lines[0] : lines[-1]])


def test_an_avx2_cpu_gets_loops() -> None:
    old = backends.parse("x86-64-v3", 1)
    ins = INSTRUCTIONS["vpdpbusd"]
    dag = product(ins, 8, 32, 32)
    assert "vpdpbusd" not in assembly_of(dag, tensorized(dag, ins, 4, 2, 2), old)


# -- what the processor does, by the manual -----------------------------------------------------------------


def sums(name: str, a: list[float], b: list[float]) -> float:
    """One lane of as many instructions as there are terms for."""
    ins = INSTRUCTIONS[name]
    here = need(ins)
    t = {x.name: x for x in ins.operands}
    dtype = t["a"].dtype
    k = len(a)
    dag = product(ins, 1, 16, k)
    x = np.array([a]).astype(DTYPES[dtype].numpy)
    y = np.tile(np.array(b)[:, None], (1, 16)).astype(DTYPES[t["b"].dtype].numpy)
    s = tensorized(dag, ins, 1, 1, 1)
    got = {out[0][0, 0].item() for out in execute(dag, s.trace, here, [x, y]).values()}
    assert len(got) == 1
    return float(got.pop())


def test_vdpbf16ps_adds_the_odd_term_first_and_takes_denormals_to_be_zero() -> None:
    assert sums("vdpbf16ps", [2.0**24, 0, 1, 1], [1, 0, 1, 1]) == 2.0**24  # each is rounded: 1 is lost twice
    assert sums("vdpbf16ps", [1, 1, 2.0**24, 0], [1, 1, 1, 0]) == 2.0**24 + 2
    assert sums("vdpbf16ps", [2.0**-130, 0], [2.0**100, 0]) == 0
    assert sums("vdpbf16ps", [2.0**127, 2.0**127], [-2, 2]) == float("inf")  # the odd one first


@pytest.mark.parametrize("name", [name for name in DOTS if INSTRUCTIONS[name].exact])
def test_signs_and_ends_of_integers(name: str) -> None:
    """All pairs of the ends of both types, four times, and once beside others."""
    ins = INSTRUCTIONS[name]
    here = need(ins)
    ends = {"uint8": (255, 0), "int8": (-128, 127), "int16": (-32768, 32767)}
    a, b = (ends[t.dtype] for t in ins.meaning.inputs)
    dag = product(ins, 4, 16, 8)
    x = np.array([[a[0]] * 8, [a[1]] * 8, [a[0], 0, 1, 0] * 2, [a[1], 0, 0, 1] * 2])
    y = np.array([[b[0], b[1]] * 8] * 4 + [[1, 0] * 8] * 4)
    arrays = [v.astype(t.dtype) for v, t in zip((x, y), dag.inputs, strict=True)]
    check_compiled(dag, tensorized(dag, ins, 2, 1, 1).trace, here, arrays, [(x @ y).astype("int32")])


def test_vpdpbusd_wraps_and_does_not_saturate() -> None:
    assert sums("vpdpbusd", [255] * 4, [127] * 4) == 129540
    assert sums("vpdpbusd", [255] * 4, [-128] * 4) == -130560
    assert sums("vpdpbusd", [211, 171, 0, 0], [71, 107, 0, 0]) == 33278
    most = -(-(2**31) // (255 * 127 * 4)) * 4
    exact = most * 255 * 127
    assert exact > 2**31 - 1
    assert sums("vpdpbusd", [255] * most, [127] * most) == exact - 2**32


def rows_of_a_tile(copied: bool) -> Schedule:
    """c[m, i] += a[m, k, t] b[k, i, t] for three rows at a time; of k two steps are unrolled. ``copied``: b
    is copied before each step, to one place."""
    a, b = te.placeholder((3, 4, 4), "int8", "a"), te.placeholder((4, 16, 4), "uint8", "b")
    k, t = te.reduce_axis(4, "k"), te.reduce_axis(4, "t")
    c = te.compute((3, 16), lambda m, i: te.sum(a[m, k, t] * b[k, i, t], axis=(k, t)), "c")
    s = Schedule([a, b, c])
    m, i, outer, inner = s.loops("c")
    outer, step = s.split(outer, (None, 2))
    s.reorder(outer, step, m, i, inner)
    s.decompose_reduction("c", outer)
    if copied:
        s.cache_read("c", "b", "local")
        s.compute_at("b_local", step)
        s.vectorize(s.loops("b_local")[-1])
    for loop in (step, m):
        s.unroll(loop)
    s.tensorize(i, "vpdpbusd_turned")
    return s


@pytest.mark.parametrize("copied", [False, True])
def test_rows_of_a_tile_load_what_they_share_once(copied: bool) -> None:
    s = rows_of_a_tile(copied)
    target = Target("cpu", "x86-64-v4", "x86_64-unknown-linux-gnu", ("avx512f", "avx512vnni"))
    text = emit_module(s.dag, s.trace, target).text
    calls = len(re.findall(r"= call <16 x i32> @llvm.x86.avx512.vpdpbusd", text))
    loads = len(re.findall(r"= load <64 x i8>", text))
    assert (calls, loads) == (6, 6 if copied else 2), "what is written meanwhile is loaded again"
    inputs = whole(s.dag)
    want = evaluate(s.dag, inputs)
    check_compiled(s.dag, s.trace, need(INSTRUCTIONS["vpdpbusd_turned"]), inputs, want)
