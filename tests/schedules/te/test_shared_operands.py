"""What an expression shares is looked at and computed once, however many selects read it."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules import affine, te
from schedules import expr as E
from schedules.errors import WorkloadError
from schedules.expr import Const, Expr, Load, Var
from schedules.te import node_order
from schedules.te.compute_dag import ComputeDAG
from schedules.te.dims import dim
from schedules.te.evaluator import BlockEvaluator, parts_of_value
from schedules.te.flops import count_flops
from schedules.te.inside import guarded_loads
from schedules.te.node_order import steps_of
from schedules.te.rounding import evaluate_with_bounds
from schedules.te.scans import own_reads

N = 24


def nested(levels: int) -> tuple[ComputeDAG, Expr]:
    """Selects of selects. Each reads the one before three times: ``3 ** levels`` leaves as a tree."""
    a, b = te.placeholder((N,), "float64", "a"), te.placeholder((N,), "float64", "b")

    def value(i: te.Expr) -> te.Expr:
        x = a[i] * 0.5
        for k in range(levels):
            x = te.select(x < b[i] * float(k), x + 1.0, te.abs(x))
        return x

    dag = te.dag([a, b, te.compute((N,), value, "y")])
    return dag, dag.stages[0].values[0]


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many nodes are evaluated, by the class that does it."""
    found: Counter[str] = Counter()
    right = node_order.run

    def run(root: Expr, parts: Any, evaluate: Callable[..., Any]) -> Any:
        def one(e: Expr, operands: list[Any]) -> Any:
            found[type(evaluate.__self__).__name__] += 1  # type: ignore[attr-defined]
            return evaluate(e, operands)

        return right(root, parts, one)

    for module in ("evaluator", "rounding_expr"):
        monkeypatch.setattr(f"schedules.te.{module}.run", run)
    return found


def test_references_and_bounds_take_as_many_steps_as_there_are_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    dag, value = nested(8)
    nodes = len(E.distinct(value))
    assert E.size(value)[0] > 50 * nodes
    found = counted(monkeypatch)
    rng = np.random.default_rng(0)
    data = [rng.standard_normal(N), rng.standard_normal(N)]
    (y,) = te.evaluate(dag, data)
    assert found == {"BlockEvaluator": len(steps_of(value, parts_of_value))} and found.total() <= nodes
    found.clear()
    bounded = evaluate_with_bounds(dag, data)
    assert np.array_equal(bounded.values[0], y)
    assert found["ErrorScope"] <= nodes and found["BlockEvaluator"] <= 2 * nodes  # indices, for the latter


def test_checks_and_rewrites_visit_a_shared_node_once() -> None:
    dag, value = nested(8)
    nodes = len(E.distinct(value))
    seen: Counter[int] = Counter()

    def look(e: Expr) -> None:
        seen[id(e)] += 1

    moved = E.rewrite(value, look)
    assert moved is value and seen.total() <= 4 * nodes  # once from each of its readers
    assert len(E.distinct(E.substitute(value, {"i": Var("j")}))) <= nodes
    assert len(E.distinct(affine.simplify(value, {"i": (0, N - 1)}))) <= nodes
    again = ComputeDAG.from_json(dag.to_json())
    assert again == dag and len(E.distinct(again.stages[0].values[0])) <= nodes
    assert count_flops(dag) == N * (1 + 8 + 8)  # x / 2, x + 1, abs; not those of conditions


def test_a_variable_gives_way_to_a_size_of_its_name() -> None:
    i, n = Var("i"), dim(1, 9, "n", open=True)
    for old, new in ((Var("n"), n), (n, Var("n"))):
        assert E.substitute(old * 2 + i, {"n": new}) == new * 2 + i
    whole = Var("n") * 2 + i
    assert E.substitute(whole, {"n": Var("n"), "i": Var("i")}) is whole


@pytest.mark.parametrize(("told", "most"), [(False, 1), (True, 9)], ids=("data", "axes"))
def test_a_read_of_a_scan_is_proved_for_few_of_the_ways_to_it(told: bool, most: int) -> None:
    """Selects by data tell nothing. Of those by axes few conditions are taken, and then none."""
    a = te.placeholder((N, 4), "float32", "a")

    def step(y: te.Tensor, t: te.Expr, i: te.Expr) -> te.Expr:
        x = y[t - 1, i] + 0.0 * a[t, i]
        for k in range(10):
            x = te.select(i + t > k if told else a[t, i] > float(k), x, x + 1.0)
        return x

    dag = te.dag([a, te.scan((N, 4), step, init=lambda t, i: 0.0, name="y")])
    assert len(list(own_reads(dag.stages))) <= most
    (y,) = te.evaluate(dag, [np.full((N, 4), 9.0, "float32")])
    t, i = np.mgrid[:N, :4]
    assert np.array_equal(y, np.cumsum(np.maximum(10 - i - t, 0) if told else np.ones((N, 4)), 0))


