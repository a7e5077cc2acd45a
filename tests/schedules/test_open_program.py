"""Programs for all sizes of a range mean what the expression does at each: by the interpreter, on arrays that
have as many rows as the size says."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from open_cases import CASES, close, interpreted, sampled, with_strides
from random_schedules import random_schedule

from schedules import affine, te
from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Const
from schedules.ir import Loop, walk
from schedules.ir.interp import InterpError, run
from schedules.ir.verify import VerifyError
from schedules.model import Trace
from schedules.open_program import lower_parts, parts_of
from schedules.passes import drop_harmless_guards, open_sizes, partition
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.dims import dim


def sizes_around(parts, least: int, most: int) -> list[int]:
    """The least and the largest size, those beside the tile, and a prime between."""
    tile = parts[0].sizes[0].least
    return sorted({n for n in (least, tile - 1, tile, tile + 1, 7, 13, most) if least <= n <= most})


def wrong_at(dag: ComputeDAG, trace: Trace, exact: bool) -> str:
    """What is wrong with a trace at some size; nothing if it is right at all that are tried."""
    assert dag.open is not None
    parts = parts_of(dag, trace)
    func = lower_parts(parts, dag.open.sizes)
    ((name, (least, most)),) = dag.open.ranges.items()
    for n in sizes_around(parts, least, most):
        try:
            got, want = interpreted(func, dag, {name: n})
        except InterpError as err:
            return f"at {n}: {err}"
        if not close(got, want, exact):
            return f"at {n}: {got} instead of {want}"
    return ""


@pytest.mark.parametrize("name", CASES)
def test_plain_loops_are_right_at_every_size(name: str) -> None:
    case = CASES[name]
    dag = case.dag()
    nest = Schedule(dag).nest
    for n in (1, 2, case.most):
        got, want = interpreted(nest, dag, {"n": n})
        assert close(got, want, case.exact), n
    assert wrong_at(dag, Trace(), case.exact) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_schedules_of_the_space_are_right_at_every_size(name: str) -> None:
    case = CASES[name]
    dag = case.dag()
    traces = list(sampled(dag, 1))
    assert traces
    assert [w for t in traces[:4] if (w := wrong_at(dag, t, case.exact))] == []


def fuzzed(first: int, count: int) -> tuple[int, int, list[str]]:
    """(schedules that are legal, all, what is wrong) of random schedules of random cases and ranges."""
    legal, wrong = 0, []
    for seed in range(first, first + count):
        rng = Random(seed)
        case = CASES[rng.choice(list(CASES))]
        dag = case.dag(rng.choice((1, 1, 1, 2)), max(3, rng.randint(case.most // 2, case.most)))
        trace = random_schedule(dag.largest, rng, rng.randint(2, 9)).trace
        try:
            what = wrong_at(dag, trace, case.exact)
        except ScheduleError:
            continue
        legal += 1
        if what:
            wrong.append(f"seed {seed}: {what}")
    return legal, count, wrong


@pytest.mark.parametrize("first", range(0, 12, 3))
def test_random_schedules_are_right_at_every_size(first: int) -> None:
    legal, _, wrong = fuzzed(first, 3)
    assert wrong == [] and legal > 0


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(1000, 3400, 300))
def test_many_random_schedules_are_right_at_every_size(first: int) -> None:
    """About 10,000 of (expression, place of the size, schedule, size)."""
    legal, count, wrong = fuzzed(first, 300)
    assert wrong == [] and legal >= 0.85 * count


# -- what is emitted ---------------------------------------------------------------------------


def product(least: int = 1, most: int = 24) -> tuple[ComputeDAG, Schedule]:
    dag = CASES["rows of a product"].dag(least, most)
    return dag, Schedule(dag.largest)


def test_no_row_beyond_the_size_is_read_or_computed() -> None:
    dag, s = product()
    o, i = s.split("C_i", (None, 4))
    s.reorder(o, "C_r", i, "C_j")
    func = lower_parts(parts_of(dag, s.trace), dag.open.sizes)
    for n in (1, 4, 7, 24):
        rng = np.random.default_rng(n)
        a, b = (rng.integers(-4, 5, x).astype("float32") for x in ((n, 5), (5, 6)))
        c, counts = np.full((n, 6), np.nan, "float32"), {}
        run(func, {"A": a, "B": b, "C": c}, sizes={"n": n}, counts=counts)
        assert np.array_equal(c, a @ b) and counts["load A"] == n * 5 * 6


def test_tiles_beyond_the_end_are_not_run() -> None:
    """Tiles of 2 in runs of 5: of 7 rows the first run has 4 tiles, not 5 of which the last two are alike."""
    x = te.placeholder((dim(2, 24, "n", open=True), 3), name="x")
    dag = te.dag([x, te.compute(x.shape, lambda i, j: x[i, j] + 1.0, "y")])
    s = Schedule(dag.largest)
    s.split("y_i", (None, 5, 2), "shift")
    func = lower_parts(parts_of(dag, s.trace), dag.open.sizes)
    a, y, counts = np.ones((7, 3), "float32"), np.full((7, 3), np.nan, "float32"), {}
    run(func, {"x": a, "y": y}, sizes={"n": 7}, counts=counts)
    assert (y == 2).all() and counts["store y"] == 4 * 2 * 3


def test_whole_tiles_have_no_guard() -> None:
    dag, s = product(8)
    o, i = s.split("C_i", (None, 8))
    s.reorder(o, "C_r", i, "C_j")
    func = lower_parts(parts_of(dag, s.trace), dag.open.sizes)
    first = next(x for x in walk(func.body) if isinstance(x, Loop) and x.var == o)
    assert all(isinstance(x.extent, Const) for x in walk(first.body) if isinstance(x, Loop))


def test_sizes_below_a_shifted_tile_have_a_part_of_their_own() -> None:
    x = te.placeholder((dim(3, 24, "n", open=True),), name="x")
    dag = te.dag([x, te.compute(x.shape, lambda i: x[i] + 1.0, "y")])
    s = Schedule(dag.largest)
    s.vectorize(s.split("y_i", (None, 8), "shift")[1])
    parts = parts_of(dag, s.trace)
    assert [(p.sizes[0].least, p.sizes[0].most) for p in parts] == [(8, 24), (3, 7)]
    assert wrong_at(dag, s.trace, True) == ""
    fits = te.dag([y := te.placeholder((dim(8, 24, "n", open=True),), name="x"),
                   te.compute(y.shape, lambda i: y[i] + 1.0, "y")])  # fmt: skip
    assert len(parts_of(fits, s.trace)) == 1


def test_a_tile_of_the_largest_size_is_seen_in_a_fused_loop() -> None:
    """Its loop runs once, so that nothing is left of the minimum that shifts it."""
    x = te.placeholder((2, dim(3, 14, "n", open=True)), name="x")
    dag = with_strides(te.dag([x, te.compute(x.shape, lambda i, j: x[i, j] + 1.0, "y")]))
    s = Schedule(dag.largest)
    outer, lanes = s.split("y_j", (None, 14), "shift")
    s.vectorize(lanes)
    s.fuse("y_i", outer)
    assert [(p.sizes[0].least, p.sizes[0].most) for p in parts_of(dag, s.trace)] == [(14, 14), (3, 13)]
    assert wrong_at(dag, s.trace, True) == ""


def test_fused_loops_of_two_open_extents_have_a_known_end() -> None:
    x = te.placeholder((dim(1, 7, "n", open=True), dim(2, 6, "m", open=True)), name="x")
    dag = with_strides(te.dag([x, te.compute(x.shape, lambda i, j: x[i, j] + 1.0, "y")]))
    s = Schedule(dag.largest)
    fused = s.fuse("y_i", "y_j")
    s.cache_read("y", "x", "local")
    s.compute_at("x_local", fused)
    func = lower_parts(parts_of(dag, s.trace), dag.open.sizes)
    for sizes in ({"n": 7, "m": 6}, {"n": 1, "m": 2}, {"n": 5, "m": 3}):
        got, want = interpreted(func, dag, sizes)
        assert close(got, want, True), sizes


def halves(x: te.Tensor, shape: tuple[object, ...]) -> te.Tensor:
    """Reads the axes of a sum, and of the results, by their quotients."""
    r = te.reduce_axis(shape[1], "r")
    return te.compute(shape[:1], lambda i: te.sum(x[i // 4, i % 4, r % 2, r // 2], axis=r), "y")


@pytest.mark.parametrize("place", [0, 1])
def test_open_axes_are_not_divided_by_what_divides_the_largest_size(place: int) -> None:
    n = dim(1, 16, "n", open=True)
    shape = (n, 8) if place == 0 else (8, n)
    rows = E.ceildiv(shape[0], 4) if place == 0 else 2
    columns = E.ceildiv(shape[1], 2) if place else 4
    x = te.placeholder((rows, 4, 2, columns), name="x")
    told = te.placeholder((n,), name="told")
    first = te.compute(told.shape, lambda i: told[i] + 1.0, "first")
    dag = with_strides(te.dag([x, told, halves(x, shape), first]))
    traces = list(sampled(dag, 1))
    assert traces
    assert [w for t in traces if (w := wrong_at(dag, t, True))] == []


def test_two_sizes_are_told_apart() -> None:
    m, n = dim(1, 9, "m", open=True), dim(2, 7, "n", open=True)
    x, y = te.placeholder((m, 3), name="x"), te.placeholder((n, 3), name="y")
    r = te.reduce_axis(n, "r")
    total = te.compute((m, 3), lambda i, j: te.sum(x[i, j] * y[r, j], axis=r), "z")
    dag = te.dag([x, y, total])
    s = Schedule(dag.largest)
    s.split("z_i", (None, 4))
    s.split("z_r", (None, 2))
    func = lower_parts(parts_of(dag, s.trace), dag.open.sizes)
    for sizes in ({"m": 1, "n": 2}, {"m": 9, "n": 3}, {"m": 5, "n": 7}):
        got, want = interpreted(func, dag, sizes)
        assert close(got, want, True), sizes


def test_a_long_sum_over_an_open_axis_is_done_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from schedules.passes import partial_sums

    limit = partial_sums.partial_sums
    monkeypatch.setattr("schedules.passes.lower.partial_sums", lambda nest: limit(nest, 8))
    dag = CASES["depth of a product"].dag(1, 11)
    assert wrong_at(dag, Trace(), True) == ""
    func = lower_parts(parts_of(dag, Trace()), dag.open.sizes)
    assert any("run" in x.var for x in walk(func.body) if isinstance(x, Loop))


# -- what is refused ---------------------------------------------------------------------------


def test_tiles_that_must_divide_are_refused_where_the_size_may_be_a_prime() -> None:
    dag, s = product(1, 32)
    s.split(s.split("C_i", (4, None))[1], (None, 4))  # legal for 32 rows
    with pytest.raises(ScheduleError, match=r"at n=\d+: .*factors \[None, 4\] do not divide"):
        parts_of(dag, s.trace)


def test_a_tile_larger_than_the_largest_size_is_refused_by_split() -> None:
    dag, s = product()
    s.split("C_j", (None, 4), "guard")
    trace = Trace(tuple(s.trace.steps))
    assert parts_of(dag, trace)
    x = te.placeholder((dim(1, 6, "n", open=True),), name="x")
    small = te.dag([x, te.compute(x.shape, lambda i: x[i] + 1.0, "y")])
    t = Schedule(te.dag([y := te.placeholder((9,), name="x"), te.compute((9,), lambda i: y[i] + 1.0, "y")]))
    t.split("y_i", (None, 8), "shift")
    with pytest.raises(ScheduleError, match="larger than the largest size n=6"):
        parts_of(small, t.trace)


def test_an_outermost_open_dimension_is_merged() -> None:
    """The argument, what is written, and a copy between; by tiles that shift, and by tiles with a guard."""
    x = te.placeholder((dim(1, 24, "n", open=True), 3, 2), name="x")
    dag = te.dag([x, te.compute(x.shape, lambda i, j, k: x[i, j, k] * 2.0 + 1.0, "y")])
    for tail in ("shift", "guard"):
        s = Schedule(dag.largest)
        copy = s.cache_read("y", "x", "local")
        for block, buffers in ((copy, (copy,)), ("y", ("y",))):
            merged = s.merge_axes(*s.loops(block))
            for b in buffers:
                s.merge_dims(b, 0, 3)
            s.split(merged, (None, 8), tail)
        s.merge_dims("x", 0, 2)
        assert [len(b.shape) for b in s.nest.buffers] == [2, 1, 1]
        assert wrong_at(dag, s.trace, True) == ""


def test_only_an_outermost_open_dimension_is_merged() -> None:
    s = Schedule(CASES["rows of a map"].dag())
    s.merge_axes("y_i", "y_j")
    s.merge_dims("x", 0, 2)
    with pytest.raises(ScheduleError, match="split_dim y: a call tells the extent of dimension 0, which no"):
        Schedule(CASES["rows of a map"].dag()).split_dim("y", 0, 4)
    with pytest.raises(ScheduleError, match="split_axis y_i: a call tells its extent, which no"):
        Schedule(CASES["rows of a map"].dag()).split_axis("y_i", 4)
    inner = te.dag([x := te.placeholder((3, dim(1, 6, "n", open=True)), name="x"),
                    te.compute(x.shape, lambda i, j: x[i, j] + 1.0, "y")])  # fmt: skip
    with pytest.raises(ScheduleError, match="one whose extent a call tells only as the first"):
        Schedule(inner).merge_dims("x", 0, 2)


# -- mutants -----------------------------------------------------------------------------------


def probes() -> Iterator[tuple[ComputeDAG, Trace, bool]]:
    """Schedules that tell a right compiler from a wrong one."""
    dag = CASES["rows of a map"].dag()
    yield dag, next(sampled(dag, 1)), True
    dag, s = product()
    o, i = s.split("C_i", (None, 4))
    s.reorder(o, "C_r", i, "C_j")
    yield dag, s.trace, True
    x = te.placeholder((dim(2, 24, "n", open=True), 3), name="x")
    dag = te.dag([x, te.compute(x.shape, lambda i, j: x[i, j] + 1.0, "y")])
    for merged in (False, True):
        s = Schedule(dag.largest)
        loop = s.merge_axes("y_i", "y_j") if merged else "y_i"
        s.split(loop, (None, 5, 2), "shift")
        yield dag, s.trace, True
    # a copy of a tile whose guard may only be dropped if rows beyond the size exist
    s = Schedule(dag.largest)
    s.cache_read("y", "x", "local")
    o, _ = s.split("y_i", (None, 4))
    s.compute_at("x_local", o)
    yield dag, s.trace, True


def caught() -> bool:
    """Whether a probe shows that something is wrong."""
    for dag, trace, exact in probes():
        try:
            if wrong_at(dag, trace, exact):
                return True
        except (ScheduleError, VerifyError):
            return True
    return False


def end_off_by_one(patch: pytest.MonkeyPatch) -> None:
    right = open_sizes._end
    patch.setattr(open_sizes, "_end", lambda *a: None if (e := right(*a)) is None else e - 1)


def merged_bound_taken_for_the_size(patch: pytest.MonkeyPatch) -> None:
    right = open_sizes._end

    def end(b, var, inner, runs):
        found = right(b, var, inner, runs)
        sizes = [E.Var(v) for v in E.variables(found) if v.endswith(".size")] if found is not None else []
        own = next((i for i, e in zip(b.iters, b.binds, strict=True) if var in E.variables(e)), None)
        if own is None or not sizes:
            return found
        return affine.simplify(E.rewrite(found, lambda x: sizes[0] if x == own.extent else None), {})

    patch.setattr(open_sizes, "_end", end)


def proof_against_the_largest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(drop_harmless_guards, "_below", lambda i, n, at: True)


def whole_tiles_one_more(patch: pytest.MonkeyPatch) -> None:
    right = partition._middle

    def middle(loop, n):
        lo, hi, holding = right(loop, n)
        return lo, hi + 1 if holding else hi, holding

    patch.setattr(partition, "_middle", middle)


def room_for_less_than_the_largest(patch: pytest.MonkeyPatch) -> None:
    right = affine.most
    patch.setattr(affine, "most", lambda e, r: None if (n := right(e, r)) is None else max(n - 1, 1))


MUTANTS = (
    end_off_by_one,
    merged_bound_taken_for_the_size,
    proof_against_the_largest,
    whole_tiles_one_more,
    room_for_less_than_the_largest,
)


def test_probes_are_right() -> None:
    assert not caught()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda f: f.__name__)
def test_mutants_are_caught(mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert caught()
