"""Finalists of open sizes are ranked by what they take at several sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_clock import Clock, install
from fleet_cases import A, FakeSite, Rack, rack
from log_cases import TARGETS
from made_up import tune
from search_table import FormulaSpace
from test_tuner import FakeMeasurer

import autotune as at
from autotune import targets
from autotune.fleet import serving
from autotune.measure.measurer import Measurer
from autotune.measure.results import SIZES_S, Measurement
from autotune.results.tuned import TuneResult
from autotune.tuning import finalists, first_pick
from autotune.tuning.options import TuneOptions
from autotune.tuning.ranking import behind, together, work_at_sizes
from autotune.tuning.resume import FACTS
from schedules import ops, te
from schedules.model import Trace, Workload
from schedules.te.dims import dim

TARGET = TARGETS[0]


def rows(most: int = 512) -> Workload:
    x = te.placeholder((dim(1, most, "m", open=True), 64), name="x")
    return Workload(te.dag([x, te.compute(x.shape, lambda i, j: x[i, j] + 1.0, "y")]), flops=most * 64)


def timed(time_s: float, *at_sizes: float, status: str = "ok") -> Measurement:
    sizes = {f"m={n}": s for n, s in zip((1, 23), at_sizes, strict=False)}
    facts = {SIZES_S: sizes} if sizes else {}
    return Measurement(status, "", (time_s,), time_s, 0.0, 1.0, facts=facts)


# -- the rule ----------------------------------------------------------------------------------


def test_what_leads_at_the_largest_size_alone_is_slow() -> None:
    found = behind({"a": timed(1.0, 0.4, 0.4), "b": timed(1.1, 0.1, 0.1), "c": timed(3.0, 0.5, 0.5)})
    assert {k: m.status for k, m in found.items()} == {"a": "slow", "b": "ok", "c": "ok"}
    assert found["a"].time_s == 1.0, "its time is that of the largest size"
    assert (
        found["a"].reason == "2.44 times the best in the mean over the sizes: 400 ms at m=1, 400 ms at m=23"
    )


def test_what_is_as_good_in_the_mean_keeps_its_lead() -> None:
    near = {"a": timed(1.0, 0.1, 0.1), "b": timed(1.05, 0.1, 0.094)}
    assert {m.status for m in behind(near).values()} == {"ok"}
    further = {"a": timed(1.0, 0.1, 0.1), "b": timed(1.05, 0.1, 0.085)}
    assert behind(further)["a"].status == "slow"
    assert behind(further, rough=True)["a"].status == "ok", "a rough pass tells apart what is far"


@pytest.mark.parametrize("told", [None, [], {}, {"m=1": "fast"}, {"m=1": -1.0}, {"m=1": float("nan")}])
def test_what_says_nothing_of_sizes_is_ranked_by_the_largest(told: Any) -> None:
    facts = {} if told is None else {SIZES_S: told}
    found = behind({"a": replace(timed(1.0), facts=facts), "b": timed(1.1, 0.1, 0.1)})
    assert found["a"].status == "ok"
    assert behind({}) == {}


def test_what_was_wrong_is_no_best() -> None:
    found = behind(
        {"a": timed(1.0, 0.1), "b": Measurement("wrong_result", "", facts={SIZES_S: {"m=1": 0.01}})}
    )
    assert found["a"].status == "ok"


def test_passes_are_put_together_at_each_size() -> None:
    found = together([timed(1.0, 0.1, 0.5), timed(3.0, 0.3, 0.7), timed(2.0, 0.2, 0.6)])
    assert found.time_s == 2.0 and found.times_s == (1.0, 3.0, 2.0)
    assert found.facts[SIZES_S] == pytest.approx({"m=1": 0.2, "m=23": 0.6})
    assert together([timed(1.0, 0.1), timed(3.0)]).facts == {}, "one knows nothing of sizes"
    assert together([timed(1.0, 0.1), timed(2.0, status="wrong_result")]).status == "wrong_result"


def test_work_at_the_sizes() -> None:
    assert work_at_sizes(rows().dag) == pytest.approx([1 / 512, 23 / 512])
    assert work_at_sizes(rows(2).dag) == [0.5]
    assert work_at_sizes(rows().dag.largest) == []


# -- a run -------------------------------------------------------------------------------------


class Sized(FakeMeasurer):
    """Schedules of ``bad`` sketches take ten times as long as others at the two smaller sizes."""

    bad: Sequence[str] = ("sketch0",)

    def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
        found = super().finalists(traces, rounds, repeats)
        for i, (t, m) in enumerate(zip(traces, found, strict=True)):
            small = 1e-6 * (10 if t.steps[0].primitive in self.bad else 1)
            found[i] = replace(m, facts={SIZES_S: {"m=1": small, "m=23": small}})
        return found


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(first_pick, "proposals", lambda *args: [])
    with at.Log(tmp_path / "t.db") as opened:
        yield opened


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return install(monkeypatch)


def run(log: at.Log, workload: Workload, kind: type[FakeMeasurer], trials: int) -> tuple[TuneResult, Any]:
    space = FormulaSpace()
    measurer = kind(space)
    options = TuneOptions(trials=trials, model="analytic", budget_s=600.0)
    result = tune(workload, TARGET, log, options, space=space, measurer=measurer, peak=lambda: 1e-4)
    return result, measurer


def sketch(result: TuneResult) -> str:
    assert result.best is not None
    return result.best.trace.steps[0].primitive


@pytest.mark.fast("32")
@pytest.mark.parametrize("trials", [32, finalists.LUCKY])
@pytest.mark.usefixtures("clock")
def test_a_candidate_that_is_the_best_at_the_largest_size_alone_loses(log: at.Log, trials: int) -> None:
    result, measurer = run(log, rows(), Sized, trials)
    assert sketch(result) != "sketch0" and result.best is not None
    assert result.best.time_s == measurer.true_s(result.best.trace), "a time is that of the largest size"
    best = log.best(rows(), TARGET)
    assert best is not None and best.kind == "final" and best.uid == result.best.record_id
    finals = list(log.records(workload=rows(), kind="final"))
    given_up = [r for r in finals if r.status == "slow"]
    assert given_up and all(r.trace.steps[0].primitive == "sketch0" for r in given_up)
    assert all("times the best in the mean over the sizes" in (r.reason or "") for r in given_up)
    assert all(r.time_s == measurer.true_s(r.trace) for r in given_up)
    assert min(r.time_s or 9.0 for r in given_up) < result.best.time_s


@pytest.mark.usefixtures("clock")
def test_what_was_given_up_stays_so_when_times_change(log: at.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """In other places of memory the winner takes longer. There is a winner all the same."""
    monkeypatch.setattr(finalists, "PLACES_SHARE", 1e6)

    class Moving(Sized):
        def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
            found = super().finalists(traces, rounds, repeats)
            factor = 30.0 if self.moves else 1.0
            return [
                replace(m, facts={SIZES_S: {k: factor * s for k, s in m.facts[SIZES_S].items()}})
                for m in found
            ]

    result, measurer = run(log, rows(), Moving, 32)
    assert measurer.moves and sketch(result) != "sketch0"


@pytest.mark.usefixtures("clock")
def test_the_fastest_of_other_sketches_are_finalists(log: at.Log) -> None:
    """All of the eight fastest may be alike, and bad at small sizes."""
    _, measurer = run(log, rows(), Sized, 32)
    trials = {r.trace_digest: r.sketch for r in log.records(workload=rows(), kind="trial")}
    assert len({trials[d] for d in measurer.finals[0]}) == 3


class Told(Sized):
    """Trials tell what they take at smaller sizes too."""

    def measure(self, traces: Sequence[Trace], *args: Any, **more: Any) -> Iterator[Measurement]:
        for t, m in zip(traces, super().measure(traces, *args, **more), strict=False):
            bad = bool(t.steps) and t.steps[0].primitive in self.bad
            small = 1e-6 * (10 if bad else 1)
            yield replace(m, facts={SIZES_S: {"m=1": small, "m=23": small}})


@pytest.mark.usefixtures("clock")
def test_what_was_no_finalist_does_not_win_by_the_largest_size(
    log: at.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is time for one pass only. Trials say what other candidates take at small sizes."""
    monkeypatch.setattr(finalists, "PASSES", 1)
    result, measurer = run(log, rows(), Told, 64)
    assert sketch(result) != "sketch0" and len(measurer.finals) == 1
    finals = list(log.records(workload=rows(), kind="final"))
    unmeasured = [r for r in finals if r.trace_digest not in measurer.finals[0]]
    assert unmeasured and {r.status for r in unmeasured} == {"slow"}
    assert all(r.sketch == "sketch0" for r in unmeasured)
    best = log.best(rows(), TARGET)
    assert best is not None and best.kind == "final"


