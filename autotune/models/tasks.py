"""The tasks of a model: each expression that it may run, once, with how often it runs and for which nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from typing import TYPE_CHECKING

from autotune.models.model import shown_sizes
from autotune.models.outline import Part, workload_of
from autotune.models.preparation import PreparedModel
from autotune.results.tuned import SuiteTask
from schedules.graph.graph import Group

if TYPE_CHECKING:
    from kernels_db.store import Log
    from schedules.model import Target, Workload

SHOWN = 3  # nodes of a task in tables


@dataclass(frozen=True)
class ModelTask:
    """``count``: how often a call of the model runs it. ``nodes``: names of the model's nodes, each once.
    ``later``: whether it only runs where groups run as several, which takes that these are known to be
    faster."""

    workload: Workload
    count: int
    nodes: tuple[str, ...]
    later: bool = False

    @property
    def shown(self) -> str:
        """The nodes, few of many."""
        more = f" +{len(self.nodes) - SHOWN}" if len(self.nodes) > SHOWN else ""
        return ", ".join(self.nodes[:SHOWN]) + more


def tasks_of(parts: Iterable[Part]) -> list[ModelTask]:
    """The tasks of groups, in their order. A group that can also run as several gives the tasks of both ways,
    because only measuring tells which is faster."""
    found: dict[str, ModelTask] = {}
    for part in parts:
        for group in (part, *part.parts) if isinstance(part, Group) else ():
            workload = workload_of(group.dag)
            old = found.get(workload.digest, ModelTask(workload, 0, (), True))
            nodes = tuple(dict.fromkeys((*old.nodes, *(group.origins or group.outputs[:1]))))
            found[workload.digest] = ModelTask(
                old.workload, old.count + 1, nodes, old.later and group is not part
            )
    return [*found.values()]


def tasks_of_programs(programs: Sequence[PreparedModel]) -> list[SuiteTask]:
    """The tasks of a model at all sizes, then those at its own sizes, each once.

    Weights are such that all sizes count alike: one call of the largest sizes, and as many calls of a single
    size as make as much. A task of both has both."""
    found: dict[str, SuiteTask] = {}
    most = {name: high for name, (_, high) in programs[0].model.sizes.items()}
    for one in programs:
        calls = prod(most[name] / n for name, n in one.sizes.items())
        for t in tasks_of(one.parts):
            named = f"{shown_sizes(one.sizes)}: {t.shown}" if one.sizes else t.shown
            old = found.get(t.workload.digest, SuiteTask(t.workload, 0.0, named, later=True))
            found[t.workload.digest] = replace(
                old, weight=old.weight + calls * t.count, later=old.later and t.later
            )
    return [*found.values()]


def had_share_s(log: Log, workload: Workload, target: Target) -> float:
    """The largest share of a budget (seconds) that a finished run gave a task. A run of many tasks gave each
    the same share, as its scheduler turned to where more was to be gained. Runs with a limit of trials do not
    count."""
    shares = [
        run.options.get("share_s")
        for run in log.runs(workload=workload, target=target)
        if run.state == "done" and run.options.get("trials") is None
    ]
    return max((float(s) for s in shares if isinstance(s, (int, float))), default=0.0)


def had_trials(log: Log, workload: Workload, target: Target, most: int) -> int:
    """Trials that a log has of a task, failures too; counted up to ``most``."""
    records = log.records(workload=workload, target=target, kind="trial")
    return sum(1 for _ in islice(records, most))
