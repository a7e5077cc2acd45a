"""The last tile of an open extent does no more than it must, and whole tiles know that they are whole: by the
interpreter at every size, and by what is emitted."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from helpers import host
from open_cases import OpenCase, OpenCode, attention, close, interpreted, sampled, with_strides
from open_cases import inputs as data_of
from test_open_instructed import CPU, lowered, operator, right
from test_open_instructed import n as rows
from test_open_program import fuzzed

from autotune.backends.building.from_trace import programs
from schedules import expr as E
from schedules import te
from schedules.expr import Const, Expr, Var
from schedules.ir import Alloc, Guard, Intrinsic, Loop, LoweredFunc, Stmt, walk
from schedules.ir.interp import InterpError
from schedules.model import Trace
from schedules.open_program import lower_parts, parts_of
from schedules.passes import by_sizes, narrow_lanes, open_sizes, partition, pipeline
from schedules.schedule import Schedule
from schedules.space.derive import derive
from schedules.te.compute_dag import ComputeDAG
from schedules.te.dims import dim
from schedules.te.open_sizes import at


def sums(m: int, n: object) -> list[te.Tensor]:
    """A stage over rows, and its sums."""
    x, r = te.placeholder((m, n), name="x"), te.reduce_axis(n, "r")
    e = te.compute((m, n), lambda i, j: te.maximum(x[i, j], 0.0) * 2.0, "e")
    return [x, te.compute((m,), lambda i: te.sum(e[i, r], axis=r), "y")]


SUMS = OpenCase(lambda n: sums(3, n), 23)


def in_lanes(dag: ComputeDAG, lanes: int = 8) -> Schedule:
    """Sums in vectors of partial ones, the stage in their loop."""
    s = Schedule(dag.largest)
    s.compute_at("e", "y_i")
    s.split("y_r", (None, lanes))
    s.rfactor("y", "y_r_1")
    s.decompose_reduction("y_rf", "y_r_0")
    s.compute_at("e", "y_r_0")
    s.vectorize(s.loops("e")[-1])
    s.vectorize("y_r_1")
    s.partition("y_r_0")
    return s


@pytest.fixture
def lanes_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of more than four lanes are many."""
    monkeypatch.setattr(narrow_lanes, "LANES", 4)
    monkeypatch.setattr(pipeline, "LANES", 4)


def func_of(dag: ComputeDAG, trace: Trace) -> LoweredFunc:
    return lower_parts(parts_of(dag, trace), dag.open.sizes)


def wrong_sizes(func: LoweredFunc, dag: ComputeDAG, exact: bool = True) -> list[int]:
    ((name, (least, most)),) = dag.open.ranges.items()
    out = []
    for k in range(least, most + 1):
        try:
            got, want = interpreted(func, dag, {name: k}, k)
        except InterpError:
            out.append(k)
        else:
            out += [] if close(got, want, exact) else [k]
    return out


def guarded(s: Stmt) -> Iterator[Loop]:
    """Vectors with a guard inside."""
    for x in walk(s):
        if isinstance(x, Loop) and x.kind == "vectorize" and any(isinstance(y, Guard) for y in walk(x.body)):
            yield x


@pytest.mark.usefixtures("lanes_of_four")
def test_the_last_tile_runs_in_few_lanes_at_a_time() -> None:
    dag = SUMS.dag()
    func = func_of(dag, in_lanes(dag).trace)
    extents = [x.extent for x in guarded(func.body)]
    assert extents == [Const(4), Const(4)]  # of the stage and of the sums; whole tiles have no guard
    whole = [x for x in walk(func.body) if isinstance(x, Loop) and x.extent == Const(8)]
    assert len(whole) >= 2
    assert wrong_sizes(func, dag) == []


@pytest.mark.usefixtures("lanes_of_four")
def test_lanes_that_are_cut_off_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right_bound = narrow_lanes.bound_of
    less = lambda c, v: None if (b := right_bound(c, v)) is None else b - 1  # noqa: E731
    monkeypatch.setattr(narrow_lanes, "bound_of", less)
    dag = SUMS.dag()
    assert wrong_sizes(func_of(dag, in_lanes(dag).trace), dag)


@pytest.mark.usefixtures("lanes_of_four")
def test_sums_of_the_last_tile_stay_in_registers() -> None:
    """Lanes of sums are told by numbers, or the vectors of whole tiles would be in memory too."""
    dag = SUMS.dag()
    func = func_of(dag, in_lanes(dag).trace)
    parts = {x.var: x.kind for x in walk(func.body) if isinstance(x, Loop) and x.var.endswith("_part")}
    assert sorted(parts.values()) == ["serial", "unroll"]
    assert parts["y_r_1_part"] == "unroll"