@pytest.mark.usefixtures("clock")
def test_finalists_are_those_of_the_least_means(log: at.Log) -> None:
    _, measurer = run(log, rows(), Told, 64)
    trials = {r.trace_digest: r.sketch for r in log.records(workload=rows(), kind="trial")}
    first, *others = (trials[d] for d in measurer.finals[0])
    assert first == "sketch0" and "sketch0" not in others


@pytest.mark.usefixtures("clock")
def test_without_open_sizes_nothing_is_given_up(log: at.Log) -> None:
    result, _ = run(log, ops.workload("add", {"n": 64}), FakeMeasurer, 32)
    assert sketch(result) == "sketch0"
    assert {r.status for r in log.records(kind="final")} == {"ok"}
    assert all(SIZES_S not in r.environment for r in log.records(kind="final"))


# -- elsewhere ---------------------------------------------------------------------------------


class SizedSite(FakeSite):
    """Candidates take the longer the earlier their digest is. The fastest take ten times as long as others at
    small sizes."""

    def measure(self, trace: Trace, code: bytes | None) -> Measurement:
        m = super().measure(trace, code)
        rank = int(trace.digest[:4], 16) / 0xFFFF
        time_s = self.time_s * (1.1 - 0.1 * rank)
        small = 1e-5 if rank > 0.6 else 1e-6
        return replace(m, times_s=(time_s,), time_s=time_s, facts={SIZES_S: {"m=1": small, "m=23": small}})


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with rack(tmp_path_factory.mktemp("locks")) as made:
        yield made


