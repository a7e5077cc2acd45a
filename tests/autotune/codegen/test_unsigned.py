"""int16, uint16 and uint32: stored, computed with as their wider dtype, on every back end as in numpy."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backends import results
from helpers import check_compiled, host, same

from schedules import te
from schedules.dtypes import DTYPES, NUMBERS, computed
from schedules.errors import WorkloadError
from schedules.expr import Expr
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

STORED = ("int16", "uint16", "uint32")


def values(dtype: str, n: int = 203) -> np.ndarray:
    """Both ends, what lies around half of them, small numbers and others."""
    row = DTYPES[dtype]
    least, most = row.range[0], row.range[-1]
    ends = [least, most, most // 2, most // 2 + 1, 0, 1, 2, 3, 7, 255, 256]
    drawn = np.random.default_rng(0).integers(least, most, n - len(ends), dtype, endpoint=True)
    return np.concatenate([np.array(ends, dtype), drawn])


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "mod": operator.mod, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
}  # fmt: skip


def pairs(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    a = values(dtype)
    return a, np.where(np.roll(a, 5) == 0, 3, np.roll(a, 5)).astype(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", STORED)
def test_arithmetic_is_that_of_the_wider_dtype_and_wraps_where_it_is_stored(dtype: str) -> None:
    a, b = pairs(dtype)
    x, y = te.placeholder(a.shape, dtype, "x"), te.placeholder(b.shape, dtype, "y")

    def value(i: Any) -> tuple[Expr, ...]:
        made = [f(x[i], y[i]) for f in BINARY.values()]
        tests = [x[i] < y[i], y[i] <= x[i], te.equal(x[i], y[i] & x[i])]
        rest = [te.cast(x[i], "float64") / 3.0, te.cast(x[i] << 3, dtype), x[i] >> 2, te.maximum(x[i], y[i])]
        return (*made, *(te.cast(e, dtype) for e in made), *tests, *rest)

    dag = te.dag([x, y, *te.compute(a.shape, value, "z")])
    wide = computed(dtype)
    u, v = a.astype(wide), b.astype(wide)
    with np.errstate(over="ignore"):
        made = [f(u, v) for f in BINARY.values()]
        rest = [a.astype("float64") / 3, (u << 3).astype(dtype), u >> 2, np.maximum(u, v)]
    want = [*made, *(e.astype(dtype) for e in made), a < b, b <= a, a == (a & b), *rest]
    for what, got in results(dag, [a, b]):
        for name, have, right in zip(dag.outputs, got, want, strict=True):
            np.testing.assert_array_equal(have, right, err_msg=f"{name} by {what}", strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", STORED)
def test_casts_of_every_dtype(dtype: str) -> None:
    """From it to all others, and back from int32 and int64."""
    a = values(dtype)
    x, n, m = (te.placeholder(a.shape, d, c) for d, c in ((dtype, "x"), ("int32", "n"), ("int64", "m")))
    others = [d for d in NUMBERS if d != dtype]

    def value(i: Any) -> tuple[Expr, ...]:
        return (*(te.cast(x[i], d) for d in others), te.cast(n[i], dtype), te.cast(m[i], dtype))

    dag = te.dag([x, n, m, *te.compute(a.shape, value, "z")])
    rng = np.random.default_rng(1)
    given = [a, *(rng.integers(np.iinfo(d).min, np.iinfo(d).max, a.shape, d) for d in ("int32", "int64"))]
    with np.errstate(over="ignore"):
        want = [a.astype(computed(d)).astype(DTYPES[d].numpy) for d in others]
    want += [g.astype(dtype) for g in given[1:]]
    for what, got in results(dag, given):
        same(got, want, what)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("source", ["float32", "float64", "int64"])
def test_a_saturating_cast_ends_at_both_ends(dtype: str, source: str) -> None:
    least, most = DTYPES[dtype].range[0], DTYPES[dtype].range[-1]
    numbers = [least - 1, least, least + 1, most - 1, most, most + 1, 2 * most + 5, -most, 0, 12]
    a = np.array([*numbers, *(() if source == "int64" else (np.nan, np.inf, -np.inf))], source)
    x = te.placeholder(a.shape, source, "x")
    dag = te.dag([x, te.compute(a.shape, lambda i: te.cast(x[i], dtype, saturate=True), "y")])
    if source == "int64":
        want = np.clip(a, least, most).astype(dtype)
    else:
        want = np.array([0 if v != v else int(max(least, min(v, most))) for v in a.tolist()], dtype)
    for what, (got,) in results(dag, [a]):
        np.testing.assert_array_equal(got, want, err_msg=what, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", STORED)
def test_sums_and_maxima_and_indices(dtype: str) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, DTYPES[dtype].range[-1], (13, 29), dtype, endpoint=True)
    ids, rows = rng.integers(0, 60, 17).astype(dtype), rng.integers(-9, 9, (40, 3)).astype("float32")
    x, k = te.placeholder(a.shape, dtype, "x"), te.reduce_axis(29, "k")
    total = te.compute((13,), lambda i: te.sum(x[i, k], axis=k), "total")
    most = te.compute((13,), lambda i: te.max(x[i, k], axis=k), "most")
    n, w = te.placeholder(ids.shape, dtype, "n"), te.placeholder(rows.shape, "float32", "w")
    read = te.compute((17, 3), lambda i, j: w[n[i], j], "read")
    assert total.dtype == most.dtype == computed(dtype)
    for dag, given, want in (
        (te.dag([x, total]), [a], a.astype(computed(dtype)).sum(1, dtype=computed(dtype))),
        (te.dag([x, most]), [a], a.max(1).astype(computed(dtype))),
        (te.dag([n, w, read]), [ids, rows], rows[np.minimum(ids, 39)]),
    ):
        for what, (got,) in results(dag, given):
            np.testing.assert_array_equal(got, want, err_msg=what, strict=True)


def copied(dtype: str) -> ComputeDAG:
    x = te.placeholder((67,), dtype, "x")
    return te.dag([x, te.compute((67,), lambda i: te.cast(x[i] // 3 * 7 + 1, dtype), "y")])


@pytest.mark.parametrize("dtype", STORED)
def test_in_vectors(dtype: str) -> None:
    dag, a = copied(dtype), values(dtype)[:67]
    s = Schedule(dag, host())
    s.vectorize(s.split("y_i", (None, 16), "shift")[1])
    want = (a.astype(computed(dtype)) // 3 * 7 + 1).astype(dtype)
    check_compiled(dag, s.trace, host(), [a], [want])


@pytest.mark.parametrize("dtype", STORED)
def test_json_and_literals(dtype: str) -> None:
    dag = copied(dtype)
    assert ComputeDAG.from_json(dag.to_json()) == dag
    most = DTYPES[dtype].range[-1]
    assert te.max_value(dtype).value == most and te.const(most, dtype).dtype == dtype
    with pytest.raises(WorkloadError, match=f"{most + 1} is not a value of {dtype}"):
        te.const(most + 1, dtype)


def test_there_is_no_gradient_along_integers_and_no_uint64() -> None:
    x = te.placeholder((4,), "uint32", "x")
    y = te.compute((4,), lambda i: te.cast(x[i], "float32") * 2.0, "y")
    with pytest.raises(WorkloadError, match="uint32"):
        te.gradient(y, x)
    with pytest.raises(WorkloadError, match="'uint64' is not one of .*; int64 has its values below"):
        te.placeholder((4,), "uint64", "x")


def test_the_library_of_c_reads_them_by_their_names() -> None:
    from autotune.run.export_text import C_TYPES

    assert set(C_TYPES) == set(DTYPES)
    assert [C_TYPES[d] for d in STORED] == ["int16_t", "uint16_t", "uint32_t"]
