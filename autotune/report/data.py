"""What a report knows of a log: its tasks with their records, runs, machines and limits."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from autotune.run.describing import describe
from autotune.tuning.known_limits import LIMIT, MEMORY_BYTES
from kernels_db.records import Record, Run
from schedules.instructions import INSTRUCTIONS
from schedules.instructions.work import RATE, arithmetic, limiting
from schedules.model import Target, Workload
from schedules.ops import compulsory_bytes
from schedules.space.gc_paused import gc_paused

if TYPE_CHECKING:
    from kernels_db.place import LogPlace
    from kernels_db.store import Log

# Statuses that are no failures: a candidate that is far from the best is not timed to the end.
STOPPED_EARLY = "slow"
NO_FAILURES = frozenset({"ok", STOPPED_EARLY})
# {status of a record: words for it}.
CAUSES = {
    "ok": "measured",
    "slow": "stopped early",
    "illegal": "not legal",
    "compile_error": "did not compile",
    "wrong_result": "wrong result",
    "out_of_bounds": "out of bounds",
    "crash": "crashed",
    "timeout": "ran too long",
    "error": "error of measuring",
}
# Fewer FLOPs a byte than this: memory bounds it on every machine of today, and GB/s say more than GFLOP/s.
FEW_FLOPS = 2.0


def number(x: object) -> float | None:
    """``x`` if it is a finite number, else None: a log may hold anything."""
    plain = isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) < 1e300
    return float(x) if plain else None  # type: ignore[arg-type]


@dataclass(frozen=True)
class Limit:
    """What a machine needs at least for a workload, as a run measured it. ``seconds``; ``flops_a_second`` of
    its arithmetic, ``bytes_a_second`` of the memory level that holds the arrays, None where they are not
    known. ``instructions``: rates of those that do some of it, as a `Roofline` has them. ``peak_of``: the
    instruction whose peak it is, where that is known without them."""

    seconds: float
    flops_a_second: float | None = None
    bytes_a_second: float | None = None
    instructions: Mapping[str, float] = field(default_factory=dict, hash=False)
    peak_of: str | None = None

    @staticmethod
    def of(value: object) -> Limit | None:
        """From a record's environment; None if it is none."""
        if not isinstance(value, Mapping):
            return None
        seconds, flops, moved = (
            x if (x := number(value.get(k))) and x > 0 else None
            for k in ("seconds", "flops_a_second", "bytes_a_second")
        )
        if seconds is None:
            return None
        known = {k: x for i in INSTRUCTIONS if (x := number(value.get(k := i + RATE))) and x > 0}
        return Limit(seconds, flops, moved, known)

    def operations(self, workload: Workload) -> float:
        """Operations of the workload that `flops_a_second` is of."""
        return sum(arithmetic(workload.dag, workload.flops, self.instructions).values())

    @property
    def by(self) -> str | None:
        """The fastest instruction that does some of the arithmetic, None if none does."""
        fastest = max(self.instructions, key=lambda k: self.instructions[k], default=None)
        return None if fastest is None else fastest.removesuffix(RATE)

    def instruction(self, workload: Workload) -> str | None:
        """The instruction whose peak it is, None if it is that of something else."""
        rates = {**self.instructions, "flops_a_second": self.flops_a_second or 0.0}
        return self.peak_of or limiting(workload.dag, workload.flops, self.seconds, rates)

    @staticmethod
    def shortest(records: Iterable[Record], machine: str | None) -> Limit | None:
        """The shortest that records of a machine keep (None: of any). None where none does."""
        found = (Limit.of(r.environment.get(LIMIT)) for r in records if machine in (None, r.machine))
        return min((x for x in found if x is not None), key=lambda x: x.seconds, default=None)