@pytest.mark.slow
def test_a_machine_elsewhere_ranks_by_several_sizes_too(
    there: Rack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "TELL_S", 0.0)
    there.add("one", A, site=SizedSite())
    try:
        m = at.dim(1, 512, "m")
        x = te.placeholder((m, 64), name="x")
        program = [x, te.compute(x.shape, lambda i, j: x[i, j] + 1.0, "y")]
        tuned = at.tune(
            program, fleet=there.address, db=tmp_path / "t.db", trials=24, budget_s=40.0, search="random",
            progress=None,
        )  # fmt: skip
    finally:
        there.stop()
    assert tuned.best is not None
    with at.Log(tmp_path / "t.db") as opened:
        finals = {r.trace_digest: r for r in opened.records(kind="final")}
        best = opened.get(tuned.best.record_id)
    assert "slow" in {r.status for r in finals.values()}
    assert best is not None and int(best.trace_digest[:4], 16) / 0xFFFF <= 0.6
    assert best.environment[FACTS][SIZES_S].keys() == {"m=1", "m=23"}


# -- this machine ------------------------------------------------------------------------------


@pytest.mark.slow
def test_finalists_are_timed_at_smaller_sizes_here() -> None:
    w = rows(64)
    traces = []
    for lanes in (8, 16):
        s = at.Schedule(w.dag)
        s.vectorize(s.split("y_j", (None, lanes))[1])
        traces.append(s.trace)
    with Measurer(w.dag, targets.detect(1)) as m:
        found = [*m.measure(traces), *m.finalists(traces, 1, 2)]
    assert [x.status for x in found] == ["ok"] * 4
    for x in found:
        assert list(x.facts[SIZES_S]) == ["m=1", "m=11"]
        one, eleven = x.facts[SIZES_S].values()
        assert 0 < one < (x.time_s or 0.0) and 0 < eleven < (x.time_s or 0.0)


@pytest.mark.slow
def test_constants_are_packed_once_for_all_sizes(tmp_path: Path) -> None:
    """What is packed at the largest size serves the others."""
    said = {"m": at.dim(1, 24, open=True), "n": 16, "k": 8, "constant_weights": True, "threads": 1}
    result = at.tune("matmul", **said, trials=3, budget_s=30, db=tmp_path / "t.db", progress=None)
    assert result.best is not None
    with at.Log(tmp_path / "t.db") as opened:
        finals = [r for r in opened.records(kind="final") if r.time_s]
        assert finals and all(len(r.environment[FACTS][SIZES_S]) == 2 for r in finals)
