"""Turns records of earlier runs of a task into results that a search learns from.

A trial keeps its sketch's name and its decisions beside its trace. If they still make the same trace, the
search learns from the record. A record of another version of the space, or of a schedule written by hand,
only says what need not be measured again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.backends.building.generator_version import generator_version
from autotune.search.base import Result
from autotune.search.decisions import candidate_of
from kernels_db.errors import LogError
from kernels_db.records import SHORTEST_S
from schedules.model import Target, Workload
from schedules.space.base import Candidate, Space, trace_of

if TYPE_CHECKING:
    from kernels_db.store import Log

# Key in the environment of a record: what a device and its compiler reported.
FACTS = "device"
# Most records to learn from, the fastest: making their traces takes time.
MOST = 2000
# Most records that are read, so that no log fills the memory.
READ = 200_000


@dataclass(frozen=True)
class Earlier:
    """Earlier records. ``trials``: number of traces measured; ``digests``: of these traces; ``results``:
    those that a search can learn from."""

    trials: int
    digests: frozenset[str]
    results: tuple[Result, ...]


def throughput(status: str, time_s: float | None) -> float:
    """Runs a second, 0 for a failure, and for a time that no kernel takes. A candidate given up as slow
    counts with its time, because it ran."""
    ran = status in ("ok", "slow") and time_s is not None and time_s >= SHORTEST_S
    return 1.0 / time_s if ran and time_s is not None else 0.0


def read(
    log: Log,
    workload: Workload | str,
    target: Target | str,
    space: Space,
    most: int = MOST,
    tolerant: bool = False,
) -> Earlier:
    """Sum up a task's records, oldest first. A trace counts with its last final, else with its fastest trial.
    The ``most`` fastest are learnt from, in the order of their trials, so that the time without a gain is
    known.

    Candidates may be tried again if they failed without being run, or as code of another generator; if
    ``tolerant`` (the user states the tolerance) also those that were wrong."""
    again = {"error", "wrong_result"} if tolerant else {"error"}
    reached: dict[str, tuple[float, bool]] = {}  # trace digest: (throughput, whether it is a final)
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
    """Whether these decisions still make the trace with this digest. They may come from any log."""
    try:
        trace = trace_of(space, candidate)
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
