"""Where exact results decide something, no rewrite that rounds otherwise has a place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from state_models import StateBuilder

import autotune as at
from schedules.graph.graph import Graph
from schedules.graph.optimize import optimized
from schedules.graph.rewrite import Choices
from schedules.graph.steps_behind import has_few_bits, has_step_behind
from schedules.graph.winograd import Winograd

te = at.te


def counted(then: Callable[[Any], Any], weights: Any = None) -> Graph:
    """A convolution of 5 x 5 weights, small whole numbers where none are given, and what follows."""
    b = cases.Builder()
    x = b.input("x", 1, 2, 9, 9)
    g = b.graph(then(cases.conv(b, x, 2, 5, 1, 2, "c")))
    w = np.ones((2, 2, 5, 5), "float32") if weights is None else weights
    return replace(g, values=dict(g.values) | {"c_w": w})


def mapped(value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda y: cases.stage(y.shape, lambda *i: value(y[i]))


def largest_places(y: Any) -> Any:
    k, r = (te.reduce_axis(y.shape[3], name) for name in "kr")
    most = te.compute(y.shape[:3], lambda *i: te.max(y[(*i, k)], axis=k), "most")
    return te.compute(
        y.shape[:3],
        lambda *i: te.min(te.select(te.equal(y[(*i, r)], most[i]), te.cast(r, "int32"), 99), axis=r),
        "place",
    )


STEPS = {
    "comparison": mapped(lambda v: te.select(v >= 3.0, 1.0, 0.0)),
    "floor": mapped(te.floor),
    "round": mapped(lambda v: te.round(v * 0.5)),
    "cast": mapped(lambda v: te.cast(v, "int32")),
    "later": lambda y: mapped(lambda v: te.cast(v * 2.0, "int32"))(cases.relu(y)),
    "place of the largest": lambda y: largest_places(y),
}
SMOOTH = {
    "relu": cases.relu,
    "clip": mapped(lambda v: te.clip(v, 0.0, 6.0)),
    "stored": mapped(lambda v: te.cast(v, "float16")),
    "not a number": mapped(lambda v: te.select(te.equal(v, v), v, 0.0)),
}


@pytest.mark.parametrize("then", STEPS.values(), ids=STEPS)
def test_a_convolution_of_few_bits_before_a_step_stays(then: Callable[[Any], Any]) -> None:
    g = counted(then)
    assert has_step_behind(g, "c")
    assert all(Winograd(tile).places(g) == () for tile in (2, 4))
    rounded = np.random.default_rng(0).normal(size=(2, 2, 5, 5)).astype("float32")
    assert Winograd(4).places(replace(g, values={"c_w": rounded})), "its sums are rounded in any order"


@pytest.mark.parametrize("then", SMOOTH.values(), ids=SMOOTH)
def test_a_convolution_of_few_bits_before_no_step_has_a_place(then: Callable[[Any], Any]) -> None:
    assert Winograd(4).places(counted(then))


def test_what_is_counted_is_decided_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours that are counted and compared: all choices give the same. Without the rule one does not."""
    g = counted(mapped(lambda v: te.select(te.equal(v, 25.0), 1.0, 0.0)))
    x = np.random.default_rng(1).integers(0, 2, (1, 2, 9, 9)).astype("float32")

    def differ() -> int:
        asked = optimized(g, Choices(looks=True)).asked
        every = optimized(g, Choices().turned(asked)).graph
        return int((evaluate(every, [x])[0] != evaluate(g, [x])[0]).sum())

    assert differ() == 0
    monkeypatch.setattr("schedules.graph.winograd.has_step_behind", lambda graph, name: False)
    assert differ() > 0


@pytest.mark.parametrize("decides", [True, False])
def test_a_step_in_the_next_call_is_seen(decides: bool) -> None:
    """What is kept is compared by a stage that stands before."""
    b = StateBuilder()
    x, old = b.input("x", 1, 2, 9, 9), b.state("old", 1, 2, 9, 9)
    b.becomes("old", cases.conv(b, x, 2, 5, 1, 2, "c"))
    g = b.model((STEPS["comparison"] if decides else cases.relu)(old))
    assert has_step_behind(g, "c") is decides


@pytest.mark.parametrize(
    ("value", "few"),
    [
        ([0.0, 0.0], True),
        ([1.0, -3.0, 4095.0], True),
        ([0.25, 1.0], True),
        ([2.0**-130, 2.0**-128], True),
        ([1.0, 4097.0], False),
        ([1.0, 0.1], False),
        ([np.inf, 1.0], False),
        ([np.nan, 1.0], False),
    ],
)
def test_few_bits_are_multiples_of_one_power_of_two(value: list[float], few: bool) -> None:
    assert has_few_bits(np.array(value, "float32")) is few
