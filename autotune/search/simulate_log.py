"""Tables of tuning logs: the records of one task, by their decisions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from autotune.run.describing import describe
from autotune.search.decisions import candidate_of
from autotune.search.table import NO_TABLE, ReplayError, Sheet, Table, TableSpace
from kernels_db.records import Record
from kernels_db.store import Log
from kernels_db.temporary import temporary_folder
from schedules.space import derive
from schedules.space.base import Candidate

# Most tasks that a message lists.
SHOWN = 10
# Statuses of a record that make its schedule a wrong one.
WRONG = ("wrong_result", "out_of_bounds")


def of_export(file: Path, task: str | None) -> Table:
    """The table of an export, or of T4 results of a log."""
    with temporary_folder() as folder, Log(folder / "import.db") as log:
        merged = log.merge(file)
        if not merged.new:
            raise ReplayError(NO_TABLE.format(file))
        table = of_log(log, task, str(file))
    refused = sum(merged.refused.values())
    note = f"{refused} lines of {file} are not valid, and were left out"
    return replace(table, notes=(*table.notes, note)) if refused else table


def of_log(log: Log, task: str | None, path: str | None = None) -> Table:
    """The table of one task: the one asked for, else the one with the most records. ``path``: name of the log
    in messages. Raises `ReplayError`."""
    path = path or log.path
    known = log.readable_tasks()
    tasks = sorted((f"{describe(w, t.threads)} on {t.arch}", task) for task, w, t in known)
    if not tasks:
        raise ReplayError(f"{path} has no records")
    names = tuple(name for name, _ in tasks)
    if task is None:
        index = max(range(len(tasks)), key=lambda i: sum(log.by_status(*tasks[i][1]).values()))
    else:
        index = _chosen(names, task, path)
    table = _of_task(log, *tasks[index][1], names[index], path)
    return replace(table, task=index + 1, tasks=names)


def _chosen(names: Sequence[str], task: str, path: str) -> int:
    if task.strip().isdecimal():
        found = [i for i in range(len(names)) if i + 1 == int(task)]
    else:
        words = task.lower().replace(",", " ").split()
        found = [i for i, name in enumerate(names) if all(w in name.lower() for w in words)]
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} tasks of {path} are" if found else f"no task of {path} is"
    raise ReplayError(f"{what} {task!r}; choose by number or by words: {listed(names)}")


def listed(names: Sequence[str]) -> str:
    """Tasks with their numbers, `SHOWN` of them at most."""
    shown = [f"{i}: {name}" for i, name in enumerate(names[:SHOWN], 1)]
    return "; ".join(shown) + (f"; ... {len(names)} in all" if len(names) > SHOWN else "")


def _of_task(log: Log, workload_digest: str, target_digest: str, name: str, path: str) -> Table:
    workload, target = log.workload(workload_digest), log.target(target_digest)
    space = derive(workload.canonical, target)
    records: defaultdict[Candidate, list[Record]] = defaultdict(list)
    for r in log.records(workload=workload, target=target):
        candidate = candidate_of(r, space)
        if candidate is not None:
            records[candidate].append(r)
    shown = {c: _shown(found) for c, found in records.items()}
    times = {c: math.nan if r is None or not r.time_s else r.time_s for c, r in shown.items()}
    while ran := [c for c, t in times.items() if math.isfinite(t)]:
        fastest = min(ran, key=lambda c: times[c])
        if (record := shown[fastest]) is None or not log.doubts(record):
            break
        times[fastest] = math.nan  # another record, not this trial, found it wrong
    sheets = []
    for i, sketch in enumerate(space.sketches):
        mine = [(c.row, t) for c, t in times.items() if c.sketch == i]
        if mine:
            rows = np.array([row for row, _ in mine], dtype=np.int64).reshape(len(mine), -1)
            reached = np.array([t for _, t in mine])
            sheets.append(Sheet(sketch, space.holes(i), rows, reached, space.features(i, rows)))
    if not sheets:
        raise ReplayError(f"{path}: no record of {name} has decisions of this version's space; tune anew")
    if not np.isfinite(list(times.values())).any():
        raise ReplayError(f"{path}: none of the {len(times)} configurations of {name} ran")
    return Table(name, TableSpace(sheets, space.feature_names))


def _shown(records: Sequence[Record]) -> Record | None:
    """The record that stands for a schedule, by the rule of `kernels_db.ranking`: its newest final, else its
    fastest trial, else one given up as slow, with its time. None if the schedule did not run or was wrong."""
    finals = [r for r in records if r.kind == "final"]
    trials = [r for r in records if r.status == "ok"] or [r for r in records if r.status == "slow"]
    if finals:
        shown = max(finals, key=_moment)
    elif trials:
        shown = min(trials, key=lambda r: (r.time_s or math.inf, *_moment(r)))
    else:
        return None
    wrong = any(r.status in WRONG and _moment(r) > _moment(shown) for r in records)
    return None if wrong or shown.status not in ("ok", "slow") else shown


def _moment(r: Record) -> tuple[str, str]:
    return r.created, r.uid
