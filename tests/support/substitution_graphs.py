"""Random graphs of the operators that substitutions know."""

from __future__ import annotations

from typing import Any

import graph_cases as cases
from hypothesis import strategies as st

from schedules.graph.graph import Graph
from schedules.substitutions.operators import OPERATORS, TensorKind
from schedules.substitutions.sizes import Numbers, Undefined

NAMES = sorted(OPERATORS.keys() - {"unit"})


def random_graph(draw: Any, image: bool) -> Graph:
    """A graph of a few operators, of images or of matrices. ``draw``: of hypothesis."""
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
