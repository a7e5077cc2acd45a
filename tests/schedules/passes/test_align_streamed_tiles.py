"""Tiles that begin where the lines of memory do: the same results wherever arrays lie."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers import in_tiles
from hypothesis import given, settings
from hypothesis import strategies as st
from space_cases import target
from test_software_pipeline import expected as in_rows
from test_software_pipeline import shares
from test_streaming import placed

import autotune as at
from autotune.codegen.llvm.emit import emit
from autotune.targets import detect
from schedules import ops, te
from schedules.expr import Const, Load, Var, variables
from schedules.ir import Buffer, Guard, Loop, LoweredFunc, Seq, Stmt, Store, interp, seq, walk
from schedules.microarchitecture import third_cache_bytes
from schedules.passes.align_streamed_tiles import align_streamed_tiles
from schedules.passes.lower import lower
from schedules.passes.simplify import simplify
from schedules.schedule import Schedule
from schedules.space.derive import derive

pytestmark = pytest.mark.usefixtures("two_cpus")


def transposed(
    m: int,
    n: int,
    rows: int = 16,
    lanes: int = 16,
    tail: str = "shift",
    dtype: str = "float32",
    hint: int = 2,
) -> Schedule:
    """``y[i, j] = x[j, i] + j`` by tiles: y is m by n."""
    x = te.placeholder((n, m), dtype, name="x")
    bias = te.placeholder((n,), dtype, name="bias")
    s = Schedule([x, bias, te.compute((m, n), lambda i, j: x[j, i] + bias[j], name="y")])
    s.unroll(in_tiles(s, "y", rows, lanes, (tail, tail))[1])
    s.annotate("y", "nontemporal", hint)
    return s


def run(func: LoweredFunc, skews: dict[str, int]) -> None:
    """Check the output of the interpreter; it raises for what is read or written outside, or left out."""
    arrays = {b.name: interp.new_array(b) for b in func.params}
    for name in ("x", "bias"):
        arrays[name] = np.arange(arrays[name].size, dtype=arrays[name].dtype).reshape(arrays[name].shape)
    expected = arrays["x"].T + arrays["bias"]
    interp.run(func, arrays, skews=skews)
    np.testing.assert_array_equal(arrays["y"], expected)


@pytest.mark.slow
@given(
    m=st.sampled_from([32, 48]),
    n=st.sampled_from([32, 48, 64]),
    rows=st.sampled_from([8, 16]),
    lanes=st.sampled_from([16, 32]),
    x=st.integers(0, 15),
    y=st.integers(0, 15),
)
@settings(deadline=None, max_examples=60)
def test_every_element_is_written_wherever_lines_begin(
    m: int, n: int, rows: int, lanes: int, x: int, y: int
) -> None:
    run(lower(transposed(m, n, rows, lanes).nest), {"x": x, "y": y})


def test_tiles_begin_with_the_lines_of_both_arrays() -> None:
    func = lower(transposed(48, 64).nest)
    assert func.skewed == ("x", "y")
    assert lower(transposed(48, 64, hint=1).nest).skewed == ()
    assert lower(transposed(48, 64, rows=8).nest).skewed == ("y",)  # half a line of x
    assert lower(transposed(48, 64, lanes=8).nest).skewed == ("x",)
    assert lower(transposed(48, 64, dtype="float64", rows=8, lanes=8).nest).skewed == ("x", "y")
    # rows that are no whole lines: each would need a shift of its own
    assert lower(transposed(48, 56).nest).skewed == ("x",)
    assert lower(transposed(40, 64).nest).skewed == ("y",)
    # one tile has nowhere to go
    assert lower(transposed(16, 64).nest).skewed == ("y",)
    # a tile is moved or where it was, along one axis and in each case along the other
    assert sum(isinstance(s, Guard) for s in walk(func.body)) == 2 + 2 * 2


def test_only_what_the_move_leaves_out_is_computed_again() -> None:
    def stored(x: int, y: int) -> int:
        func, counts = lower(transposed(48, 48).nest), {}
        arrays = {b.name: interp.new_array(b) for b in func.params}
        interp.run(func, arrays, counts=counts, skews={"x": x, "y": y})
        return counts["store y"] // 256

    assert stored(0, 0) == 9
    assert stored(0, 1) == stored(15, 0) == 9 + 3  # the first of each row of tiles
    assert stored(3, 7) == 9 + 3 + 3 + 1


def test_what_is_written_in_several_places_stays_where_it_is() -> None:
    # a tile that moved on would write where the other one's values belong
    def half(begin: int, step: int = 16) -> Loop:
        at = (Var("j"), Var("i") * step + Var("lane") + begin)
        return Loop("i", Const(2), Loop("lane", Const(16), Store("y", at, Const(float(begin))), "vectorize"))

    y = Buffer("y", (Const(4), Const(64)), "float32")
    one = Loop("j", Const(4), half(0))
    assert align_streamed_tiles(one, (y,), ("y",)) != one
    for both in ((half(0), half(32)), (half(0, 48), half(16)), (half(0, 32), half(16, 32))):
        s = Loop("j", Const(4), Seq(both))
        assert align_streamed_tiles(s, (y,), ("y",)) == s
    # so with tails of their own
    func = lower(transposed(40, 56, dtype="float64", tail="guard").nest)
    assert func.streamed == ("y",)
    assert func.skewed == ()
    run(func, {})


@pytest.mark.slow
@given(
    n=st.sampled_from([32, 48, 64, 96]),
    lanes=st.tuples(st.sampled_from([8, 16, 32]), st.sampled_from([8, 16, 32])),
    late=st.integers(0, 1),
    backwards=st.booleans(),
    begin=st.integers(0, 15),
)
@settings(deadline=None, max_examples=60)
def test_rows_of_what_was_computed_before_move(
    n: int, lanes: tuple[int, int], late: int, backwards: bool, begin: int
) -> None:
    """Also where a row is written while the next takes its place."""
    order = "end" if backwards else "a"
    func = lower(shares(n, lanes, 2, late, order).nest)
    if not late:
        assert (func.skewed == ("y",)) == (16 <= lanes[0] < n)
    x = np.arange(5 * n, dtype=np.float32).reshape(5, n) - 7
    arrays = {"x": x, "y": np.full_like(x, np.nan)}
    interp.run(func, arrays, skews={"y": begin})
    np.testing.assert_array_equal(arrays["y"], in_rows(x, order))


def test_rows_that_are_written_with_the_next_move() -> None:
    func = lower(shares(64, (16, 32), 2).nest)
    stored = [x for x in walk(func.body) if isinstance(x, Store) and x.buffer == "y"]
    moved = [x for x in stored if "y.skew" in variables(x.indices[1])]
    assert len(moved) == 2  # the last row, too


def rewritten(order: tuple[str, ...], loops: tuple[tuple[int, int], ...], lanes: int = 1) -> Stmt:
    """Tiles of 16 of y, which read e, in loops of (iterations, step); e is written in the order and the tiles
    that are said. ``lanes``: the step from lane to lane."""
    names = [f"t{n}" for n in range(len(loops))]
    at = sum((Var(t) * step for t, (_, step) in zip(names, loops, strict=True)), Const(0)) + Var("i") * lanes

    def stage(name: str) -> Stmt:
        written = {"y": Store("y", (at,), Load("e", (at,), "float32")), "here": Store("e", (at,), Const(2.0))}
        return Loop("i", Const(16), written.get(name, Store("e", (at + 16,), Const(2.0))), "vectorize")

    s = seq(*map(stage, order))
    for t, (count, _) in reversed([*zip(names, loops, strict=True)]):
        s = Loop(t, Const(count), s)
    return simplify(s)


@pytest.mark.parametrize(
    ("order", "loops", "moves"),
    [
        (["y"], [(8, 16)], True),
        (["y"], [(2, 64), (4, 16)], True),
        (["y", "here"], [(8, 16)], True),
        (["here", "y"], [(8, 16)], False),  # computed for the tile
        (["here", "y", "here"], [(8, 16)], False),
        (["y", "next"], [(8, 16)], False),  # half of which a moved tile would read before
        (["y", "here"], [(4, 16), (2, 64)], False),  # the next tile may have been first
    ],
)
def test_what_is_read_has_to_be_there_for_the_next_tile(
    order: list[str], loops: list[tuple[int, int]], moves: bool
) -> None:
    y, e = (Buffer(name, (Const(n),), "float32") for name, n in (("y", 128), ("e", 144)))
    s = rewritten(tuple(order), tuple(loops))
    moved = align_streamed_tiles(s, (y,), ("y",))
    assert (moved != s) == moves

    def run(program: Stmt) -> np.ndarray:
        arrays = {"e": np.arange(144, dtype="float32"), "y": np.zeros(128, "float32")}
        interp.run(LoweredFunc("kernel", (e, y), ("y",), program, ("y",), ("y",)), arrays, skews={"y": 5})
        return arrays["y"]

    np.testing.assert_array_equal(run(moved), run(s))


def test_tiles_with_gaps_stay_where_they_are() -> None:
    s = rewritten(("y",), ((2, 1), (4, 32)), lanes=2)
    y = Buffer("y", (Const(128),), "float32")
    assert align_streamed_tiles(s, (y,), ("y",)) == s
    # a diagonal: further along one axis is another element along the other
    y = Buffer("y", (Const(16), Const(80)), "float32")
    store = Store("y", (Var("i"), Var("t") * 16 + Var("i")), Const(1.0))
    s = Loop("t", Const(4), Loop("i", Const(16), store, "vectorize"))
    assert align_streamed_tiles(s, (y,), ("y",)) == s


def test_what_was_computed_for_a_tile_stays_with_it() -> None:
    x = te.placeholder((64, 48), name="x")
    e = te.compute((64, 48), lambda i, j: x[i, j] + x[i, j], name="e")
    s = Schedule([x, te.compute((48, 64), lambda i, j: e[j, i], name="y")])
    j0, i1 = in_tiles(s, "y", 16, 16)
    s.compute_at("e", j0)
    s.unroll(i1)
    s.annotate("y", "nontemporal", 2)
    func = lower(s.nest)
    assert func.streamed == ("y",)
    assert func.skewed == ()
    arrays = {"x": np.arange(64 * 48, dtype="float32").reshape(64, 48), "y": np.zeros((48, 64), "float32")}
    interp.run(func, arrays, skews={"x": 3, "y": 7})
    np.testing.assert_array_equal(arrays["y"], 2 * arrays["x"].T)


def test_an_input_read_at_another_place_stays_where_it_is() -> None:
    x = te.placeholder((64, 80), name="x")
    s = Schedule([x, te.compute((48, 64), lambda i, j: x[j, i + 5], name="y")])
    s.unroll(in_tiles(s, "y", 16, 16)[1])
    s.annotate("y", "nontemporal", 2)
    func = lower(s.nest)
    assert func.skewed == ("y",)
    arrays = {"x": np.arange(64 * 80, dtype="float32").reshape(64, 80), "y": np.zeros((48, 64), "float32")}
    interp.run(func, arrays, skews={"y": 7})
    np.testing.assert_array_equal(arrays["y"], arrays["x"].T[5:53])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_kernels_find_out_where_lines_begin(threads: int, dtype: str) -> None:
    s = transposed(48, 80, dtype=dtype)
    if threads > 1:
        s.parallel(s.loops("y")[0])
    host = detect(threads=threads)
    assert "nontemporal" in emit(lower(s.nest), host).text
    kernel = at.build(s, target=host)
    x, bias = np.arange(80 * 48, dtype=dtype).reshape(80, 48), np.arange(80, dtype=dtype)
    for offset in range(16):
        for other in (0, 5, 12):
            out = placed(np.zeros((48, 80), dtype), offset)
            kernel(placed(x, other), bias, out=out)
            np.testing.assert_array_equal(out, x.T + bias)
            assert np.count_nonzero(out.base) == np.count_nonzero(out)  # nothing beside it was written


@pytest.mark.parametrize("register", [32, 64])
def test_lines_are_stored_in_whole_registers(register: int) -> None:
    def aligned(lanes: int, hint: int = 2) -> set[int]:
        func = lower(transposed(48, 80, lanes=lanes, hint=hint).nest)
        text = emit(func, target(vector_bytes=register)).text
        return {int(n) for n in re.findall(r"align (\d+), !nontemporal", text)}

    assert aligned(16) == aligned(32) == {register, 16}  # a tile that stays lies as the array does
    assert aligned(16, hint=1) == {16}
    assert aligned(8) == {16}  # half a line, which does not move


def test_offered_to_transpositions_with_rows_of_whole_lines() -> None:
    host = detect(threads=1)
    n = third_cache_bytes(host) // 64

    def offered(shape: tuple[int, ...]) -> set[int]:
        space = derive(ops.workload("permute", {"shape": shape, "axes": (1, 0)}).dag, host)
        (sketch,) = range(len(space.sketches))
        holes = space.holes(sketch)
        rows = space.sample(sketch, 200, np.random.default_rng(0))
        return set(rows[:, holes.index("y.stream")].tolist()) if "y.stream" in holes else set()

    assert offered((n, 64)) == {0, 2}
    assert offered((n + 1, 64)) == set()
    assert offered((64, n // 64)) == set()  # all of it stays in the caches


def test_not_offered_for_what_is_computed_for_a_tile() -> None:
    n = third_cache_bytes(detect(threads=1)) // 64
    x, w = te.placeholder((n, 32), name="x"), te.placeholder((32, 64), name="w")
    k = te.reduce_axis(32, name="k")
    c = te.compute((n, 64), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="c")
    y = te.compute((64, n), lambda i, j: c[j, i] + c[j, i], name="y")
    space = derive(te.dag([x, w, y]), detect(threads=1))
    assert not any(h.endswith(".stream") for s in range(len(space.sketches)) for h in space.holes(s))
