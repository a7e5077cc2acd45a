"""What a suite is asked for and gives back: tasks, their results, and where a run of them stands."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.tuning.options import TuneOptions
from autotune.tuning.results import Progress, TuneResult
from schedules.model import Workload

if TYPE_CHECKING:
    from autotune.report import Written


@dataclass(frozen=True)
class SuiteTask:
    """A workload of a suite. ``weight``: how often it runs; ``group``: its name in the suite. ``trials``:
    most new trials of it, if it has a limit of its own. ``later``: whether the others have a kernel first."""

    workload: Workload
    weight: float = 1.0
    group: str = ""
    trials: int | None = None
    later: bool = False

    def __repr__(self) -> str:
        group = f", {self.group[:80]}" if self.group else ""
        return f"<SuiteTask {self.workload.op[:80]} x {self.weight:g}{group}>"


@dataclass(frozen=True)
class Job:
    """What is tuned for a target: tasks, and the options of the run in which they share a budget."""

    tasks: Sequence[SuiteTask]
    options: TuneOptions


@dataclass(frozen=True)
class TaskResult:
    """``seconds``: time of the budget that the task took; ``error``: why it could not be tuned or has no
    kernel, else None."""

    task: SuiteTask
    result: TuneResult
    seconds: float
    error: str | None = None

    def __repr__(self) -> str:
        from autotune.progress import text

        return f"<TaskResult {text.short(self.result)}>"


@dataclass(frozen=True)
class SuiteProgress:
    """Where a suite stands. ``number``, ``task``: the task of this turn and its progress. ``weighted_s``: Σ
    weight · best time (seconds), None while a task has no kernel. ``provisional``: whether a time in it was
    not measured again yet. ``ready``: tasks that have a kernel which is not the plain loops alone.
    ``machine``: of a fleet, which measures."""

    number: int
    tasks: int
    workload: Workload
    task: Progress
    weighted_s: float | None
    ready: int
    measured: int
    elapsed_s: float
    budget_s: float
    provisional: bool = False
    machine: str = ""

    def __repr__(self) -> str:
        return f"<SuiteProgress {self.ready} of {self.tasks} tasks ready, {self.measured} trials>"


@dataclass(frozen=True)
class SuiteResult:
    """Results in the order of the tasks. ``weighted_s``: Σ weight · best time (seconds), None if a task has
    no kernel, or its plain loops alone. ``stopped``: "budget", "trials", "exhausted", "converged" (no gain
    expected of any task), "interrupted", or "no machine" (the last one of a fleet left). ``needed_s``: a
    budget in which each task gets a kernel, as foretold by those that did; None where each has had its turn.

    Example: ``[task.result.best for task in result.tasks]``.
    """

    tasks: tuple[TaskResult, ...]
    weighted_s: float | None
    measured: int
    elapsed_s: float
    budget_s: float
    seed: int
    stopped: str
    needed_s: float | None = None

    def __repr__(self) -> str:
        return f"<SuiteResult {self}>"

    @property
    def late(self) -> tuple[TaskResult, ...]:
        """The tasks for which there was no time."""
        return late(self.tasks)

    def __str__(self) -> str:
        """One line: how many tasks have kernels, what they take together, how many trials and how long."""
        from autotune.progress import text

        return text.of_tasks(self)

    def _repr_html_(self) -> str:
        from autotune.progress import html

        return html.of_tasks(self)

    def report(self, path: str | os.PathLike[str]) -> Written:
        """Write one page of HTML about the tasks of this suite. See `TuneResult.report`."""
        from autotune import report

        return report.of_results(path, [t.result for t in self.tasks])


def late(tasks: Iterable[TaskResult]) -> tuple[TaskResult, ...]:
    """Those of ``tasks`` that had no turn and have no kernel, or the plain loops alone."""
    return tuple(t for t in tasks if t.result.stopped == "not begun" and not t.result.ready)
