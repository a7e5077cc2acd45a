"""What earlier runs of a task teach: records of the log as results of a search.

A trial keeps the name of its sketch and its decisions beside its trace. Where they still make the
same trace, the record is learnt from; a record of another version of the space, or of a schedule
written by hand, only says what need not be measured again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from autotune.search.base import Result
from kernels_db.records import Record
from schedules.space.base import Candidate, Space

DECISIONS = "decisions"  # key in the environment of a record
MOST = 2000  # records to learn from: the fastest; making their traces takes time


@dataclass(frozen=True)
class Earlier:
    """``trials``: traces measured before; ``digests``: of those; ``results``: what the search can
    learn from."""

    trials: int
    digests: frozenset[str]
    results: tuple[Result, ...]


def throughput(status: str, time_s: float | None) -> float:
    """Runs a second, 0 for a failure. A candidate given up as slow counts with the time it had: it
    ran, and says more than a crash."""
    return 1.0 / time_s if status in ("ok", "slow") and time_s is not None and time_s > 0 else 0.0


def read(records: Iterable[Record], space: Space, most: int = MOST) -> Earlier:
    """Sum up records, oldest first: the last final of a trace counts, else its fastest trial. Learnt from are
    the ``most`` fastest, fastest first."""
    reached: dict[str, tuple[float, bool]] = {}  # by trace digest: throughput, is it a final
    decided: dict[str, Candidate] = {}
    for record in records:
        final = record.kind == "final"
        value = throughput(record.status, record.time_s)
        before = reached.get(record.trace_digest)
        if before is None or final or (not before[1] and value > before[0]):
            reached[record.trace_digest] = (value, final)
        candidate = _candidate(record, space)
        if candidate is not None:
            decided.setdefault(record.trace_digest, candidate)
    fastest = sorted(decided, key=lambda d: (-reached[d][0], d))[:most]
    results = [Result(decided[d], reached[d][0]) for d in fastest if _makes(space, decided[d], d)]
    return Earlier(len(reached), frozenset(reached), tuple(_valid(space, results)))


def _candidate(record: Record, space: Space) -> Candidate | None:
    """The decisions that a record claims, if they fit a sketch of this space in kind."""
    row = record.environment.get(DECISIONS)
    if record.sketch not in space.sketches or not isinstance(row, list):
        return None
    sketch = space.sketches.index(record.sketch)
    if len(row) != len(space.holes(sketch)) or not all(type(x) is int and abs(x) < 2**62 for x in row):
        return None
    return Candidate(sketch, tuple(row))


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
