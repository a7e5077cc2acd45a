"""Rewrites that may lose are choices: each place alone, all of them, and none keep what a graph means."""

from __future__ import annotations

from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate

import autotune as at
from schedules.graph.graph import Graph
from schedules.graph.optimize import MAY_LOSE, optimize, optimized
from schedules.graph.reassociate import reassociate
from schedules.graph.recompute import recompute
from schedules.graph.rewrite import MOST_PLACES, AskedPlace, Choices, Rewrite, RewritePlace, at_each

te = at.te


def product(a: Any, b: Any, name: str) -> Any:
    k = te.reduce_axis(a.shape[1], f"k_{name}")
    return te.compute((a.shape[0], b.shape[1]), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name)


def chain(n: int = 5, k: int = 3, m: int = 7, p: int = 2, right_first: bool = False) -> Graph:
    """A product of three matrices of integers, of which the last two are known."""
    b = cases.Builder()
    x, v, w = b.input("x", n, k), b.constant("v", k, m), b.constant("w", m, p)
    if right_first:
        return b.graph(product(x, product(v, w, "vw"), "y"))
    return b.graph(product(product(x, v, "xv"), w, "y"))


def same(a: Graph, b: Graph) -> None:
    arrays = [np.rint(x * 3) for x in cases.inputs_of(a)]
    for x, y in zip(evaluate(a, arrays), evaluate(b, arrays), strict=True):
        np.testing.assert_array_equal(y, x)


def names(asked: Any) -> list[tuple[str, str]]:
    return [(a.rewrite, a.place.name) for a in asked]


def test_a_place_is_decided_the_other_way() -> None:
    graph = cases.transformer(1)
    made = optimized(graph)
    (stacked,) = [a for a in made.asked if a.rewrite == "stack_equal"]
    assert stacked.taken
    apart = optimized(graph, Choices(other=frozenset({("stack_equal", stacked.place.name)})))
    assert len(apart.graph.dag.stages) > len(made.graph.dag.stages)
    arrays = cases.inputs_of(graph)
    for x, y in zip(evaluate(made.graph, arrays), evaluate(apart.graph, arrays), strict=True):
        np.testing.assert_allclose(y, x, rtol=0, atol=1e-5 * np.sqrt(np.mean(x**2)))


def test_none_is_none_of_them() -> None:
    made = optimized(cases.transformer(1), Choices("none"))
    assert made.asked and not any(a.taken for a in made.asked)


def test_usual_choices_are_what_optimize_does() -> None:
    graph = cases.residual_net()
    assert optimized(graph).graph.dag == optimize(graph).dag


def test_unknown_places_are_passed_over() -> None:
    graph = chain()
    odd = Choices(other=frozenset({("reassociate", "nowhere"), ("no_such", "y")}))
    assert optimized(graph, odd).graph.dag == optimize(graph).dag


@pytest.mark.parametrize(
    "told",
    [
        None,
        {"a": "b"},
        [["a"]],
        [["a", "b", "c"]],
        [["a", 1]],
        [["", "b"]],
        [["a", "b" * 500]],
        [["a", str(n)] for n in range(MOST_PLACES + 1)],
        ["ab"],
    ],
)
def test_choices_of_a_log_are_bounded(told: object) -> None:
    with pytest.raises(ValueError, match="choice"):
        Choices.from_json(told)


def test_choices_are_the_same_in_a_log() -> None:
    one = Choices(other=frozenset({("a", "b"), ("a", "c")}))
    assert Choices.from_json(one.to_json()) == one


def test_turning_twice_is_nothing() -> None:
    asked = [AskedPlace("stack_equal", RewritePlace("q"), True)]
    assert Choices().turned(asked).turned(asked) == Choices()
    assert Choices().turned(asked).takes(MAY_LOSE["stack_equal"], RewritePlace("q")) is False


def test_each_place_is_asked_for_once() -> None:
    asked: list[str] = []

    def take(place: RewritePlace) -> bool:
        asked.append(place.name)
        return len(asked) < 3

    def apply(graph: Graph, place: RewritePlace) -> Graph:
        return graph

    at_each(chain(), take, lambda graph: [RewritePlace("a"), RewritePlace("b"), RewritePlace("c")], apply)
    assert asked == ["a", "b", "c"]


def test_a_place_may_know_better_than_its_rewrite() -> None:
    rare = Rewrite(lambda graph, take: graph, usual=False)
    assert rare.usually(RewritePlace("a", usual=True)) and not rare.usually(RewritePlace("a"))
    assert not Choices("none").takes(rare, RewritePlace("a", usual=True))


# -- re-association ---------------------------------------------------------------------------


def test_known_matrices_are_multiplied_ahead() -> None:
    graph = chain()
    after = optimize(graph)
    assert [s.reducer is not None for s in after.dag.stages] == [True]
    same(graph, after)


