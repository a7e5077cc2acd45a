"""Streaming stores: results written around the caches are the same wherever the arrays lie."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autotune as at
from autotune.backends.peaks import cpu_peaks
from autotune.codegen.llvm.emit import emit
from autotune.codegen.llvm.stream import forks
from autotune.targets import detect
from schedules import affine, ops, te
from schedules import expr as E
from schedules.expr import Const, Expr, Var
from schedules.ir import Alloc, Loop, Seq, Store, walk
from schedules.microarchitecture import third_cache_bytes
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space.derive import derive

pytestmark = pytest.mark.usefixtures("two_cpus")


def doubled(n: int, m: int = 8, dtype: str = "float32") -> Schedule:
    x = te.placeholder((m, n), dtype, name="x")
    s = Schedule([x, te.compute((m, n), lambda i, j: x[i, j] + x[i, j], name="y")])
    _, j = s.loops("y")
    _, inner = s.split(j, (None, 8), "shift")
    s.vectorize(inner)
    s.annotate("y", "nontemporal", 1)
    return s


def streams(s: Schedule, threads: int = 1) -> int:
    """Streaming stores in the kernel's text."""
    return emit(lower(s.nest), detect(threads=threads)).text.count("!nontemporal")


def placed(a: np.ndarray, offset: int) -> np.ndarray:
    """A copy of the array that starts ``offset`` elements after a multiple of 64 bytes."""
    raw = np.zeros(a.size + 64, a.dtype)
    start = -raw.ctypes.data % 64 // a.itemsize + offset
    out = raw[start : start + a.size].reshape(a.shape)
    out[...] = a
    return out


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_the_result_does_not_depend_on_where_arrays_lie(threads: int, dtype: str) -> None:
    s = doubled(48, dtype=dtype)
    if threads > 1:
        s.parallel(s.loops("y")[0])
    assert streams(s, threads)
    kernel = at.build(s, target=detect(threads=threads))
    x = np.arange(8 * 48, dtype=dtype).reshape(8, 48)
    for offset in range(8):
        out = placed(np.zeros_like(x), offset)
        kernel(placed(x, 3), out=out)
        np.testing.assert_array_equal(out, x + x)
        assert np.count_nonzero(out.base) == np.count_nonzero(out)  # nothing beside it was written


@pytest.mark.parametrize(("n", "some"), [(48, True), (52, True), (46, False), (49, False)])
def test_rows_must_keep_the_alignment(n: int, some: bool) -> None:
    # 46 and 49 floats: the next row begins in the middle of 16 bytes
    assert bool(streams(doubled(n))) == some
    kernel = at.build(doubled(n))
    x = np.arange(8 * n, dtype="float32").reshape(8, n)
    np.testing.assert_array_equal(kernel(placed(x, 0), out=placed(x, 0)), x + x)


def tiled(stream: int) -> Schedule:
    """A matmul whose tiles are summed in registers, then written."""
    s = Schedule(ops.workload("matmul", {"m": 12, "n": 32, "k": 24}).dag)
    copy = s.cache_write("c", "local")
    i, j = s.loops(copy)
    (i0, i1), (j0, j1) = s.split(i, (None, 4)), s.split(j, (None, 8))
    s.reorder(i0, j0, i1, j1)
    s.compute_at("c", j0)
    for x in (i1, s.loops("c")[-3]):
        s.unroll(x)
    s.vectorize(j1)
    k = s.loops("c")[-1]
    s.reorder(k, *s.loops("c")[-3:-1])
    s.vectorize(s.loops("c")[-1])
    if stream:
        s.annotate(copy, "nontemporal", 1)
    return s


def test_only_what_writes_the_result_is_there_twice() -> None:
    def text(stream: int) -> str:
        return emit(lower(tiled(stream).nest), detect(threads=1)).text

    assert streams(tiled(1)) == 4  # one a row of the tile
    assert text(1).count("call <8 x float> @llvm.fmuladd") == text(0).count("call <8 x float> @llvm.fmuladd")
    kernel = at.build(tiled(1))
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((12, 24), "float32"), rng.standard_normal((24, 32), "float32")
    for offset in range(5):
        out = placed(np.zeros((12, 32), "float32"), offset)
        kernel(a, b, out=out)
        np.testing.assert_allclose(out, a @ b, rtol=1e-5, atol=1e-5)


