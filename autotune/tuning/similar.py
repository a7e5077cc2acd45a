"""Schedules of similar tasks of a log, as candidates of another task.

Similar are expressions of the same structure at sizes that are not far, and the same expression on other
targets of its kind. A record keeps its decisions; each is replaced by the nearest one that the other space
allows. Their times are not used. Only the log's text is read, without SQLAlchemy, because loading asks too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from autotune.search.decisions import candidate_of
from kernels_db import lookup
from kernels_db.place import LogPlace
from kernels_db.records import Hit
from schedules.model import Target, Workload
from schedules.space.base import Candidate, Space
from schedules.te.structure import distance, structure

# Largest distance between the sizes of two tasks (doublings of all extents together).
FARTHEST = 8.0
# Distance that another target adds (doublings): one that differs in its number of threads only, and others.
OTHER_THREADS, OTHER_TARGET = 1.0, 2.0
# Times the text of the expression that a similar one may have.
LONGER = 2
# Workloads that are asked for schedules, the nearest, and records that are looked at of each.
WORKLOADS, RECORDS = 3, 64
# Rows near a schedule that is not valid at other sizes, one of which may be.
NEARBY = 64


@dataclass(frozen=True)
class Seed:
    """A candidate, and what chose it: "similar_shape", "similar_machine" (the same expression on another
    target), or "model"."""

    candidate: Candidate
    chosen_by: str


def seeds(workload: Workload, target: Target, space: Space, where: str | LogPlace, most: int) -> list[Seed]:
    """At most ``most`` candidates of ``space``, those of the nearest tasks first; each is valid. ``where``:
    the log. Raises `LogError`."""
    found: dict[Candidate, Seed] = {}
    if most < 1:
        return []
    for hit, same in _hits(workload, target, where, most):
        candidate = _moved(hit, space)
        if candidate is not None:
            found.setdefault(candidate, Seed(candidate, "similar_machine" if same else "similar_shape"))
    return list(found.values())[:most]


def _hits(workload: Workload, target: Target, where: str | LogPlace, most: int) -> Iterator[tuple[Hit, bool]]:
    """The best records of the nearest workloads, in turns, and whether they are of the same workload."""
    turns = []
    for _, digest in _near(workload, where):
        same = digest == workload.digest

        def fits(t: Target, same: bool = same) -> bool:
            return t.kind == target.kind and not (same and t == target)

        hits = lookup.top(where, digest, fits, None, RECORDS, tolerant=True)
        hits.sort(key=lambda h: (_apart(target, h.target), h.time_s))
        turns.append([(h, same) for h in hits if not h.doubted])
    yield from (hit for turn in zip_longest(*turns) for hit in turn if hit is not None)


def _near(workload: Workload, where: str | LogPlace) -> list[tuple[float, str]]:
    """(distance, digest) of the nearest workloads of one structure, the same one among them."""
    own = structure(workload.dag)
    found = []
    for text, names in lookup.about_flops(where, workload.flops, 2.0**FARTHEST):
        if len(text) > LONGER * len(workload.json):  # not of one structure, and may take long to read
            continue
        try:
            other = Workload.from_json(text, names=json.loads(names))
            apart = distance(own, structure(other.dag))
        except Exception:  # damaged, or of another version: a log may hold any expression
            continue
        if apart <= FARTHEST:
            found.append((apart, other.digest))
    return sorted(found)[:WORKLOADS]


def _apart(target: Target, other: Target) -> float:
    if other == target:
        return 0.0
    return OTHER_THREADS if replace(other, threads=target.threads) == target else OTHER_TARGET


def _moved(hit: Hit, space: Space) -> Candidate | None:
    """The record's candidate, with the nearest decisions that this space allows; None if there is none
    near."""
    decided = candidate_of(hit.record, space)
    if decided is None:
        return None
    s = decided.sketch
    row = space.nearest(s, np.array([decided.row], dtype=np.int64).reshape(1, -1))
    more = space.mutate(s, np.repeat(row, NEARBY, axis=0), np.random.default_rng(0))
    rows = np.concatenate([row, more])
    valid = np.flatnonzero(space.valid(s, rows))
    return Candidate(s, tuple(map(int, rows[valid[0]]))) if len(valid) else None
