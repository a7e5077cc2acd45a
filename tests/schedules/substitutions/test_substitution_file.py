"""The file of substitutions that the project has: it is what the generator makes, it is true, and it keeps
the meaning of random graphs."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules.graph.graph import Graph
from schedules.substitutions.document import from_json, to_json
from schedules.substitutions.generation import GeneratedSubstitutions, generate
from schedules.substitutions.matching import Substitute
from schedules.substitutions.operators import OPERATORS, TensorKind
from schedules.substitutions.sizes import Numbers, Undefined
from schedules.substitutions.verify import verified

FILE = Path(__file__).parents[3] / "configs" / "substitutions.json"


@lru_cache(maxsize=1)
def found() -> GeneratedSubstitutions:
    return from_json(FILE.read_text(encoding="utf-8"))


def texts() -> set[str]:
    return {str(s) for s in found().substitutions}


def test_the_file_has_what_lectures_have() -> None:
    known = texts()
    for one in (
        "product(product(a, b), c) = product(a, product(b, c))",
        "join1(product(a, b), product(a, c)) = product(a, join1(b, c))",
        "join1(conv(x, k), conv(x, l)) = conv(x, join0(k, l))",
        "conv(x, unit(y)) = x",
    ):
        assert one in known


def test_the_file_is_as_it_is_written() -> None:
    seconds = 1.0
    assert from_json(to_json(found(), seconds)) == found()


@pytest.mark.parametrize("n", range(4))
def test_some_of_the_file_is_verified(n: int) -> None:
    every = found().substitutions
    s = every[n * len(every) // 4]
    assert verified(s, 5).proof == s.proof


@pytest.mark.soak
def test_all_of_the_file_is_verified() -> None:
    for s in found().substitutions:
        assert verified(s, 5).proof == s.proof


def test_the_generator_makes_the_same_again() -> None:
    assert generate(1) == generate(1)


@pytest.mark.soak
def test_the_file_is_what_the_generator_makes() -> None:
    assert generate(seed=found().seed) == found()


# -- random graphs ----------------------------------------------------------------------------------------

NAMES = sorted(OPERATORS.keys() - {"unit"})


def random_graph(draw: Any, image: bool) -> Graph:
    b = cases.Builder()
    known: list[tuple[TensorKind, Any]] = []
    if image:
        known += [(TensorKind("image", (1, 2, 5, 4)), b.input(f"x{n}", 1, 2, 5, 4)) for n in range(2)]
        known += [
            (TensorKind("kernel", (2, 2, k, k)), b.constant(f"k{k}{n}", 2, 2, k, k))
            for n in range(2)
            for k in (1, 3)
        ]
    else:
        known += [(TensorKind("matrix", (4, 4)), b.input(f"a{n}", 4, 4)) for n in range(2)]
        known += [(TensorKind("matrix", (4, n)), b.constant(f"w{n}", 4, n)) for n in (2, 4, 6)]
        known += [(TensorKind("row", (4,)), b.constant("r", 4))]
    made: list[Any] = []
    for _ in range(draw(st.integers(2, 6))):
        o = OPERATORS[draw(st.sampled_from(NAMES))]
        for _ in range(8):
            args = [known[draw(st.integers(0, len(known) - 1))] for _ in range(o.arity)]
            try:
                kind = o.kind(Numbers(), *(k for k, _ in args))
            except Undefined:
                continue
            tensor = o.stage([k for k, _ in args], *(t for _, t in args))
            known.append((kind, tensor))
            made.append(tensor)
            break
    last = made or [OPERATORS["relu"].stage([known[0][0]], known[0][1])]
    last = list(dict.fromkeys(last[-2:]))
    b.inputs = [t for t in b.inputs if any(t in _reached(x) for x in last)]
    return b.graph(*last)


def _reached(t: Any) -> set[Any]:
    seen, todo = set(), [t]
    while todo:
        x = todo.pop()
        if x not in seen:
            seen.add(x)
            todo += x.op.reads() if x.op is not None else ()
    return seen


def check(data: Any, image: bool) -> None:
    graph = random_graph(data.draw, image)
    rules = Substitute(found().substitutions)
    arrays = cases.inputs_of(graph)
    plain = evaluate(graph, arrays)
    places = rules.places(graph)
    chosen = (
        places
        if len(places) < 12
        else [places[data.draw(st.integers(0, len(places) - 1))] for _ in range(12)]
    )
    for place in chosen:
        for x, y in zip(plain, evaluate(rules.apply(graph, place), arrays), strict=True):
            assert np.array_equal(x, y), place


@settings(max_examples=10, deadline=None)
@given(st.data(), st.booleans())
@pytest.mark.slow
def test_random_graphs_keep_their_meaning(data: Any, image: bool) -> None:
    check(data, image)


@pytest.mark.fuzz
@settings(max_examples=2000, deadline=None)
@given(st.data(), st.booleans())
def test_two_thousand_random_graphs_keep_their_meaning(data: Any, image: bool) -> None:
    check(data, image)
