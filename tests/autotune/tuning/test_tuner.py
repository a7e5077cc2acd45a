"""The tuning loop with a made-up space and measurer, and a real log."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from fake_clock import Clock, install
from log_cases import TARGETS, copy_of
from made_up import tune
from search_table import FormulaSpace

from autotune import backends
from autotune.measure.results import Measurement, Options
from autotune.results.tuned import Best, Progress, TuneResult
from autotune.settings import SettingsError
from autotune.tuning import fallbacks, finalists, first_pick, plain_loops, preparation, session, site
from autotune.tuning.notes import notes, small
from autotune.tuning.options import TuneOptions
from autotune.tuning.prediction_quality import PREDICTED
from autotune.tuning.similar import Seed
from kernels_db import Log
from schedules import ops
from schedules.model import Trace
from schedules.space.base import Candidate

WORKLOAD, TARGET = copy_of(64), TARGETS[0]
PEAK_S = 1e-4
PLACES = backends.named("cpu").measuring.places
PLAIN_S = 1.0  # what the plain loops take


class FakeMeasurer:
    """Times by the formula of the space, with seeded noise; ``status`` may make a trial fail."""

    def __init__(
        self,
        space: FormulaSpace,
        status: Callable[[Trace, int], str] = lambda trace, i: "ok",
        noise: float = 0.0,
        sleep_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.space, self.status, self.noise, self.sleep_s = space, status, noise, sleep_s
        self.rng = np.random.default_rng(seed)
        self.measured: list[str] = []
        self.finals: list[tuple[str, ...]] = []
        self.moves = 0
        self.best_s: list[float | None] = []

    def true_s(self, trace: Trace) -> float:
        if trace == plain_loops.TRACE:
            return PLAIN_S
        (step,) = trace.steps
        row = np.array([[v for _, v in step.args]])
        return 1 / float(self.space.throughput(self.space.sketches.index(step.primitive), row)[0])

    def measure(
        self,
        traces: Sequence[Trace],
        best_s: float | None = None,
        deadline: float | None = None,
        latest: float | None = None,
    ) -> Iterator[Measurement]:
        self.best_s.append(best_s)
        for trace in traces:
            if deadline is not None and time.monotonic() >= deadline:
                return
            time.sleep(self.sleep_s)
            status = self.status(trace, len(self.measured))
            self.measured.append(trace.digest)
            if status in ("ok", "slow"):
                t = self.true_s(trace) * float(np.exp(self.noise * self.rng.standard_normal()))
                yield Measurement(status, "", (t, t), t, 0.0, 1.0, 0.01, 0.002, 0.003)
            else:
                yield Measurement(status, f"a made-up {status}")

    def arrivals(self, *args: Any, **kwargs: Any) -> Iterator[tuple[int, Measurement]]:
        return enumerate(self.measure(*args, **kwargs))

    def object(self, trace: Trace) -> bytes | None:
        return b"" if trace.digest in self.measured else None

    def move(self) -> None:
        self.moves += 1

    def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
        self.finals.append(tuple(t.digest for t in traces))
        times = [self.true_s(t) for t in traces]
        return [Measurement("ok", "", (t,) * rounds * repeats, t, reference_rate=1.0) for t in times]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Budgets do not depend on how busy the machine is."""
    return install(monkeypatch)


@pytest.fixture(autouse=True)
def picks(monkeypatch: pytest.MonkeyPatch) -> list[Seed]:
    """What a first pick proposes: nothing, unless a test adds something, so that searches begin at once."""
    found: list[Seed] = []
    monkeypatch.setattr(first_pick, "proposals", lambda *args: found)
    return found


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "t.db") as opened:
        yield opened


def run(log: Log, measurer: FakeMeasurer, progress: Any = None, **options: Any) -> TuneResult:
    chosen = {"trials": 40, "model": "analytic", "budget_s": 60.0} | options
    tell = None if progress is None else lambda p: progress(p.task)
    return tune(
        *(WORKLOAD, TARGET, log, TuneOptions(**chosen), tell),
        space=measurer.space,
        measurer=measurer,
        peak=lambda: PEAK_S,
    )


