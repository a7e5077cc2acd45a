"""Software prefetching: where it is asked for, and that nothing but the time of a kernel depends on it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from space_cases import target

import autotune as at
from autotune.codegen.llvm.emit import emit
from autotune.targets import detect
from schedules import ops, te
from schedules.expr import Const, Var
from schedules.instructions import Instruction
from schedules.ir import Intrinsic, Loop, LoweredFunc, Prefetch, Seq, Store, interp, walk
from schedules.ir.exprs import substitute
from schedules.ir.printer import show
from schedules.microarchitecture import RATES
from schedules.passes.lower import lower
from schedules.passes.prefetch import NEAR
from schedules.schedule import Schedule
from schedules.space.derive import DerivedSpace, derive
from schedules.space.estimate.cpu.features import GIGAHERTZ
from schedules.space.holes import Choice
from schedules.space.rules.cpu.prefetching import FAR

pytestmark = pytest.mark.usefixtures("two_cpus")


def rows(m: int = 6, n: int = 40, ahead: int = 1, lanes: int = 32) -> Schedule:
    """Deviations from the row's sum: two stages pass over each row of x."""
    x = te.placeholder((m, n), "float32", name="x")
    k = te.reduce_axis(n, name="k")
    total = te.compute((m,), lambda i: te.sum(x[i, k], axis=k), name="total")
    s = Schedule([x, te.compute((m, n), lambda i, j: x[i, j] - total[i], name="y")])
    i, j = s.loops("y")
    s.compute_at("total", i)
    _, inner = s.split(j, (None, lanes), "guard")
    s.vectorize(inner)
    s.annotate(i, "prefetch", ahead)
    return s


def asked(func: LoweredFunc) -> list[tuple[Prefetch, Store]]:
    """Each request with the store that it stands before."""
    pairs = []
    for s in walk(func.body):
        if isinstance(s, Seq):
            for a, b in zip(s.stmts, s.stmts[1:], strict=False):
                if isinstance(a, Prefetch):
                    assert isinstance(b, Store)
                    pairs.append((a, b))
    return pairs


def test_the_second_stage_asks_for_the_next_row() -> None:
    found = asked(lower(rows(ahead=2).nest))
    assert found and all(b.buffer == "y" and a.buffer == "x" for a, b in found)
    text = show(lower(rows(ahead=2).nest))
    assert "prefetch x[y_i + 2, " in text
    assert not asked(lower(rows(ahead=0).nest))


def test_one_stage_asks_itself() -> None:
    x = te.placeholder((8, 40), "float32", name="x")
    s = Schedule([x, te.compute((8, 40), lambda i, j: x[i, j] + 1.0, name="y")])
    i, _ = s.loops("y")
    s.annotate(i, "prefetch", 1)
    assert [(a.buffer, b.buffer) for a, b in asked(lower(s.nest))] == [("x", "y")]


def test_what_the_loop_does_not_move_is_not_asked_for() -> None:
    x = te.placeholder((40,), "float32", name="x")
    s = Schedule([x, te.compute((8, 40), lambda i, j: x[j] + 1.0, name="y")])
    s.annotate(s.loops("y")[0], "prefetch", 1)
    assert not asked(lower(s.nest))


def test_scratch_is_not_asked_for() -> None:
    x = te.placeholder((8, 40), "float32", name="x")
    a = te.compute((8, 40), lambda i, j: x[i, j] + 1.0, name="a")
    s = Schedule([x, te.compute((8, 40), lambda i, j: a[i, j] * a[i, j], name="y")])
    s.annotate(s.loops("y")[0], "prefetch", 1)
    assert not asked(lower(s.nest))


