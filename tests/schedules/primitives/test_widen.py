"""widen: a copy in a wider dtype has the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from helpers import check_compiled, check_interpreted, expected, host
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules import expr as E
from schedules import te
from schedules.dtypes import DTYPES, NUMBERS, computed, holds, is_float, is_storage
from schedules.errors import ScheduleError
from schedules.expr import Cast
from schedules.ir.nest import find_block
from schedules.model import Trace
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

PAIRS = [(old, new) for old in NUMBERS for new in NUMBERS if old != new and holds(new, old)]


def product(dtype: str = "bfloat16", m: int = 3, n: int = 5, k: int = 4) -> ComputeDAG:
    a, b, r = te.placeholder((m, k), dtype, "A"), te.placeholder((k, n), dtype, "B"), te.reduce_axis(k, "k")
    return te.dag([a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "C")])


def padded(dtype: str) -> ComputeDAG:
    """A window over what is padded by 1; its numbers are stored as they are too."""
    x, r = te.placeholder((6,), dtype, "X"), te.reduce_axis(3, "r")
    one = te.const(1, computed(dtype))
    p = te.compute((8,), lambda i: te.cast(te.select(te.all(i > 0, i < 7), x[i - 1], one), dtype), "P")
    y = te.compute((6,), lambda i: te.sum(te.cast(p[i + r], computed(dtype)), axis=r), "Y")
    return te.dag([x, y, te.compute((8,), lambda i: p[i], "Z")])


def numbers(dag: ComputeDAG, seed: int) -> list[np.ndarray]:
    """Small whole numbers and, of integers, the ends."""
    rng, out = np.random.default_rng(seed), []
    for t in dag.inputs:
        row = DTYPES[t.dtype]
        x = rng.integers(-3 if row.kind == "float" or row.range[0] < 0 else 0, 4, t.shape)
        ends = (x, x) if is_float(t.dtype) else (row.range[0], row.range[-1])
        at = rng.random(t.shape)
        whole = np.where(at < 0.2, ends[0], np.where(at > 0.8, ends[1], x))
        out.append(whole.astype(row.numpy))
    return out


def check(s: Schedule, seed: int = 0) -> None:
    data = numbers(s.dag, seed)
    check_interpreted(s.nest, s.dag, data, expected(s.dag, data))
    again = Trace.from_json(s.trace.to_json())
    assert again == s.trace and Schedule.replay(s.dag, again).nest == s.nest


def value_of(s: Schedule, block: str) -> str:
    return E.show(find_block(s.nest, block).values[0])


def test_a_copy_converts_and_what_reads_it_does_not() -> None:
    s = Schedule(product())
    s.cache_read("C", "B")
    s.pack("B_global", [0, 4], [1, 0, 2])
    s.widen("B_global", "float32")
    assert s.nest.buffer("B_global").dtype == "float32"
    assert value_of(s, "C") == "float32(A[i, k]) * B_global[j // 4, k, j % 4]"
    assert "float32(B[" in value_of(s, "B_global") and value_of(s, "B_global").startswith("select(")
    check(s)


def test_a_wide_copy_is_packed() -> None:
    s = Schedule(product("int8"))
    s.widen(s.cache_read("C", "B"), "int16")
    s.pack("B_global", [2, 4], [1, 0, 3, 2])
    assert value_of(s, "C") == "int32(A[i, k]) * int32(B_global[j // 4, k // 2, j % 4, k % 2])"
    check(s)


@given(st.sampled_from(PAIRS), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_any_wider_dtype(pair: tuple[str, str], m: int, n: int, k: int, seed: int) -> None:
    old, new = pair
    s = Schedule(product(old, m, n, k))
    for buffer in "AB":
        s.widen(s.cache_read("C", buffer), new)
    check(s, seed)


@given(st.sampled_from(PAIRS), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_padding_that_is_read_as_it_is_too(pair: tuple[str, str], seed: int) -> None:
    """Another reader gets the numbers back in their own dtype."""
    old, new = pair
    s = Schedule(padded(old))
    s.widen("P", new)
    check(s, seed)


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_casts_go_by_way_of_what_a_dtype_is_computed_with(old: str, new: str) -> None:
    """Generators know the casts between a dtype of storage and the one that it is computed with only."""
    s = Schedule(padded(old))
    s.widen("P", new)
    for b in map(partial(find_block, s.nest), s.blocks()):
        for e in (x for v in b.values for x in E.walk(v) if isinstance(x, Cast)):
            was = E.dtype_of(e.a)
            assert not is_storage(e.dtype) or was == computed(e.dtype), E.show(e)
            assert not is_storage(was) or e.dtype == computed(was), E.show(e)


@pytest.mark.parametrize("old", ("float8_e5m2", "float16"))
def test_small_floats_that_are_kept_as_float64_compile(old: str) -> None:
    s = Schedule(padded(old))
    s.widen("P", "float64")
    data = numbers(s.dag, 0)
    check_compiled(s.dag, s.trace, host(), data, expected(s.dag, data))


def test_all_values_of_small_dtypes_come_back() -> None:
    for old, new in PAIRS:
        row = DTYPES[old]
        if row.itemsize > 2:
            continue
        every = np.arange(1 << 8 * row.itemsize, dtype=np.uint32).astype(f"u{row.itemsize}")
        x = every.view(row.numpy)
        t = te.placeholder(x.shape, old, "x")
        wide = te.compute(x.shape, lambda i, t=t, new=new: te.cast(t[i], new), "w")
        with np.errstate(invalid="ignore"):  # of NaN that signals
            back = te.evaluate(te.dag([t, wide]), [x])[0].astype(row.numpy)
            same = x == back
        if row.kind == "float":
            same |= np.isnan(x.astype(np.float32)) & np.isnan(back.astype(np.float32))
        assert same.all(), (old, new)


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
def test_compiled_copies_have_the_same_numbers(pair: tuple[str, str]) -> None:
    old, new = pair
    x, wide = te.placeholder((6,), old, "x"), computed(old)
    y = te.compute((6,), lambda i: te.cast(x[5 - i], wide) * te.const(2, wide), "y")
    s = Schedule(te.dag([x, y]))
    s.widen(s.cache_read("y", "x"), new)
    data = numbers(s.dag, 1)
    check_compiled(s.dag, s.trace, host(1), data, expected(s.dag, data))


def test_a_dtype_that_holds_another() -> None:
    """By what numpy says of each: the ends, the least number and the step of 1."""
    assert [n for n in NUMBERS if holds(n, "bfloat16")] == ["bfloat16", "float32", "float64"]
    assert [n for n in NUMBERS if holds(n, "float8_e5m2")] == [
        "float16", "bfloat16", "float8_e5m2", "float32", "float64",
    ]  # fmt: skip
    assert [n for n in NUMBERS if holds(n, "uint8")] == [
        "float16", "bfloat16", "float32", "float64", "uint8", "int16", "uint16", "int32",
        "uint32", "int64",
    ]  # fmt: skip
    assert [n for n in NUMBERS if holds(n, "int32")] == ["float64", "int32", "int64"]
    assert [n for n in NUMBERS if holds(n, "uint32")] == ["float64", "uint32", "int64"]
    assert not holds("bfloat16", "float16") and not holds("int8", "uint8") and not holds("int32", "float16")
    assert not holds("int8", "bool") and holds("bool", "bool")


def refuses(do: Callable[[Schedule], object], match: str, dag: ComputeDAG | None = None) -> None:
    with pytest.raises(ScheduleError, match=match):
        do(Schedule(dag or product()))


def test_what_is_no_copy_is_refused() -> None:
    refuses(lambda s: s.widen("B", "float32"), "widen B: an argument; use cache_read or cache_write")
    refuses(lambda s: s.widen("D", "float32"), "widen: there is no buffer 'D'")

    def accumulated(s: Schedule) -> None:
        s.cache_write("C", "local")
        s.widen("C_local", "float64")

    refuses(accumulated, r"block C reduces into it, and would round otherwise; widen a copy \(cache_read\)")
    x, at = te.placeholder((4,), "float32", "x"), te.placeholder((3,), "int32", "at")
    gathered = te.dag([x, at, te.compute((3,), lambda i: x[at[i]], "y")])

    def index(s: Schedule) -> None:
        s.widen(s.cache_read("y", "at"), "int64")

    refuses(index, "block y reads it as an index; widen what is not an index", gathered)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "bool", "float9", ""])
def test_a_dtype_that_is_not_wider_is_refused(dtype: str) -> None:
    refuses(
        lambda s: s.widen(s.cache_read("C", "B"), dtype),
        f"widen B_global: '{dtype}' is no other dtype that has all values of bfloat16; give one of float32, "
        "float64",
    )