def test_trials_are_logged_as_they_happen_and_the_best_is_returned(log: Log) -> None:
    measurer = FakeMeasurer(FormulaSpace())
    seen: list[Progress] = []
    logged: list[int] = []

    def progress(p: Progress) -> None:
        seen.append(p)
        logged.append(sum(1 for _ in log.records(kind="trial")))

    result = run(log, measurer, progress)
    assert (result.stopped, result.measured, result.failed, result.resumed) == ("trials", 40, {}, 0)
    assert result.trials.measured == 40 and result.seed == 0
    assert len(set(measurer.measured)) == 40
    assert result.best is not None
    record = log.get(result.best.record_id)
    assert record is not None and record.kind == "final" and record == log.best(WORKLOAD, TARGET)
    fastest = min(r.time_s for r in log.records(kind="trial") if r.time_s)
    assert result.best.time_s == fastest == measurer.true_s(result.best.trace)
    assert result.best.gflops == pytest.approx(WORKLOAD.flops / fastest / 1e9)
    assert result.best.share_of_peak == pytest.approx(PEAK_S / fastest)
    assert len(repr(result)) <= 200  # a reader of a prompt wants no trace
    said = r".+, \d threads?: \S+ ms, .+ G\S+/s, .+% of peak; 40 trials, .+ s \(all trials done\)"
    assert re.fullmatch(said, str(result))
    for p, n in zip(seen, logged, strict=True):
        assert p.measured == n  # what was reported is on file
    assert {p.phase for p in seen} == {"preparing", "searching", "measuring", "finalists", "done"}
    assert seen[-1].best_time_s == fastest and seen[-1].trials == 40
    assert {"prepare", "search", "measure", "build", "check", "run", "finalists"} <= set(result.spent_s)
    (stored,) = log.runs()
    assert stored.state == "done" and stored.options["search"] == "evolutionary"
    assert [r.trial for r in log.records(kind="trial")] == list(range(40))
    best_s = measurer.best_s
    assert best_s[0] is None and best_s[1] is not None  # later rounds know what is slow


@pytest.mark.slow
def test_a_seed_repeats_a_run(tmp_path: Path) -> None:
    order = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        measurer = FakeMeasurer(FormulaSpace())
        with Log(tmp_path / f"{name}.db") as log:
            run(log, measurer, seed=seed, batch=16)
        order.append(measurer.measured)
    assert order[0] == order[1] != order[2]


@pytest.mark.slow
def test_results_in_another_order_are_logged_as_they_arrive_and_change_nothing(tmp_path: Path) -> None:
    class Backwards(FakeMeasurer):
        def arrivals(self, *args: Any, **kwargs: Any) -> Iterator[tuple[int, Measurement]]:
            return reversed(list(super().arrivals(*args, **kwargs)))

    order = []
    for name, measurer in (("a", FakeMeasurer(FormulaSpace())), ("b", Backwards(FormulaSpace()))):
        with Log(tmp_path / f"{name}.db") as log:
            run(log, measurer, batch=16, model="xgb")
            records = list(log.records(kind="trial"))
        assert all(r.time_s == measurer.true_s(r.trace) for r in records)
        rounds = [[r.trace_digest for r in records if r.environment.get("round") == n] for n in range(3)]
        order.append([digests[:: 1 if name == "a" else -1] for digests in rounds])
    assert order[0] == order[1]