def test_an_innermost_loop_tests_nothing() -> None:
    one = Const(1.0, "float32")
    inner = Loop("i", Const(8), Seq((Store("y", (Var("i"),), one), Store("z", (Var("i"),), one))))
    copy = Loop("k", Const(8), Loop("l", Const(4), Store("z", (Var("k"),), one)))
    body = Loop("j", Const(2), Seq((inner, copy)))
    assert forks(body, ("z",)) == {id(inner), id(copy), id(copy.body)}
    assert forks(inner, ()) == frozenset()


def test_a_result_that_is_read_again_is_not_streamed() -> None:
    x = te.placeholder((8, 32), "float32", name="x")
    y = te.compute((8, 32), lambda i, j: x[i, j] + x[i, j], name="y")
    z = te.compute((8, 32), lambda i, j: y[i, j] + x[i, j], name="z")
    s = Schedule([x, y, z])
    for name in ("y", "z"):
        s.annotate(name, "nontemporal", 1)
    assert lower(s.nest).streamed == ("z",)


def test_a_sum_in_place_is_not_streamed() -> None:
    x = te.placeholder((8, 32), "float32", name="x")
    k = te.reduce_axis(32, name="k")
    s = Schedule([x, te.compute((8,), lambda i: te.sum(x[i, k], axis=k), name="y")])
    s.annotate("y", "nontemporal", 1)
    assert lower(s.nest).streamed == ()


def test_nothing_is_kept_in_the_place_of_a_streamed_result() -> None:
    x = te.placeholder((5, 96), "float32", name="x")
    k = te.reduce_axis(96, name="k")
    e = te.compute((5, 96), lambda i, j: x[i, j] + x[i, j], name="e")
    t = te.compute((5,), lambda i: te.sum(e[i, k], axis=k), name="t")
    s = Schedule([x, te.compute((5, 96), lambda i, j: e[i, j] * t[i], name="y")])
    i, _ = s.loops("y")
    for name in ("t", "e"):
        s.compute_at(name, i)

    def kept() -> set[str]:
        return {a.buffer.name for a in walk(lower(s.nest).body) if isinstance(a, Alloc)}

    assert "e" not in kept()
    s.annotate("y", "nontemporal", 1)
    assert "e" in kept()


def test_a_choice_for_large_results_only() -> None:
    target = detect(threads=1)
    large = third_cache_bytes(target)

    def offered(op: str, **params: int) -> set[str]:
        space = derive(ops.workload(op, params).dag, target)
        return {h for n in range(len(space.sketches)) for h in space.holes(n) if h.endswith(".stream")}

    assert offered("add", n=large) == {"c.stream"}
    assert offered("add", n=large // 16) == set()  # the third cache holds it
    assert offered("reduce_sum", m=large // 64, n=64) == set()  # little is written
    assert offered("permute", shape=(large // 64 + 1, 64), axes=(1, 0)) == set()  # pieces of lines
    assert offered("softmax", m=large // 64, n=64) == {"y.stream"}


@given(st.data())
def test_a_multiple_divides_every_value(data: st.DataObject) -> None:
    def index(depth: int) -> Expr:
        kind = data.draw(st.integers(0, 6 if depth else 1))
        if kind == 0:
            return Const(data.draw(st.integers(-24, 24)))
        if kind == 1:
            return Var(data.draw(st.sampled_from("ij")))
        a = index(depth - 1)
        if kind == 2:
            return a * data.draw(st.integers(-8, 8))
        if kind == 3:
            return a // data.draw(st.integers(1, 4))
        b = index(depth - 1)
        return (a + b, a - b, E.minimum(a, b))[kind - 4]

    e = index(3)
    divisor = affine.multiple(e)
    for i in range(4):
        for j in range(0, 9, 3):
            value = int(E.evaluate(e, {"i": i, "j": j}))
            assert value == 0 if divisor == 0 else value % divisor == 0


def test_bandwidth_is_measured_on_memory_that_was_written() -> None:
    # a page of zeros that nobody wrote lies in the first cache, however many of them are read
    assert cpu_peaks._aligned(5000).all()
    assert re.search("nontemporal", cpu_peaks._stream_text("stream", 1024, 8))
    assert not re.search("store.*nontemporal", cpu_peaks._stream_text("copy", 1024, 8))
