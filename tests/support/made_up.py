"""Runs whose space, measurers or machine's limit are made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from autotune.results.tuned import SuiteResult, SuiteTask, TuneResult
from autotune.tuning import tuner
from autotune.tuning.site import Here
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
    *args: Any,
    space: Space | None = None,
    measurer: Any = None,
    peak: Callable[[], float] | None = None,
    **more: Any,
) -> TuneResult:
    """`tuner.tune` of a made-up space, with a measurer and a limit of ours."""
    site = MadeUp(None if measurer is None else lambda _: measurer, peak)
    if space is None:
        return tuner.tune(*args, site=site, **more)
    with mock.patch("schedules.space.derive", lambda *_: space):
        return tuner.tune(*args, site=site, **more)


def tune_suite(
    tasks: Sequence[SuiteTask], target: Target, log: Log, *args: Any, measurers: Any = None, **more: Any
) -> SuiteResult:
    """`tuner.tune_suite` with measurers of ours."""
    return tuner.tune_suite(tasks, target, log, *args, site=MadeUp(measurers), **more)
