"""What a run is asked for: tasks, and the options of the run in which they share a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.progress.units import visible
from autotune.run.describing import describe
from autotune.tuning.options import TuneOptions
from schedules.model import Workload

LONGEST = 60  # characters of a name


@dataclass(frozen=True)
class SuiteTask:
    """A workload of a suite. ``weight``: how often it runs; ``group``: its name in the suite. ``trials``:
    most new trials of it, if it has a limit of its own. ``later``: whether the others have a kernel first."""

    workload: Workload
    weight: float = 1.0
    group: str = ""
    trials: int | None = None
    later: bool = False

    @property
    def about(self) -> str:
        """What people know it by: its name in a suite or a model, else what it computes."""
        return visible(self.group or describe(self.workload))[:LONGEST]

    def __repr__(self) -> str:
        group = f", {self.group[:80]}" if self.group else ""
        return f"<SuiteTask {self.workload.op[:80]} x {self.weight:g}{group}>"


@dataclass(frozen=True)
class Job:
    """What is tuned for a target: tasks, and the options of the run in which they share a budget.
    ``always``: how many tasks are begun however short the budget is; at least one of a task alone."""

    tasks: Sequence[SuiteTask]
    options: TuneOptions
    always: int = 0
