"""Measured candidates of a tuning log as data to learn from.

A record keeps its sketch's name and its decisions. The space of its task is derived anew, and gives the
features of those candidates that it still offers. Candidates of one task are compared on one machine only.
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_low

import numpy as np

from autotune.run.describing import describe
from autotune.search.decisions import candidate_of, learnable
from cost_model.training import TaskData
from kernels_db.errors import LogError
from kernels_db.place import locate
from kernels_db.records import SHORTEST_S, Record, host_digest
from kernels_db.sqlite import database_exists
from kernels_db.store import Log
from kernels_db.temporary import temporary_folder
from schedules.model import Target, Workload
from schedules.space import DerivedSpace, derive
from schedules.space.gc_paused import gc_paused

# Fewest candidates of a task that is learnt from.
LEAST = 8
# Most candidates of a task, the latest: judging compares all pairs.
MOST = 2000
# Rows of each sketch that say what is usual in a space.
SAMPLE = 128
# Longest time of a log that is believed (seconds); the shortest: `SHORTEST_S`.
LONGEST_S = 1e12


@dataclass(frozen=True)
class MeasuredSketch:
    """Candidates of one sketch: decisions ``rows`` [n, holes], seconds ``time_s`` [n] (NaN: failed) and
    whether each was ``drawn`` at random [n]."""

    name: str
    holes: tuple[str, ...]
    rows: np.ndarray
    time_s: np.ndarray
    drawn: np.ndarray


@dataclass(frozen=True)
class Measured:
    """A task and its candidates by sketch, which are called after the names in the workload's DAG: canonical
    ones, or in older files those of the library."""

    workload: Workload
    target: Target
    sketches: tuple[MeasuredSketch, ...]

    def __len__(self) -> int:
        return sum(len(s.rows) for s in self.sketches)


@dataclass(frozen=True)
class Learnable:
    """What logs have to learn from. ``tasks``: of those with features of one kind. ``candidates``: of all
    logs, whether learnt from or not. ``left_out``: {reason: tasks}."""

    tasks: tuple[TaskData, ...]
    candidates: int
    left_out: Mapping[str, int]

    @property
    def rows(self) -> int:
        """Candidates of the tasks."""
        return sum(len(t) for t in self.tasks)

    @property
    def workloads(self) -> list[str]:
        """Digests of the workloads, sorted."""
        return sorted({t.workload for t in self.tasks})


def of_places(places: Sequence[str], progress: Callable[[int, int], None] | None = None) -> Learnable:
    """The candidates of logs and of exports of logs together. The same record counts once. ``progress``:
    called with the tasks read and their number. Raises `LogError` for a place that cannot be read, with the
    remedy where none has a candidate."""
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(_opened(place)) for place in places]
        found = sorted({task for log in logs for task in log.tasks()})
        tasks: list[TaskData] = []
        left_out: Counter[str] = Counter()
        candidates = 0
        for k, (workload, target) in enumerate(found):
            if progress is not None:
                progress(k, len(found))
            try:
                parts = _of_task(logs, workload, target)
            except Exception:  # damaged, newer, or without a space: a log may hold any expression
                left_out["this version cannot read it or makes no space of it"] += 1
                continue
            for one, seen in parts:
                candidates += seen
                if one is None:
                    left_out[f"fewer than {LEAST} of its candidates are still offered"] += 1
                else:
                    tasks.append(one)
    kinds = Counter({t.feature_names: 0 for t in tasks})
    for t in tasks:
        kinds[t.feature_names] += len(t)
    most = kinds.most_common(1)[0][0] if kinds else ()
    kept = tuple(t for t in tasks if t.feature_names == most)
    if len(kept) < len(tasks):
        left_out["it is for another kind of target than most"] += len(tasks) - len(kept)
    if not kept:
        where = ", ".join(str(locate(p)) for p in places)
        why = "; ".join(f"of {n} tasks: {reason}" for reason, n in left_out.items()) or "it has no records"
        raise LogError(f"there is nothing to learn from in {where}: {why}; tune with this version first")
    return Learnable(kept, candidates, dict(left_out))


@contextlib.contextmanager
def _opened(place: str) -> Iterator[Log]:
    """A log to read; an export is read into a log of its own."""
    located = locate(place)
    if not located.exists():
        raise LogError(f"there is no tuning log at {located}; give the path of a log or of an export")
    path = Path(place)
    if "://" in place or not path.is_file() or database_exists(path):
        with Log(place, read_only=True) as log:
            yield log
        return
    with temporary_folder() as folder, Log(folder / "import.db") as log:
        log.merge(path)
        yield log


def _of_task(logs: Sequence[Log], workload: str, target: str) -> list[tuple[TaskData | None, int]]:
    """Data of a task on each machine that measured it, and how many candidates the logs have."""
    latest: defaultdict[str, deque[Record]] = defaultdict(lambda: deque(maxlen=MOST))
    seen: Counter[str] = Counter()
    machines: dict[str, str] = {}
    home, last = None, ""
    for log, record in _in_order(logs, workload, target):
        home = home or log
        if record.uid == last:  # in several logs, which have it at the same time
            continue
        last = record.uid
        if record.machine not in machines:
            machines[record.machine] = _machine(log, record.machine)
        mine = machines[record.machine]
        latest[mine].append(record)
        seen[mine] += 1
    if home is None:
        return []
    of, on = home.workload(workload), home.target(target)
    of = replace(of, dag=learnable(of))
    with gc_paused():
        space = derive(of.dag, on)
        return [
            (data_of(measured(of, on, space, mine), space), seen[machine])
            for machine, mine in sorted(latest.items())
        ]


def _in_order(logs: Sequence[Log], workload: str, target: str) -> Iterator[tuple[Log, Record]]:
    """The trials of a task in all logs, oldest first. A log may have more than fit in memory."""

    def of(log: Log) -> Iterator[tuple[Log, Record]]:
        return ((log, r) for r in log.records(workload=workload, target=target, kind="trial"))

    return heapq.merge(*map(of, logs), key=lambda found: (found[1].created, found[1].uid))


def _machine(log: Log, digest: str) -> str:
    """What tells a machine from others in a log, whatever its software: its name and its hardware."""
    try:
        info = log.machine(digest).info
    except LogError:  # damaged
        return digest
    return f"{info.get('name')} {host_digest(info)}"


def measured(
    workload: Workload,
    target: Target,
    space: DerivedSpace,
    trials: Iterable[Record],
    random: frozenset[str] = frozenset(),
) -> Measured:
    """The candidates of ``trials`` that the space still has, the median timing of each. ``workload``: with
    canonical names. ``random``: runs whose candidates were drawn at random."""
    found: dict[int, dict[tuple[int, ...], list[Record]]] = {}
    for r in trials:
        candidate = candidate_of(r, space) if r.kind == "trial" else None
        if candidate is not None:
            found.setdefault(candidate.sketch, {}).setdefault(candidate.row, []).append(r)
    sketches = []
    for s, of_rows in sorted(found.items()):
        rows = np.array(list(of_rows), dtype=np.int64).reshape(len(of_rows), -1)
        valid = space.valid(s, rows)
        times = np.array([_time_s(each) for each in of_rows.values()])
        drawn = np.array([any(r.run in random for r in each) for each in of_rows.values()])
        if valid.any():
            holes = tuple(space.holes(s))
            sketches.append(MeasuredSketch(space.sketches[s], holes, rows[valid], times[valid], drawn[valid]))
    return Measured(workload, target, tuple(sketches))


def still_offered(task: Measured, space: DerivedSpace) -> Iterator[tuple[int, int, np.ndarray]]:
    """Of each sketch that the space still has: its place in the task and in the space, and which of its
    candidates are valid there, [n]."""
    number = {name: k for k, name in enumerate(space.sketches)}
    for i, s in enumerate(task.sketches):
        k = number.get(s.name)
        if k is not None and tuple(space.holes(k)) == s.holes:
            yield i, k, space.valid(k, s.rows)


def data_of(task: Measured, space: DerivedSpace, least: int = LEAST) -> TaskData | None:
    """What a model learns from; None where fewer than ``least`` of the candidates are still offered, or none
    of them ran."""
    features, times = [], []
    for i, k, valid in still_offered(task, space):
        if valid.any():
            features.append(space.features(k, task.sketches[i].rows[valid]))
            times.append(task.sketches[i].time_s[valid])
    time_s = np.concatenate([np.zeros(0), *times])
    if len(time_s) < least or not np.isfinite(time_s).any():
        return None
    return TaskData(
        describe(task.workload, task.target.threads),
        task.workload.digest,
        task.target,
        space.feature_names,
        np.concatenate(features),
        time_s,
        reference_of(space),
    )


def reference_of(space: DerivedSpace) -> np.ndarray:
    """Features of a random sample of every sketch, those of its valid candidates."""
    rng = np.random.default_rng(0)
    parts = []
    for s in range(len(space.sketches)):
        rows = space.sample(s, SAMPLE, rng)
        parts.append(space.features(s, rows[space.valid(s, rows)]))
    return np.concatenate(parts)


def _time_s(trials: Sequence[Record]) -> float:
    """The median, the lower of two, of those that were not given up where there are any; NaN for one that
    failed."""
    for status in ("ok", "slow"):
        times = [r.time_s for r in trials if r.status == status and r.time_s is not None]
        if times := [t for t in times if SHORTEST_S <= t < LONGEST_S]:
            return median_low(times)
    return math.nan
