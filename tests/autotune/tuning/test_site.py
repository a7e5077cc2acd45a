"""A machine elsewhere behind a run: its facts, its limit and its costs are those that count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from made_up import tune, tune_suite

import autotune as at
from autotune.measure import Measurement
from autotune.results.tuned import SuiteTask
from autotune.targets.names import TargetError
from autotune.tuning.options import TuneOptions
from autotune.tuning.site import Here
from schedules import ops
from schedules.model import Target, Trace, Workload

WORKLOAD = ops.workload("add", {"n": 4096})
TARGET = Target("cpu", "of another maker", "x86_64-unknown-linux-gnu", ("avx2",), 1)
PEAK_S = 1e-5


class Far:
    """A measurer elsewhere: every candidate takes 20 times the limit."""

    nominal = control = None

    def __init__(self) -> None:
        self.open = False
        self.closed = 0
        self.finals = 0

    def __enter__(self) -> Far:
        self.open = True
        return self

    def __exit__(self, *error: object) -> None:
        self.open = False
        self.closed += 1

    def start(self) -> None:
        pass

    def arrivals(
        self,
        traces: Sequence[Trace],
        best_s: float | None = None,
        deadline: float | None = None,
        latest: float | None = None,
    ) -> Iterator[tuple[int, Measurement]]:
        assert self.open
        for n, _ in enumerate(traces):
            yield n, Measurement("ok", "", (20 * PEAK_S,), 20 * PEAK_S, 0.0, 1.0)

    def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
        self.finals += 1
        return [Measurement("ok", "", (20 * PEAK_S,), 20 * PEAK_S, 0.0, 1.0) for _ in traces]

    def object(self, trace: Trace) -> bytes | None:
        return None

    def move(self) -> None:
        pass


class Elsewhere(Here):
    def __init__(self, final_s: float = 0.1) -> None:
        self.made: list[Far] = []
        self.final_s = final_s
        self.asked: list[tuple[float, int]] = []

    def machine(self) -> Mapping[str, str | int]:
        return {"architecture": "x86_64", "cpu": "a machine elsewhere", "cpus": 64}

    def check(self, target: Target) -> None:
        if target != TARGET:
            raise TargetError("not elsewhere")

    def roofline(self, workload: Workload, target: Target) -> Callable[[], float] | None:
        return lambda: PEAK_S

    def cost_s(self, time_s: float, count: int, rounds: int, repeats: int, warm_runs: int) -> float:
        self.asked.append((time_s, count))
        return self.final_s

    def move_s(self, time_s: float, warm_runs: int) -> float:
        return self.final_s

    def measurer(self, *_: Any, **__: Any) -> Far:
        self.made.append(Far())
        return self.made[-1]


def options(**more: Any) -> TuneOptions:
    return TuneOptions(**{"trials": 8, "budget_s": 20.0, "search": "random"} | more)


def test_a_run_elsewhere_is_of_that_machine(tmp_path: Path) -> None:
    site = Elsewhere()
    with at.Log(tmp_path / "t.db") as log:
        result = tune(WORKLOAD, TARGET, log, options(), site=site)
        assert result.best is not None and result.best.share_of_peak == pytest.approx(1 / 20)
        record = log.best(WORKLOAD, TARGET)
        assert record is not None
        assert log.machine(record.machine).info["cpu"] == "a machine elsewhere"
    (far,) = site.made
    assert far.closed == 1 and far.finals and site.asked


def test_a_suite_elsewhere_is_too(tmp_path: Path) -> None:
    site = Elsewhere()
    tasks = [SuiteTask(WORKLOAD), SuiteTask(ops.workload("add", {"n": 8192}))]
    with at.Log(tmp_path / "t.db") as log:
        tune_suite(tasks, TARGET, log, options(), site=site)
        for task in tasks:
            record = log.best(task.workload, TARGET)
            assert record is not None and log.machine(record.machine).info["cpus"] == 64
    assert len(site.made) == 2 and all(x.closed == 1 for x in site.made)


def test_what_it_cannot_run_is_refused(tmp_path: Path) -> None:
    with at.Log(tmp_path / "t.db") as log, pytest.raises(TargetError, match="not elsewhere"):
        tune(WORKLOAD, Target("cpu", "other"), log, options(), site=Elsewhere())


def test_finalists_that_cost_more_than_is_left_are_not_timed(tmp_path: Path) -> None:
    site = Elsewhere(final_s=1e4)
    with at.Log(tmp_path / "t.db") as log:
        tune(WORKLOAD, TARGET, log, options(), site=site)
    assert site.made[0].finals == 0
