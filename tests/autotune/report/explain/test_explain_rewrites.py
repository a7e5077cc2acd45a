"""What rewrites made of a graph, as `at.explain` shows it: examples that lectures on such compilers have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import graph_cases as cases
import pytest
from model_cases import model_of

import autotune as at
from autotune.models.graph_choices import just
from autotune.models.preparation import prepared
from autotune.report.explain.rewrites import NODES, of_rewrites
from autotune.results.explanation import Row
from schedules.graph.graph import Graph
from schedules.graph.rewrite import Choices

te = at.te


def norm_after_convolution() -> Graph:
    b = cases.Builder()
    x = b.input("x", 1, 3, 6, 6)
    return b.graph(cases.relu(cases.batch_norm(b, cases.conv(b, x, 4, 3, name="conv"), "bn")))


def queries_keys_and_values() -> Graph:
    b = cases.Builder()
    x = b.input("x", 5, 8)
    return b.graph(*(cases.softmax(cases.dense(b, x, 8, n)) for n in "qkv"))


def block_of_three() -> Graph:
    """3 x 3 beside 1 x 1 beside the image itself."""
    b = cases.Builder()
    x = b.input("x", 1, 3, 6, 6)
    y, z = cases.conv(b, x, 3, 3, 1, 1, "c3"), cases.conv(b, x, 3, 1, name="c1")
    return b.graph(cases.relu(cases.add(cases.add(y, z), x)))


def fused_arithmetic() -> Graph:
    """(A + B) * C + D."""
    b = cases.Builder()
    a, x, c, d = (b.input(n, 4, 5) for n in "abcd")
    y = cases.add(a, x)
    y = cases.stage(y.shape, lambda *i, y=y: y[i] * c[i])
    return b.graph(cases.add(y, d))


def four_dots() -> Graph:
    """Four rows, each times one vector."""
    b = cases.Builder()
    x = b.input("x", 8)
    dots = []
    for n in range(4):
        w, k = b.constant(f"w{n}", 8), te.reduce_axis(8, f"k{n}")
        dots.append(cases.stage((), lambda *_, w=w, k=k: te.sum(x[k] * w[k], axis=k), f"dot{n}"))

    def value(i: Any) -> Any:
        y = dots[3][()]
        for n in (2, 1, 0):
            y = te.select(i < n + 1, dots[n][()], y)
        return te.maximum(y, 0.0)

    return b.graph(te.compute((4,), value))


# (graph, kernels, which rewrite has which row, its text begins so)
EXAMPLES: dict[str, tuple[Callable[[], Graph], int, str, str]] = {
    "convolution and batch norm": (norm_after_convolution, 1, "fold_scales", "operations"),
    "queries, keys and values": (queries_keys_and_values, 2, "stack_equal", "products 3 to 1, stages"),
    "a block of three": (block_of_three, 1, "add_products", "products 2 to 1, operations"),
    "(A + B) * C + D": (fused_arithmetic, 1, "inline_maps", "stages 3 to 1; at "),
    "four dots": (four_dots, 2, "stack_equal", "products 0 to 1, stages 5 to 2; at dot0, dot1, dot2, dot3"),
}


def rows(graph: Graph, choices: Choices | None = None) -> dict[str, Row]:
    made = prepared(model_of(graph), just(choices or Choices()))
    return {r.name: r for r in of_rewrites(made).rows}


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_lectures(example: str) -> None:
    graph, kernels, rewrite, text = EXAMPLES[example]
    found = rows(graph())
    before, after = found["before"].numbers, found["after"].numbers
    assert after["kernels"] == kernels
    assert int(after["operations"] or 0) <= int(before["operations"] or 0)
    assert found[rewrite].text.startswith(text), found[rewrite].text
    assert all(r.source == "definition" for r in found.values())


def test_what_is_not_chosen_did_nothing() -> None:
    found = rows(block_of_three(), Choices("none"))
    assert "add_products" not in found
    assert found["before"].numbers["products"] == found["after"].numbers["products"] == 2


def test_many_nodes_are_a_number() -> None:
    text = rows(cases.transformer(2))["forward_views"].text
    assert text.count(",") <= NODES + 2 and text.endswith(" more")


def test_names_of_nodes_are_shown_on_one_line() -> None:
    graph = norm_after_convolution()
    graph = Graph(
        graph.dag, graph.values, graph.inputs, graph.outputs, {"conv": "a\n\x1b[31mb", "bn_factor": "norm"}
    )
    shown = " ".join(r.text for r in rows(graph).values())
    assert "norm" in shown and "\n" not in shown and "\x1b" not in shown


def test_the_arena_is_told_as_it_is_and_as_usual() -> None:
    base = prepared(model_of(queries_keys_and_values()))
    (row,) = [r for r in of_rewrites(base).rows if r.name == "arena"]
    assert row.text.endswith(" between kernels") and row.numbers["bytes"] == row.numbers["usual_bytes"]
    other = base.with_choices(Choices(other=frozenset((a.rewrite, a.place.name) for a in base.asked)))
    (row,) = [r for r in of_rewrites(other).rows if r.name == "arena"]
    assert row.numbers["bytes"] != row.numbers["usual_bytes"]
    assert "as it usually is rewritten" in row.text
