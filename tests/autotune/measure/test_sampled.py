"""Outputs that are checked in part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_cases import long_sum

from autotune.measure.check import Checker
from autotune.measure.inputs import Tolerance, draws, judged, random_inputs
from autotune.measure.sampled import BOXES, OPERATIONS, boxes, judged_in_part, plan, whole_s
from autotune.settings import SettingsError
from autotune.tuning.preparation import check_feasible
from autotune.tuning.recheck import REFERENCE_S
from schedules import ops, te
from schedules.model import Workload
from schedules.te.flops import count_flops

CASES = [
    ("matmul", {"m": 70, "n": 90, "k": 33}),
    ("conv2d", {"h": 40, "w": 37, "ci": 3, "co": 35, "k": 3, "padding": 1}),
    ("softmax", {"m": 100, "n": 50}),
    ("norm2", {"b": 3, "m": 9, "n": 8}),
]


@pytest.mark.parametrize(("name", "params"), CASES)
def test_in_part_outputs_and_bounds_are_those_of_the_whole(name: str, params: dict[str, int]) -> None:
    dag = ops.workload(name, params).dag
    inputs = random_inputs(dag, 1)
    part, whole = judged_in_part(dag, inputs, signs=True), judged(dag, inputs, signs=True)
    assert part.places is not None and 1 <= len(part.places[0]) <= BOXES
    for at in part.places[0]:
        np.testing.assert_allclose(part.reference[0][at], whole.reference[0][at], rtol=1e-6)
        np.testing.assert_allclose(part.bounds[0][at], whole.bounds[0][at], rtol=1e-4)
    ends = [(0,) * whole.reference[0].ndim, tuple(n - 1 for n in whole.reference[0].shape)]
    assert all(np.isfinite(part.bounds[0][at]) for at in ends)
    elsewhere = np.ones(whole.reference[0].shape, bool)
    for at in part.places[0]:
        elsewhere[at] = False
    assert np.isposinf(part.bounds[0][elsewhere]).all()


def test_a_wrong_end_is_found_in_part_and_tolerances_count_there() -> None:
    dag = ops.workload("matmul", {"m": 70, "n": 90, "k": 33}).dag
    for tolerance in (None, Tolerance(1e-3, 1e-3)):
        draw = judged_in_part(dag, random_inputs(dag, 1)).within(tolerance)
        check = Checker(dag.outputs, draw.reference, draw.bounds)
        right = judged(dag, draw.inputs).reference[0]
        assert not check.check([right], 0).reason
        right[-1, -1] += 1
        assert "1 of 6300 elements wrong, first at [69, 89]" in check.check([right], 0).reason


def test_large_workloads_get_small_parts_and_few_draws() -> None:
    dag = ops.workload("matmul", {"m": 4096, "n": 4096, "k": 4096}).dag
    assert all(count_flops(p.dag) <= OPERATIONS for p in boxes(dag))
    assert whole_s(dag) > 10 > 0.01 > whole_s(ops.workload("matmul", {"m": 64, "n": 64, "k": 64}).dag)
    dag = ops.workload("matmul", {"m": 64, "n": 64, "k": 600}).dag
    assert len(draws(dag, 0)) > len(draws(dag, 0, judged_in_part, 1)) == 1


def test_inputs_are_turned_where_parts_would_be_nan() -> None:
    x = te.placeholder((3000,), "float32", "x")
    dag = te.dag([x, te.compute((3000,), lambda i: te.sqrt(x[i]), "y")])
    (draw,) = draws(dag, 0, judged_in_part)
    assert draw.nan_share == 0 and (draw.inputs[0] >= 0).all()


def test_what_a_reference_takes_is_known_before() -> None:
    """Of an operator in part, where that is quicker; of a sum that no part makes shorter, all of it."""
    dag = ops.workload("matmul", {"m": 4096, "n": 4096, "k": 4096}).dag
    in_part, takes_s = plan(dag, 100.0)
    assert not in_part and takes_s > whole_s(dag) > 10
    in_part, takes_s = plan(dag, 1.0)
    assert in_part and takes_s < 3
    for sum_of in (long_sum(10**9), long_sum(10**11), long_sum(10**11, 1)):
        assert plan(sum_of.dag, 1.0)[1] > 10
    k = te.reduce_axis(10**8, "k")
    x = te.placeholder((10**8,), "float32", "x")
    assert plan(te.dag([x, te.compute((1,), lambda i: te.sum(x[k], axis=k), "y")]), 1.0)[1] < 5


def test_large_numbers_are_no_problem_of_the_estimate() -> None:
    """Extents of a file may have any product that a compute DAG takes."""
    x, k = te.placeholder((8,), "float32", "x"), [te.reduce_axis(n, f"k{n}") for n in (2**40, 2**17)]
    dag = te.dag([x, te.compute((8,), lambda i: te.sum(x[k[0] % 8] + x[i], axis=k), "y")])
    assert plan(dag, 1.0)[1] > 1e10
    with pytest.raises(SettingsError, match="one run takes"):
        check_feasible(Workload(dag, flops=count_flops(dag)), 60.0, memory=False)


@settings(max_examples=10, deadline=None)
@given(
    op=st.sampled_from(("matmul", "conv2d", "softmax", "layer_norm", "attention", "max_pool2d")),
    scale=st.integers(1, 20),
)
def test_what_people_tune_is_not_refused(op: str, scale: int) -> None:
    """In part, up to products of 10,240 by 10,240."""
    sizes = {
        "matmul": {"m": 512 * scale, "n": 512 * scale, "k": 512 * scale},
        "conv2d": {"h": 8 * scale, "w": 8 * scale, "ci": 16 * scale, "co": 16 * scale, "k": 3, "padding": 1},
        "softmax": {"m": 512 * scale, "n": 512 * scale},
        "layer_norm": {"m": 512 * scale, "n": 512 * scale},
        "attention": {"b": 1, "heads": scale, "seq": 128 * scale, "dim": 128},
        "max_pool2d": {"h": 16 * scale, "w": 16 * scale, "c": 16 * scale, "k": 3, "stride": 2, "padding": 1},
    }
    assert plan(ops.workload(op, sizes[op]).dag, 6.0)[1] < REFERENCE_S


def test_a_scatter_takes_as_long_as_its_terms() -> None:
    n = 400_000
    x, k = te.placeholder((n,), "float64", "x"), te.placeholder((n,), "int32", "k")
    sums = te.histogram(k, 1000, weights=x, name="sums")
    assert whole_s(te.dag([x, k, sums])) < 1.0


def test_a_scan_takes_as_long_as_its_steps() -> None:
    def steps(n: int, m: int) -> float:
        x, y = te.placeholder((n, m), "float32", "x"), te.state((n, m), "float32", name="y", init=0.0)
        return whole_s(te.dag([x, te.scan(y, te.compute((n, m), lambda i, j: y[i - 1, j] * x[i, j], "y"))]))

    assert steps(100_000, 8) > 5.0 > steps(1_000, 8) > 0.02  # some 0.2 ms each
    x, y = te.placeholder((10**6,), "float32", "x"), te.state((10**6,), "float32", name="y", init=0.0)
    chain = te.dag([x, te.scan(y, te.compute((10**6,), lambda i: y[i - 1] * 0.5 + x[i], "y"))])
    assert whole_s(chain) < 10.0


def test_a_factorisation_takes_as_long_as_what_its_steps_sum() -> None:
    n = 1000
    a, low = te.placeholder((n, n), "float64", "a"), te.state((n, n), "float64", axis=0, name="low")

    def products(c: Any, i: Any) -> Any:
        k = te.reduce_axis((0, c), "k")
        return te.sum(low[k, i] * low[k, c], axis=k)

    s = te.compute((n, n), products, "s")
    out = te.scan(low, te.compute((n, n), lambda c, i: a[i, c] - s[c, i], "low"))
    assert 1.0 < whole_s(te.dag([a, out])) < 6.0