@pytest.mark.slow
@pytest.mark.usefixtures("lanes_of_four")
@pytest.mark.parametrize("least", [1, 2])
def test_few_lanes_are_right_on_arrays_that_end_at_a_page(least: int) -> None:
    dag, target = SUMS.dag(least), host()
    trace = in_lanes(dag).trace
    code = OpenCode(programs(dag, trace, target)[0], target)
    for k in range(least, 24):
        data = data_of(at(dag, {"n": k}), k)
        for place, got in code.outputs(dag, {"n": k}, data).items():
            assert close(got, te.evaluate(at(dag, {"n": k}), data), True), (k, place)


@pytest.mark.usefixtures("lanes_of_four")
@pytest.mark.parametrize("first", (5000, 5004))
def test_random_schedules_are_right_in_few_lanes(first: int) -> None:
    legal, _, wrong = fuzzed(first, 4)
    assert wrong == [] and legal > 0


@pytest.mark.fuzz
@pytest.mark.usefixtures("lanes_of_four")
@pytest.mark.parametrize("first", range(6000, 7200, 300))
def test_many_random_schedules_are_right_in_few_lanes(first: int) -> None:
    _, _, wrong = fuzzed(first, 300)
    assert wrong == []


# -- whole tiles -------------------------------------------------------------------------------


N = Var("n.size")
ENDS = [
    E.binary("//", N, 8),
    E.minimum(E.binary("//", N, 8), E.ceildiv(N, 16)),
    E.binary("//", N - 3, 4),
    E.maximum(E.binary("//", N, 5), 0),
    E.minimum(3, E.binary("//", E.ceildiv(N, 3), 4)),
]


@pytest.mark.parametrize("end", ENDS, ids=E.show)
def test_the_sizes_at_which_a_loop_runs_are_told(end: Expr) -> None:
    least, most = partition._where_it_runs(end, {"n.size": (1, 40)})["n.size"]
    runs = [k for k in range(1, 41) if E.evaluate(end, {"n.size": k}) > 0]
    assert (least, most) == (runs[0], 40)


def test_the_sizes_at_which_some_iteration_around_runs_a_loop_are_told() -> None:
    i = Var("i")
    for end in (E.binary("//", N, 8) - i * 3, E.minimum(4, E.maximum(E.binary("//", N, 8) - i * 3, 0))):
        told = partition._where_it_runs(end, {"n.size": (1, 40), "i": (0, 5)})
        assert told == {"n.size": (8, 40), "i": (0, 5)}
        told = partition._where_it_runs(end, {"n.size": (1, 40), "i": (1, 5)})
        assert told["n.size"] == (32, 40)


def test_what_does_not_tell_a_size_leaves_ranges_alone() -> None:
    ranges = {"n.size": (1, 5000), "i": (0, 3)}
    for end in (N + Var("i"), Const(4), Var("i"), N - Var("unknown"), N * Var("m.size")):
        assert partition._where_it_runs(end, ranges) == ranges, E.show(end)
    assert partition._where_it_runs(E.binary("//", N, 4000), ranges)["n.size"] == (4000, 5000)