@pytest.mark.fast("1-0.0-sizes0")
@pytest.mark.parametrize(("share", "sizes"), [(0.0, [16, 32, 64, 87, 1]), (1e9, [16] * 12 + [7, 1])])
@pytest.mark.parametrize("cpus", [1, 64])
def test_rounds_double_while_choosing_them_takes_too_long(
    log: Log, monkeypatch: pytest.MonkeyPatch, share: float, sizes: list[int], cpus: int
) -> None:
    rounds: list[int] = []

    class Counting(FakeMeasurer):
        def measure(
            self, traces: Sequence[Trace], *limits: float | None, **more: Any
        ) -> Iterator[Measurement]:
            rounds.append(len(traces))
            yield from super().measure(traces, *limits)

    monkeypatch.setattr(session, "SEARCH_SHARE", share)
    # with one to spare, the next round is begun ahead
    monkeypatch.setattr(site.targets, "usable_cpus", lambda: cpus)
    run(log, Counting(FormulaSpace()), trials=200)
    assert rounds == sizes


def test_failures_are_results(log: Log) -> None:
    failures = ("crash", "wrong_result", "timeout", "illegal", "compile_error", "out_of_bounds", "error")
    measurer = FakeMeasurer(FormulaSpace(), lambda trace, i: failures[i % 14] if i % 14 < 7 else "ok")
    result = run(log, measurer, trials=56, model="xgb")
    assert result.measured == 56 and result.failed == dict.fromkeys(sorted(failures), 4)
    assert result.best is not None
    assert Counter(r.status for r in log.records(kind="trial")) == {"ok": 28} | dict.fromkeys(failures, 4)
    assert all(r.reason == "a made-up crash" for r in log.records(status="crash"))


def test_all_failing_gives_no_best(log: Log) -> None:
    measurer = FakeMeasurer(FormulaSpace(), lambda trace, i: "crash")
    result = run(log, measurer, trials=30)
    assert result.best is None and result.failed == {"crash": 30} and measurer.finals == []


def test_slow_candidates_never_win(log: Log) -> None:
    space = FormulaSpace()
    half = FakeMeasurer(space).true_s(space.trace(0, np.array([0, 0, 0, 0, 0])))
    measurer = FakeMeasurer(space)
    measurer.status = lambda trace, i: "slow" if measurer.true_s(trace) < half else "ok"
    result = run(log, measurer)
    assert result.stopped_early > 0 and "slow" not in result.failed
    assert result.best is None or result.best.time_s >= half


def test_the_best_is_provisional_until_it_is_timed_again(log: Log) -> None:
    """The luckiest of noisy trials shows a time that no candidate has."""

    class Lucky(FakeMeasurer):
        def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
            found = super().finalists(traces, rounds, repeats)
            return [replace(m, time_s=2 * (m.time_s or 0)) for m in found]

    seen: list[Progress] = []
    result = run(log, Lucky(FormulaSpace()), seen.append)
    assert result.best is not None
    trials = [p for p in seen if p.phase == "measuring" and p.best_time_s]
    assert trials and all(p.provisional for p in trials)
    assert (trials[-1].best_time_s or 0) < result.best.time_s
    assert not seen[-1].provisional and seen[-1].best_time_s == result.best.time_s
    again: list[Progress] = []
    run(log, Lucky(FormulaSpace()), again.append, trials=0)
    assert not again[0].provisional or again[0].best_time_s is None


def test_tiny_space_is_exhausted(log: Log) -> None:
    space = FormulaSpace(choices=((3, 2), (2,)), peaks=(1.0, 0.5))
    result = run(log, FakeMeasurer(space), trials=None)
    assert result.stopped == "exhausted" and 0 < result.measured < 8
    again = run(log, FakeMeasurer(space), trials=None)
    assert (again.stopped, again.measured, again.resumed) == ("exhausted", 0, result.measured)
    assert again.best == result.best


@pytest.mark.parametrize("hangs", [False, True])
def test_what_a_deadline_cuts_off_is_measured_next(
    tmp_path: Path, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "HANGS_S", 0.0)

    class Cut(FakeMeasurer):
        def arrivals(
            self, traces: Sequence[Trace], *args: Any, **more: Any
        ) -> Iterator[tuple[int, Measurement]]:
            for index, m in islice(super().arrivals(traces, *args), 2):
                if hangs and traces[index].digest == whole[3]:
                    return
                yield index, m

    space = FormulaSpace(choices=((3, 2), (2,)), peaks=(1.0, 0.5))
    found: list[dict[str, object]] = []
    for name, measurer in (("a", FakeMeasurer(space)), ("b", Cut(space))):
        with Log(tmp_path / f"{name}.db") as log:
            assert run(log, measurer, trials=None).stopped == "exhausted"
            records = log.records(kind="trial")
            found.append({r.trace_digest: r.environment.get(PREDICTED) for r in records})
        whole = list(found[0])
    assert len(whole) > 4
    if hangs:
        del found[0][whole[3]]
    assert found[0] == found[1]