@dataclass(frozen=True)
class LoggedTask:
    """A workload on a target, with all that the log has of it. ``trials``, ``finals``: records, oldest first.
    ``machines``: {digest: what describes the machine}. ``best``: by the ranking of the log. ``qualities``:
    {model: how well it predicted}, kept as they are worked out."""

    workload: Workload
    target: Target
    trials: Sequence[Record]
    finals: Sequence[Record]
    runs: Sequence[Run]
    machines: Mapping[str, Mapping[str, Any]] = field(hash=False)
    best: Record | None
    qualities: dict[str, dict[str, float] | None] = field(default_factory=dict, hash=False)

    @cached_property
    def name(self) -> str:
        """What people call it."""
        return describe(self.workload, self.target.threads).removeprefix("the expression of ")

    @cached_property
    def by_status(self) -> Counter[str]:
        """Trials by status."""
        return Counter(r.status for r in self.trials)

    @property
    def failed(self) -> int:
        """Trials that failed."""
        return sum(n for status, n in self.by_status.items() if status not in NO_FAILURES)

    @cached_property
    def bytes(self) -> int:
        """Bytes of all inputs and outputs, each moved once."""
        return compulsory_bytes(self.workload.dag)

    @property
    def by_bytes(self) -> bool:
        """Whether its speed is told in bytes a second."""
        return self.workload.flops < FEW_FLOPS * self.bytes

    @cached_property
    def limit(self) -> Limit | None:
        """The shortest limit that runs on the machine of the best measured; None where none was logged."""
        machine = None if self.best is None else self.best.machine
        return Limit.shortest((*self.trials, *self.finals), machine)

    @property
    def share(self) -> float | None:
        """The limit over the time of the best."""
        if self.best is None or not self.best.time_s or self.limit is None:
            return None
        return self.limit.seconds / self.best.time_s

    @cached_property
    def peak_of(self) -> str | None:
        """The instruction whose peak the limit is, None if it is that of something else."""
        return None if self.limit is None else self.limit.instruction(self.workload)

    @cached_property
    def offsets(self) -> Mapping[str, float]:
        """{run: seconds of this task's earlier runs}, so that time of several runs is on one axis."""
        found, so_far = {}, 0.0
        last: dict[str, str] = {}
        for r in (*self.trials, *self.finals):
            last[r.run] = max(last.get(r.run, ""), r.created)
        for run in self.runs:
            if run.uid in last:
                found[run.uid] = so_far
                so_far += max(0.0, seconds_between(run.started, last[run.uid]))
        return found

    @cached_property
    def _started(self) -> dict[str, str]:
        return {run.uid: run.started for run in self.runs}

    def second(self, record: Record) -> float:
        """Seconds from the start of the record's run, after those of earlier runs."""
        started = self._started.get(record.run, record.created)
        return self.offsets.get(record.run, 0.0) + max(0.0, seconds_between(started, record.created))


@dataclass(frozen=True)
class LogData:
    """A log. ``place``: where it is, without a password. ``derived``: {(workload, target): bytes from memory
    by trace digest}, of tasks whose estimate was computed again from the decisions of their records."""

    place: str
    tasks: Sequence[LoggedTask]
    everything: bool
    derived: Mapping[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)

    @property
    def trials(self) -> int:
        """Trials of all tasks."""
        return sum(len(t.trials) for t in self.tasks)

    def place_of(self, task: LoggedTask) -> int:
        """The number of a task on the page, from 0."""
        return next(n for n, t in enumerate(self.tasks) if t is task)

    def memory_bytes(self, task: LoggedTask, record: Record) -> float | None:
        """Bytes that a candidate moves from and to memory, by the estimate: as its record keeps them, else
        computed again from its decisions, else None."""
        kept = number(record.environment.get(MEMORY_BYTES))
        if kept is None:
            kept = self.derived.get((task.workload.digest, task.target.digest), {}).get(record.trace_digest)
        return kept if kept is not None and kept > 0 else None


# Most tasks whose estimates are computed again where the log has none: each needs its space, tenths of a
# second.
DERIVED = 4