def test_a_range_that_is_too_small_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that take the size for the largest."""
    dag = SUMS.dag()
    trace = in_lanes(dag).trace
    assert wrong_sizes(func_of(dag, trace), dag) == []
    monkeypatch.setattr(partition, "_where_it_runs", lambda end, ranges: {**ranges, "n.size": (23, 23)})
    assert wrong_sizes(func_of(dag, trace), dag)


def test_guards_that_others_tell_are_left_out() -> None:
    """``j < min(8, n)`` beside ``i * 8 + j < n``."""
    i, j = Var("i"), Var("j")
    inner = Guard(E.compare("<", i * 8 + j, N), Alloc(None, None))  # type: ignore[arg-type]
    ranges = {"n.size": (1, 40)}
    assert open_sizes._says(inner, E.compare("<", j, N), ranges)
    assert not open_sizes._says(inner, E.compare("<", j + 1, N), ranges)
    assert not open_sizes._says(inner, E.compare("<", i * 9 + j, N), ranges)
    assert not open_sizes._says(Alloc(None, None), E.compare("<", j, N), ranges)  # type: ignore[arg-type]


# -- instructions ------------------------------------------------------------------------------


def has_tests_inside(func: LoweredFunc) -> bool:
    """Whether an instruction that holds sums has a test of a size between it and its sums."""
    tiles = [x for x in walk(func.body) if isinstance(x, Alloc) and _instructions(x)]
    inner = [x for x in tiles if not any(y is not x and isinstance(y, Alloc) for y in walk(x))]
    return any(isinstance(x, Guard) and _instructions(x) for t in inner for x in walk(t))


def _instructions(s: Stmt) -> bool:
    return any(isinstance(x, Intrinsic) and x.instruction.registers is not None for x in walk(s))


@cache
def rows_of_two_tiles() -> tuple[ComputeDAG, Trace]:
    """A product of open rows, of which a tile is two of the instruction."""
    dag = operator("matmul", m=rows(40), n=32, k=32)()
    for trace in sampled(dag, 12, CPU):
        own = dict(s.args)["factors"] if (s := _split_of(trace)) else ()
        if "tdpbf16ps" in str(trace) and own and own[-1] == 32:
            return dag, trace
    raise AssertionError("no such schedule")


def _split_of(trace: Trace):
    return next(
        (s for s in trace.steps if s.primitive == "split" and str(dict(s.args)["loop"]).endswith("_i0")), None
    )


def test_sums_of_instructions_have_no_test_of_a_size_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    dag, trace = rows_of_two_tiles()
    assert not has_tests_inside(lowered(dag, trace))
    monkeypatch.setattr(pipeline, "by_sizes", lambda s, ranges: s)
    assert has_tests_inside(lowered(dag, trace))


@pytest.mark.slow
def test_instructions_are_right_where_a_tile_has_fewer_rows() -> None:
    dag, trace = rows_of_two_tiles()
    assert right(lowered(dag, trace), dag, (1, 16, 17, 32, 33, 40))


@pytest.mark.slow
def test_a_wrong_size_of_a_tile_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    dag, trace = rows_of_two_tiles()
    told = by_sizes._told
    monkeypatch.setattr(
        by_sizes, "_told", lambda s, ranges: told(s, {k: (a, a) for k, (a, _) in ranges.items()})
    )
    with pytest.raises(InterpError, match="never written"):
        right(lowered(dag, trace), dag, (18,))


# -- parts -------------------------------------------------------------------------------------


def test_what_both_parts_begin_with_is_there_once() -> None:
    """A copy of weights that all tiles read."""
    a, b, r = (
        te.placeholder((dim(1, 20, "n", open=True), 5), name="A"),
        te.placeholder((5, 6), name="B"),
        te.reduce_axis(5, "r"),
    )
    dag = te.dag([a, b, te.compute((a.shape[0], 6), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "C")])
    s = Schedule(dag.largest)
    s.cache_write("C", "local")
    s.cache_read("C", "B", "global")
    o, _ = s.split("C_write_x0", (None, 4), "shift")
    s.compute_at("C", o)
    parts = parts_of(dag, s.trace)
    assert len(parts) == 2
    func = lower_parts(parts, dag.open.sizes)
    assert sum(isinstance(x, Alloc) and x.buffer.name == "B_global" for x in walk(func.body)) == 1
    guards = [x for x in walk(func.body) if isinstance(x, Guard) and x.cond == E.compare("<=", 4, N)]
    assert len(guards) == 1 and wrong_sizes(func, dag) == []


# -- spaces ------------------------------------------------------------------------------------


def one_token(n: object) -> list[te.Tensor]:
    """Attention of one token: values lie side by side along the result."""
    e, v, t = te.placeholder((2, n), name="e"), te.placeholder((n, 2, 32), name="v"), te.reduce_axis(n, "t")
    z = te.compute((2,), lambda h: te.sum(e[h, t], axis=t), "z")
    u = te.reduce_axis(n, "u")
    o = te.compute((2, 32), lambda h, d: te.sum(e[h, u] * v[u, h, d], axis=u), "o")
    return [e, v, te.compute((2, 32), lambda h, d: o[h, d] / z[h], "y")]


def factored(dag: ComputeDAG) -> set[str]:
    space = derive(dag, host())
    row = space.sample(0, 40, np.random.default_rng(0))
    trace = space.trace(0, row[space.valid(0, row)][0])
    return {str(dict(s.args)["block"]) for s in trace.steps if s.primitive == "rfactor"}


def test_a_sum_of_open_length_has_lanes_along_its_results() -> None:
    dag = with_strides(te.dag(one_token(dim(1, 64, "n", open=True))))
    assert factored(dag) == {"z"}
    assert factored(dag.largest) == {"z", "o"}  # spaces of fixed sizes are as they were


def copied(dag: ComputeDAG) -> set[str]:
    """The arguments that some schedule of a space copies, by their names there."""
    return {
        str(dict(s.args)["buffer"])
        for trace in sampled(dag, 1)
        for s in trace.steps
        if s.primitive == "cache_read"
    }


def heads_of(group: int) -> ComputeDAG:
    """Attention of one token, of which ``group`` heads share keys and values."""
    return OpenCase(lambda n: attention(n, 2, group, 16), 40, exact=False).dag()


@pytest.mark.slow
def test_values_that_one_tile_reads_are_read_where_they_lie() -> None:
    dag = heads_of(4)
    assert copied(dag) == {"k"}
    assert copied(dag.largest) == {"k", "v"}  # spaces of fixed sizes are as they were
    assert copied(heads_of(16)) == {"k", "v"}  # several tiles of rows read a copy


@pytest.mark.slow
def test_values_that_are_read_where_they_lie_are_right_on_arrays_that_end_at_a_page() -> None:
    dag, target = heads_of(4), host()
    for trace in sampled(dag, 1):
        code = OpenCode(programs(dag, trace, target)[0], target)
        for k in (1, 2, 15, 16, 17, 39, 40):
            data = data_of(at(dag, {"n": k}), k)
            for place, got in code.outputs(dag, {"n": k}, data).items():
                assert close(got, te.evaluate(at(dag, {"n": k}), data), False), (k, place)
