"""What a run is asked for: tasks, and the options of the run in which they share a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.results.tuned import SuiteTask
from autotune.tuning.options import TuneOptions

# What a call of all takes (seconds) and the share of the limit that it reaches, of tasks' times and of their
# limits, both by digest. None: not known.
Whole = Callable[[Mapping[str, float], Mapping[str, float]], tuple[float | None, float | None]]


@dataclass(frozen=True)
class Job:
    """What is tuned for a target: tasks, and the options of the run in which they share a budget.
    ``always``: how many tasks are begun however short the budget is; at least one of a task alone.
    ``whole``: what ``until`` is compared with (None: the weighted sum of all tasks)."""

    tasks: Sequence[SuiteTask]
    options: TuneOptions
    always: int = 0
    whole: Whole | None = None