@pytest.mark.parametrize("right_first", [False, True])
def test_a_vector_is_multiplied_first(right_first: bool) -> None:
    b = cases.Builder()
    x, v, w = b.input("x", 6, 5), b.input("v", 5, 7), b.input("w", 7, 1)
    graph = b.graph(product(product(x, v, "xv"), w, "y"))
    if right_first:
        b = cases.Builder()
        w, v, x = b.input("w", 1, 7), b.input("v", 7, 5), b.input("x", 5, 6)
        graph = b.graph(product(w, product(v, x, "vx"), "y"))
    after = reassociate(graph)
    assert len(after.dag.stages) == 2 and after.dag.stages[0].name == "y_inner"
    assert sorted(int(a.extent) for a in after.dag.stages[0].axes) == [1, 5]
    same(graph, after)


def test_more_work_is_no_place() -> None:
    b = cases.Builder()
    x, v, w = b.input("x", 1, 9), b.input("v", 9, 9), b.input("w", 9, 9)
    graph = b.graph(product(product(x, v, "xv"), w, "y"))
    assert reassociate.run(graph, lambda place: pytest.fail(place.name)) is graph


def test_a_product_that_others_read_stays() -> None:
    b = cases.Builder()
    x, v, w = b.input("x", 6, 5), b.input("v", 5, 7), b.input("w", 7, 1)
    xv = product(x, v, "xv")
    more = te.compute((6, 7), lambda i, j: xv[i, j] + 1.0, "more")
    assert len(reassociate.run(b.graph(product(xv, w, "y"), more), lambda place: True).dag.stages) == 3
    graph = b.graph(product(xv, w, "y"), more)
    same(graph, reassociate.run(graph, lambda place: True))


@pytest.mark.parametrize("seed", range(12))
def test_batches_and_transposes_are_reassociated(seed: int) -> None:
    """Random orders of axes, a batch in all of them or none, and axes of two that are one index."""
    rng = np.random.default_rng(seed)
    n, k, m, p, z = (int(x) for x in rng.integers(1, 5, 5))
    sizes = {"n": n, "k": k, "m": m, "p": p, "z": z}
    batch = ["z"] if rng.random() < 0.5 else []
    b = cases.Builder()

    def tensor(name: str, *dims: str) -> tuple[Any, list[str]]:
        order = [str(d) for d in rng.permutation([*batch, *dims])]
        return b.input(name, *(sizes[d] for d in order)), order

    def times(a: tuple[Any, list[str]], c: tuple[Any, list[str]], over: str, name: str) -> Any:
        kept = [d for d in dict.fromkeys([*a[1], *c[1]]) if d != over]
        kept = [str(d) for d in rng.permutation(kept)]
        r = te.reduce_axis(sizes[over], f"r_{name}")

        def value(*axes: Any) -> Any:
            at_ = dict(zip(kept, axes, strict=True)) | {over: r}
            x, y = (t[0][tuple(at_[d] for d in t[1])] for t in (a, c))
            return te.sum(x * y if rng.random() < 0.5 else y * x, axis=r)

        return cases.stage([sizes[d] for d in kept], value, name), kept

    x, v, w = tensor("x", "n", "k"), tensor("v", "k", "m"), tensor("w", "m", "p")
    graph = b.graph(times(times(x, v, "k", "xv"), w, "m", "y")[0])
    asked: list[RewritePlace] = []
    after = reassociate.run(graph, lambda place: not asked.append(place))  # type: ignore[func-returns-value]
    same(graph, after)
    assert len(after.dag.stages) == 2
    assert not asked or after.dag.stages[0].name == "y_inner"


# -- recomputation ----------------------------------------------------------------------------


def two_readers() -> Graph:
    """A sum of two tensors that two kernels of rows read."""
    b = cases.Builder()
    x, y = b.input("x", 4, 6), b.input("y", 4, 6)
    s = te.compute((4, 6), lambda i, j: x[i, j] * 2.0 + y[i, j], "s")
    w = b.constant("w", 6, 3)
    first = product(te.compute((4, 6), lambda i, j: te.maximum(s[i, j], 0.0), "r"), w, "p")
    k = te.reduce_axis(4, "c")
    second = te.compute((6,), lambda j: te.sum(s[k, j], axis=k), "columns")
    return b.graph(first, second)


def test_a_cheap_map_is_computed_by_each_reader() -> None:
    graph = two_readers()
    assert recompute(graph) is graph, "not where nothing was measured"
    after = recompute.run(graph, lambda place: True)
    assert "s" in {x.name for x in graph.dag.stages} and "s" not in {x.name for x in after.dag.stages}
    same(graph, after)
