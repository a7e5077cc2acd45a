"""Figures of a fleet: results of several targets as one, and what measuring there costs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fleet_cases import PEAK_S, A, B
from needs import imported

from autotune.results.tuned import SuiteResult
from autotune.tuning.site import HERE

imported("distributed")

from autotune.fleet import site as fleet_site  # noqa: E402
from autotune.fleet.site import FleetSite  # noqa: E402
from autotune.results.tuned import merged_results  # noqa: E402

ONE = SuiteResult(cast(Any, ("a", "b")), 3.0, 5, 20.0, 60.0, 7, "budget")
TWO = SuiteResult(cast(Any, ("c",)), 4.0, 8, 30.0, 60.0, 7, "trials")


def test_results_of_several_targets_are_added_up() -> None:
    found = merged_results({A: ONE, B: TWO}, 90.0)
    assert found == SuiteResult(cast(Any, ("a", "b", "c")), 7.0, 13, 30.0, 90.0, 7, "budget")
    assert merged_results({B: TWO, A: ONE}, 90.0).stopped == "trials"
    assert merged_results({A: ONE, B: replace(TWO, stopped="interrupted")}, 90.0).stopped == "interrupted"
    assert merged_results({A: ONE}, 90.0) is ONE


@pytest.mark.parametrize("lacks", [0, 1])
def test_a_target_without_a_kernel_for_a_task_has_no_sum(lacks: int) -> None:
    """A sum of the others alone would look like a fast fleet."""
    each = [ONE, TWO]
    each[lacks] = replace(each[lacks], weighted_s=None)
    assert merged_results(dict(zip((A, B), each)), 90.0).weighted_s is None


@pytest.mark.parametrize("way_s", [None, 0.0, 0.5 * fleet_site.WAY_S, 3 * fleet_site.WAY_S])
def test_the_cost_of_finalists_is_that_of_measuring_and_of_one_way(way_s: float | None) -> None:
    """A way that is quicker than most counts as most: the next one may be slow."""
    site = FleetSite(cast(Any, None), cast(Any, SimpleNamespace()), way_s=way_s)
    for count, rounds, repeats, warm in ((1, 1, 1, 0), (4, 3, 5, 1), (8, 3, 5, 2)):
        here_s = HERE.cost_s(PEAK_S, count, rounds, repeats, warm)
        way = 3 * fleet_site.WAY_S if way_s == 3 * fleet_site.WAY_S else fleet_site.WAY_S
        assert here_s > 0 and site.cost_s(PEAK_S, count, rounds, repeats, warm) == pytest.approx(here_s + way)
    assert site.move_s(PEAK_S, 2) == HERE.move_s(PEAK_S, 2)