def test_conditions_of_selects_that_tell_where_a_load_reads_stand_beside_it() -> None:
    i, j, x = Var("i"), Var("j"), Load("x", (), "float32")
    load = Load("a", (i,), "float32")
    e = E.select(E.all_of(i < 3, x < 1.0), load, E.select(j < 2, load, E.binary("+", load, x)))
    told = [known for at, known in guarded_loads(e, (j < 5,)) if at is load]
    assert told == [(j < 5, i < 3), (j < 5, j < 2), (j < 5, E.compare("<=", 2, j))]
    assert [known for at, known in guarded_loads(E.binary("+", load, e)) if at is load] == [()]


def test_what_a_file_states_twice_is_one_node_unless_it_is_another_literal() -> None:
    one, also = (["+", ["load", "x", "float32", ["var", "i"]], ["const", "float32", v]] for v in (1, True))
    from schedules.expr_json import from_json

    both = from_json(["*", one, one])
    assert both.a is both.b  # type: ignore[attr-defined]
    apart = from_json(["*", one, also])
    assert apart.a is not apart.b  # type: ignore[attr-defined]


class Made:
    """A value whose life is watched."""


def test_values_are_dropped_when_they_were_read_for_the_last_time() -> None:
    x = E.binary("+", Load("a", (Var("i"),), "float64"), Const(1.0, "float64"))
    e: Expr = x
    for k in range(200):
        e = E.binary("*", e, Const(float(k + 2), "float64"))
    alive: weakref.WeakSet[Made] = weakref.WeakSet()
    most = 0

    def evaluate(e: Expr, operands: list[Made]) -> Made:
        nonlocal most
        made = Made()
        alive.add(made)
        most = max(most, len(alive))
        return made

    assert node_order.run(E.binary("+", e, x), parts_of_value, evaluate) and most <= 5


def test_what_is_written_twice_is_evaluated_once() -> None:
    def value() -> Expr:
        x = Load("a", (Var("i") + 1,), "float64")
        return E.select(E.compare("<", x, Const(2.0, "float64")), x * x, te.sqrt(x))

    assert len(steps_of(value() + value(), parts_of_value)) == len(steps_of(value(), parts_of_value)) + 1


def test_a_load_may_leave_its_tensor_only_where_no_select_takes_it() -> None:
    i = Var("i")
    beyond = Load("a", (i + 2,), "float64")
    within = E.compare("<", i, 2)
    guarded = E.select(within, beyond, Const(0.0, "float64"))
    scope = BlockEvaluator("y", {"i": np.arange(4)}, {"a": np.arange(4.0)})
    assert scope.value(guarded).tolist() == [2, 3, 0, 0]
    assert scope.value(beyond, np.arange(4) < 2).tolist() == [2, 3, 3, 3]
    both = guarded + E.select(E.compare("<", i, 3), beyond, Const(0.0, "float64"))  # shared, guarded twice
    said = r"stage y: index 0 of a\[i \+ 2\] leaves 0\.\.3; correct the index or guard it with te\.select"
    for e in (beyond, both, guarded + beyond):
        with pytest.raises(WorkloadError, match=said):
            scope.value(e)
    assert scope.value(both, np.arange(4) < 2).tolist() == [4, 6, 3, 0]


def recursive(e: Expr, points: dict[str, Any], arrays: dict[str, Any]) -> Any:
    """The value of an expression as a tree, point by point."""
    match e:
        case E.Const(value=v, dtype=d):
            return np.asarray(v).astype(np.int64 if d == E.INDEX else d)
        case Var(name=n):
            return points[n]
        case Load(buffer=b, indices=indices):
            at = tuple(np.clip(recursive(x, points, arrays), 0, N - 1) for x in indices)
            return arrays[b][at]
        case E.Select():
            return np.where(*(recursive(k, points, arrays) for k in E.children(e)))
    a, b = (recursive(k, points, arrays) for k in E.children(e))
    return {"+": np.add, "-": np.subtract, "*": np.multiply, "<": np.less, "max": np.maximum}[e.op](a, b)  # type: ignore[attr-defined]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), *[st.integers(0, 30)] * 3), min_size=1, max_size=12))
def test_any_expression_with_shared_parts_is_what_its_tree_is(steps: list[tuple[int, ...]]) -> None:
    i = Var("i")
    made: list[Expr] = [
        Load("a", (i,), "float32"),
        Load("b", (i,), "float32"),
        E.select(E.compare("<", 0, i), Load("a", (i - 1,), "float32"), Const(2.0, "float32")),
    ]
    for kind, *at in steps:
        x, y, z = (made[k % len(made)] for k in at)
        made.append((x + y, x * y, E.select(E.compare("<", x, y), z, y), E.binary("max", x, y), x + x)[kind])
    rng = np.random.default_rng(len(steps))
    arrays = {n: rng.integers(-2, 3, N).astype("float32") for n in "ab"}
    points = {"i": np.arange(N)}
    with np.errstate(all="ignore"):
        want = np.broadcast_to(recursive(made[-1], points, arrays), (N,))
        got = np.broadcast_to(BlockEvaluator("y", points, arrays).value(made[-1]), (N,))
    assert want.tobytes() == got.astype(np.float32).tobytes()
