"""Smaller programs: which lengths may change, and that what is left is the same program."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import expected

from schedules import ops, te
from schedules.schedule import Schedule
from schedules.te.smaller import lengths, with_length


def found(op: str, **params: object) -> dict[str, int]:
    return {x.name: x.extent for x in lengths(ops.workload(op, params).dag)}


def test_a_product_has_three_lengths() -> None:
    dag = ops.workload("matmul", {"m": 8, "n": 6, "k": 4}).dag
    by_name = {x.name: x for x in lengths(dag)}
    assert {k: x.extent for k, x in by_name.items()} == {"i": 8, "j": 6, "k": 4}
    smaller = with_length(dag, by_name["k"], 2)
    assert smaller == ops.workload("matmul", {"m": 8, "n": 6, "k": 2}).dag


def test_one_length_in_several_stages_changes_in_all() -> None:
    dag = ops.workload("softmax", {"m": 4, "n": 10}).dag
    (row,) = [x for x in lengths(dag) if x.extent == 10]
    assert with_length(dag, row, 5) == ops.workload("softmax", {"m": 4, "n": 5}).dag


def test_windows_are_cut_by_their_outputs() -> None:
    params = {"h": 8, "w": 6, "ci": 4, "co": 2, "k": 3, "padding": 1}
    dag = ops.workload("conv2d", params).dag
    by_name = {x.name: x for x in lengths(dag)}
    assert {k: x.extent for k, x in by_name.items()} == {"c": 4, "o": 2, "p": 8, "q": 6}
    fewer = with_length(dag, by_name["p"], 4)
    assert fewer is not None
    assert {t.name: t.shape for t in fewer.inputs} == {"x": (1, 5, 6, 4), "w": (3, 3, 4, 2)}
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, t.shape).astype("f4") for t in dag.inputs)
    (whole,) = expected(dag, [x, w])
    (part,) = expected(fewer, [x[:, :5], w])
    np.testing.assert_array_equal(part, whole[:, :4])


def test_what_a_program_says_of_an_index_stays() -> None:
    x = te.placeholder((6, 8), "float32", "x")
    y = te.compute((6, 8), lambda i, j: te.select(i < 3, x[i, 7 - j], 0.0), "y")
    of = {n.name: n for n in lengths(te.dag([x, y]))}
    assert all(n.output is not None for n in of.values())


@pytest.mark.parametrize("op", ["matmul", "conv2d"])
def test_a_trace_fits_the_smaller_one(op: str) -> None:
    sizes = {"m": 16, "n": 16, "k": 8} if op == "matmul" else {"h": 9, "w": 9, "ci": 2, "co": 16, "k": 3}
    s = Schedule(ops.workload(op, sizes).dag)
    s.split(s.loops(s.blocks()[-1])[0], 4)
    for n in lengths(s.dag):
        smaller = with_length(s.dag, n, -(-n.extent // 2))
        assert smaller is not None
        assert Schedule.replay(smaller, s.trace).blocks() == s.blocks()
