"""Schedules that a run may take, where outputs are to be inputs (ADR 105).

Candidates are timed with arrays of their own, so that records are true for every caller. What the proof
refuses is not tried, and a run does not see such records of a log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autotune.run.in_place import check, refusal
from autotune.tuning.resume import Earlier
from kernels_db.reading import TargetLike, WorkloadLike
from kernels_db.records import Record
from kernels_db.store import Log
from schedules.model import Target, Trace, TraceError, Workload
from schedules.space.base import Space, trace_of

FIRST_LOOK = 32  # records that are asked for at first, where some may be refused
MOST_LOOKED_AT = 1024
LEARNT = 64  # earlier trials that a search learns from, at most


class Allows:
    """Whether a schedule, under canonical names, allows what is asked; each is proved once. ``last``: why one
    does not."""

    def __init__(self, workload: Workload, target: Target, pairs: Mapping[str, str]) -> None:
        """``pairs``: ``{output: input}``. Raises ArgumentError where no schedule does."""
        self._workload, self._target, self._pairs = workload, target, dict(pairs)
        self._known: dict[str, bool] = {}
        self.last = ""
        if pairs:
            check(workload, target, pairs)

    @staticmethod
    def of(workload: Workload, target: Target, pairs: Mapping[str, str] | None) -> Allows:
        return Allows(workload, target, pairs or {})

    def __bool__(self) -> bool:
        """Whether anything is asked."""
        return bool(self._pairs)

    def learnt(self, earlier: Earlier, space: Space) -> Earlier:
        """What a search learns from earlier trials: of the fastest, those that are allowed."""
        if not self._pairs:
            return earlier
        fastest = sorted(earlier.results, key=lambda r: -r.throughput)[:LEARNT]
        return replace(earlier, results=tuple(r for r in fastest if self(trace_of(space, r.candidate))))

    def __call__(self, trace: Trace) -> bool:
        if not self._pairs:
            return True
        found = self._known.get(trace.digest)
        if found is None:
            why = refusal(self._workload, self._target, trace, self._pairs)
            found = self._known[trace.digest] = why is None
            self.last = self.last if why is None else str(why)
        return found


class AllowedLog(Log):
    """A log of which a run sees the records that allow what is asked."""

    def __init__(self, where: str, pairs: Mapping[str, str], read_only: bool = False) -> None:
        super().__init__(where, read_only)
        self._pairs = dict(pairs)
        self._allows: dict[tuple[str, str], Allows] = {}

    def top_k(self, workload: WorkloadLike, target: TargetLike, k: int) -> list[Record]:
        """The ``k`` best records of those that allow it, best first, one a trace."""
        if not self._pairs or isinstance(workload, str) or isinstance(target, str):
            return super().top_k(workload, target, k)
        task = (workload.named_digest, target.digest)
        allows = self._allows.get(task)
        if allows is None:
            allows = self._allows[task] = Allows(workload, target, self._pairs)
        n = max(k, FIRST_LOOK)
        while True:
            top = super().top_k(workload, target, n)
            found: list[Record] = []
            for r in top:
                if len(found) < k and _allowed(r, allows):
                    found.append(r)
            if len(found) == k or len(top) < n or n >= MOST_LOOKED_AT:
                return found
            n *= 4


def _allowed(record: Record, allows: Allows) -> bool:
    try:
        return allows(record.trace)
    except TraceError:
        return False
