"""Sums of which data say where they end: rows of a sparse matrix."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autotune as at
from autotune.targets import from_name
from schedules import te
from schedules.ir.interp import run
from schedules.ir.nest import find_block
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space.derive import derive
from schedules.space.rules.patterns import ends_with_data

ROWS, COLUMNS, MOST = 21, 13, 5


def sparse_product(rows: int = ROWS, numbers: int = 64) -> te.ComputeDAG:
    row, col = te.placeholder((rows + 1,), "int32", "row"), te.placeholder((numbers,), "int32", "col")
    val, x = te.placeholder((numbers,), "float32", "val"), te.placeholder((COLUMNS,), "float32", "x")
    k = te.reduce_axis(MOST, "k")

    def term(i: te.Expr) -> te.Expr:
        at_ = row[i] + te.cast(k, "int32")
        return te.select(at_ < row[i + 1], val[at_] * x[col[at_]], 0.0)

    return te.dag([row, col, val, x, te.compute((rows,), lambda i: te.sum(term(i), axis=k), "y")])


def numbers_of(lengths: list[int], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    row = np.concatenate(([0], np.cumsum(lengths))).astype("int32")
    col = rng.integers(0, COLUMNS, max(1, int(row[-1]))).astype("int32")
    val, x = rng.integers(-8, 9, len(col)), rng.integers(-8, 9, COLUMNS)
    return [row, col, val.astype("float32"), x.astype("float32")]


def wanted(row: np.ndarray, col: np.ndarray, val: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.array([val[a:b] @ x[col[a:b]] for a, b in itertools.pairwise(row)], "float32")


def lanes(dag: te.ComputeDAG, width: int, unroll: bool) -> Schedule:
    """Rows in lanes, steps of which none is done where no row has one."""
    s = Schedule(dag)
    s.skip_zeros("y")
    _, inner = s.split("y_i", [None, width], "guard")
    s.reorder("y_k", inner)
    s.vectorize(inner)
    if unroll:
        s.unroll("y_k")
    s.decompose_reduction("y", "y_k")
    return s


@settings(max_examples=12)
@given(
    st.lists(st.integers(0, MOST), min_size=ROWS, max_size=ROWS), st.sampled_from([1, 4, 8]), st.booleans()
)
def test_rows_end_where_data_say(lengths: list[int], width: int, unroll: bool) -> None:
    given_ = numbers_of(lengths, sum(lengths))
    dag = sparse_product(numbers=len(given_[1]))
    s = lanes(dag, width, unroll)
    want = wanted(*given_)
    for program in (Schedule(dag).nest, s.nest, lower(s.nest)):
        arrays = dict(zip(("row", "col", "val", "x"), given_, strict=True))
        arrays["y"] = np.full(ROWS, np.nan, "float32")
        run(program, arrays)
        assert np.array_equal(arrays["y"], want)


@pytest.mark.parametrize(("width", "unroll"), [(8, False), (16, True)])
def test_compiled_rows_end_where_data_say(width: int, unroll: bool) -> None:
    lengths = [0, 5, 1, 0, 0, 2, 3, 5, 5, 5, 5, 5, 5, 5, 5, 5, 0, 0, 4, 0, 1]
    given_ = numbers_of(lengths, 3)
    kernel = at.build(lanes(sparse_product(numbers=len(given_[1])), width, unroll), threads=1)
    assert np.array_equal(kernel(*given_), wanted(*given_))


def test_the_space_ends_rows_there() -> None:
    dag = sparse_product(rows=256)
    assert ends_with_data(find_block(Schedule(dag).nest, "y"))
    space = derive(dag, from_name("x86-64-v3"))
    assert space.sketches
    for n in range(len(space.sketches)):
        row = space.sample(n, 1, np.random.default_rng(n))[0]
        trace = space.trace(n, row)
        assert "skip_zeros" in [x.primitive for x in trace.steps]


def test_what_does_not_end_with_data() -> None:
    mask, x = te.placeholder((9,), "int32", "mask"), te.placeholder((9, 8), "float32", "x")
    k = te.reduce_axis(8, "k")
    same = lambda c, v: te.compute((9,), lambda i: te.sum(te.select(c(i), v(i), 0.0), axis=k), "y")  # noqa: E731
    for y in (
        same(lambda i: te.cast(k, "int32") < mask[i], lambda i: x[i, k]),  # no gather
        same(lambda i: te.equal(mask[i], 1), lambda i: x[mask[i], k]),  # of all steps or none
        same(lambda i: k <= i, lambda i: x[mask[i], k]),  # data say nothing
    ):
        assert not ends_with_data(find_block(Schedule(te.dag([mask, x, y])).nest, "y"))
