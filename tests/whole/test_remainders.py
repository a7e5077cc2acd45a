"""Remainders of floats, and quotients rounded down, are bit for bit those of C, numpy and torch on every
backend, whatever the quotient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from backends import results, sampled
from helpers import host, interpret, run_object
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.backends.building.from_trace import build_object
from schedules import te
from schedules.dtypes import DTYPES, computed
from schedules.errors import WorkloadError
from schedules.expr import Expr, show
from schedules.ir.nest import initial
from schedules.passes.lower import lower
from schedules.te.compute_dag import ComputeDAG

FLOATS = ["float32", "float64"]
NAMES = ["fmod", "remainder", "floor_divide"]
Array = np.ndarray


def dag_of(n: int, dtype: str) -> ComputeDAG:
    x, y = (te.placeholder((n,), dtype, name) for name in "xy")

    def both(a: Expr, b: Expr) -> tuple[Expr, ...]:
        return te.fmod(a, b), te.remainder(a, b), te.floor_divide(a, b)

    return te.dag([x, y, *te.compute((n,), lambda i: both(x[i], y[i]), NAMES)])


def wanted(x: Array, y: Array) -> list[Array]:
    """By numpy, whose fmod is C's. Its zeros of a remainder have the sign of y; here it is that of x."""
    with np.errstate(all="ignore"):
        rest = np.fmod(x, y)
        return [rest, np.where(rest == 0, rest, np.remainder(x, y)), np.floor_divide(x, y)]


def same_bits(got: Sequence[Array], want: Sequence[Array], arrays: Sequence[Array], what: str) -> None:
    for name, a, b in zip(NAMES, got, want, strict=False):
        assert a.dtype == b.dtype
        equal = ((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))
        at = np.flatnonzero(~equal)
        first = [v[at[:1]] for v in (*arrays, a, b)]
        assert not len(at), f"{name} by {what}: {len(at)} wrong, first (x, y, got, wanted): {first}"


def special(dtype: str) -> Array:
    info = np.finfo(dtype)
    sizes = [0.0, info.smallest_subnormal, 3 * info.smallest_subnormal, info.tiny, 0.1, 0.5, 1, 1.5, 3, 360]
    sizes += [2 * math.pi, 1e7, 1e9, 2.0**26 - 1, 2.0**26 + 1, 2.0**53, 1e30, info.max, math.inf]
    return np.array([*sizes, *(-v for v in sizes), math.nan], dtype)


def data(dtype: str, n: int) -> list[Array]:
    """All pairs of special values, then ``n`` each of random bits, quotients of ordinary size, and numbers
    beside multiples of their divisor."""
    rng = np.random.default_rng(0)
    x, y = (v.ravel() for v in np.meshgrid(special(dtype), special(dtype)))
    kind = np.dtype(f"u{np.dtype(dtype).itemsize}")
    bits = rng.integers(0, np.iinfo(kind).max, (2, n), kind, endpoint=True).view(dtype)
    by = rng.standard_normal((2, n)).astype(dtype)
    ordinary = (rng.standard_normal(n) * 1e6).astype(dtype)
    with np.errstate(all="ignore"):
        multiple = np.round(np.exp2(rng.uniform(0, 120, n))).astype(dtype) * by[1]
        beside = np.nextafter(multiple, np.where(rng.random(n) < 0.5, np.inf, -np.inf).astype(dtype))
    beside = np.where(rng.random(n) < 0.3, multiple, beside)
    return [np.concatenate([x, bits[0], ordinary, beside]), np.concatenate([y, bits[1], *by])]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_backend_has_all_bits(dtype: str) -> None:
    arrays = data(dtype, 2000)
    want = wanted(*arrays)
    for what, got in results(dag_of(len(arrays[0]), dtype), arrays):
        same_bits(got, want, arrays, what)


