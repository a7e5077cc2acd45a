"""Comparing outputs: what is refused, what is let pass, and what the reason says."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Callable

import numpy as np
import pytest
from helpers import checker as judge

from autotune.measure import inputs
from autotune.measure.arena import GUARD, POISON, Arena, KernelParam, locate
from autotune.measure.check import Checker
from autotune.measure.inputs import draws
from schedules import ops, te
from schedules.errors import WorkloadError
from schedules.te.compute_dag import ComputeDAG


def checker(ref: np.ndarray, relative: float = 4e-6, absolute: float = 0.0) -> Checker:
    """A bound in proportion to the reference, and to its RMS."""
    if ref.dtype.kind != "f":
        return Checker(["C"], [ref], [np.zeros(ref.shape, "float32")])
    finite = ref[np.isfinite(ref)].astype("float64")
    rms = np.sqrt(np.square(finite).mean()) if finite.size else 0.0
    size = np.where(np.isfinite(ref), np.abs(ref.astype("float64")), 0)
    return Checker(["C"], [ref], [(relative * (rms + size) + absolute).astype("float32")])


def matmul_checker(a: np.ndarray, b: np.ndarray) -> Checker:
    (m, k), n = a.shape, b.shape[1]
    return judge(ops.workload("matmul", {"m": m, "n": n, "k": k}).dag, [a, b])


@pytest.mark.parametrize("k", [8, 512, 4096])
def test_any_order_of_summation_passes_and_a_lost_term_does_not(k: int) -> None:
    rng = np.random.default_rng(k)
    a, b = rng.standard_normal((64, k)).astype("float32"), rng.standard_normal((k, 48)).astype("float32")
    ref = (a.astype("float64") @ b.astype("float64")).astype("float32")
    check = matmul_checker(a, b)
    orders = [np.arange(k), np.arange(k)[::-1], rng.permutation(k)]
    for order in orders:  # one rounding a term, the worst that a kernel does
        out = np.zeros_like(ref)
        for t in order:
            out += a[:, t : t + 1] * b[t]
        verdict = check.check([out], 0)
        assert verdict.reason == "" and 0 < verdict.error < 1e-4
    lost = ref.copy()
    lost[5] -= a[5, 3] * b[3]
    assert f"of {ref.size} elements wrong, first at [5, " in check.check([lost], 0).reason


def test_the_tolerance_follows_the_scale_of_the_output() -> None:
    for scale in (1e-20, 1.0, 1e20):
        ref = (np.linspace(-1, 1, 100) * scale).astype("float32")
        check = checker(ref)
        assert check.check([ref * np.float32(1 + 1e-6)], 0).reason == ""
        assert "wrong" in check.check([ref * np.float32(1.001)], 0).reason
        assert "wrong" in check.check([ref + np.float32(1e-3 * scale)], 0).reason


def test_large_elements_have_a_relative_tolerance_of_their_own() -> None:
    ref = np.ones(1000, "float32")
    ref[7] = 1e6
    out = ref.copy()
    out[7] *= np.float32(1 + 1e-6)
    assert checker(ref).check([out], 0).reason == ""
    out[8] = 1.5
    assert "first at [8]" in checker(ref).check([out], 0).reason


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_must_match(value: float) -> None:
    ref = np.ones((3, 4), "float32")
    out = ref.copy()
    out[1, 2] = value
    assert "first at [1, 2]" in checker(ref).check([out], 0).reason
    assert checker(out).check([out.copy()], 0).reason == ""
    assert "first at [1, 2]" in checker(out).check([ref], 0).reason
    if np.isinf(value):
        assert "first at [1, 2]" in checker(out).check([np.where(np.isinf(out), -out, out)], 0).reason


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_poison_is_no_right_answer_where_the_reference_is_nan(dtype: str) -> None:
    ref = np.full((4, 8), np.nan, dtype)
    kind, value = POISON[dtype]
    for number in (0, 1, 2):
        out = ref.copy()
        assert checker(ref).check([out], number).reason == ""
        out.view(kind)[2, 3] = value + number
        assert checker(ref).check([out], number).reason == (
            "C: 1 of 32 elements never written, first at [2, 3]"
        )


def test_inputs_are_drawn_that_tell_kernels_apart() -> None:
    def made(f: Callable[[te.Expr], te.Expr]) -> ComputeDAG:
        a, k = te.placeholder((6, 50), name="A"), te.reduce_axis(50, "k")
        return te.dag([a, te.compute((6,), lambda i: te.sum(f(a[i, k]), axis=k), "C")])

    for f, least in (
        (lambda x: x * x, -9.0),
        (lambda x: te.log(x), 0.0),
        (lambda x: te.sqrt(te.log(x)), 1.0),
    ):
        for draw in draws(made(f)):
            assert np.isfinite(draw.reference[0]).all() and draw.inputs[0].min() >= least
            assert draw.inputs[0].dtype == np.float32
    assert draws(made(lambda x: x * x))[0].inputs[0].min() < 0
    with pytest.raises(WorkloadError, match="an output of C is NaN everywhere.*no kernel can be checked"):
        draws(made(lambda x: te.sqrt(-1.0 - x * x)))


@pytest.mark.parametrize("dtype", sorted(POISON))
def test_unwritten_elements_are_counted(dtype: str) -> None:
    ref = (np.arange(1024) % 100).reshape(16, 64).astype(dtype)
    kind, value = POISON[dtype]
    for number in (0, 1, 2):
        out = ref.copy()
        out[3, 5] = out[3, 9:25] = 0
        out.view(kind)[3, 5] = out.view(kind)[3, 9:25] = value + number
        verdict = checker(ref).check([out], number)
        assert verdict.reason == "C: 17 of 1024 elements never written, first at [3, 5]"


def test_integers_are_exact_and_zero_references_work() -> None:
    ref = np.array([1, 2, 3], "int64")
    assert checker(ref).check([ref.copy()], 0).reason == ""
    assert "3 instead of 2" in checker(ref).check([np.array([1, 3, 3], "int64")], 0).reason
    zero = np.zeros(5, "float64")
    assert checker(zero).check([zero.copy()], 0).error == 0
    assert "wrong" in checker(zero).check([zero + 1e-30], 0).reason


@pytest.mark.parametrize("shape", [(1,), (1000,), (1024,), (16,)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_placements_touch_their_guards_and_hold_the_inputs(shape: tuple[int, ...], dtype: str) -> None:
    a = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    arena = Arena([KernelParam("A", shape, dtype), KernelParam("C", shape, dtype)], [a])
    page, size = mmap.PAGESIZE, a.nbytes
    where = {p.name: [int(x or 0) for x in p.pointers] for p in arena.placements}
    assert all(x % page == 0 for x in where["begin"])
    if "end" in where:
        assert all((x + size) % page == 0 for x in where["end"])
    else:
        assert size % page == 0
    assert any(x % 64 for name in where for x in where[name])  # some check misaligns every array
    if "shifted" in where:
        assert all(x % 64 == a.itemsize for x in where["shifted"])
    # timed where large arrays of numpy lie, with the same inputs
    assert all(int(x or 0) % page == 16 for x in arena.timing.pointers)
    assert np.array_equal(np.frombuffer(ctypes.string_at(arena.timing.pointers[0] or 0, size), dtype), a)
    for p in arena.placements:
        arena.poison(p, 1)
        assert not np.array_equal(p.outputs[0], a)
        p.outputs[0][...] = a
        span = next(s for s in arena.spans if s.name == "A" and s.first == p.pointers[0])
        assert locate(arena.spans, span.first) is not None and span.low <= span.first - 1
        beyond = max(s.high for s in arena.spans)  # another array may lie anywhere above this one
        assert locate(arena.spans, beyond + 100 * GUARD) is None
    del p
    arena.close()


def test_inputs_of_whole_pages_beside_others_hold_their_values_at_every_placement() -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(n).astype("float32") for n in (2048, 1000)]  # two pages, and a part of one
    params = [
        KernelParam("A", (2048,), "float32"),
        KernelParam("B", (1000,), "float32"),
        KernelParam("C", (7,), "float32"),
    ]
    arena = Arena(params, inputs)
    assert {p.name for p in arena.placements} == {"end", "begin", "shifted"}
    for p in arena.placements:
        for at, want in zip(p.pointers, inputs, strict=False):
            assert ctypes.string_at(at or 0, want.nbytes) == want.tobytes()
    del p
    arena.close()


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("size", [1000, 1024, 16])
def test_each_draw_of_inputs_lies_somewhere(size: int, elsewhere: bool) -> None:
    draws = [[np.full(size, 10 * d + i, "float32") for i in range(2)] for d in range(4)]
    params = [KernelParam(x, (size,), "float32") for x in "ABC"]
    arena = Arena(params, draws[0], elsewhere=elsewhere, more=draws[1:])
    assert {p.draw for p in arena.placements} == {0, 1, 2, 3}
    for p in (*arena.placements, arena.timing):
        for at, want in zip(p.pointers, draws[p.draw], strict=False):
            assert ctypes.string_at(at or 0, want.nbytes) == want.tobytes()
    assert arena.timing.draw == 0
    assert [x[0] for x in arena.inputs(2)] == [20, 21]
    del p
    arena.close()


def test_scratch_ends_or_begins_at_its_guards() -> None:
    arena = Arena([KernelParam("C", (4,), "float32")], [])
    for size in (0, 1, 64, 100, 5000, 4096, 300):
        begin, end = arena.scratch.open(size, "begin"), arena.scratch.open(size, "end")
        assert begin % 4096 == 0 and end % 64 == 0
        assert 0 <= -(end + size) % mmap.PAGESIZE < 64
        assert not arena.scratch.overrun(size, "end")
    with pytest.raises(MemoryError, match="scratch"):
        arena.scratch.open(1 << 40, "end")
    arena.close()


def test_arrays_of_a_device_have_one_place_here() -> None:
    params = [KernelParam("A", (5, 7), "float32"), KernelParam("C", (5, 7), "float32")]
    a = np.arange(35, dtype="float32").reshape(5, 7)
    with contextlib.closing(Arena(params, [a], elsewhere=True)) as arena:
        assert [p.name for p in arena.placements] == ["begin"] and arena.timing is arena.placements[0]
        assert np.array_equal(arena.inputs()[0], a)
    with contextlib.closing(Arena(params, [a])) as arena:
        assert len(arena.placements) > 1
        assert np.array_equal(arena.inputs()[0], a)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_large_inputs_are_the_same_by_however_many_threads(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "PIECE", 100)
    x = te.placeholder((7, 151), dtype, name="x")
    dag = te.dag([x, te.compute((7, 151), lambda i, j: te.cast(x[i, j] + 1, dtype), name="y")])
    drawn = []
    for cpus in (1, 3):
        monkeypatch.setattr(inputs, "usable_cpus", lambda n=cpus: n)
        drawn += inputs.random_inputs(dag)
    one, three = drawn
    assert one.dtype == dtype and one.shape == (7, 151)
    assert np.array_equal(one, three)
    pieces = one.reshape(-1)[:1000].reshape(10, 100)
    assert len(np.unique(pieces, axis=0)) == 10, "pieces are drawn apart"
    assert 0.9 < one.astype("float32").std() < 1.1