@gc_paused()  # many records are made, and kept
def read(
    db: str | os.PathLike[str] | LogPlace,
    workloads: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
) -> LogData:
    """Read a log. ``workloads``, ``targets``: digests of those wanted (None: all). Raises `LogError`."""
    from kernels_db.store import Log

    with Log(db, read_only=True) as log:
        known = {
            task: (w, t)
            for task, w, t in log.readable_tasks()
            if (workloads is None or task[0] in workloads) and (targets is None or task[1] in targets)
        }
        wanted = list(known)
        if len(wanted) <= DERIVED:
            records = [r for w, t in wanted for r in log.records(workload=w, target=t)]
        else:
            chosen = {*wanted}
            records = [r for r in log.records() if (r.workload, r.target) in chosen]
        tasks = _tasks(log, known, records)
        found = LogData(log.path, tasks, workloads is None)
    if 0 < len(tasks) <= DERIVED:
        derived = {(t.workload.digest, t.target.digest): _derived(t) for t in tasks}
        found = LogData(found.place, tasks, found.everything, derived)
    return found


def _tasks(
    log: Log, known: Mapping[tuple[str, str], tuple[Workload, Target]], records: Sequence[Record]
) -> list[LoggedTask]:
    by_task: defaultdict[tuple[str, str], list[Record]] = defaultdict(list)
    for r in records:
        by_task[r.workload, r.target].append(r)
    runs: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in log.runs():
        runs[run.workload, run.target].append(run)
    machines = {m: dict(log.machine(m).info) for m in {r.machine for r in records}}
    tasks = []
    for key, (workload, target) in known.items():
        of_task = by_task[key]
        tasks.append(
            LoggedTask(
                workload=workload,
                target=target,
                trials=[r for r in of_task if r.kind == "trial"],
                finals=[r for r in of_task if r.kind == "final"],
                runs=runs[key],
                machines={m: machines[m] for m in dict.fromkeys(r.machine for r in of_task)},
                best=log.best(*key),
            )
        )
    # first what was tuned last: it is what people look for
    return sorted(tasks, key=lambda t: max((r.started for r in t.runs), default=""), reverse=True)


def _derived(task: LoggedTask) -> dict[str, float]:
    """{trace digest: bytes from memory} by the estimate, from the decisions of records that lack them."""
    import numpy as np

    from autotune.search.columns import compile_columns
    from autotune.search.decisions import candidate_of, learnable
    from autotune.tuning.known_limits import ESTIMATED_BYTES
    from schedules.space import derive

    lacking = [r for r in task.trials if MEMORY_BYTES not in r.environment]
    if not lacking:
        return {}
    try:
        space = derive(learnable(task.workload), task.target, compile_columns)
    except Exception:  # a target of another version, or an expression that has no space: a log may hold any
        return {}
    if ESTIMATED_BYTES not in space.feature_names:
        return {}
    column = space.feature_names.index(ESTIMATED_BYTES)
    rows: defaultdict[int, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for r in lacking:
        candidate = candidate_of(r, space)
        if candidate is not None:
            rows[candidate.sketch][r.trace_digest] = candidate.row
    found: dict[str, float] = {}
    for sketch, of_sketch in rows.items():
        matrix = np.array([*of_sketch.values()], dtype=np.int64)
        ok = space.valid(sketch, matrix)
        values = np.full(len(matrix), np.nan)
        if ok.any():
            values[ok] = space.features(sketch, matrix[ok])[:, column]
        found |= {k: float(v) for k, v in zip(of_sketch, values, strict=True) if np.isfinite(v)}
    return found


def seconds_between(a: str, b: str) -> float:
    """Seconds from one moment of a log to another; 0 where one cannot be read."""
    try:
        return (datetime.fromisoformat(b) - datetime.fromisoformat(a)).total_seconds()
    except (ValueError, TypeError):
        return 0.0
