"""Deriving a space and computing right outputs count in a budget: on a busy machine both take many times as
long, and a run ends in time anyway."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_clock import Clock, install
from log_cases import TARGETS
from made_up import tune

from autotune.measure import measurer
from autotune.measure.inputs import Draw, judged
from autotune.measure.measurer import Measurer
from autotune.measure.results import Measurement
from autotune.tuning.options import TuneOptions
from autotune.tuning.site import Here
from kernels_db import Log
from schedules import ops
from schedules.errors import ScheduleError, WorkloadError
from schedules.model import Target, Trace
from schedules.space import derive
from schedules.space.sketch_builder import SketchBuilder, enumerate_drafts
from schedules.te.compute_dag import ComputeDAG

TARGET = TARGETS[0]
WORKLOAD = ops.workload("matmul", {"m": 64, "n": 64, "k": 64})
DRAFT_S = 4.0


class Right:
    """A measurer with which every trace is right."""

    def arrivals(
        self,
        traces: Sequence[Trace],
        best_s: float | None = None,
        deadline: float | None = None,
        latest: float | None = None,
    ) -> Iterator[tuple[int, Measurement]]:
        for n, _ in enumerate(traces):
            if deadline is not None and time.monotonic() >= deadline:
                return
            time.sleep(0.5)
            yield n, Measurement("ok", "", (1e-3,), 1e-3, 0.0, 1.0, 0.001, 0.001, 0.001)

    def object(self, trace: Trace) -> bytes | None:
        return b""

    def move(self) -> None:
        pass

    def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
        return [Measurement("ok", "", (1e-3,), 1e-3, reference_rate=1.0) for _ in traces]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return install(monkeypatch)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "t.db") as opened:
        yield opened


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sketches that are drawn, each of which takes `DRAFT_S`."""
    drawn: list[str] = []

    def slowly(
        dag: ComputeDAG, target: Target, rules: Callable[[SketchBuilder], None], **more: Any
    ) -> list[SketchBuilder]:
        def draw(d: SketchBuilder) -> None:
            time.sleep(DRAFT_S)
            rules(d)
            drawn.append(d.name)

        return enumerate_drafts(dag, target, draw, **more)

    monkeypatch.setattr(sys.modules["schedules.space.derive"], "enumerate_drafts", slowly)
    return drawn


def run(log: Log, **given: Any) -> Any:
    chosen = {"trials": None, "search": "random", "model": "analytic"} | given
    return tune(WORKLOAD, TARGET, log, TuneOptions(**chosen), measurer=Right())


@pytest.mark.fast("10.0-1")
@pytest.mark.parametrize(("budget_s", "most"), [(10.0, 1), (50.0, 2)])
def test_a_space_that_takes_long_has_fewer_sketches(
    log: Log, clock: Clock, drafts: list[str], monkeypatch: pytest.MonkeyPatch, budget_s: float, most: int
) -> None:
    monkeypatch.setattr(Here, "roofline", lambda self, workload, target: None)
    begin = clock.now
    result = run(log, budget_s=budget_s)
    assert len(drafts) == most and result.best is not None
    assert clock.now - begin <= 1.1 * budget_s


def test_a_seed_repeats_a_run_however_long_its_space_takes(
    log: Log, drafts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Here, "roofline", lambda self, workload, target: None)
    run(log, budget_s=10.0, trials=4)
    assert len(drafts) > 3


@pytest.mark.slow
def test_after_the_budget_a_kernel_comes_before_the_limit_of_the_machine(
    log: Log, clock: Clock, drafts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def roofline(self: Here, workload: Any, target: Target) -> Callable[[], float]:
        asked.append(clock.now)
        return lambda: 1e-4

    monkeypatch.setattr(Here, "roofline", roofline)
    begin = clock.now
    result = run(log, budget_s=3.0)
    assert result.best is not None and not asked
    assert clock.now - begin <= DRAFT_S + 4.0
    run(log, budget_s=20.0)
    assert asked


def test_a_space_that_is_cut_off_begins_as_the_whole_one() -> None:
    every = derive(WORKLOAD.dag, TARGET)
    found = set()
    for questions in range(0, 400, 20):
        left = iter([False] * questions)
        some = derive(WORKLOAD.dag, TARGET, enough=lambda left=left: next(left, True))
        found.add(len(some.sketches))
        assert some.sketches and every.sketches[: len(some.sketches)] == some.sketches
    assert len(found) > 2


@pytest.mark.parametrize("refused", [False, True])
def test_a_sketch_under_way_ends_with_its_time(refused: bool) -> None:
    """All but the first: without one there is no space. Combinations that are refused take time too."""
    now, steps = 0, list[int]()

    def rules(d: SketchBuilder) -> None:
        nonlocal now
        steps.append(0)
        way = d.choose("way", [str(n) for n in range(9)])
        for _ in range(100):
            now += 1
            d.block(d.s.blocks()[0])
            steps[-1] += 1
        if refused and way != "0":
            raise ScheduleError("not this way")

    drafts = enumerate_drafts(WORKLOAD.dag, TARGET, rules, enough=lambda: now > 250)
    assert steps == [100, 100, 50] and len(drafts) == (1 if refused else 2)
    now, steps[:] = 251, []
    assert len(enumerate_drafts(WORKLOAD.dag, TARGET, rules, enough=lambda: now > 250)) == 1
    assert steps == [100]


def test_a_reference_that_takes_longer_than_planned_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One draw says how busy the machine is."""
    made: list[tuple[int, ...]] = []

    def slowly(dag: ComputeDAG, inputs: Sequence[np.ndarray], **kind: bool) -> Draw:
        made.append(dag.params[0].shape)
        time.sleep(2.0)
        return judged(dag, inputs, **kind)

    monkeypatch.setattr(measurer, "judged", slowly)
    dag = ops.workload("matmul", {"m": 5, "n": 7, "k": 300}).dag
    Measurer(dag, TARGET, whole_s=3.0)
    assert len(made) > 1
    made.clear()
    Measurer(dag, TARGET, whole_s=1.0)
    assert len(made) == 1


def test_a_reference_that_takes_much_longer_than_planned_ends() -> None:
    dag = ops.workload("softmax", {"m": 64, "n": 64}).dag
    with pytest.raises(WorkloadError, match=r"right result of .* takes more than the 0 s there are"):
        Measurer(dag, TARGET, most_s=0.0)
