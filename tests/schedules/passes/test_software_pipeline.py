"""Software pipelining: which stages go together, and that results are those of the loop as it was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import check_compiled, check_interpreted, host, inputs
from hypothesis import given, settings
from hypothesis import strategies as st

import autotune as at
from autotune.targets import detect
from schedules import ops, te
from schedules.expr import Call, Compare, Const, Expr, Load, Var
from schedules.ir import Alloc, Buffer, Guard, Loop, LoweredFunc, Seq, Stmt, Store, interp, seq, walk
from schedules.passes.lower import lower
from schedules.passes.software_pipeline import software_pipeline
from schedules.schedule import Schedule
from schedules.space.derive import DerivedSpace, derive

pytestmark = pytest.mark.usefixtures("two_cpus")

M = 5


def shares(n: int, lanes: tuple[int, int], stream: int, hint: int = 1, late: str = "a") -> Schedule:
    """Each row's a = |x| + 1 and its sum; then y = a times the sum, of ``a`` as it lies or from its end."""
    x = te.placeholder((M, n), "float32", name="x")
    k = te.reduce_axis(n, name="k")
    a = te.compute((M, n), lambda i, j: te.abs(x[i, j]) + 1.0, name="a")
    total = te.compute((M,), lambda i: te.sum(a[i, k], axis=k), name="total")
    at_ = (lambda i, j: a[i, j]) if late == "a" else (lambda i, j: a[i, n - 1 - j])
    s = Schedule([x, te.compute((M, n), lambda i, j: at_(i, j) * total[i], name="y")])
    i, j = s.loops("y")
    s.compute_at("total", i)
    s.compute_at("a", i)
    for name, loop, width in (("y", j, lanes[0]), ("a", s.loops("a")[-1], lanes[1])):
        _, inner = s.split(loop, (None, width), "shift")
        s.vectorize(inner)
        if name == "y" and stream:
            s.annotate("y", "nontemporal", stream)
    s.annotate(i, "software_pipeline", hint)
    return s


def together(s: Stmt) -> list[set[str]]:
    """What the turns write that hold a stage and, some turns behind, another one."""
    turns = [
        x
        for x in walk(s)
        if isinstance(x, Loop) and isinstance(x.body, Seq) and isinstance(x.body.stmts[-1], Guard)
    ]
    return [{k.buffer for k in walk(x) if isinstance(k, Store)} for x in turns]


def expected(x: np.ndarray, late: str = "a") -> np.ndarray:
    a = np.abs(x) + 1
    return (a if late == "a" else a[:, ::-1]) * a.sum(axis=1, keepdims=True)


def computed(s: Schedule, x: np.ndarray) -> np.ndarray:
    arrays = {"x": x, "y": np.full_like(x, np.nan)}
    interp.run(lower(s.nest), arrays)
    np.testing.assert_array_equal(at.build(s, target=detect(threads=1))(x), arrays["y"])
    return arrays["y"]


@pytest.mark.parametrize("stream", [0, 1])
@pytest.mark.parametrize("lanes", [(8, 8), (16, 8), (8, 32)])
def test_the_last_stage_goes_with_the_next_rows(lanes: tuple[int, int], stream: int) -> None:
    s = shares(64, lanes, stream)
    assert ({"y", "a"} if stream else {"y"}) in together(lower(s.nest).body)  # else y holds a meanwhile
    assert not together(lower(shares(64, lanes, stream, hint=0).nest).body)
    x = np.arange(M * 64, dtype=np.float32).reshape(M, 64) - 99
    np.testing.assert_array_equal(computed(s, x), expected(x))


@pytest.mark.parametrize(("n", "late"), [(40, "a"), (23, "a"), (64, "from its end"), (40, "from its end")])
def test_what_a_turn_would_overwrite_is_left_alone(n: int, late: str) -> None:
    # tails that are shifted back, and rows that are read from their end, need what comes later
    s = shares(n, (16, 16), 1, late=late)
    assert {"y", "a"} not in together(lower(s.nest).body)
    x = np.arange(M * n, dtype=np.float32).reshape(M, n) - 99
    np.testing.assert_array_equal(computed(s, x), expected(x, late))


