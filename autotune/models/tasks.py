"""The tasks of a model: each expression that it runs, once, with how often it runs and for which nodes."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from autotune.models.outline import Outline
from autotune.tuning.suite_tuner import SuiteTask

if TYPE_CHECKING:
    from kernels_db.store import Log
    from schedules.model import Target, Workload

SHOWN = 3  # nodes of a task in tables


def suite_tasks(outline: Outline) -> list[SuiteTask]:
    """The tasks of an outline, in its order. The weight is how often a call of the model runs it."""
    return [
        SuiteTask(workload, float(outline.count(i)), shown_nodes(outline, i))
        for i, workload in enumerate(outline.tasks)
    ]


def shown_nodes(outline: Outline, task: int) -> str:
    """The nodes of a task, few of many."""
    nodes = outline.nodes(task)
    more = f" +{len(nodes) - SHOWN}" if len(nodes) > SHOWN else ""
    return ", ".join(nodes[:SHOWN]) + more


def had_share_s(log: Log, workload: Workload, target: Target) -> float:
    """Seconds of budget that finished runs gave a task. A run of many tasks gave each the same share, as its
    scheduler turned to where more was to be gained. Runs with a limit of trials do not count."""
    shares = [
        run.options.get("share_s")
        for run in log.runs(workload=workload, target=target)
        if run.state == "done" and run.options.get("trials") is None
    ]
    return sum(float(s) for s in shares if isinstance(s, (int, float)) and s > 0)


def had_trials(log: Log, workload: Workload, target: Target, most: int) -> int:
    """Trials that a log has of a task, failures too; counted up to ``most``."""
    records = log.records(workload=workload, target=target, kind="trial")
    return sum(1 for _ in islice(records, most))
