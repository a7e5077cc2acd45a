"""Bytes that are made in the kernel that multiplies them: they stay a stage, which an instruction reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import interpret, same
from test_instructed import ALL

from schedules import te
from schedules.ir import Intrinsic, walk
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.space.derive import DerivedSpace
from schedules.te.compute_dag import ComputeDAG


def by_rows(m: int, n: int, k: int, dtype: str) -> ComputeDAG:
    """Rows are quantised by what they are multiplied with, then multiplied with int8: as torchao has it."""
    x, w = te.placeholder((m, k), "float32", "x"), te.placeholder((k, n), "int8", "w")
    by, r = te.placeholder((m,), "float32", "by"), te.reduce_axis(k, "r")
    low, high = (-128.0, 127.0) if dtype == "int8" else (0.0, 255.0)

    def quantised(i: Any, j: Any) -> Any:
        return te.cast(te.cast(te.clip(te.round(x[i, j] * by[i]), low, high), "int32"), dtype)

    q = te.compute((m, k), quantised, "q")
    c = te.compute((m, n), lambda i, j: te.sum(te.cast(q[i, r], "int32") * w[r, j], axis=r), "c")
    y = te.compute((m, n), lambda i, j: te.cast(c[i, j], "float32") * by[i], "y")
    return te.dag([x, w, by, y])


def blocks(space: DerivedSpace, sketch: int) -> list[str]:
    row = space.sample(sketch, 1, np.random.default_rng(0))[0]
    return Schedule.replay(space.dag, space.trace(sketch, row), ALL).blocks()


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "offered"),
    [
        (5, 17, 12, "uint8", {"vpdpbusd"}),
        pytest.param(17, 16, 64, "int8", {"tdpbssd"}, marks=pytest.mark.slow),
    ],
)
def test_the_instruction_reads_what_was_made(m: int, n: int, k: int, dtype: str, offered: set[str]) -> None:
    dag, rng = by_rows(m, n, k, dtype), np.random.default_rng(0)
    space = derive(dag, ALL)
    inputs = [
        rng.integers(-300, 300, (m, k)).astype(np.float32),
        rng.integers(-128, 128, (k, n)).astype(np.int8),
        rng.choice([0.25, 0.5, 1.0], m).astype(np.float32),
    ]
    want = te.evaluate(dag, inputs)
    found = set()
    for number, name in enumerate(space.sketches):
        assert "q" in blocks(space, number)
        row = space.sample(number, 1, rng)[0]
        func = lower(Schedule.replay(dag, space.trace(number, row), ALL).nest)
        found |= {x.instruction.name for x in walk(func.body) if isinstance(x, Intrinsic)}
        same(interpret(func, dag, inputs), want, name)
    assert offered <= found


def test_what_few_results_need_is_computed_as_it_is_read() -> None:
    space = derive(by_rows(16, 2, 12, "uint8"), ALL)
    assert all("q" not in blocks(space, n) for n in range(len(space.sketches)))


def test_codes_are_unpacked_as_they_are_read() -> None:
    """What is made of bytes takes as many bytes, or more."""
    codes, x = te.placeholder((8, 16), "uint8", "codes"), te.placeholder((4, 16), "uint8", "x")
    r = te.reduce_axis(16, "r")
    w = te.compute((8, 16), lambda j, k: te.cast(te.cast(codes[j, k] & 15, "int32") - 8, "int8"), "w")
    y = te.compute((4, 8), lambda i, j: te.sum(te.cast(x[i, r], "int32") * w[j, r], axis=r), "y")
    space = derive(te.dag([codes, x, y]), ALL)
    assert all("w" not in blocks(space, n) for n in range(len(space.sketches)))
