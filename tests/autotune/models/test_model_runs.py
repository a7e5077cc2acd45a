"""What a run of a model tells: after Ctrl-C at any time, of the graph that stays, and for each target."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from made_up import MadeUp
from model_cases import Made
from test_measured_rewrites import HERE, Slow, of_stacking, qkv, space, stacked_is_slow, tuned

from autotune.models import graph_tuning, tuning
from autotune.models.graph_choices import recorded
from autotune.models.graph_search import FASTER, FASTER_UNSEEN, Alternative, decided
from autotune.models.preparation import prepared
from autotune.models.tasks import tasks_of_programs
from autotune.models.tuned_model import ModelTuneResult
from autotune.tuning import request
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.suite import Suite
from autotune.tuning.tuner import OneMachine
from schedules.graph.rewrite import USUAL, Choices
from schedules.model import Target

OTHER = replace(HERE, arch="znver5" if HERE.arch != "znver5" else "skylake-avx512")
_ = stacked_is_slow  # a fixture


def digests(found: ModelTuneResult) -> set[str]:
    return {t.task.workload.digest for t in found.tasks}


def usual_digests(choices: Choices = USUAL) -> set[str]:
    ready = [prepared(qkv()).with_choices(choices)]
    return {t.workload.digest for t in tasks_of_programs(ready)}


@pytest.mark.slow
@pytest.mark.usefixtures("stacked_is_slow", "terminal_signals")
@pytest.mark.parametrize("moment", ["prepared_programs", "alternatives", "decided", "tasks_of_programs"])
def test_ctrl_c_at_any_time_gives_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """While the model is prepared, while alternatives are looked for, when both sides are tuned, and before
    the first of all tasks."""
    where = tuning if hasattr(tuning, moment) else graph_tuning
    right = getattr(where, moment)

    def interrupted(*args: Any, **more: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return right(*args, **more)

    monkeypatch.setattr(where, moment, interrupted)
    db = tmp_path / "t.db"
    found = tuned(db)
    assert found.stopped == "interrupted" and digests(found) == usual_digests()
    assert (found.measured == 0) == (moment != "decided")
    if found.measured == 0:
        assert {t.error for t in found.tasks} == {"the run was interrupted before its first turn"}
    monkeypatch.setattr(where, moment, right)
    again = tuned(db)
    assert again.stopped != "interrupted" and any(t.taken for t in again.rewrites), "it goes on"


@pytest.mark.slow
def test_the_tasks_of_the_graph_that_stays_are_told(
    tmp_path: Path, stacked_is_slow: Alternative, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums say that the other graph is faster; the whole model says no."""
    monkeypatch.setattr(graph_tuning, "_in_turns", lambda programs: (1.0, 2.0))
    found = tuned(tmp_path / "t.db")
    assert not any(t.taken for t in found.rewrites)
    assert digests(found) == usual_digests() and all(t.result.ready for t in found.tasks)
    slow = sum(n for n in stacked_is_slow.usual.values()) * 1e-3
    assert found.weighted_s is not None and found.weighted_s >= slow
    assert f"{found.weighted_s * 1e3:.3g} ms" in str(found)


@pytest.mark.slow
def test_until_tries_nothing_and_says_why(tmp_path: Path, stacked_is_slow: Alternative) -> None:
    found = tuned(tmp_path / "t.db", until="1us")
    assert found.rewrites == () and "until" in found.rewrites_untried
    assert tuned(tmp_path / "u.db", until="1us", rewrites="always").rewrites_untried == ""
    assert tuned(tmp_path / "v.db").rewrites_untried == ""


@dataclass(frozen=True)
class TwoMachines(OneMachine):
    """A fleet of two targets. On the first, products side by side are slow; on the other, those apart."""

    one: Any = None

    @property
    def targets(self) -> Sequence[Target]:
        return (HERE, OTHER)

    def check(self, target: Target, job: Any) -> None:
        pass

    def work(self, suites: Sequence[Suite], interrupts: Interrupts) -> None:
        for suite in suites:
            slow = self.one.usual if suite.target == HERE else self.one.other
            site = MadeUp(lambda w, slow=slow: Slow(1000.0) if w.digest in slow else Made())
            with contextlib.closing(suite.lane(site)) as lane:
                suite.serve(lane)


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Alternative:
    one = of_stacking(space(qkv())[1])
    place = TwoMachines(HERE, one=one)
    hook = request.hook
    monkeypatch.setattr(
        request, "hook", lambda name: (lambda *a, **more: place) if name == "fleet" else hook(name)
    )
    return one


@pytest.mark.slow
def test_each_target_of_a_fleet_has_its_own_choice(tmp_path: Path, fleet: Alternative) -> None:
    db = tmp_path / "t.db"
    given = {"trials": 2, "search": "random", "threads": None, "progress": None, "fleet": "made:up"}
    both = tuned(db, **given)
    apart = Choices().turned(fleet.places)
    here, other = (recorded(qkv().graph, db, t, t.threads).choices for t in (HERE, OTHER))
    assert here.other >= apart.other and not other.other & apart.other
    names = {r.target: r for r in both.by_target.values()}
    assert digests(names[HERE]) == usual_digests(here) != digests(names[OTHER])
    assert any(t.taken for t in names[HERE].rewrites)
    # without a search each has what the log has for it
    again = tuned(db, **given, until="1ns").by_target
    assert {r.target: digests(r) for r in again.values()} == {
        HERE: usual_digests(here),
        OTHER: usual_digests(other),
    }


def test_where_no_whole_graph_runs_a_side_must_be_faster_by_more() -> None:
    """A twentieth is enough here, not on a fleet."""
    base, found = space(qkv())
    one = of_stacking(found)
    of_other = 0.95e-3 * sum(one.usual.values()) / sum(one.other.values())

    def seconds(workload: Any) -> float:
        return 1e-3 if workload.digest in one.usual else of_other

    for faster, taken in ((FASTER, True), (FASTER_UNSEEN, False)):
        _, tried = decided(base, [one], seconds, faster)
        assert [t.taken for t in tried] == [taken]