@pytest.mark.parametrize(("lanes", "lines"), [(8, 1), (16, 1), (32, 2)])
def test_one_request_a_line(lanes: int, lines: int) -> None:
    s = rows(n=64, lanes=lanes)
    text = emit(lower(s.nest), detect(threads=1)).text
    assert len(re.findall(r"call void @llvm\.prefetch", text)) == lines


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n", [7, 32, 45, 64])
def test_results_are_the_same_beyond_the_last_row_too(n: int, threads: int) -> None:
    s = rows(5, n, ahead=100)
    if threads > 1:
        s.parallel(s.loops("y")[0])
    x = np.arange(5 * n, dtype=np.float32).reshape(5, n)
    expected = x - x.sum(axis=1, keepdims=True)
    arrays = {"x": x, "y": np.full_like(x, np.nan)}
    interp.run(lower(s.nest), arrays)
    np.testing.assert_array_equal(arrays["y"], expected)
    np.testing.assert_array_equal(at.build(s, target=detect(threads=threads))(x), expected)


def test_loop_variables_are_replaced_in_requests_too() -> None:
    request = Prefetch("x", (Var("i") + 1, Var("j")))
    assert substitute(Loop("j", Const(4), request), {"i": Const(3)}) == Loop(
        "j", Const(4), Prefetch("x", (Const(3) + 1, Var("j")))
    )


def _space(m: int, n: int, op: str = "softmax") -> DerivedSpace:
    return derive(ops.workload(op, {"m": m, "n": n}).dag, target(vector_bytes=64))


@pytest.mark.parametrize(("op", "offered"), [("softmax", True), ("layer_norm", True), ("reduce_sum", False)])
def test_spaces_offer_it_where_stages_share_rows_from_memory(op: str, offered: bool) -> None:
    large = _space(4096, 1024, op)
    assert any(h.endswith(".ahead") for h in large.holes(0)) == offered
    assert not any(h.endswith(".ahead") for h in _space(16, 64, op).holes(0))


def test_the_estimate_prefers_it() -> None:
    space = _space(4096, 1024)
    names = list(space.holes(0))
    rng = np.random.default_rng(0)
    row = space.sample(0, 50, rng)
    without, ahead = row.copy(), row.copy()
    without[:, names.index("y.ahead")] = 0
    ahead[:, names.index("y.ahead")] = 2
    column = space.feature_names.index("est_time_s")
    faster = space.features(0, without)[:, column] - space.features(0, ahead)[:, column]
    assert np.all(faster >= 0) and np.mean(faster > 0) > 0.5  # where the first stage waits for memory
    traced = space.trace(0, ahead[0])
    nest = Schedule.replay(space.dag, traced, space.target).nest
    assert any(isinstance(x, Loop) and ("prefetch", 2) in x.annotations for x in walk(nest.body))


def streamed_product(ahead: int, m: int = 5, n: int = 96, k: int = 7) -> Schedule:
    """A product that reads tiles of 3 rows of b by 32 columns where they lie, for two rows of a at a time."""
    s = Schedule(ops.workload("matmul", {"m": m, "n": n, "k": k}).dag)
    i, j, r = s.loops("c")
    i0, i1 = s.split(i, (None, 2), "guard")
    j0, j1 = s.split(j, (None, 32), "guard")
    r0, r1 = s.split(r, (None, 3), "guard")
    s.reorder(r0, j0, i0, r1, i1, j1)
    s.unroll(r1)
    s.unroll(i1)
    s.vectorize(j1)
    s.annotate(j0, "prefetch", ahead)
    return s


def test_rows_that_share_a_tile_ask_for_the_next_one_once() -> None:
    text = emit(lower(streamed_product(2, m=4, k=6).nest), detect(threads=1)).text
    assert len(re.findall(r"call void @llvm\.prefetch", text)) == 3 * 2  # rows of b, of two lines each


