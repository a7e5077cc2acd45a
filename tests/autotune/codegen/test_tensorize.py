"""Instructions in compiled code: the same results as their meanings, on CPUs that have them and on others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from dot_products import product, tensorized
from helpers import check_compiled, execute, host

from autotune import backends
from autotune.backends.building.from_trace import emit_module
from autotune.codegen.llvm.compile import assembly
from autotune.codegen.llvm.intrinsic import has
from autotune.measure.inputs import random_inputs
from schedules.dtypes import DTYPES
from schedules.instructions import INSTRUCTIONS, Instruction
from schedules.model import Target
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate

BF16 = DTYPES["bfloat16"].numpy
DOTS = ("vdpbf16ps", "vpdpbusd")


def whole(dag: ComputeDAG) -> list[np.ndarray]:
    """Whole numbers whose sums are exact; of integers up to their ends."""
    rng = np.random.default_rng(0)
    drawn = random_inputs(dag)
    return [
        rng.integers(-8, 9, x.shape).astype(x.dtype) if x.dtype == BF16 else x for x in drawn
    ]


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
    if ins.features:
        assert name not in assembly_of(ins.meaning, alone(ins), lacking(ins))


def assembly_of(dag: ComputeDAG, s: Schedule, target: Target) -> str:
    return assembly(emit_module(dag, s.trace, target).text, target)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("m", "n", "k"), [(8, 32, 32), (7, 48, 40), (1, 16, 8), (13, 64, 64)])
@pytest.mark.parametrize("name", DOTS)
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


@pytest.mark.parametrize("name", DOTS)
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


def test_vpdpbusd_wraps_and_does_not_saturate() -> None:
    assert sums("vpdpbusd", [255] * 4, [127] * 4) == 129540
    assert sums("vpdpbusd", [255] * 4, [-128] * 4) == -130560
    assert sums("vpdpbusd", [211, 171, 0, 0], [71, 107, 0, 0]) == 33278
    most = -(-(2**31) // (255 * 127 * 4)) * 4
    exact = most * 255 * 127
    assert exact > 2**31 - 1
    assert sums("vpdpbusd", [255] * most, [127] * most) == exact - 2**32
