"""Runs whose space, measurers or machine's limit are made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any
from unittest import mock

from autotune.results.tuned import SuiteResult, SuiteTask, TuneResult
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.makers import OneTask, Tasks
from autotune.tuning.options import TuneOptions
from autotune.tuning.site import Here, Site
from autotune.tuning.tuner import OneMachine, tune_jobs
from kernels_db import Log
from schedules.model import Target, Workload
from schedules.space.base import Space


class MadeUp(Here):
    """This machine, with measurers and a limit of ours; None: its own."""

    def __init__(
        self,
        measurers: Callable[[Workload], Any] | None = None,
        peak: Callable[[], float] | None = None,
    ) -> None:
        self.measurers, self.peak = measurers, peak

    def check(self, target: Target) -> None:
        if self.measurers is None:
            super().check(target)

    def roofline(self, workload: Workload, target: Target) -> Callable[[], float] | None:
        return super().roofline(workload, target) if self.peak is None else self.peak

    def measurer(self, workload: Workload, *args: Any, **more: Any) -> Any:
        if self.measurers is None:
            return super().measurer(workload, *args, **more)
        made = self.measurers(workload)
        for name in ("nominal", "control"):
            if not hasattr(made, name):
                setattr(made, name, None)
        return made


def tune(
    workload: Workload,
    target: Target,
    log: Log,
    options: TuneOptions | None = None,
    progress: Any = None,
    *,
    space: Space | None = None,
    measurer: Any = None,
    peak: Callable[[], float] | None = None,
    site: Site | None = None,
    interrupts: Interrupts | None = None,
) -> TuneResult:
    """A run of one task: of a made-up space, or with a measurer and a limit of ours, or on a site."""
    site = site or MadeUp(None if measurer is None else lambda _: measurer, peak)
    maker = OneTask(workload, options or TuneOptions())
    with nullcontext() if space is None else mock.patch("schedules.space.derive", lambda *_: space):
        return tune_jobs(maker, OneMachine(target, site), log, progress, interrupts=interrupts)[target]


def tune_suite(
    tasks: Sequence[SuiteTask],
    target: Target,
    log: Log,
    options: TuneOptions | None = None,
    progress: Any = None,
    *,
    measurers: Any = None,
    site: Site | None = None,
    interrupts: Interrupts | None = None,
) -> SuiteResult:
    """A run of tasks, with measurers of ours, or on a site."""
    maker, place = Tasks(tasks, options or TuneOptions()), OneMachine(target, site or MadeUp(measurers))
    return tune_jobs(maker, place, log, progress, interrupts=interrupts)[target]
