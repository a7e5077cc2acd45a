"""Recorded times imply no more than the machine's limit, whatever disturbed the control."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from log_cases import TARGETS
from made_up import tune

from autotune.measure import timing
from autotune.measure.results import Measurement, Options
from autotune.tuning.credible import NOISE, credible
from autotune.tuning.options import TuneOptions
from kernels_db import Log
from schedules import ops
from schedules.model import Trace

LIMIT_S = 1e-3
WORKLOAD = ops.workload("matmul", {"m": 64, "n": 64, "k": 64})


def clock(references: Sequence[float], normal_s: float) -> timing.ControlClock:
    """A control whose repeats take these seconds, one after the other."""
    took = iter(references)
    return timing.ControlClock(
        lambda n: next(took) * n, 1, normal_s, timing.no_changes(), Options(warm_runs=1)
    )


def measured(took_s: float, references: Sequence[float], normal_s: float) -> Measurement:
    """A candidate that takes ``took_s``, timed beside such a control."""
    beside = clock([x for x in references for _ in range(2)], normal_s)  # a run to warm up, then a repeat
    times = [beside.repeat(lambda n: took_s * n, 1) for _ in references]
    return Measurement("ok", "", tuple(times), beside.settled(times), 0.0, beside.rate())


def test_a_control_that_is_disturbed_makes_no_record() -> None:
    """Two threads on a loaded machine: the control takes 1.5 times as long, the candidate does not."""
    m = measured(1.1e-3, [1.5e-3] * 4, 1e-3)
    assert m.time_s is not None and m.time_s < 0.75 * LIMIT_S  # what was recorded: a third above the limit
    found = credible(m, LIMIT_S)
    assert found.time_s == pytest.approx(LIMIT_S * (1 - NOISE))
    assert min(found.times_s) >= LIMIT_S * (1 - NOISE) and found.facts["normalised_s"] == m.time_s


def test_what_was_measured_counts_where_the_limit_was_disturbed_too() -> None:
    m = measured(0.9e-3, [1.5e-3] * 4, 1e-3)
    found = credible(m, 2e-3)  # the FMA loop waited as well
    assert found.time_s == pytest.approx(0.9e-3)


def test_slower_clocks_and_times_above_the_limit_stay() -> None:
    slow = measured(1.5e-3, [1.25e-3] * 4, 1e-3)  # everything runs at 0.8 of the speed
    assert credible(slow, LIMIT_S) is slow and slow.time_s == pytest.approx(1.2e-3)
    at_the_limit = replace(slow, time_s=LIMIT_S * (1 - 0.9 * NOISE))
    assert credible(at_the_limit, LIMIT_S) is at_the_limit
    assert credible(replace(slow, time_s=1e-4), None).time_s == 1e-4  # no limit is known
    failed = Measurement("timeout", "late")
    assert credible(failed, LIMIT_S) is failed
    fast = Measurement("ok", "", (1e-4,), 1e-4, 0.0, 1.0)  # not normalised: what was measured
    assert credible(fast, LIMIT_S) is fast


@pytest.mark.parametrize("seed", range(20))
def test_no_time_is_below_the_limit_unless_it_was_measured(seed: int) -> None:
    rng = np.random.default_rng(seed)
    took, normal = rng.uniform(1.0, 2.0) * LIMIT_S, rng.uniform(0.5, 2.0) * LIMIT_S
    m = measured(took, list(normal * rng.uniform(0.8, 3.0, 5)), normal)
    found = credible(m, LIMIT_S)
    assert found.time_s is not None and m.time_s is not None
    assert found.time_s >= min(took, LIMIT_S * (1 - NOISE)) * (1 - 1e-9)
    assert found.time_s >= m.time_s


class Disturbed:
    """A measurer of a loaded machine: controls beside candidates wait, so that rates are low."""

    def arrivals(
        self,
        traces: Sequence[Trace],
        best_s: float | None = None,
        deadline: float | None = None,
        latest: float | None = None,
    ) -> Iterator[tuple[int, Measurement]]:
        return enumerate(self.finalists(traces))

    def object(self, trace: Trace) -> bytes | None:
        return b""

    def move(self) -> None:
        pass

    def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
        t = 0.7e-3
        return [Measurement("ok", "", (t, t), t, 0.0, 0.65, 0.001, 0.001, 0.001) for _ in traces]


def test_the_log_and_the_result_have_credible_times(tmp_path: Path) -> None:
    options = TuneOptions(trials=8, budget_s=20.0, search="random", model="analytic")
    with Log(tmp_path / "t.db") as log:
        result = tune(WORKLOAD, TARGETS[0], log, options, measurer=Disturbed(), peak=lambda: LIMIT_S)
        searched = [r for r in log.seen(WORKLOAD, TARGETS[0]) if r.sketch != "plain loops"]
    assert result.best is not None and result.best.share_of_peak is not None
    assert result.best.share_of_peak <= 1 / (1 - NOISE) + 1e-9
    assert searched and all(r.time_s is None or r.time_s >= LIMIT_S * (1 - NOISE) for r in searched)
