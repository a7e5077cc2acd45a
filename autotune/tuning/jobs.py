"""What a run is asked for: tasks, and the options of the run in which they share a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.results.tuned import SuiteTask
from autotune.tuning.options import TuneOptions


@dataclass(frozen=True)
class Job:
    """What is tuned for a target: tasks, and the options of the run in which they share a budget.
    ``always``: how many tasks are begun however short the budget is; at least one of a task alone."""

    tasks: Sequence[SuiteTask]
    options: TuneOptions
    always: int = 0
