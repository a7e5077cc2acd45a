"""Iterations that run and points that they compute, beside those of the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from schedules import ops, te
from schedules.ir import blocks
from schedules.ir.interp import run
from schedules.schedule import Schedule
from schedules.space.estimate.iterations import Iterations, iterations


def of(s: Schedule, block: str) -> Iterations:
    found = iterations(s.nest, next(b for b in blocks(s.nest.body) if b.name == block))
    assert found is not None
    return found


def row(n: int) -> Schedule:
    x = te.placeholder((n,), "float32", "x")
    return Schedule([x, te.compute((n,), lambda i: x[i] + 1.0, "y")])


@pytest.mark.parametrize(
    ("tail", "expected"), [("guard", Iterations(40, 33, 33)), ("shift", Iterations(40, 40, 33))]
)
def test_33_by_8(tail: str, expected: Iterations) -> None:
    s = row(33)
    s.split("y_i", 8, tail=tail)
    assert of(s, "y") == expected
    counts: dict[str, int] = {}
    run(s.nest, {"x": np.zeros(33, "f4"), "y": np.empty(33, "f4")}, counts=counts)
    assert counts["store y"] == expected.run


def test_steps_of_a_reduction_are_no_waste() -> None:
    x, k = te.placeholder((3, 33), "float32", "x"), te.reduce_axis(33, "k")
    s = Schedule([x, te.compute((3,), lambda i: te.sum(x[i, k], axis=k), "y")])
    s.unroll(s.split("y_k", 8)[1])
    assert of(s, "y") == Iterations(120, 99, 99)
    assert of(s, "y").guarded == pytest.approx(7 / 40)


def test_fused_and_split_loops() -> None:
    s = Schedule(ops.workload("matmul", {"m": 5, "n": 7, "k": 3}).dag)
    i, j, _ = s.loops("c")
    s.split(s.fuse(i, j), 4)
    assert of(s, "c") == Iterations(36 * 3, 35 * 3, 35 * 3)


def test_what_is_computed_again() -> None:
    x = te.placeholder((18,), "float32", "x")
    y = te.compute((18,), lambda i: x[i] * 2.0, "y")
    z = te.compute((16,), lambda i: y[i] + y[i + 2], "z")
    s = Schedule([x, z])
    s.compute_at("y", s.split("z_i", 4)[0])
    found = of(s, "y")
    assert (found.run, found.points) == (4 * 6, 18) and found.again == 24 / 18


def test_too_many_are_not_looked_at() -> None:
    s = row(33)
    assert iterations(s.nest, blocks(s.nest.body)[0], most=10) is None
