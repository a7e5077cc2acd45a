"""Casts of floats to integers end at the largest and the least, and NaN is 0, in vectors and in scalars."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers import check_compiled, expected, host, in_lanes
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.codegen.llvm.emit import emit
from autotune.targets import from_name
from schedules import te
from schedules.expr import Expr
from schedules.float_ranges import EVERY, float_range
from schedules.model import Target
from schedules.passes.lower import lower
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import BlockEvaluator

FORMS: dict[str, Callable[[Expr], Expr]] = {
    "plain": lambda x: x,
    "rounded": te.round,
    "int8": lambda x: te.clip(te.round(x * 0.5) + 3.0, -128.0, 127.0),
    "uint8": lambda x: te.clip(te.floor(x), 0.0, 255.0),
    "clipped first": lambda x: te.round(te.clip(x, -7.5, 7.5)),
    "a quotient": lambda x: te.clip(x / x, -4.0, 4.0),
    "least alone": lambda x: te.maximum(x, -5.0),
    "largest alone": lambda x: te.minimum(3.0, x),
    "an end that is infinite": lambda x: te.minimum(te.maximum(x, -9.0), te.inf),
    "ends that are crossed": lambda x: te.clip(x, 9.0, -9.0),
    "beyond int32": lambda x: te.clip(x, -3e9, 3e9),
    "of two values": lambda x: te.clip(te.maximum(x, 1.0 / x), -100.0, 100.0),
    "NaN on one side": lambda x: te.clip(te.maximum(x, x - x), -100.0, 100.0),
    "next to int32": lambda x: te.clip(x, -2147483648.0, 2147483648.0),
    "a difference": lambda x: te.clip(x - 1e30, -100.0, 100.0) - 0.5,
    "both sides NaN": lambda x: te.clip(x - te.inf, -100.0, 100.0),
}


def numbers(dtype: str) -> np.ndarray:
    """Ends of all integers with their neighbours, halves, infinities and NaN."""
    ends = [float(1 << b) for b in (7, 8, 31, 32, 63, 64)]
    x = np.array([0.0, 0.5, 1.5, 2.5, 126.5, 127.5, 254.5, 255.5, 1e-40, 1e30, *ends], dtype)
    x = np.concatenate([x, np.nextafter(x, np.array(0, dtype)), x - 1])
    return np.concatenate([x, -x, np.array([np.nan, -np.nan, np.inf, -np.inf], dtype)])


def dag_of(form: str, dtype: str, to: str, n: int) -> ComputeDAG:
    x = te.placeholder((n,), dtype, "x")
    return te.dag([x, te.compute((n,), lambda i: te.cast(FORMS[form](x[i]), to), "y")])


@pytest.mark.parametrize("lanes", [1, 8, 32])
@pytest.mark.parametrize("to", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_casts_of_special_numbers(dtype: str, to: str, lanes: int) -> None:
    x = numbers(dtype)
    for form in FORMS:
        dag = dag_of(form, dtype, to, len(x))
        s = in_lanes(dag, lanes)
        want = expected(dag, [x])
        np.testing.assert_array_equal(te.evaluate(dag, [x])[0], want[0], err_msg=form)
        check_compiled(dag, s.trace, host(), [x], want)


@pytest.mark.parametrize("to", ["int32", "int64"])
def test_a_cast_is_what_it_was(to: str) -> None:
    """3e9 and infinity are the largest, NaN is 0, and no number wraps."""
    x = np.array([3e9, np.inf, -3e19, np.nan, -0.9, 2147483520.0, -2147483648.0, 7.9], np.float32)
    dag = dag_of("plain", "float32", to, 8)
    most, least = np.iinfo(to).max, np.iinfo(to).min
    first = most if to == "int32" else 3000000000
    want = np.array([first, most, least, 0, 0, 2147483520, -2147483648, 7], to)
    for lanes in (1, 8):
        check_compiled(dag, in_lanes(dag, lanes).trace, host(), [x], [want])


def text(form: str, target: Target) -> str:
    return emit(lower(in_lanes(dag_of(form, "float32", "int8", 64), 16).nest), target).text


def test_what_stays_between_the_ends_is_not_compared_with_them() -> None:
    x86 = from_name("x86-64-v3")
    clipped, plain = text("int8", x86), text("plain", x86)
    for code in (clipped, plain):
        assert "fptosi <16 x float>" in code and "fptosi.sat" not in code
    assert clipped.count("fcmp") == 3 and "imum" not in clipped  # both ends of the clip, and NaN
    assert plain.count("fcmp") == 3  # both ends of int32, and NaN


def test_arm_ends_by_itself() -> None:
    arm = Target("cpu", "neoverse-n1", "aarch64-unknown-linux-gnu", ("neon",))
    assert "llvm.fptosi.sat.v16i32.v16f32" in text("plain", arm)


# --- ranges -----------------------------------------------------------------------------------

X, N = te.placeholder((1,), "float32", "x"), te.placeholder((1,), "int8", "n")
LEAVES = st.one_of(
    st.just(X[0]),
    st.just(te.cast(N[0], "float32")),
    st.floats(width=32, allow_nan=False).map(lambda v: te.const(v, "float32")),
)


def _grown(parts: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    pair = st.tuples(parts, parts)
    return st.one_of(
        pair.map(lambda p: p[0] + p[1]),
        pair.map(lambda p: p[0] - p[1]),
        pair.map(lambda p: p[0] * p[1]),
        pair.map(lambda p: p[0] / p[1]),
        pair.map(lambda p: te.minimum(*p)),
        pair.map(lambda p: te.maximum(*p)),
        pair.map(lambda p: te.select(p[0] < p[1], *p)),
        parts.map(te.round),
        parts.map(te.floor),
        parts.map(te.exp),
        parts.map(lambda x: te.clip(x, -8.0, 7.25)),
    )


@given(st.recursive(LEAVES, _grown, max_leaves=6), st.floats(width=32), st.integers(-128, 127))
@settings(max_examples=200, deadline=None)
def test_values_lie_in_their_range_or_are_nan(e: Expr, x: float, n: int) -> None:
    arrays = {"x": np.array([x], np.float32), "n": np.array([n], np.int8)}
    with np.errstate(all="ignore"):
        value = float(np.reshape(BlockEvaluator("s", {}, arrays).value(e), -1)[0])
    low, high = float_range(e)
    assert value != value or low <= value <= high


def test_ranges_of_what_quantises() -> None:
    x = X[0]
    assert float_range(x) == EVERY
    assert float_range(te.clip(te.round(x / 3.0) + 4.0, -128.0, 127.0)) == (-128, 127)
    assert float_range(te.round(te.clip(x, -7.6, 7.4)) + te.cast(N[0], "float32")) == (-136, 134)
    assert float_range(te.minimum(x, 1.0)) == (-np.inf, 1)
    assert float_range(te.minimum(x, 1.0) * te.maximum(x, 0.0)) == EVERY  # of 0 and infinity is none
    assert float_range(te.clip(x, -1.0, 2.0) * -3.0) == (-6, 3)