def test_what_was_chosen_when_time_ran_out_is_measured_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = session.Session.search

    def twice(self: session.Session, measurer: Any, until: Any, **kw: Any) -> str | None:
        times = iter([math.inf])  # until something is chosen
        assert search(self, measurer, lambda: next(times, 0.0), **kw) is None
        return search(self, measurer, until, **kw)

    space = FormulaSpace(choices=((3, 2), (2,)), peaks=(1.0, 0.5))
    whole, cut = FakeMeasurer(space), FakeMeasurer(space)
    with Log(tmp_path / "a.db") as log:
        run(log, whole, trials=None)
    monkeypatch.setattr(session.Session, "search", twice)
    with Log(tmp_path / "b.db") as log:
        assert run(log, cut, trials=None).stopped == "exhausted"
    assert cut.measured == whole.measured


@pytest.mark.fast("random")
@pytest.mark.parametrize("search", ["evolutionary", "random"])
def test_resume_learns_and_does_not_repeat(log: Log, search: str) -> None:
    first, second = FakeMeasurer(FormulaSpace()), FakeMeasurer(FormulaSpace())
    one = run(log, first, search=search)
    seen: list[Progress] = []
    two = run(log, second, seen.append, search=search)
    assert two.resumed == 40 and two.measured == 40
    assert not set(first.measured) & set(second.measured)
    assert one.best is not None and two.best is not None and two.best.time_s <= one.best.time_s
    assert seen[1].best_time_s == one.best.time_s  # known before the first trial
    assert second.best_s[0] == one.best.time_s


def test_another_task_is_not_resumed(log: Log) -> None:
    run(log, FakeMeasurer(FormulaSpace()), trials=16)
    other = tune(
        *(copy_of(65), TARGET, log, TuneOptions(trials=16, model="random")),
        space=FormulaSpace(),
        measurer=FakeMeasurer(FormulaSpace()),
        peak=lambda: PEAK_S,
    )
    assert other.resumed == 0 and other.measured == 16


@pytest.mark.fast("64-8")
@pytest.mark.parametrize(("trials", "first"), [(64, finalists.FINALISTS), (finalists.LUCKY, finalists.FIELD)])
def test_finalists_correct_the_luck_of_screening(log: Log, trials: int, first: int) -> None:
    measurer = FakeMeasurer(FormulaSpace(), noise=0.05)
    result = run(log, measurer, trials=trials)
    assert len(measurer.finals[0]) == first
    assert result.best is not None
    record = log.get(result.best.record_id)
    assert record is not None and record.kind == "final"
    assert 1 <= len(measurer.finals) <= finalists.PASSES
    assert result.best.time_s == measurer.true_s(result.best.trace)
    again = {r.trace_digest: r.time_s for r in log.records(kind="final")}
    assert result.best.time_s == min(again.values())


