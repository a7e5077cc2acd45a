"""A cast says what becomes of numbers that its dtype does not have."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import check_compiled, expected, host, same

from schedules import te
from schedules.dtypes import DTYPES, NUMBERS, computed
from schedules.expr import Const
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

SOURCES = ("float16", "float32", "float64", "int8", "int32", "int64")


def cast_of(old: str, new: str, n: int, saturate: bool) -> ComputeDAG:
    x = te.placeholder((n,), old, "x")
    return te.dag([x, te.compute((n,), lambda i: te.cast(x[i], new, saturate=saturate), "y")])


def numbers(dtype: str) -> np.ndarray:
    """Ends of all dtypes, what is just beyond them, infinities and NaN, as far as the dtype has them."""
    row = DTYPES[dtype]
    ends = [
        float(x) for d in DTYPES.values() for x in ((d.range[0], d.range[-1]) if d.range else (d.largest,))
    ]
    values = [
        0.0,
        0.4,
        -0.0,
        463.9,
        464.0,
        465.0,
        -3e9,
        *ends,
        *(-x for x in ends),
        *(1.01 * x for x in ends),
    ]
    with np.errstate(over="ignore"):
        if row.kind == "float":
            return np.array([*values, np.nan, np.inf, -np.inf], dtype)
        return np.array([int(x) for x in values if np.isfinite(x) and int(x) in row.range], dtype)


def ended(x: np.ndarray, new: str) -> np.ndarray:
    """The cast in numpy: cut off in the widest dtype, then rounded or cut."""
    row = DTYPES[new]
    if row.kind == "float" and x.dtype.kind == "f" and row.largest >= DTYPES[computed(x.dtype.name)].largest:
        return x.astype(row.numpy)  # it has all these numbers
    if row.kind == "float":
        cut = np.clip(x.astype("float64"), -row.largest, row.largest).astype(
            "float32" if row.is_storage else new
        )
        return cut.astype(row.numpy)
    low, high = row.range[0], row.range[-1]
    if x.dtype.kind != "f":
        return np.array([min(max(int(v), low), high) for v in x], new)
    return np.array(
        [0 if np.isnan(v) else low if v <= low else high if v >= high else int(v) for v in map(float, x)], new
    )


@pytest.mark.parametrize("old", SOURCES)
def test_saturating_casts_end_at_the_largest_and_the_least(old: str) -> None:
    x = numbers(old)
    for new in NUMBERS:
        if new in (old, "float64"):
            continue
        dag = cast_of(old, new, len(x), True)
        (plain,) = expected(dag, [x])
        same([plain], [ended(x, new)], new)
        same(te.evaluate(dag, [x]), [plain], new)
        s = Schedule(dag)
        s.vectorize(s.split("y_i", (None, 16))[1])
        check_compiled(dag, s.trace, host(), [x], [plain])


@pytest.mark.parametrize(
    ("new", "given", "plain", "saturated"),
    [
        ("float8_e4m3fn", [464, 465, np.inf, -1e9, np.nan], [448, *[np.nan] * 4], [*[448] * 3, -448, np.nan]),
        ("float8_e5m2", [61439, 61440, np.inf], [57344, np.inf, np.inf], [57344, 57344, 57344]),
        ("int8", [300.7, -300.7, 3e9, np.nan, 127.9], [44, -44, -1, 0, 127], [127, -128, 127, 0, 127]),
        ("uint8", [300.7, -1.0, 255.9], [44, 255, 255], [255, 0, 255]),
        ("int32", [3e9, -3e9], [2**31 - 1, -(2**31)], [2**31 - 1, -(2**31)]),
    ],
)  # fmt: skip
def test_both_rules(new: str, given: list[float], plain: list[Any], saturated: list[Any]) -> None:
    x = np.array(given, np.float32)
    for saturate, want in ((False, plain), (True, saturated)):
        got = te.evaluate(cast_of("float32", new, len(x), saturate), [x])[0]
        np.testing.assert_array_equal(got.astype("float64"), np.array(want, "float64"))


def test_the_default_is_that_of_ml_dtypes() -> None:
    x = np.float32([465, np.inf, 1.06])
    got = te.evaluate(cast_of("float32", "float8_e4m3fn", 3, False), [x])[0]
    same([got], [x.astype(ml_dtypes.float8_e4m3fn)], "")


def test_literals_and_axes() -> None:
    assert te.cast(300, "int8", saturate=True) == Const(127, "int8")
    y = te.compute((300,), lambda i: te.cast(i - 20, "uint8", saturate=True), "y")
    np.testing.assert_array_equal(te.evaluate(te.dag([y]), [])[0], np.clip(np.arange(-20, 280), 0, 255))
