"""Grid search: everything once, in an order that makes sense; a coarse grid where everything is too much."""

from __future__ import annotations

import numpy as np
import pytest
from search_table import FormulaSpace
from space_cases import big_space

from autotune.search import grid as G
from autotune.search.policies import create
from schedules import expr as E
from schedules.space import holes as H
from schedules.space.base import Candidate


def everything(space: FormulaSpace) -> set[Candidate]:
    out = set()
    for s in range(len(space.sketches)):
        rows = space.every(s, 1 << 20)
        assert rows is not None
        out |= {Candidate(s, tuple(r)) for r in rows[space.valid(s, rows)].tolist()}
    return out


@pytest.mark.parametrize("estimate", [True, False])
def test_a_small_space_is_searched_to_the_end(estimate: bool) -> None:
    space = FormulaSpace(choices=((4, 3), (5,)), peaks=(1.0, 0.5), estimate=estimate)
    policy, asked = create("grid", space), []
    while more := policy.ask(4):
        asked += more
    assert len(asked) == len(set(asked)) and set(asked) == everything(space)
    assert policy.ask(4) == []
    assert {c.sketch for c in asked[:2]} == {0, 1}  # in turns


def test_the_estimate_orders_a_sketch() -> None:
    space = FormulaSpace(choices=((8, 8),), peaks=(1.0,))
    rows = np.array([c.row for c in create("grid", space).ask(1000)])
    estimates = space.features(0, rows)[:, space.feature_names.index("est_time_s")]
    assert (np.diff(estimates) >= 0).all()


def test_without_one_any_beginning_is_spread_out() -> None:
    space = FormulaSpace(choices=((64,),), peaks=(1.0,), estimate=False)
    first = sorted(c.row[0] for c in create("grid", space).ask(8))
    assert max(np.diff([0, *first, 54])) <= 16


def test_a_large_space_gets_a_coarse_grid() -> None:
    space = FormulaSpace(choices=((40,) * 5,), peaks=(1.0,))
    rows = G.grid(space, 0, 4096)
    assert 1000 < len(rows) <= 4096
    assert {tuple(np.unique(rows[:, k])[[0, -1]]) for k in range(5)} == {(0, 39)}


def test_told_and_excluded_candidates_are_left_out() -> None:
    space = FormulaSpace(choices=((4, 3),), peaks=(1.0,))
    first = create("grid", space).ask(3)
    policy = create("grid", space)
    policy.exclude([space.trace(0, np.array(first[0].row)).digest])
    asked = policy.ask(100)
    assert first[0] not in asked and set(first[1:]) <= set(asked)


def test_every_row_of_holes_is_enumerated() -> None:
    a = H.PerfectTile("a", E.Const(12))
    b = H.EvenTile("b", E.Const(10), E.Hole("a"))
    holes = (a, b, H.Choice("c", (0, 1)))
    rows = H.every(holes, 1000)
    assert rows is not None and H.allowed(holes, H.columns(holes, rows)).all()
    drawn = H.sample(holes, 5000, np.random.default_rng(0))
    assert {tuple(r) for r in drawn.tolist()} <= {tuple(r) for r in rows.tolist()}
    assert len(rows) == len({tuple(r) for r in rows.tolist()})
    assert rows.tolist() == sorted(rows.tolist())
    assert H.every(holes, len(rows) - 1) is None
    thin = H.every(holes, 1000, 2)
    ends = [len(set(rows[rows[:, 0] == v, 1])) for v in (1, 12)]
    assert thin is not None and len(thin) == 2 * sum(min(2, n) for n in ends)


def test_a_derived_space_has_a_grid() -> None:
    space = big_space("matmul")
    rows = G.grid(space, 0, 2000)
    assert 100 < len(rows) <= 2000 and space.valid(0, rows).any()
