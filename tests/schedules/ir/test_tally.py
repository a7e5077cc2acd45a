"""Counts without running: the same as those of the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from dot_products import product, tensorized
from small_shapes import SMALL
from space_cases import target

from autotune.report.explain.counters import counted
from schedules import ops, te
from schedules.instructions import INSTRUCTIONS
from schedules.ir.interp import OPERATIONS
from schedules.ir.tally import tally
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.flops import count_flops

BY_DATA = ("argmax", "argmin")


@pytest.mark.fast("matmul", "conv2d_bias_relu", "matmul_bias_gelu", "conv2d_bn_relu", "rms_norm", "softmax")
@pytest.mark.parametrize("op", [x for x in SMALL if x not in (*BY_DATA, "capsule_conv2d")])
def test_counts_are_those_of_the_interpreter(op: str) -> None:
    dag = ops.workload(op, SMALL[op]).dag
    func = lower(Schedule(dag).nest)
    assert tally(func) == counted(func)
    if op in ("matmul", "conv2d", "softmax"):
        space = derive(dag, target())
        for k in range(len(space.sketches)):
            rows = space.sample(k, 20, np.random.default_rng(0))
            func = lower(Schedule.replay(dag, space.trace(k, rows[space.valid(k, rows)][0])).nest)
            assert tally(func) == counted(func)


@pytest.mark.parametrize("tail", ["guard", "shift"])
def test_tails(tail: str) -> None:
    x = te.placeholder((33, 5), "float32", "x")
    s = Schedule([x, te.compute((33, 5), lambda i, j: x[i, j] * 2.0 + 1.0, "y")])
    s.split("y_i", 8, tail=tail)
    func = lower(s.nest)
    assert tally(func) == counted(func)
    computed = 33 * 5 if tail == "guard" else 40 * 5
    assert tally(func) == {"load x": computed, "store y": computed, OPERATIONS: 2 * computed}


def test_indices_decide() -> None:
    x = te.placeholder((9, 9), "float32", "x")
    y = te.compute((9, 9), lambda i, j: te.select(i * 2 < j + 3, x[i, j] * x[j, i], 0.0), "y")
    func = lower(Schedule([x, y]).nest)
    taken = sum(2 * i < j + 3 for i in range(9) for j in range(9))
    assert tally(func) == counted(func) == {"load x": 2 * taken, OPERATIONS: taken, "store y": 81}


@pytest.mark.parametrize("op", BY_DATA)
def test_what_data_decides_is_not_counted(op: str) -> None:
    assert tally(lower(Schedule(ops.workload(op, SMALL[op]).dag).nest)) is None


def test_large_problems_are_counted_and_too_much_is_not() -> None:
    dag = ops.workload("matmul", {"m": 1000, "n": 999, "k": 998}).dag
    func = lower(Schedule(dag).nest)
    counts = tally(func)
    assert counts is not None and counts["load a"] == 1000 * 999 * 998
    assert counts[OPERATIONS] >= count_flops(dag)
    assert tally(func, most=5) is None


@pytest.mark.parametrize("name", ["vdpbf16ps", "vpdpbusd"])
def test_instructions_count_in_the_buffers_of_their_operands(name: str) -> None:
    ins = INSTRUCTIONS[name]
    m, n, k = 4, 32, 4 * ins.iterations["t"]
    dag = product(ins, m, n, k)
    func = lower(tensorized(dag, ins, 2, 1, 2).nest)
    counts = tally(func)
    assert counts is not None and counts == counted(func)
    assert counts[OPERATIONS] == 2 * m * n * k and counts["load a"] == counts["load b_global"] == m * n * k
    assert counts["load b"] == counts["store b_global"] == n * k and counts["store c"] == m * n