def test_finalists_are_chosen_by_several_places_of_memory(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is fastest where its arrays happen to lie can be slower than others everywhere else."""
    monkeypatch.setattr(finalists, "PLACES_SHARE", 1e6)  # as if the search had taken long

    class Placed(FakeMeasurer):
        lucky = ""

        def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
            found = super().finalists(traces, rounds, repeats)
            self.lucky = self.lucky or traces[3].digest
            for i, (t, m) in enumerate(zip(traces, found, strict=True)):
                factor = (1.3 if self.moves else 0.5) if t.digest == self.lucky else 1.0
                seconds = factor * (m.time_s or 0.0)
                found[i] = replace(m, times_s=(seconds, seconds), time_s=seconds)
            return found

    measurer = Placed(FormulaSpace())
    result = run(log, measurer)
    assert result.best is not None and measurer.moves == PLACES - 1 == len(measurer.finals) - 1
    assert result.best.trace.digest != measurer.lucky
    assert result.best.time_s == measurer.true_s(result.best.trace)
    newest = list(log.records(kind="final"))[-finalists.FINALISTS :]
    assert {len(r.times_s) for r in newest} == {2 * PLACES}, "of all passes"
    (lucky,) = (r for r in newest if r.trace_digest == measurer.lucky)
    assert lucky.time_s == pytest.approx(1.3 * measurer.true_s(lucky.trace))


@pytest.mark.slow
def test_a_field_of_few_is_timed_well_at_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finalists, "NEAR", 1.0)
    monkeypatch.setattr(finalists, "PLACES_SHARE", 1e6)
    measurer = FakeMeasurer(FormulaSpace())
    run(log, measurer, trials=finalists.LUCKY)
    assert {len(digests) for digests in measurer.finals} == {1}
    assert len(measurer.finals) == PLACES == measurer.moves + 1


def test_a_short_search_has_its_finalists_in_one_place(log: Log) -> None:
    class Slow(FakeMeasurer):
        def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
            time.sleep(0.6 * finalists.PLACES_S)
            return super().finalists(traces, rounds, repeats)

    measurer = Slow(FormulaSpace())
    result = run(log, measurer)
    assert measurer.moves == 0 and len(measurer.finals) == 1 and result.best is not None


@pytest.mark.slow
def test_room_is_left_for_building_what_the_measurer_has_not_kept(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a suite of many tasks most measurers are others than those that the trials had."""

    class Closed(FakeMeasurer):
        def object(self, trace: Trace) -> bytes | None:
            return None

    monkeypatch.setattr(session.Session, "each_s", 20.0)
    measurer = Closed(FormulaSpace())
    run(log, measurer, budget_s=60.0)
    assert len(measurer.finals[0]) == 2


def test_a_finalist_that_fails_is_not_the_best(log: Log) -> None:
    class Failing(FakeMeasurer):
        def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
            found = super().finalists(traces, rounds, repeats)
            return [Measurement("wrong_result", "differs at 3"), *found[1:]]

    measurer = Failing(FormulaSpace())
    result = run(log, measurer)
    refused = {digests[0] for digests in measurer.finals}
    assert result.best is not None and result.best.trace.digest not in refused


def test_a_finalist_of_which_nothing_is_found_out_is_not_tried_again(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finalists, "PLACES_SHARE", 1e6)  # as if the search had taken long

    class Hanging(FakeMeasurer):
        def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
            found = super().finalists(traces, rounds, repeats)
            lost = self.finals[0][0]
            return [
                Measurement("error", "a made-up hang") if t.digest == lost else m
                for t, m in zip(traces, found, strict=True)
            ]

    measurer = Hanging(FormulaSpace())
    result = run(log, measurer)
    first, *later = measurer.finals
    assert len(later) == PLACES - 1
    assert all(set(first) - set(digests) == {first[0]} for digests in later)
    assert result.best is not None and result.best.trace.digest == first[0], "the time of its trial stands"


def test_the_budget_is_kept(log: Log) -> None:
    measurer = FakeMeasurer(FormulaSpace(), sleep_s=0.02)
    result = run(log, measurer, trials=None, budget_s=2.0)
    assert result.stopped == "budget" and 0 < result.measured <= 100
    assert 1.0 < result.elapsed_s < 2.5
    assert result.best is not None


def test_what_came_before_is_part_of_the_budget(log: Log) -> None:
    measurer = FakeMeasurer(FormulaSpace(), sleep_s=0.02)
    result = run(log, measurer, trials=None, budget_s=2.0, started=time.monotonic() - 1.0)
    assert result.stopped == "budget" and 1.0 < result.elapsed_s < 2.5
    assert 0 < result.measured <= 50


def test_a_tiny_budget_gives_a_first_pick(log: Log, picks: list[Seed]) -> None:
    measurer = FakeMeasurer(FormulaSpace(), sleep_s=0.02)
    picks += [Seed(Candidate(0, (n,) * len(measurer.space.holes(0))), "model") for n in (1, 0)]
    result = run(log, measurer, trials=None, budget_s=1e-6)
    assert (result.stopped, result.measured, measurer.finals) == ("budget", 1, [])
    assert result.best is not None and result.best.trace != plain_loops.TRACE
    again = run(log, measurer, trials=None, budget_s=1e-6)
    assert (again.measured, again.resumed) == (0, 1)


def test_no_result_is_slower_than_the_plain_loops(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PLAIN_S", 1e-9)
    result = run(log, FakeMeasurer(FormulaSpace()), trials=20)
    assert result.measured == 20 and result.best is not None and result.best.trace == plain_loops.TRACE
    (plain,) = (r for r in log.records(kind="trial") if r.sketch == plain_loops.SKETCH)
    assert plain.trial == 19 and plain.uid != result.best.record_id  # it was timed again beside the others
    again = FakeMeasurer(FormulaSpace())
    assert run(log, again, trials=20).resumed == 20
    assert plain_loops.TRACE.digest not in again.measured


@pytest.mark.parametrize("trials", [1, 16, 40])
@pytest.mark.parametrize(("share_of_reach", "tried"), [(0.5, True), (2.0, False)])
def test_plain_loops_that_take_long_come_last_if_they_may_be_the_fastest(
    log: Log, monkeypatch: pytest.MonkeyPatch, trials: int, share_of_reach: float, tried: bool
) -> None:
    space = FormulaSpace()
    measured = FakeMeasurer(space)

    class Foretold(plain_loops.PlainLoops):
        def in_reach(self, best_s: float | None) -> bool:
            self.foretold_s = share_of_reach * plain_loops.FAR * (best_s or 0.0)
            return super().in_reach(best_s) if best_s else False

    monkeypatch.setattr(fallbacks, "PlainLoops", Foretold)
    result = run(log, measured, trials=trials)
    assert result.measured == trials == len(measured.measured)
    assert measured.measured[-1:] == [plain_loops.TRACE.digest] if tried and trials > 1 else True
    assert (plain_loops.TRACE.digest in measured.measured) == (tried and trials > 1)


def test_a_short_budget_loads_no_model() -> None:
    assert not TuneOptions(budget_s=7.9).needs_xgboost and TuneOptions(budget_s=1.0).guide == "analytic"
    assert TuneOptions(budget_s=60.0).needs_xgboost and TuneOptions(budget_s=60.0).guide == "xgb"
    assert TuneOptions(budget_s=1.0, model="random").guide == "random"


def test_what_is_foretold_of_plain_loops() -> None:
    def plain(op: str, known: bool = False, **params: int) -> plain_loops.PlainLoops:
        return plain_loops.PlainLoops(ops.workload(op, params), TARGET, known)

    assert plain("add", n=1 << 20).worth(1e-3) and not plain("add", n=1 << 20).worth(1e-4)
    assert not plain("add", known=True, n=1 << 20).worth(1e-3)
    large = plain("matmul", m=4096, n=4096, k=4096)
    assert not large.quick and not large.worth(10.0) and not large.in_reach(1.0)
    assert large.in_reach(None) and large.in_reach(10.0)


@pytest.mark.parametrize(
    ("share", "few", "stopped", "said"),
    [
        (0.02, None, "exhausted", "2% of the limit: all 9 configurations of the space were tried, so"),
        (0.02, 9, "budget", "2% of the limit: the space has only 9 configurations, of which 9 were"),
        (0.02, 12, "budget", "2% of the limit after 9 trials; give it more time"),
        (0.02, None, "budget", "2% of the limit after 9 trials; give it more time"),
        (0.02, None, "converged", None),
        (0.9, 12, "exhausted", None),
        (None, 12, "exhausted", None),
    ],
)
def test_a_result_far_from_the_limit_says_what_is_left_to_try(
    share: float | None, few: int | None, stopped: str, said: str | None
) -> None:
    best = Best(1e-3, 1.0, share, plain_loops.TRACE, "a")
    found = notes(best, few, 9, stopped)
    assert len(found) == (said is not None) and all(said is not None and said in x for x in found)
    assert notes(None, few, 9, stopped) == ()


def test_notes_are_part_of_the_result(log: Log) -> None:
    space = FormulaSpace(choices=((3, 2), (2,)), peaks=(1.0, 0.5))
    assert small(space) == 6 and small(FormulaSpace()) is None
    result = run(log, FakeMeasurer(space), trials=None)
    share = result.best.share_of_peak if result.best else None
    assert share is not None and bool(result.notes) == (share < 0.3)


def test_slow_trials_make_small_rounds(log: Log) -> None:
    measurer = FakeMeasurer(FormulaSpace(), sleep_s=0.1)
    run(log, measurer, trials=None, budget_s=4.0)
    assert len(measurer.best_s) >= 3  # rounds: 16 first, then as many as a tenth of the budget allows


@pytest.mark.fast("progress")
@pytest.mark.parametrize("when", ["measuring", "progress", "finalists"])
def test_an_interrupt_keeps_everything(log: Log, when: str) -> None:
    def status(trace: Trace, i: int) -> str:
        if when == "measuring" and i == 20:
            raise KeyboardInterrupt
        return "ok"

    def progress(p: Progress) -> None:
        if (when == "progress" and p.measured == 20) or (when == "finalists" and p.phase == "finalists"):
            raise KeyboardInterrupt

    measurer = FakeMeasurer(FormulaSpace(), status)
    result = run(log, measurer, progress)
    assert result.stopped == "interrupted" and measurer.finals == []
    assert result.measured == sum(1 for _ in log.records()) == (40 if when == "finalists" else 20)
    best = log.best(WORKLOAD, TARGET)
    assert result.best is not None and best is not None and result.best.record_id == best.uid
    assert [r.state for r in log.runs()] == ["interrupted"]
    assert run(log, FakeMeasurer(FormulaSpace())).resumed == result.measured


def test_an_error_of_measuring_ends_the_run_as_failed(log: Log) -> None:
    def status(trace: Trace, i: int) -> str:
        if i == 5:
            raise RuntimeError("no worker starts")
        return "ok"

    with pytest.raises(RuntimeError, match="no worker"):
        run(log, FakeMeasurer(FormulaSpace(), status))
    assert [r.state for r in log.runs()] == ["failed"]
    assert sum(1 for _ in log.records()) == 5


def test_a_long_budget_gives_large_tasks_the_time_of_a_slow_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "Measurer", lambda *_, options, **__: options)

    def timeout_s(n: int, budget_s: float) -> float:
        task = ops.workload("matmul", {"m": n, "n": n, "k": n}, "float64")
        return cast(Options, preparation.measurer(task, TARGET, budget_s)).timeout_s

    assert [timeout_s(64, budget_s) for budget_s in (1.0, 20.0, 3600.0)] == [1.0, 4.0, 10.0]
    at_10_gflops = 4 * 2 * 4096**3 / 1e10
    assert timeout_s(4096, 60.0) < at_10_gflops < timeout_s(4096, 600.0) < 120


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": -1}, "trials is -1"),
        ({"budget_s": 0.0}, "budget"),
        ({"budget_s": float("nan")}, "budget"),
        ({"budget_s": float("inf")}, "budget"),
        ({"search": "magic"}, "unknown search 'magic'; choose from evolutionary"),
        ({"model": "gnn"}, "unknown model 'gnn'; choose from xgb"),
        ({"seed": -1}, "seed"),
        ({"batch": 0}, "batch is 0"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        TuneOptions(**options)
