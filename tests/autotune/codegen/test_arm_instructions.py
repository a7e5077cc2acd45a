"""Instructions of ARM: the same results as their meanings, in programs that qemu runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import qemu
from dot_products import product

from autotune.backends.building.from_trace import emit_module
from autotune.codegen.llvm.compile import assembly
from autotune.measure.inputs import random_inputs
from schedules.dtypes import DTYPES
from schedules.instructions import INSTRUCTIONS, Instruction
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate

DOTS = ("sdot", "udot", "usdot", "sudot", "bfdot")
MATRICES = ("smmla", "ummla", "usmmla", "bfmmla")
MNEMONIC = {"sudot": "usdot"}


def whole(dag: ComputeDAG) -> list[np.ndarray]:
    """Whole numbers whose sums are exact; of integers up to their ends."""
    rng = np.random.default_rng(0)
    bf16 = DTYPES["bfloat16"].numpy
    return [
        rng.integers(-8, 9, x.shape).astype(x.dtype) if x.dtype == bf16 else x for x in random_inputs(dag)
    ]


def alone(ins: Instruction) -> Schedule:
    s = Schedule(ins.meaning)
    (name,) = s.blocks()
    s.decompose_reduction(name, s.loops(name)[0])
    s.tensorize(s.loops(name)[0], ins)
    return s


def tiled(ins: Instruction, m: int, n: int, k: int) -> Schedule:
    """A product in tiles of 2 by 8 sums, two instructions deep; b packed so that its terms are innermost."""
    terms = ins.iterations["t"]
    s = Schedule(product(ins, m, n, k))
    s.cache_write("c", "local")
    s.cache_read("c", "b", "global")
    s.pack("b_global", (terms, 8), (1, 0, 3, 2))
    io, ii = s.split("c_write_x0", (None, 2))
    jo, ji = s.split("c_write_x1", (None, 8))
    s.reorder(jo, io, ii, ji)
    s.unroll(ii)
    s.vectorize(ji)
    s.compute_at("c", io)
    i, j, r = (x for x in s.loops("c") if x not in (jo, io))
    j0, j1 = s.split(j, (None, 4))
    ko, ku, ki = s.split(r, (None, 2, terms))
    s.reorder(ko, ku, i, j0, j1, ki)
    for loop in (i, j0, ku):
        s.unroll(loop)
    s.decompose_reduction("c", ko)
    s.tensorize(j1, ins)
    return s


def assembled(s: Schedule) -> list[str]:
    text = emit_module(s.dag, s.trace, qemu.TARGET).text
    return re.findall(r"^\s+([a-z]\w*)\b", assembly(text, qemu.TARGET), re.M)


def results(s: Schedule, inputs: list[np.ndarray], where: Path) -> np.ndarray:
    module = emit_module(s.dag, s.trace, qemu.TARGET)
    out = s.dag.stages[-1].outputs[0]
    arrays = [*inputs, np.full(out.shape, 77, DTYPES[out.dtype].numpy)]
    return qemu.run(module.text, arrays, module.scratch_bytes, where)[-1]


@pytest.mark.parametrize("name", DOTS + MATRICES)
def test_an_instruction_is_compiled_as_itself(name: str) -> None:
    ins = INSTRUCTIONS[name]
    assert assembled(alone(ins)).count(MNEMONIC.get(name, name)) == 1


@pytest.mark.parametrize("name", DOTS)
def test_a_tile_has_an_instruction_a_vector_and_step(name: str) -> None:
    found = assembled(tiled(INSTRUCTIONS[name], 4, 16, 4 * INSTRUCTIONS[name].iterations["t"]))
    assert found.count(MNEMONIC.get(name, name)) == 2 * 2 * 2


@pytest.mark.parametrize("name", DOTS + MATRICES)
def test_a_cpu_without_it_runs_its_loops(name: str) -> None:
    ins = INSTRUCTIONS[name]
    other = replace(qemu.TARGET, features=("fp-armv8", "neon"))
    text = emit_module(ins.meaning, alone(ins).trace, other).text
    assert MNEMONIC.get(name, name) not in assembly(text, other)


@pytest.mark.parametrize("name", DOTS + MATRICES)
def test_an_instruction_does_what_it_means(name: str, tmp_path: Path) -> None:
    ins = INSTRUCTIONS[name]
    inputs = whole(ins.meaning)
    got = results(alone(ins), inputs, tmp_path)
    assert np.array_equal(got, evaluate(ins.meaning, inputs)[0])


@pytest.mark.parametrize("name", DOTS + MATRICES)
def test_ends_of_integers(name: str, tmp_path: Path) -> None:
    """The least and the largest of each type, in all pairs: nothing saturates, no sign is lost."""
    ins = INSTRUCTIONS[name]
    ends = {"int8": (-128, 127), "uint8": (255, 0), "bfloat16": (-128, 127)}
    a, b = ins.meaning.inputs
    given = [np.resize(np.array(ends[t.dtype]), t.shape).astype(DTYPES[t.dtype].numpy) for t in (a, b)]
    for x in given, [given[0], given[1][..., ::-1].copy()], [np.full_like(g, g.flat[0]) for g in given]:
        assert np.array_equal(results(alone(ins), x, tmp_path), evaluate(ins.meaning, x)[0])


@pytest.mark.parametrize("name", DOTS)
def test_products_are_right(name: str, tmp_path: Path) -> None:
    ins = INSTRUCTIONS[name]
    s = tiled(ins, 6, 24, 6 * ins.iterations["t"])
    inputs = whole(s.dag)
    assert np.array_equal(results(s, inputs, tmp_path), evaluate(s.dag, inputs)[0])
