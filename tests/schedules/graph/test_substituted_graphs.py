"""Generated substitutions as a rewrite that may lose: where they save, and what they are called."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st
from substitution_graphs import random_graph

from autotune.errors import ModelError
from autotune.models import substitutions
from autotune.models.substitutions import known
from schedules.graph.graph import Graph
from schedules.graph.optimize import MAY_LOSE, Rules, no_rules, optimized, rewritten
from schedules.graph.rewrite import AskedPlace, Choices
from schedules.graph.substitute import substitute
from schedules.graph.substitution_places import Substitute
from schedules.graph.turned import turned, turned_back
from schedules.substitutions.operators import TensorKind
from schedules.substitutions.steps import steps_of
from schedules.substitutions.terms import parsed

te = cases.te
LOOKS = Choices(looks=True)
HALF = "first1(product(a, b)) = product(a, first1(b))"
JOINED = "add(product(a, b), product(c, d)) = product(join1(a, c), join0(b, d))"
SHARED = "add(product(a, b), product(c, b)) = product(add(a, c), b)"


def product(x: Any, w: Any, transposed: bool = False) -> Any:
    k = te.reduce_axis(x.shape[1], "k")
    n = w.shape[0] if transposed else w.shape[1]
    return te.compute(
        (x.shape[0], n), lambda i, j: te.sum(x[i, k] * (w[j, k] if transposed else w[k, j]), axis=k)
    )


def halved(x: Any) -> Any:
    return te.compute((x.shape[0], x.shape[1] // 2), lambda i, j: x[i, j])


def half(transposed: bool = True, both: bool = False) -> Graph:
    """The first half of a product, as of a layer of which the other half is not used."""
    b = cases.Builder()
    x, w = b.input("x", 3, 5), b.constant("w", *((8, 5) if transposed else (5, 8)))
    whole = product(x, w, transposed)
    return b.graph(cases.relu(halved(whole)), *([cases.relu(whole)] if both else []))


def two_inputs(layers: int = 1, shared: bool = False) -> Graph:
    """x W + h U, as in cells of recurrent networks, several times."""
    b = cases.Builder()
    x, h = b.input("x", 3, 5), b.input("h", 3, 5)
    for n in range(layers):
        w = b.constant(f"w{n}", 5, 5)
        u = w if shared else b.constant(f"u{n}", 5, 5)
        x = cases.relu(cases.add(product(x, w, True), product(h, u, shared)))
    return b.graph(x)


def asked(graph: Graph, choices: Choices = LOOKS, rules: Rules = known) -> list[AskedPlace]:
    found: list[AskedPlace] = []
    rewritten(substitute, graph, choices, found, rules)
    return found


def texts(graph: Graph) -> set[str]:
    return {a.place.name.partition(" at ")[0] for a in asked(graph)}


def with_all(graph: Graph, places: list[AskedPlace]) -> Graph:
    return rewritten(substitute, graph, Choices().turned(places), rules=known)


def same(a: Graph, b: Graph) -> None:
    arrays = [np.rint(x * 3) for x in cases.inputs_of(a)]
    for x, y in zip(evaluate(a, arrays), evaluate(b, arrays), strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "make, text, sums",
    [
        (half, HALF, 1),
        (partial(half, transposed=False), HALF, 1),
        (two_inputs, JOINED, 1),
        (partial(two_inputs, shared=True), SHARED, 1),
        (partial(two_inputs, 3), JOINED, 3),
    ],
)
def test_what_saves_operations_is_a_place(make: Callable[[], Graph], text: str, sums: int) -> None:
    graph = make()
    assert text in texts(graph)
    after = with_all(graph, [a for a in asked(graph) if a.place.name.startswith(text)])
    same(graph, after)
    assert sum(s.reducer is not None for s in after.dag.stages) == sums


def test_fewer_steps_are_left() -> None:
    after = with_all(half(), asked(half()))
    assert [a.extent for s in after.dag.stages if s.reducer for a in s.axes] == [3, 4]


def test_what_others_read_is_not_saved() -> None:
    assert HALF in texts(half()) and HALF not in texts(half(both=True))


def test_places_are_named_by_the_rule_and_the_stage() -> None:
    graph = two_inputs()
    stage = next(s.name for s in graph.dag.stages if s.reducer is None)
    assert [a.place.name for a in asked(graph)] == [f"{JOINED} at {stage}"]
    one, *more = (a.place.alike for a in asked(two_inputs(3)))
    assert len(more) == 2 and one == more[0] == more[1], "equal layers are decided together"


def test_nothing_is_looked_for_where_nobody_asks() -> None:
    def never() -> Any:
        raise AssertionError("the file is read")

    graph = two_inputs()
    assert rewritten(substitute, graph, Choices(), rules=never) is graph
    assert (
        rewritten(substitute, graph, Choices(other=frozenset({("stack_equal", "q")})), rules=never) is graph
    )
    assert optimized(graph, rules=never).asked == optimized(graph).asked
    assert MAY_LOSE["substitute"].lazy and substitute(graph) is graph


@pytest.mark.parametrize(
    "name", ["", " at ", f"{JOINED} at nowhere", f"{HALF} at w0", "eval(a) = a at add", JOINED]
)
def test_names_that_a_graph_has_not_are_passed_over(name: str) -> None:
    graph = two_inputs()
    assert (
        rewritten(substitute, graph, Choices(other=frozenset({("substitute", name)})), rules=known) is graph
    )


def test_without_rules_a_choice_is_passed_over() -> None:
    graph = two_inputs()
    assert rewritten(substitute, graph, Choices().turned(asked(graph)), rules=no_rules) is graph


def test_rules_that_were_only_tried_out_are_left() -> None:
    rules = tuple(replace(s, proof="tests") for s in known())
    assert asked(two_inputs(), rules=lambda: rules) == []


def test_only_the_rules_that_are_named_are_looked_for() -> None:
    graph = two_inputs(2)
    first = asked(graph)[:1]
    found = asked(graph, Choices().turned(first))
    assert {a.place.name.partition(" at ")[0] for a in found} == {JOINED}
    assert [a.taken for a in found] == [True, False]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32"])
def test_rounded_sums_and_integers_are_no_place(dtype: str) -> None:
    x, y, w = (te.placeholder((4, 4), dtype, n) for n in "xyw")
    dag = te.dag([x, y, w, cases.add(product(x, w), product(y, w))])
    assert asked(Graph(dag, {}, ("x", "y", "w"), dag.outputs)) == []


# -- weights that lie transposed --------------------------------------------------------------


def test_transposed_weights_are_turned_and_back() -> None:
    graph = half()
    there = turned(graph)
    assert [v.shape for v in there.values.values()] == [(5, 8)]
    same(graph, there)
    back = turned_back(there, there, graph)
    assert back.dag.stages == graph.dag.stages and back.values.keys() == graph.values.keys()
    assert turned(half(transposed=False)).values.keys() == half(transposed=False).values.keys()


def test_products_that_no_place_changes_stay_as_they_are() -> None:
    graph = two_inputs(2)
    after = with_all(graph, asked(graph)[:1])
    assert graph.dag.stages[-4:] == after.dag.stages[-4:]
    assert all(v.flags.c_contiguous for v in after.values.values())


# -- how much is computed ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "term, ahead, steps",
    [
        ("product(a, b)", "", (24, 1)),
        ("product(a, b)", "ab", (0, 0)),
        ("add(product(a, b), product(a, b))", "b", (24, 1)),
        ("sum0(product(a, b))", "b", (24 + 8, 2)),
        ("product(a, sum1(b))", "b", (6, 1)),
        ("conv(x, k)", "k", (2 * 5 * 6 * 4 * 3 * 9, 1)),
        ("pad(x)", "", (0, 0)),
    ],
)
def test_steps_of_sums(term: str, ahead: str, steps: tuple[int, int]) -> None:
    kinds = {
        "a": TensorKind("matrix", (2, 3)), "b": TensorKind("matrix", (3, 4)),
        "x": TensorKind("image", (2, 3, 7, 8)), "k": TensorKind("kernel", (4, 3, 3, 3)),
    }  # fmt: skip
    assert steps_of(parsed(term), kinds, ahead) == steps


# -- the file ---------------------------------------------------------------------------------


class _Text(str):
    def read_text(self, encoding: str) -> str:
        return self


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": 1, "seed": NaN}', '{"version": 2}', "\ud800"])
def test_a_damaged_file_is_an_error_that_says_so(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(substitutions, "config_file", lambda name: _Text(text))
    known.cache_clear()
    said = "configs/substitutions.json of the package cannot be read"
    with pytest.raises(ModelError, match=re.escape(said)):
        known()


def test_the_file_is_read_once() -> None:
    assert known() is known()


# -- random graphs ----------------------------------------------------------------------------


def check(data: Any, image: bool) -> None:
    graph = random_graph(data.draw, image)
    places = asked(graph)
    arrays = cases.inputs_of(graph)
    plain = evaluate(graph, arrays)
    for some in (
        *([a] for a in places[:8]),
        places,
        data.draw(st.lists(st.sampled_from(places))) if places else [],
    ):
        after = with_all(graph, some)
        for x, y in zip(plain, evaluate(after, arrays), strict=True):
            np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-4 * max(1.0, np.abs(x).max(initial=0)))


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.data(), st.booleans())
def test_random_graphs_mean_the_same(data: Any, image: bool) -> None:
    check(data, image)


@pytest.mark.fuzz
@settings(max_examples=2000, deadline=None)
@given(st.data(), st.booleans())
def test_two_thousand_random_graphs_mean_the_same(data: Any, image: bool) -> None:
    check(data, image)


# -- two steps ------------------------------------------------------------------------------------


def narrow_beside(layers: int = 1, read: bool = False) -> Graph:
    """x W + (x A) B, with narrow A and B, as layers have that were adapted. ``read``: whether x W is an
    output too."""
    b = cases.Builder()
    x, more = b.input("x", 7, 12), []
    for n in range(layers):
        w, a, c = b.constant(f"w{n}", 12, 12), b.constant(f"a{n}", 12, 2), b.constant(f"c{n}", 2, 12)
        whole = product(x, w)
        more += [whole] if read else []
        x = cases.relu(cases.add(whole, product(product(x, a), c)))
    return b.graph(x, *more)


def in_two(graph: Graph) -> list[AskedPlace]:
    return [a for a in asked(graph) if " then " in a.place.name]


def test_a_product_beside_narrow_ones_becomes_one_in_two_steps() -> None:
    graph = narrow_beside(3)
    found = in_two(graph)
    assert len(found) == 3 and len({a.place.alike for a in found}) == 1, "one for each layer, all alike"
    assert not any(a.taken for a in found)
    before = optimized(graph).graph
    after = optimized(
        graph, Choices(other=frozenset(("substitute", a.place.name) for a in found)), known
    ).graph
    products = [[s for s in g.dag.stages if s.reducer is not None] for g in (before, after)]
    assert [len(x) for x in products] == [6, 3]
    arrays = cases.inputs_of(graph)
    np.testing.assert_array_equal(evaluate(after, arrays)[0], evaluate(graph, arrays)[0])


def test_one_of_two_steps_saves_nothing_alone() -> None:
    (place,) = in_two(narrow_beside())
    first, _, second = place.place.name.partition(" then ")
    names = {a.place.name for a in asked(narrow_beside())}
    assert first not in names and second not in names
    alone = optimized(narrow_beside(), Choices(other=frozenset({("substitute", first)})), known).graph
    assert alone.dag == optimized(narrow_beside()).graph.dag


def test_two_steps_that_save_nothing_have_no_place() -> None:
    assert in_two(narrow_beside(read=True)) == [], "others read what would be gone"


def test_few_of_many_equal_steps_are_tried_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of two weights, which nothing can be merged with."""
    b = cases.Builder()
    x = b.input("x", 7, 12)
    for n in range(6):
        x = cases.relu(product(product(x, b.constant(f"a{n}", 12, 2)), b.constant(f"c{n}", 2, 12)))
    applied = []
    right = Substitute.apply
    monkeypatch.setattr(Substitute, "apply", lambda *a: applied.append(a) or right(*a))
    assert in_two(b.graph(x)) == [] and 0 < len(applied) <= 4
