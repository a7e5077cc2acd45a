"""Stages with domains, places or axes in order keep their meaning in whole models: no rewrite, no cut into
kernels, and nothing else that reads stages, may take them for plain ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from graph_memory import run_in_memory

from autotune.models.outline import outline
from schedules import te
from schedules.expr import Const, Load, Var
from schedules.graph.apart import plain_part, together
from schedules.graph.edit import is_map, is_product, is_sum
from schedules.graph.graph import Graph, GraphState
from schedules.graph.kinds import is_row_reduction
from schedules.graph.optimize import RewriteStep, optimize, optimized
from schedules.graph.partition import partition
from schedules.te.compute_dag import Stage

# Fields of stages that are not plain, of which each means something here: a part of a sum, or nothing new.
KINDS = ("where", "places", "scan")


def changed(s: Stage, kind: str) -> Stage | None:
    """The stage with one of these fields, where it may have it."""
    if kind == "where":
        if s.reducer is None or not s.axes:
            return None
        return replace(s, where=(Var(s.reduce_axes[0].var) <= Var(s.axes[-1].var) + 1,))
    if not s.axes:
        return None
    if kind == "places":
        if s.reducer is None or len(s.values) > 1:  # terms are joined where they meet
            return None
        return replace(s, places=tuple(Var(a.var) for a in s.axes))
    return replace(s, scan=((s.axes[0].var, 1),))


def graphs(kind: str) -> list[tuple[str, Graph]]:
    """Models with one stage changed, and with all of a kind changed."""
    found = []
    for graph in (cases.residual_net(), cases.transformer(1)):
        stages = graph.dag.stages
        each = [n for n, s in enumerate(stages) if changed(s, kind) is not None]
        for some in (*((n,) for n in each[:: max(1, len(each) // 5)]), tuple(each)):
            now = tuple((changed(s, kind) or s) if n in some else s for n, s in enumerate(stages))
            found.append((stages[some[0]].name, replace(graph, dag=replace(graph.dag, stages=now))))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_models_mean_the_same_rewritten_and_cut(kind: str) -> None:
    for name, graph in graphs(kind):
        data = cases.inputs_of(graph)
        want = evaluate(graph, data)
        after = optimize(graph)
        odd = [getattr(s, kind) for s in graph.dag.stages if not s.plain]
        assert sorted(map(str, odd)) == sorted(str(getattr(s, kind)) for s in after.dag.stages if not s.plain)
        ol = outline(after, partition(after))
        for x, y, z in zip(want, evaluate(after, data), run_in_memory(ol, after.values, data), strict=True):
            np.testing.assert_allclose(y, x, rtol=2e-4, atol=1e-4, err_msg=f"{kind} {name}")
            np.testing.assert_allclose(z, x, rtol=2e-4, atol=1e-4, err_msg=f"{kind} {name}")


@pytest.mark.parametrize("kind", KINDS)
def test_no_predicate_takes_a_stage_for_a_plain_one(kind: str) -> None:
    for s in cases.transformer(1).dag.stages:
        odd = changed(s, kind)
        if odd is not None:
            assert not any(f(odd) for f in (is_map, is_sum, is_product, is_row_reduction)), s.name


def triangle() -> tuple[Graph, str]:
    """x + 0, then sums of triangles of its rows, then twice these; and the name of the sums."""
    b = cases.Builder()
    x = b.input("x", 4, 4)
    y = cases.stage(x.shape, lambda i, j: x[i, j] + 0.0, "copied")

    def below(i: Any, j: Any) -> Any:
        k = te.reduce_axis((0, j + 1), "k")
        return te.sum(y[i, k], axis=k)

    s = te.compute((4, 4), below, "sums")
    return b.graph(cases.stage(x.shape, lambda i, j: s[i, j] * 2.0, "twice")), "sums"


def test_what_is_around_a_domain_is_rewritten() -> None:
    graph, name = triangle()
    after = optimize(graph)
    (s,) = [s for s in after.dag.stages if not s.plain]
    assert s.outputs == graph.dag.stage(name).outputs and not after.islands
    data = cases.inputs_of(graph)
    assert np.array_equal(evaluate(after, data)[0], 2 * np.cumsum(data[0], axis=1))
    assert len(partition(after)) == 1  # the map that follows is of the same kernel


def test_a_state_that_nothing_reads_is_cut_too() -> None:
    b = cases.Builder()
    x = b.input("x", 5)
    _, z = te.scan([(5,), (5,)], lambda y, z, t: (x[t], z[t - 1] + x[t]), init=[0.0, 0.0], name=("y", "z"))
    graph = b.graph(cases.stage((5,), lambda t: z[t] * 2.0, "twice"))
    data = cases.inputs_of(graph)
    ol = outline(graph, partition(graph))
    assert np.array_equal(run_in_memory(ol, graph.values, data)[0], 2 * np.cumsum(data[0]))


def test_rewrites_never_see_what_they_do_not_know() -> None:
    graph, _ = triangle()
    seen: list[bool] = []

    def rewrite(g: Graph) -> Graph:
        seen.extend(s.plain for s in g.dag.stages)
        return g

    part = plain_part(graph)
    back = part.whole(rewrite(part.graph))
    assert seen and all(seen)
    assert back.dag == graph.dag and back.islands == graph.islands


def test_steps_are_told_with_all_stages() -> None:
    """Each begins with what the one before left, and none has what stands for other stages."""
    graph, _ = triangle()
    steps: list[RewriteStep] = []
    after = optimized(graph, each=steps.append).graph
    assert steps[0].before is graph and steps[-1].after.dag == after.dag
    assert all(a.after is b.before for a, b in pairwise(steps))
    whole = [g for s in steps for g in (s.before, s.after)]
    assert all(g.islands == () and any(not s.plain for s in g.dag.stages) for g in whole)


def test_a_state_made_by_a_stage_that_is_set_apart() -> None:
    b = cases.Builder()
    x, old = b.input("x", 4), b.input("old", 4)

    def upto(i: Any) -> Any:
        k = te.reduce_axis((0, i + 1), "k")
        return te.sum(x[k] + old[k], axis=k)

    new = te.compute((4,), upto, "new")
    out = cases.stage((4,), lambda i: new[i] + 1.0, "out")
    dag = te.dag([x, old, new, out])
    graph = Graph(dag, {}, ("x",), ("out",), states={"s": GraphState("old", "new")})
    after = optimize(graph)
    states = {"s": np.ones(4, "float32")}
    (got,) = evaluate(after, [np.arange(4, dtype="float32")], states)
    want = np.cumsum(np.arange(4) + 1)
    assert np.array_equal(got, want + 1) and np.array_equal(states["s"], want)


def test_stages_of_one_scan_stay_together() -> None:
    a, b, c, d = cases.transformer(1).dag.stages[:4]
    assert together([a, b, c, d]) == [(a,), (b,), (c,), (d,)]
    late = replace(b, values=(first_of(c),), scan=((b.axes[0].var, 1),))  # reads what c makes
    assert together([a, late, c, d]) == [(a,), (late, c), (d,)]


def first_of(s: Stage) -> Load:
    """An element of what a stage makes."""
    return Load(s.name, tuple(Const(0) for _ in s.axes), s.outputs[0].dtype)
