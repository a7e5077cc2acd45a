"""Rows kept in the place of the result: where that is done, where not, and that it means the same."""

from __future__ import annotations

import helpers
import pytest

from schedules import te
from schedules.expr import Const, Expr, Load, Var
from schedules.ir import Alloc, Buffer, Loop, LoweredFunc, Stmt, Store, seq, walk
from schedules.passes import share_storage
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG


def rows(m: int, n: int, twice: bool = False, dtype: str = "int32") -> ComputeDAG:
    """y[i, j] = e[i, j] * sum(e[i, :]), e = 3x; ``twice``: e is a result, too."""
    x = te.placeholder((m, n), dtype, name="x")
    k = te.reduce_axis(n, "k")
    e = te.compute((m, n), lambda i, j: x[i, j] + x[i, j] + x[i, j], name="e")
    s = te.compute((m,), lambda i: te.sum(e[i, k], axis=k), name="s")
    y = te.compute((m, n), lambda i, j: e[i, j] * s[i], name="y")
    return te.dag([x, e, y] if twice else [x, y])


def by_rows(dag: ComputeDAG, lanes: int | None = None, tail: str = "guard", block: int = 1) -> Schedule:
    """Everything inside the loop over (blocks of) rows of y."""
    s = Schedule(dag)
    i, j = s.loops("y")
    if block > 1:
        i, _ = s.split(i, (None, block), tail)
    for name in ("s", "e"):
        s.compute_at(name, i)
    if lanes:
        _, inner = s.split(j, (None, lanes), tail)
        s.vectorize(inner)
    return s


def buffers(func: LoweredFunc) -> set[str]:
    return {x.buffer.name for x in walk(func.body) if isinstance(x, Alloc)}


def check(s: Schedule, reused: bool) -> None:
    assert ("e" in buffers(lower(s.nest))) != reused
    data = helpers.inputs(s.dag)
    want = helpers.expected(s.dag, data)
    helpers.check_interpreted(s.nest, s.dag, data, want)
    helpers.check_compiled(s.dag, s.trace, helpers.host(), data, want)


@pytest.mark.fast("int32-None")
@pytest.mark.parametrize("lanes", [None, 4, 8])
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_a_row_lies_where_its_result_will(lanes: int | None, dtype: str) -> None:
    check(by_rows(rows(5, 96, dtype=dtype), lanes), reused=True)


def test_a_block_of_rows_does_too() -> None:
    check(by_rows(rows(8, 32), block=4), reused=False)  # at y_i * 4 + ...: part of a dimension
    check(by_rows(rows(1, 96), 8), reused=True)


@pytest.mark.fast("93-shift")
@pytest.mark.parametrize(("n", "tail"), [(93, "shift"), (93, "guard"), (97, "shift")])
def test_not_where_elements_are_made_twice(n: int, tail: str) -> None:
    """The last vector moves inwards: what it overlaps would be multiplied again."""
    check(by_rows(rows(4, n), 8, tail), reused=False)


@pytest.mark.slow
def test_not_where_the_rows_overlap() -> None:
    s = Schedule(rows(5, 96))
    i, _ = s.loops("y")
    _, inner = s.split(i, (None, 2), "shift")  # row 3 comes twice
    for name in ("s", "e"):
        s.compute_at(name, inner)
    check(s, reused=False)


def test_not_where_it_is_read_or_written_elsewhere() -> None:
    dag = rows(4, 96, twice=True)
    s = Schedule(dag)
    data = helpers.inputs(dag)
    helpers.check_compiled(dag, s.trace, helpers.host(), data, helpers.expected(dag, data))


def test_not_accumulators() -> None:
    """They belong in registers."""
    x, w = te.placeholder((1, 8), "int32", name="x"), te.placeholder((8, 96), "int32", name="w")
    k = te.reduce_axis(8, "k")
    c = te.compute((1, 96), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="c")
    s = Schedule(te.dag([x, w, c]))
    store = s.cache_write("c")
    s.compute_at("c", s.loops(store)[0])
    func = lower(s.nest)
    assert any(name.startswith("c") for name in buffers(func))


def test_few_elements_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    check(by_rows(rows(4, 32)), reused=False)
    monkeypatch.setattr(share_storage, "LEAST_ELEMENTS", 1)
    check(by_rows(rows(4, 32)), reused=True)


@pytest.mark.slow
def test_not_where_other_iterations_make_the_rest_of_the_row() -> None:
    """The whole row of e is made for every 32 elements of y: it would lie over finished ones."""
    s = Schedule(rows(3, 96))
    _, j = s.loops("y")
    outer, _ = s.split(j, (None, 32))
    for name in ("s", "e"):
        s.compute_at(name, outer)
    check(s, reused=False)


def test_not_where_the_last_store_misses_some_and_makes_others_twice() -> None:
    """4 * j0 + j1 with j1 < 8: as many iterations as elements, but not one for each."""
    x, y = (Buffer(n, (Const(96),), "int32") for n in "xy")
    j, at = Var("j"), Var("j0") * 4 + Var("j1")

    def program(index: Expr) -> Stmt:
        first = Loop("j", Const(96), Store("e", (j,), Load("x", (j,), "int32") * 3))
        last = Store("y", (index,), Load("e", (index,), "int32") + 1)
        return Alloc(Buffer("e", (Const(96),), "int32"), seq(first, _around(last)))

    def _around(s: Stmt) -> Stmt:
        return Loop("j0", Const(12), Loop("j1", Const(8), s))

    assert isinstance(share_storage.share_storage(program(at), (x, y), ("y",)), Alloc)
    assert not isinstance(
        share_storage.share_storage(program(Var("j0") * 8 + Var("j1")), (x, y), ("y",)), Alloc
    )
