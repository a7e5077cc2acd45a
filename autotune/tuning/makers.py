"""What makes jobs: a suite, one task. A range of sizes and a model do so in files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from autotune.results.tuned import SuiteResult, SuiteTask, TaskResult, TuneResult
from autotune.tuning.jobs import Job
from autotune.tuning.options import TuneOptions
from schedules.model import Target, Workload

R_co = TypeVar("R_co", covariant=True)


class JobMaker(Protocol[R_co]):
    """Something to tune: a suite, an operator, a range of its sizes, a model. It makes a job for each target,
    and a result of what became of it."""

    def job(self, target: Target) -> Job:
        """The tasks for a target. None of them: nothing is left to tune."""

    def result(self, target: Target, found: SuiteResult) -> R_co:
        """``found``: of the tasks of `job`, in their order."""


@dataclass(frozen=True)
class Tasks:
    """A suite: the same tasks for every target."""

    tasks: Sequence[SuiteTask]
    options: TuneOptions

    def job(self, target: Target) -> Job:
        return Job(self.tasks, self.options)

    def result(self, target: Target, found: SuiteResult) -> SuiteResult:
        return found


@dataclass(frozen=True)
class OneTask:
    """A workload. ``here``: whether this machine alone measures: then why it cannot be tuned is raised."""

    workload: Workload
    options: TuneOptions
    here: bool = True

    def job(self, target: Target) -> Job:
        return Job([SuiteTask(self.workload)], self.options)

    def result(self, target: Target, found: SuiteResult) -> TuneResult:
        (task,) = found.tasks
        if self.here and task.cause is not None:
            raise task.cause
        return replace(with_error(task), aimed=found.aimed)


def with_error(task: TaskResult) -> TuneResult:
    """The result of a task, with why it has no kernel, or why it got less time than it had."""
    result = task.result
    if task.error is None or result.best is None:
        return replace(result, error=task.error or result.error)
    return replace(result, notes=(*result.notes, f"it ended early: {task.error}"))