@pytest.mark.fast(but=["16-64-16"])
@pytest.mark.parametrize(("m", "n", "k"), [(5, 96, 7), (2, 32, 3), (3, 70, 10), (16, 64, 16)])
def test_a_product_is_the_same_whatever_it_asks_for(m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(m)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    for ahead in (0, 2):
        s = streamed_product(ahead, m, n, k)
        arrays = {"a": a, "b": b, "c": np.full((m, n), np.nan, np.float32)}
        interp.run(lower(s.nest), arrays)
        np.testing.assert_array_equal(arrays["c"], a @ b)
        np.testing.assert_array_equal(at.build(s, target=detect(threads=1))(a, b), a @ b)


def transposed(m: int, n: int, ahead: int, rows: int = 16) -> Schedule:
    """``y[i, j] = x[j, i]`` by blocks of two tiles of ``rows`` by 16, side by side."""
    x = te.placeholder((n, m), name="x")
    s = Schedule([x, te.compute((m, n), lambda i, j: x[j, i], name="y")])
    i, j = s.loops("y")
    i0, i1 = s.split(i, (None, rows), "guard")
    j0, j1, j2 = s.split(j, (None, 2, 16), "guard")
    s.reorder(j0, i0, j1, i1, j2)
    s.unroll(i1)
    s.vectorize(j2)
    s.annotate(i0, "prefetch", ahead)
    return s


def test_lanes_that_are_rows_ask_for_a_line_each_in_the_second_cache() -> None:
    def levels(rows: int) -> list[str]:
        text = emit(lower(transposed(64, 32, 1, rows).nest), target(vector_bytes=64)).text
        return re.findall(r"call void @llvm\.prefetch\.p0\(.*, i32 (\d), i32 1\)", text)

    assert levels(8) == levels(16) == ["2"] * 16
    assert levels(32) == ["2"] * 32


@pytest.mark.parametrize(("cache", "level", "shown"), [(1, "3", ""), (2, "2", " to L2")])
def test_a_walk_may_ask_into_the_second_cache(cache: int, level: str, shown: str) -> None:
    x = te.placeholder((8, 40), "float32", name="x")
    s = Schedule([x, te.compute((8, 40), lambda i, j: x[i, j] + 1.0, name="y")])
    i, _ = s.loops("y")
    s.annotate(i, "prefetch", 1)
    s.annotate(i, "prefetch_cache", cache)
    func = lower(s.nest)
    assert f"prefetch x[y_i + 1, y_j]{shown}\n" in show(func)
    text = emit(func, target(vector_bytes=64)).text
    assert set(re.findall(r"call void @llvm\.prefetch\.p0\(.*, i32 (\d), i32 1\)", text)) == {level}


def test_spaces_of_elementwise_stages_ask_into_the_second_cache() -> None:
    space = derive(ops.workload("add", {"n": 1 << 24}).dag, target(vector_bytes=64))
    steps = space.sketch(0).trace.steps
    assert any(x.primitive == "annotate" and "prefetch_cache" in str(x) for x in steps)


@pytest.mark.parametrize(("m", "n"), [(64, 32), (33, 47), (5, 80)])
def test_a_transposition_is_the_same_whatever_it_asks_for(m: int, n: int) -> None:
    x = np.arange(n * m, dtype=np.float32).reshape(n, m)
    for ahead in (0, 1):
        s = transposed(m, n, ahead)
        arrays = {"x": x, "y": np.full((m, n), np.nan, np.float32)}
        interp.run(lower(s.nest), arrays)
        np.testing.assert_array_equal(arrays["y"], x.T)
        np.testing.assert_array_equal(at.build(s, target=detect(threads=1))(x), x.T)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("distance", [1, FAR])
def test_transpositions_may_ask_for_the_next_block_of_a_column_or_a_later_one(
    distance: int, threads: int
) -> None:
    def space(n: int) -> DerivedSpace:
        dag = ops.workload("permute", {"shape": (n, n), "axes": (1, 0)}).dag
        return derive(dag, target(vector_bytes=64, threads=threads))

    large = space(4096)
    row = large.sample(0, 1, np.random.default_rng(0))[0]
    (asked,) = (h for h in large.sketch(0).holes if h.name == "y.ahead")
    assert isinstance(asked, Choice) and asked.options == (0, 1, FAR)
    row[list(large.holes(0)).index("y.ahead")] = distance
    nest = Schedule.replay(large.dag, large.trace(0, row), large.target).nest
    loops = [x for x in walk(nest.body) if isinstance(x, Loop)]
    assert [x.kind for x in loops[:2]] == ["parallel" if threads > 1 else "serial", "serial"]
    assert ("prefetch", distance) in loops[1].annotations
    assert "y.ahead" not in space(64).holes(0)


def _products(m: int, n: int, k: int) -> DerivedSpace:
    return derive(ops.workload("matmul", {"m": m, "n": n, "k": k}).dag, target(vector_bytes=64))


@pytest.mark.parametrize(
    ("m", "n", "k", "offered"),
    [
        (16, 4096, 4096, True),
        (128, 4096, 512, True),
        (1, 4096, 4096, False),  # nothing is computed meanwhile
        (512, 4096, 512, False),  # so much is that it does not matter
        (16, 256, 300, False),  # the caches have it
    ],
)
def test_products_of_few_rows_may_ask_for_what_they_read(m: int, n: int, k: int, offered: bool) -> None:
    space = _products(m, n, k)
    asking = {name for s, name in enumerate(space.sketches) if "c.ahead" in space.holes(s)}
    assert asking == ({"c.pack=none c.k=blocks"} if offered else set())


def test_what_is_asked_for_comes_sooner_but_no_faster_than_memory_gives() -> None:
    space = _products(16, 4096, 4096)
    sketch = space.sketches.index("c.pack=none c.k=blocks")
    at_ahead, rng = space.holes(sketch).index("c.ahead"), np.random.default_rng(1)
    rows = space.sample(sketch, 200, rng)
    rows = rows[space.valid(sketch, rows)]
    times = []
    for ahead in (0, 2):
        rows[:, at_ahead] = ahead
        times.append(space.features(sketch, rows)[:, space.feature_names.index("est_time_s")])
    without, asked_for = times
    assert np.all(asked_for <= without) and np.mean(asked_for < without) > 0.5
    assert np.all(asked_for >= 4 * 4096 * 4096 / RATES[-1] / (GIGAHERTZ * 1e9))


@pytest.mark.parametrize(("n", "distance"), [(1024, 2), (1 << 15, 1)])
def test_of_long_rows_only_the_next_is_asked_for(n: int, distance: int) -> None:
    space = _space((1 << 22) // n, n)
    column = list(space.holes(0)).index("y.ahead")
    assert set(space.sample(0, 50, np.random.default_rng(0))[:, column].tolist()) == {0, distance}


def dot_products(steps: int, ahead: int) -> Schedule:
    """c[i] = sum of a[k, t] b[k, i, t]: one vpdpbusd a step."""
    a, b = te.placeholder((steps, 4), "uint8", "a"), te.placeholder((steps, 16, 4), "int8", "b")
    k, t = te.reduce_axis(steps, "k"), te.reduce_axis(4, "t")
    s = Schedule([a, b, te.compute((16,), lambda i: te.sum(a[k, t] * b[k, i, t], axis=(k, t)), "c")])
    i, outer, inner = s.loops("c")
    s.reorder(outer, i, inner)
    s.decompose_reduction("c", outer)
    s.tensorize(i, "vpdpbusd")
    s.annotate(outer, "prefetch", ahead)
    return s


def test_an_instruction_stays_one_where_its_operands_are_asked_for() -> None:
    s = dot_products(9, 4)
    func = lower(s.nest)
    assert [x.instruction.name for x in walk(func.body) if isinstance(x, Intrinsic)] == ["vpdpbusd"]
    assert {x.buffer: x.indices[0] for x in walk(func.body) if isinstance(x, Prefetch)} == {
        "a": Var("c_k") + 4, "b": Var("c_k") + 4,
    }  # fmt: skip
    rng = np.random.default_rng(0)
    inputs = [rng.integers(0, 256, (9, 4), "uint8"), rng.integers(-128, 128, (9, 16, 4), "int8")]
    found = {"a": inputs[0], "b": inputs[1], "c": np.zeros(16, "int32")}
    interp.run(func, found)
    assert np.array_equal(found["c"], te.evaluate(s.dag, inputs)[0])
    assert np.array_equal(at.build(s, threads=1)(*inputs), found["c"])


def test_rows_of_an_operand_that_are_lines_apart_are_asked_for_one_by_one() -> None:
    x = te.placeholder((8, 4, 640), "uint8", "x")
    r = te.placeholder((4, 16), "uint8", "r")
    meaning = te.dag([r, te.compute((4, 16), lambda i, j: r[i, j], "o")])
    copy = Instruction("rows", "", meaning, free=frozenset({("r", 0)}))
    s = Schedule([x, te.compute((8, 4, 16), lambda k, i, j: x[k, i, j], "y")])
    k, i, _ = s.loops("y")
    s.tensorize(i, copy)
    s.annotate(k, "prefetch", 2)
    found = [x for x in walk(lower(s.nest).body) if isinstance(x, Loop) and isinstance(x.body, Prefetch)]
    assert [(x.extent, x.kind, x.body.indices) for x in found if isinstance(x.body, Prefetch)] == [
        (Const(4), "unroll", (Var("y_k") + 2, Var("y_i"), Const(0)))
    ]


def panels(nbytes: int, steps: int = 9) -> Schedule:
    """c[n, i] = sum of a[k, t] b[n, k, i, t]: each panel of b reads all of a. A step has 64 bytes of b."""
    a, b = te.placeholder((steps, 4), "uint8", "a"), te.placeholder((3, steps, 16, 4), "int8", "b")
    k, t = te.reduce_axis(steps, "k"), te.reduce_axis(4, "t")
    c = te.compute((3, 16), lambda n, i: te.sum(a[k, t] * b[n, k, i, t], axis=(k, t)), "c")
    s = Schedule([a, b, c])
    _, i, outer, inner = s.loops("c")
    s.reorder(outer, i, inner)
    s.decompose_reduction("c", outer)
    s.tensorize(i, "vpdpbusd")
    s.annotate(outer, "prefetch_bytes", nbytes)
    return s


@pytest.mark.parametrize(("nbytes", "steps"), [(1, 1), (64, 1), (65, 2), (1000, 16)])
def test_bytes_ahead_are_whole_iterations(nbytes: int, steps: int) -> None:
    """Beyond the end of a panel they are those of the next one. What all panels read stays near, and is not
    asked for."""
    func = lower(panels(nbytes).nest)
    found = [(x.buffer, x.indices[1]) for x in walk(func.body) if isinstance(x, Prefetch)]
    assert found == [("b", Var("c_k") + steps)]
    s = panels(nbytes)
    rng = np.random.default_rng(0)
    inputs = [rng.integers(0, 256, (9, 4), "uint8"), rng.integers(-128, 128, (3, 9, 16, 4), "int8")]
    assert np.array_equal(at.build(s, threads=1)(*inputs), te.evaluate(s.dag, inputs)[0])


def test_no_bytes_ahead_ask_for_nothing() -> None:
    assert not [x for x in walk(lower(panels(0).nest).body) if isinstance(x, Prefetch)]


def test_what_is_large_is_asked_for_though_it_is_read_again() -> None:
    found = {x.buffer for x in walk(lower(panels(64, NEAR // 4).nest).body) if isinstance(x, Prefetch)}
    assert found == {"b"}
    found = {x.buffer for x in walk(lower(panels(64, NEAR // 4 + 1).nest).body) if isinstance(x, Prefetch)}
    assert found == {"a", "b"}
