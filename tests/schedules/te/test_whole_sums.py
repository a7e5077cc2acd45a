"""Sums of products of integers are exact: with float64 where it holds them, else with integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules import te
from schedules.dtypes import DTYPES
from schedules.te import contraction
from schedules.te.compute_dag import ComputeDAG
from schedules.te.rounding import evaluate_with_bounds

STORED = ("int8", "uint8", "int32", "int64")


def product(m: int, n: int, k: int, a: str, b: str, out: str = "int32", zeros: bool = False) -> ComputeDAG:
    """``sum (x - 3) (y - 5)``, or without ``zeros`` ``sum x y``, in ``out``."""
    x, y = te.placeholder((m, k), a, "x"), te.placeholder((k, n), b, "y")
    r = te.reduce_axis(k, "r")

    def value(i: te.Expr, j: te.Expr) -> te.Reduction:
        u, v = te.cast(x[i, r], out), te.cast(y[r, j], out)
        return te.sum((u - 3) * (v - 5) if zeros else u * v, axis=r)

    return te.dag([x, y, te.compute((m, n), value, "z")])


def packed(m: int, n: int, k: int) -> ComputeDAG:
    """int8 by codes of 4 bits, two a byte, around 8."""
    x, y = te.placeholder((m, 2 * k), "int8", "x"), te.placeholder((k, n), "uint8", "y")
    r = te.reduce_axis(2 * k, "r")

    def value(i: te.Expr, j: te.Expr) -> te.Reduction:
        code = te.select(te.equal(r % 2, 0), y[r // 2, j] & 15, y[r // 2, j] >> 4)
        return te.sum(te.cast(x[i, r], "int32") * (code - 8), axis=r)

    return te.dag([x, y, te.compute((m, n), value, "z")])


def convolution(h: int, c: int, f: int, stride: int) -> ComputeDAG:
    """3 by 3, padded by the zero point, NHWC."""
    x, w = te.placeholder((h, h, c), "uint8", "x"), te.placeholder((3, 3, c, f), "int8", "w")

    def pad(y: te.Expr, z: te.Expr, i: te.Expr) -> te.Expr:
        return te.select(te.all(y > 0, y < h + 1, z > 0, z < h + 1), x[y - 1, z - 1, i], 7)

    p = te.compute((h + 2, h + 2, c), pad, "p")
    u, v, i = te.reduce_axis(3, "u"), te.reduce_axis(3, "v"), te.reduce_axis(c, "i")

    def value(y: te.Expr, z: te.Expr, o: te.Expr) -> te.Reduction:
        here = te.cast(p[y * stride + u, z * stride + v, i], "int32") - 7
        return te.sum(here * te.cast(w[u, v, i, o], "int32"), axis=(u, v, i))

    out = -(-h // stride)
    return te.dag([x, w, te.compute((out, out, f), value, "y")])


def extremes(dag: ComputeDAG, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Inputs of any numbers, of which a third are the least and the largest."""
    rng, out = np.random.default_rng(seed), []
    for t in dag.inputs:
        values = DTYPES[t.dtype].range
        x = rng.integers(values[0], values[-1], t.shape, endpoint=True, dtype=np.int64)
        ends = rng.choice(np.array([values[0], values[-1]], np.int64), t.shape)
        out.append(np.where(rng.random(t.shape) < 1 / 3, ends, x).astype(t.dtype))
    return out


