"""Rewrites of graphs with open sizes: each keeps the meaning at every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_meaning import evaluate
from graph_memory import run_in_memory
from open_graphs import MODELS, inputs_at

from autotune.models.outline import outline
from schedules.graph.optimize import REWRITES, optimize
from schedules.graph.partition import partition
from schedules.te.extent import is_open
from schedules.te.marks import is_marked


def close(found: list[Any], right: list[Any], what: str, rtol: float = 1e-5) -> None:
    for y, x in zip(found, right, strict=True):
        assert y.shape == x.shape, what
        unit = float(np.sqrt(np.mean(np.square(x.astype("float64"))))) if x.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(y, x, rtol=0, atol=rtol * unit, err_msg=what)


@pytest.mark.parametrize("name", MODELS)
def test_meaning_is_kept_by_every_rewrite_at_every_size(name: str) -> None:
    graph = MODELS[name].graph()
    given = {n: inputs_at(graph, {"n": n}) for n in MODELS[name].sizes}
    right = {n: evaluate(graph, arrays) for n, arrays in given.items()}
    for rewrite in REWRITES:
        graph = rewrite(graph)
        assert is_marked(graph.dag)
        for n, arrays in given.items():
            close(evaluate(graph, arrays), right[n], f"{rewrite.__name__} at {n}")


@pytest.mark.parametrize("name", MODELS)
def test_groups_compute_what_the_graph_does_in_one_memory(name: str) -> None:
    graph = MODELS[name].graph()
    after = optimize(graph)
    parts = partition(after)
    ol = outline(after, parts)
    assert [s.name for s in ol.sizes] == ["n"]
    assert not any(is_open(n) for w in ol.tasks for t in w.dag.tensors.values() for n in t.shape)
    for n in MODELS[name].sizes:
        arrays = inputs_at(graph, {"n": n})
        found = run_in_memory(ol, after.values, arrays, {"n": n})
        close(found, evaluate(graph, arrays), f"at {n}")