def test_examples() -> None:
    x = np.array([1e7, 1e9, -1e9, 5, -5, 5, -5, math.inf, 5, -4, 0.3], "float32")
    y = np.array([0.1, 6.2831855, 6.2831855, 3, 3, -3, -3, 2, -math.inf, 2, 0.1], "float32")
    rest = [0.05098839, 4.165788, -4.165788, 2, -2, 2, -2, math.nan, 5, -0.0, 7.450581e-09]
    down = [0.05098839, 4.165788, 2.117397, 2, 1, -1, -2, math.nan, -math.inf, -0.0, 7.450581e-09]
    whole = [1e8, 159154928, -159154944, 1, -2, -2, 1, math.nan, -1, -2, 3]
    for what, got in results(dag_of(len(x), "float32"), [x, y], devices=False):
        for a, b in zip(got, (rest, down, whole), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=what)
            np.testing.assert_array_equal(np.signbit(a)[9], np.signbit(b)[9], err_msg=what)


LANES = 24


@cache
def kernels(dtype: str) -> list[tuple[ComputeDAG, bytes]]:
    dag = dag_of(LANES, dtype)
    return [(dag, build_object(dag, trace, host())) for trace in sampled(dag)]


def bit_patterns(dtype: str) -> st.SearchStrategy[list[float]]:
    """Numbers of all sizes, often special ones, and of few bits, whose remainders are often 0."""
    width = 32 if dtype == "float32" else 64
    few = st.builds(math.ldexp, st.integers(-9, 9).map(float), st.integers(-149, 120))
    each = st.one_of(st.floats(width=width), few, st.sampled_from(special(dtype).tolist()))  # type: ignore[arg-type]
    return st.lists(each, min_size=LANES, max_size=LANES)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
@settings(deadline=None, max_examples=25)
@given(draw=st.data())
def test_any_bits(dtype: str, draw: st.DataObject) -> None:
    arrays = [np.array(draw.draw(bit_patterns(dtype)), dtype) for _ in "xy"]
    want = wanted(*arrays)
    dag = dag_of(LANES, dtype)
    same_bits(te.evaluate(dag, arrays), want, arrays, "the reference")
    same_bits(interpret(lower(initial(dag)), dag, arrays), want, arrays, "the interpreter")
    for _, obj in kernels(dtype):
        for got in run_object(obj, dag, host(), arrays).values():
            same_bits(got, want, arrays, "the CPU")


@pytest.mark.fast("bfloat16")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_stored_floats_are_computed_with_as_float32(dtype: str) -> None:
    x, y = te.placeholder((7,), dtype, "x"), te.placeholder((7,), dtype, "y")
    outs = te.compute((7,), lambda i: (te.fmod(x[i], y[i]), te.remainder(x[i], 0.1)), NAMES[:2])
    dag = te.dag([x, y, *outs])
    assert [t.dtype for t in outs] == [computed(dtype)] * 2
    some = np.array([60000.0, -3, 0.1, 2, -0.0, math.inf, 1e-7], "float32").astype(DTYPES[dtype].numpy)
    arrays = [some, np.ascontiguousarray(some[::-1])]
    wide = [v.astype("float32") for v in arrays]
    want = [wanted(*wide)[0], wanted(wide[0], np.float32(0.1))[1]]
    for what, got in results(dag, arrays):
        same_bits(got, want, wide, what)


def test_they_take_numbers_and_need_floats_of_one_dtype() -> None:
    x, y, n = (te.placeholder((4,), d, c) for d, c in (("float32", "x"), ("float64", "y"), ("int32", "n")))

    def value(f: object) -> Expr:
        return te.compute((4,), f, "z").op.values[0]  # type: ignore[no-any-return, operator, call-overload]

    assert show(value(lambda i: te.fmod(x[i], 360))) == "fmod(x[i], 360.0)"
    assert show(value(lambda i: te.fmod(1, y[i]))) == "fmod(1.0, y[i])"
    for f in (te.fmod, te.remainder, te.floor_divide):
        for bad in (lambda i, f=f: f(x[i], y[i]), lambda i, f=f: f(n[i], n[i]), lambda i, f=f: f(x, 2)):
            with pytest.raises(WorkloadError, match=rf"te\.{f.__name__}"):
                value(bad)
    with pytest.raises(WorkloadError, match=r"operator '%' needs integers, got float32; use te\.remainder"):
        value(lambda i: x[i] % 2)
    with pytest.raises(
        WorkloadError, match=r"operator '//' needs integers, got float32; use te\.floor_divide"
    ):
        value(lambda i: x[i] // 2)
