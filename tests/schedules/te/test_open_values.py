"""Bounds where much is open: integers that may wrap, errors without end, roots of what may be negative."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from helpers import host
from hypothesis import given
from hypothesis import strategies as st

from autotune.backends.building.from_trace import build_object
from autotune.codegen.llvm.compile import load_object
from autotune.measure.check import Checker
from autotune.measure.inputs import Draw, judged
from schedules import te
from schedules.model import Trace
from schedules.te.compute_dag import ComputeDAG
from schedules.te.rounding_expr import ComputedTensors, ErrorScope


def check(draw: Draw, dag: ComputeDAG, value: float, dtype: str) -> str:
    """What the check says to this value in every element."""
    outputs = [np.full(draw.reference[0].shape, value, dtype)]
    return Checker(dag.outputs, draw.reference, draw.bounds).check(outputs, 0).reason


def of_a_sum(f: Callable[[te.Expr], te.Expr]) -> ComputeDAG:
    """Of 100 terms. Of tenths it is 10 or a little off."""
    a, r = te.placeholder((2, 100), name="A"), te.reduce_axis(100, "r")
    c = te.compute((2,), lambda i: te.sum(a[i, r], axis=r), "C")
    return te.dag([a, te.compute((2,), lambda i: f(c[i]), "Y")])


def tenths(dag: ComputeDAG) -> Draw:
    return judged(dag, [np.full((2, 100), 0.1, "float32")])


def nine_or_ten(x: te.Expr) -> te.Expr:
    return te.cast(te.floor(x), "int64")


INTEGERS: dict[str, tuple[str, Callable[[te.Expr], te.Expr], tuple[int, int]]] = {
    "narrowed where it wraps": (
        "int32",
        lambda x: te.cast(nine_or_ten(x) + te.const(2**31 - 10, "int64"), "int32"),
        (2**31 - 1, -(2**31)),
    ),
    "wraps in 64 bits": (
        "int64",
        lambda x: nine_or_ten(x) + te.const(2**63 - 10, "int64"),
        (2**63 - 1, -(2**63)),
    ),
    "neighbours that float64 has 256 apart": (
        "int64",
        lambda x: nine_or_ten(x) + te.const(2**60 + 119, "int64"),
        (2**60 + 128, 2**60 + 129),
    ),
    "a choice of what float64 has as one": (
        "int64",
        lambda x: te.select(x > 10.0, te.const(2**60 + 100, "int64"), te.const(2**60, "int64")),
        (2**60 + 100, 2**60),
    ),
    "a step across what float64 has as numbers": (
        "int64",
        lambda x: nine_or_ten(x) * te.const(3, "int64") + te.const(2**59 + 36, "int64"),
        (2**59 + 63, 2**59 + 66),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", INTEGERS)
def test_both_integers_are_right(what: str) -> None:
    dtype, f, both = INTEGERS[what]
    dag = of_a_sum(f)
    draw = tenths(dag)
    for value in both:
        assert check(draw, dag, value, dtype) == ""
    if "wraps" not in what:
        for wrong in (min(both) - 1000, max(both) + 1000):
            assert "2 of 2 elements wrong" in check(draw, dag, wrong, dtype)


def pole(x: te.Expr) -> te.Expr:
    """Any number, of either sign."""
    return 1.0 / (x - 10.0)


BOUNDED: dict[str, tuple[Callable[[te.Expr], te.Expr], tuple[float, ...]]] = {
    "sigmoid at a pole": (lambda x: te.sigmoid(pole(x)), (0.0, 1.0)),
    "tanh at a pole": (lambda x: te.tanh(pole(x)), (-1.0, 1.0)),
    "erf at a pole": (lambda x: te.erf(pole(x)), (-1.0, 1.0)),
    "sigmoid of a wide range": (lambda x: te.sigmoid((x - 10.0) * 1e9), (0.0, 1.0)),
    "tanh of a wide range": (lambda x: te.tanh((x - 10.0) * 1e9), (-1.0, 1.0)),
}


@pytest.mark.parametrize("what", BOUNDED)
def test_a_function_is_off_by_no_more_than_its_range(what: str) -> None:
    f, ends = BOUNDED[what]
    dag = of_a_sum(f)
    draw = tenths(dag)
    for value in ends:
        assert check(draw, dag, value, "float32") == ""
    assert "2 of 2 elements wrong" in check(draw, dag, 7.0, "float32")


def test_an_error_without_end_stays_one() -> None:
    for f in (lambda x: te.exp(0.0 * pole(x)), lambda x: te.floor(te.sqrt(0.0 * pole(x)))):
        dag = of_a_sum(f)
        draw = tenths(dag)
        for right in (1.0, 0.0, np.nan):
            assert check(draw, dag, right, "float32") == ""


def test_what_is_compared_with_itself_is_settled() -> None:
    """As where NaN is told from numbers."""
    dag = of_a_sum(lambda x: te.select(te.equal(x, x), x, 0.0))
    draw = tenths(dag)
    assert check(draw, dag, 10.0, "float32") == ""
    assert "2 of 2 elements wrong" in check(draw, dag, 0.0, "float32")
    with_nan = judged(dag, [np.full((2, 100), np.nan, "float32")])
    assert check(with_nan, dag, 0.0, "float32") == ""


@pytest.mark.parametrize("f", [te.sqrt, te.log])
def test_a_variance_of_equal_numbers_may_be_negative(f: Callable[[te.Expr], te.Expr]) -> None:
    """Computed as the mean of squares less the square of the mean: then its root is NaN, or it is not."""
    m, n = 8, 1000
    x, k, r = te.placeholder((m, n), name="x"), te.reduce_axis(n, "k"), te.reduce_axis(n, "r")
    total = te.compute((m,), lambda i: te.sum(x[i, k], axis=k), "total")
    squares = te.compute((m,), lambda i: te.sum(x[i, r] * x[i, r], axis=r), "squares")

    def variance(i: te.Expr) -> te.Expr:
        return squares[i] * (1 / n) - (total[i] * (1 / n)) * (total[i] * (1 / n))

    dag = te.dag([x, te.compute((m,), lambda i: f(variance(i)), "y")])
    loaded = load_object(build_object(dag, Trace(), host()))
    for value in (0.1, 0.3, 0.7, 1.1, 123.4):
        draw = judged(dag, [np.full((m, n), value, "float32")], steady=True)
        out = np.empty(m, "float32")
        loaded.run([a.ctypes.data for a in (*draw.inputs, out)])
        assert Checker(dag.outputs, draw.reference, draw.bounds).check([out], 0).reason == ""
    spread = judged(dag, [np.random.default_rng(0).standard_normal((m, n)).astype("float32")])
    assert "8 of 8 elements wrong" in check(spread, dag, np.nan, "float32")


PART = st.tuples(st.booleans(), st.booleans())


@given(
    st.sampled_from(["and", "or"]),
    st.lists(st.lists(PART, min_size=3, max_size=3), min_size=1, max_size=4),
    st.booleans(),
)
def test_a_condition_may_flip_where_no_certain_part_decides_it(
    op: str, parts: list[list[tuple[bool, bool]]], told: bool
) -> None:
    """``parts``: of each its truth and whether it may flip, at three points. Every choice is tried."""
    scope = ErrorScope("s", {}, ComputedTensors({}, {}))
    given_ = []
    for part in parts:
        truth, open_ = (np.array([x[i] for x in part]) for i in (0, 1))
        given_.append((truth, open_ if open_.any() or told else None))
    value, near = scope._logic(op, given_)
    combine = all if op == "and" else any
    for at in range(3):
        each = [part[at] for part in parts]
        results = {
            combine(choice) for choice in itertools.product(*[{t, not t} if may else {t} for t, may in each])
        }
        assert value[at] == combine(t for t, _ in each)
        assert (near is not None and near[at]) == (len(results) == 2)