places = st.tuples(st.integers(0, 4), st.integers(0, 1))  # a turn, and where the first begins


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(
    turns=st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4])),
    writes=st.tuples(places, places),
    reads=st.tuples(places, places),
    row=st.sampled_from([0, 1, 4, 16]),
    between=st.booleans(),
    count=st.integers(1, 4),
)
def test_any_stages_give_the_same_results(
    turns: tuple[int, int],
    writes: tuple[tuple[int, int], ...],
    reads: tuple[tuple[int, int], ...],
    row: int,
    between: bool,
    count: int,
) -> None:
    """Two stages of any linear places in one array, and a third between them or before them."""

    def stage(t: str, n: int, to: tuple[int, int], of: tuple[int, int], by: float) -> Stmt:
        def place(step: int, start: int) -> Expr:
            return Var("i") * row + Var(t) * step + start

        value = Load("b", (place(*of),), "float32") * by + Load("c", (Const(0),), "float32")
        return Loop(t, Const(n), Store("b", (place(*to),), Call("abs", (value,))))

    one = stage("t", turns[0], writes[0], reads[0], 2.0)
    last = stage("u", turns[1], writes[1], reads[1], 3.0)
    note = Store("c", (Const(0),), Load("x", (Var("i"),), "float32"))
    body = seq(one, note, last) if between else seq(note, one, last)
    loop = Loop("i", Const(count), body, annotations=(("software_pipeline", 1),))
    params = tuple(Buffer(name, (Const(80),), "float32") for name in "xbc")
    values = [Store(name, (Var("k"),), Load("x", (Var("k"),), "float32")) for name in "bc"]
    filled = Loop("k", Const(80), seq(*values))

    def run(s: Stmt) -> dict[str, np.ndarray]:
        arrays = {name: np.arange(80, dtype=np.float32) for name in "xbc"}
        interp.run(LoweredFunc("kernel", params, ("b", "c"), seq(filled, s)), arrays)
        return arrays

    before, after = run(loop), run(software_pipeline(loop))
    for name in "bc":
        np.testing.assert_array_equal(after[name], before[name])


def test_unknown_numbers_of_rows_stay() -> None:
    store = Store("b", (Var("i") * 8 + Var("t"),), Const(1.0, "float32"))
    again = replace(store, indices=(Var("i") * 8 + Var("u"),))
    stages = seq(Loop("t", Const(8), store), Loop("u", Const(8), again))
    loop = Loop("i", Var("n"), stages, annotations=(("software_pipeline", 1),))
    assert isinstance(software_pipeline(loop), Loop)


@pytest.mark.parametrize("made", ["registers", "temporaries"])
def test_stages_may_write_what_earlier_passes_made(made: str) -> None:
    """Accumulators in registers, and the temporaries of a reduction over tuples."""
    a, b = te.placeholder((6, 5), "float32", name="A"), te.placeholder((5, 4), "float32", name="B")
    k = te.reduce_axis(5, name="k")
    both = te.reducer((0, 0), lambda x, y: (x[0] + y[0], x[1] + y[1]), "both")
    if made == "registers":
        c = (te.compute((6, 4), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C"),)
    else:
        c = te.compute((6, 4), lambda i, j: both((a[i, k] * b[k, j], b[k, j]), axis=k), name="C")
    s = Schedule([a, b, *c])
    s.decompose_reduction("C", "C_j")
    s.annotate("C_i", "software_pipeline", 1)
    data = inputs(s.dag)
    want = te.evaluate(s.dag, data)
    check_interpreted(s.nest, s.dag, data, want)
    check_compiled(s.dag, s.trace, host(), data, want)


def _space(op: str, m: int, n: int, threads: int = 1) -> DerivedSpace:
    return derive(ops.workload(op, {"m": m, "n": n}).dag, detect(threads=threads))


@pytest.mark.parametrize(("op", "offered"), [("softmax", True), ("layer_norm", False), ("reduce_sum", False)])
@pytest.mark.parametrize("threads", [1, 2])
def test_spaces_offer_it_where_rows_from_memory_call_functions(op: str, offered: bool, threads: int) -> None:
    assert any(h.endswith(".late") for h in _space(op, 4096, 1024, threads).holes(0)) == offered
    assert not any(h.endswith(".late") for h in _space(op, 16, 64, threads).holes(0))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_softmax_writes_a_row_while_it_computes_the_next(threads: int) -> None:
    space = _space("softmax", 2048, 1024, threads)
    names = list(space.holes(0))
    rows = space.sample(0, 300, np.random.default_rng(0))
    rows[:, names.index("y.late")] = 1
    rows = rows[space.valid(0, rows)]
    x = np.random.default_rng(1).normal(size=(2048, 1024)).astype(np.float32)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    for row in rows[:3]:
        s = Schedule.replay(space.dag, space.trace(0, row), space.target)
        body = lower(s.nest).body
        assert together(body), row
        assert sum(isinstance(k, Alloc) and k.buffer.name == "inv_sum" for k in walk(body)) == 1
        got = at.build(s, target=space.target)(x)
        np.testing.assert_allclose(got, e / e.sum(axis=1, keepdims=True), rtol=2e-6)


@pytest.mark.parametrize(("n", "width", "behind"), [(1024, 32, 8), (1024, 16, 16), (256, 16, 8), (64, 16, 2)])
def test_the_next_row_follows_behind_in_the_page(n: int, width: int, behind: int) -> None:
    """A KB, of shorter rows half of a row: loads would wait for stores before them, a page apart."""
    s = shares(n, (width, width), 1)
    turns = [x for x in walk(lower(s.nest).body) if isinstance(x, Loop) and isinstance(x.body, Seq)]
    last = [x.body.stmts[-1] for x in turns if isinstance(x.body, Seq)]
    assert [x.cond for x in last if isinstance(x, Guard)] == [Compare("<=", Const(behind), Var("a_ax1_0"))]
    x = np.arange(M * n, dtype=np.float32).reshape(M, n) % 64 - 31
    np.testing.assert_array_equal(computed(s, x), expected(x))
