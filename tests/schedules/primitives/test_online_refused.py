"""Online reductions that are refused: what is wrong is named, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from programs import argmax, attended, chain, matmul

from schedules import te
from schedules.errors import ScheduleError
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG


def kept() -> ComputeDAG:
    """The terms are an output."""
    x = te.placeholder((3, 5), name="x")
    k, r = te.reduce_axis(5, "k"), te.reduce_axis(5, "r")
    m = te.compute((3,), lambda i: te.max(x[i, k], axis=k), "m")
    e = te.compute((3, 5), lambda i, j: te.exp(x[i, j] - m[i]), "e")
    dag = te.dag([x, te.compute((3,), lambda i: te.sum(e[i, r], axis=r), "t")])
    return replace(dag, outputs=("e", "t"))


def other_rows() -> ComputeDAG:
    """Sums over the rows that there is a maximum of."""
    x = te.placeholder((5, 5), name="x")
    k, r = te.reduce_axis(5, "k"), te.reduce_axis(5, "r")
    m = te.compute((5,), lambda i: te.max(x[i, k], axis=k), "m")
    return te.dag([x, te.compute((5,), lambda j: te.sum(te.exp(x[r, j] - m[r]), axis=r), "t")])


def chained() -> ComputeDAG:
    """The terms of a sum divided by another sum."""
    x = te.placeholder((3, 5), name="x")
    k, r, q = (te.reduce_axis(5, n) for n in "krq")
    m = te.compute((3,), lambda i: te.max(x[i, k], axis=k), "m")
    t = te.compute((3,), lambda i: te.sum(te.exp(x[i, r] - m[i]), axis=r), "t")
    return te.dag([x, te.compute((3,), lambda i: te.sum(te.exp(x[i, q] - m[i]) / t[i], axis=q), "o")])


def products() -> ComputeDAG:
    x = te.placeholder((3, 5), name="x")
    k, r = te.reduce_axis(5, "k"), te.reduce_axis(5, "r")
    m = te.compute((3,), lambda i: te.max(x[i, k], axis=k), "m")
    return te.dag([x, te.compute((3,), lambda i: te.prod(te.exp(x[i, r] - m[i]), axis=r), "t")])


def blocks_of_it() -> ComputeDAG:
    """Two axes are reduced."""
    x = te.placeholder((3, 5, 2), name="x")
    k, h, r, g = (te.reduce_axis(n, a) for n, a in ((5, "k"), (2, "h"), (5, "r"), (2, "g")))
    m = te.compute((3,), lambda i: te.max(x[i, k, h], axis=(k, h)), "m")
    return te.dag([x, te.compute((3,), lambda i: te.sum(te.exp(x[i, r, g] - m[i]), axis=(r, g)), "t")])


def do(*steps: Callable[[Schedule], object]) -> Callable[[Schedule], None]:
    def all_of_them(s: Schedule) -> None:
        for f in steps:
            f(s)

    return all_of_them


REFUSED: list[tuple[Callable[[], ComputeDAG], Callable[[Schedule], object], str]] = [
    (attended, lambda s: s.online("top", [], 4), r"name the sums that depend on it, each once; got none"),
    (attended, lambda s: s.online("top", ["mix", "mix"], 4), r"each once; got mix, mix"),
    (attended, lambda s: s.online("top", ["total", "mix"], 0), r"parts of 0 elements; choose 1 or more"),
    (attended, lambda s: s.online("top", ["all"], 4), r"there is no block 'all'; the blocks are"),
    (attended, lambda s: s.online("far", ["total"], 4), r"far is not a whole reduction; use online before"),
    (attended, lambda s: s.online("top", ["total"], 4), r"e changes with .* but mix reads it too; name all"),
    (attended, lambda s: s.online("total", ["mix"], 4), r"online total: mix do not depend on a maximum"),
    (argmax, lambda s: s.online("V", ["V"], 4), r"online V: .* each once; got V"),
    (matmul, lambda s: s.online("C", ["C"], 4), r"online C: .* each once"),
    (chain, lambda s: s.online("a", ["b"], 4), r"online a: a is not a whole reduction"),
    (products, lambda s: s.online("m", ["t"], 2), r"online m: t is not a sum; only sums can be rescaled"),
    (kept, lambda s: s.online("m", ["t"], 2), r"e changes with .* but the caller reads it too; .* inline e"),
    (other_rows, lambda s: s.online("m", ["t"], 2), r"the terms of t, .* are not proved to be products"),
    (chained, lambda s: s.online("m", ["t", "o"], 2), r"the terms of o, .* are not proved to be products"),
    (blocks_of_it, lambda s: s.online("m", ["t"], 2), r"m does not reduce one axis by one loop; use online"),
    (
        attended,
        do(lambda s: s.split("top_k", [None, 2]), lambda s: s.online("top", ["total", "mix"], 2)),
        r"top does not reduce one axis by one loop; use online before split",
    ),
    (
        attended,
        do(lambda s: s.decompose_reduction("mix", "mix_q"), lambda s: s.online("top", ["total", "mix"], 2)),
        r"mix is not a whole reduction; use online before decompose_reduction",
    ),
    (
        attended,
        do(lambda s: s.unroll("total_r"), lambda s: s.online("top", ["total", "mix"], 2)),
        r"online top: split total_r: the loop is already unroll",
    ),
    (
        attended,
        do(lambda s: s.compute_at("total", "Y_i"), lambda s: s.online("top", ["total", "mix"], 2)),
        r"online top: total is not in the same loops; compute_at one loop first",
    ),
    (
        attended,
        do(lambda s: s.online("top", ["total", "mix"], 2), lambda s: s.online("top", ["total", "mix"], 2)),
        r"top is not a whole reduction",
    ),
    (
        attended,
        do(lambda s: s.online("top", ["total", "mix"], 2), lambda s: s.parallel("top_part")),
        r"parallel top_part: block top reduces over it, .* race on top",
    ),
    (
        attended,
        do(lambda s: s.online("top", ["total", "mix"], 2), lambda s: s.reverse_compute_at("Y", "top_part")),
        r"reverse_compute_at Y: .* still reduces over top_part there; choose a loop outside",
    ),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_refused_by_name_with_a_remedy(case: int) -> None:
    program, use, message = REFUSED[case]
    with pytest.raises(ScheduleError, match=message) as caught:
        use(Schedule(program()))
    assert len(str(caught.value)) < 400
