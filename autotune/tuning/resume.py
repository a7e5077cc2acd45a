"""What earlier runs of a task teach: records of the log as results of a search.

A trial keeps the name of its sketch and its decisions beside its trace. Where they still make the
same trace, the record is learnt from; a record of another version of the space, or of a schedule
written by hand, only says what need not be measured again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.building.generator_version import generator_version
from autotune.search.base import Result
from autotune.search.decisions import candidate_of
from kernels_db.errors import LogError
from schedules.model import Target, Workload
from schedules.space.base import Candidate, Space

if TYPE_CHECKING:
    from kernels_db.store import Log

FACTS = "device"  # key in the environment of a record: what a device and its compiler told
MOST = 2000  # records to learn from: the fastest; making their traces takes time
SEEDS = 8  # of other targets, to be tried first
READ = 200_000  # records to look at, so that no log, wherever it came from, fills the memory


@dataclass(frozen=True)
class Earlier:
    """``trials``: traces measured before; ``digests``: of those; ``results``: what the search can
    learn from."""

    trials: int
    digests: frozenset[str]
    results: tuple[Result, ...]


def elsewhere(log: Log, workload: Workload, target: Target, space: Space) -> list[Candidate]:
    """What was best for this workload on other targets of the kind, best first, in turns: decisions that are
    valid in this space too. Their times mean nothing here."""
    kept: list[list[Candidate]] = []
    for w, t in log.tasks(workload=workload):
        try:
            if t == target.digest or log.target(t).kind != target.kind:
                continue
            best = log.top_k(w, t, SEEDS)
        except LogError:  # damaged, or of a newer version
            continue
        found = [Result(c, 1.0) for r in best if (c := candidate_of(r, space)) is not None]
        kept.append([r.candidate for r in _valid(space, found)])
    turns = [c for turn in zip_longest(*kept) for c in turn if c is not None]
    return list(dict.fromkeys(turns))[:SEEDS]


def throughput(status: str, time_s: float | None) -> float:
    """Runs a second, 0 for a failure. A candidate given up as slow counts with the time it had: it
    ran, and says more than a crash."""
    return 1.0 / time_s if status in ("ok", "slow") and time_s is not None and time_s > 0 else 0.0


def read(
    log: Log,
    workload: Workload | str,
    target: Target | str,
    space: Space,
    most: int = MOST,
    tolerant: bool = False,
) -> Earlier:
    """Sum up a task's records, oldest first: the last final of a trace counts, else its fastest trial. Learnt
    from are the ``most`` fastest, in the order of their trials: how long nothing better was found is part of
    it. What failed without being tried, or as the code of another generator, may be tried again; and
    ``tolerant``, where the user says how far results may be off, what was wrong."""
    again = {"error", "wrong_result"} if tolerant else {"error"}
    reached: dict[str, tuple[float, bool]] = {}  # by trace digest: throughput, is it a final
    decided: dict[str, Candidate] = {}
    told: dict[str, Mapping[str, Any]] = {}

    @cache
    def generator(machine: str) -> object:
        try:
            return log.machine(machine).info.get("generator")
        except LogError:  # damaged
            return None

    for record in islice(log.records(workload=workload, target=target), READ):
        value = throughput(record.status, record.time_s)
        if not value and (record.status in again or generator(record.machine) != generator_version()):
            continue
        final = record.kind == "final"
        before = reached.get(record.trace_digest)
        if before is None or final or (not before[1] and value > before[0]):
            reached[record.trace_digest] = (value, final)
        candidate = candidate_of(record, space)
        if candidate is not None:
            decided.setdefault(record.trace_digest, candidate)
        facts = record.environment.get(FACTS)
        if isinstance(facts, dict):
            told.setdefault(record.trace_digest, facts)
    fastest = set(sorted(decided, key=lambda d: (-reached[d][0], d))[:most])
    results = [
        Result(decided[d], reached[d][0], told.get(d))
        for d in reached
        if d in fastest and _makes(space, decided[d], d)
    ]
    return Earlier(len(reached), frozenset(reached), tuple(_valid(space, results)))


def _makes(space: Space, candidate: Candidate, digest: str) -> bool:
    """Whether decisions, which may come from anywhere, still make this trace."""
    try:
        trace = space.trace(candidate.sketch, np.array(candidate.row, dtype=np.int64))
    except (ValueError, LookupError, ArithmeticError):  # no decision of this space
        return False
    return trace.digest == digest


def _valid(space: Space, results: list[Result]) -> list[Result]:
    keep = np.zeros(len(results), dtype=bool)
    for sketch in {r.candidate.sketch for r in results}:
        where = [i for i, r in enumerate(results) if r.candidate.sketch == sketch]
        rows = np.array([results[i].candidate.row for i in where], dtype=np.int64)
        keep[where] = space.valid(sketch, rows.reshape(len(where), -1))
    return [r for r, good in zip(results, keep) if good]