def results(dag: ComputeDAG, inputs: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """From both evaluators; the second must say that they are exact."""
    found = evaluate_with_bounds(dag, inputs)
    assert not found.bounds[0].any()
    return [te.evaluate(dag, inputs)[0], found.values[0]]


def wrapped(x: Any, dtype: str) -> Any:
    """Python's integers, which have no end, as ``dtype``."""
    bits = 8 * DTYPES[dtype].itemsize
    half = 1 << bits - 1
    return ((np.asarray(x, object) + half) % (1 << bits) - half).astype(dtype)


dims = st.integers(1, 6)


@given(dims, dims, dims, st.sampled_from(STORED), st.sampled_from(STORED), st.booleans(), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_any_integers_are_exact_and_wrap(
    m: int, n: int, k: int, a: str, b: str, zeros: bool, seed: int
) -> None:
    out = "int64" if "int64" in (a, b) else "int32"
    dag = product(m, n, k, a, b, out, zeros)
    inputs = extremes(dag, seed)
    x, y = (v.astype(object) for v in inputs)
    want = wrapped((x - 3) @ (y - 5) if zeros else x @ y, out)
    for got in results(dag, inputs):
        np.testing.assert_array_equal(got, want)


def test_the_least_int8_a_thousand_times() -> None:
    for got in results(
        product(3, 5, 1024, "int8", "int8"), [np.full(s, -128, "int8") for s in ((3, 1024), (1024, 5))]
    ):
        assert (got == 16777216).all()


def test_a_long_sum_is_right_though_it_leaves_float32() -> None:
    k = 131072
    inputs = [np.full((1, k), 100, "int8"), np.full((k, 2), 127, "int8")]
    for got in results(product(1, 2, k, "int8", "int8"), inputs):
        assert (got == 1664614400).all()


def test_the_middle_of_a_sum_may_wrap() -> None:
    """Up beyond the largest int32, and beyond it at the end too."""
    k = 131072
    x, y = np.full((1, 2 * k), 255, "uint8"), np.full((2 * k, 1), 127, "int8")
    y[k + 1 :] = -127
    for got in results(product(1, 1, 2 * k, "uint8", "int8"), [x, y]):
        assert got == 2 * 255 * 127
    a, b = np.array([[2**31 - 1, 255]], "int32"), np.array([[1], [4]], "int32")
    for got in results(product(1, 1, 2, "int32", "int32"), [a, b]):
        assert got == -2147482629


@pytest.mark.parametrize(
    "dag", [packed(3, 5, 7), packed(17, 33, 24), convolution(6, 5, 4, 1), convolution(7, 3, 5, 2)]
)
def test_codes_and_windows_as_the_plain_path_has_them(dag: ComputeDAG) -> None:
    inputs = extremes(dag)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contraction, "_EXACT", -1)
        want = te.evaluate(dag, inputs)[0]
    for got in results(dag, inputs):
        np.testing.assert_array_equal(got, want)


def test_numbers_beyond_float64_stay_integers() -> None:
    """At the limit float64 is taken, and one above it is not."""
    dag = product(1, 1, 2, "int64", "int64", "int64")
    for ones in (2**52, 2**52 + 1):
        inputs = [np.array([[ones, 1]], "int64"), np.array([[1], [ones]], "int64")]
        for got in results(dag, inputs):
            assert got == 2 * ones
    long = [np.array([[2**52 + 1, *[2**52] * 3]], "int64"), np.ones((4, 1), "int64")]
    for got in results(product(1, 1, 4, "int64", "int64", "int64"), long):
        assert got == 2**54 + 1
    huge = [np.array([[2**53 + 1, 1]], "int64"), np.array([[1], [0]], "int64")]
    for got in results(dag, huge):
        assert got == 2**53 + 1


def test_blas_adds_up_what_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """An integer product of 1024 cubed takes numpy four seconds."""
    seen: list[str] = []
    plain = contraction._matmul

    def spy(a: Any, b: Any, free: list[str]) -> Any:
        seen.append(a[0].dtype.name)
        return plain(a, b, free)

    monkeypatch.setattr(contraction, "_matmul", spy)
    for dag in (
        product(8, 8, 64, "uint8", "int8"),
        product(9, 8, 64, "int8", "int8", zeros=True),
        packed(8, 8, 32),
    ):
        seen.clear()
        results(dag, extremes(dag))
        assert set(seen) == {"float64"}, dag
