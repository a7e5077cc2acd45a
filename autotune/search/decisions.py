"""Reads the decisions that made a trace from the record that keeps them."""

from __future__ import annotations

from kernels_db.records import Record
from schedules.space.base import Candidate, Space

DECISIONS = "decisions"  # key in the environment of a record


def candidate_of(record: Record, space: Space) -> Candidate | None:
    """The decisions that a record states, if they fit a sketch of this space; else None."""
    row = record.environment.get(DECISIONS)
    if record.sketch not in space.sketches or not isinstance(row, list):
        return None
    sketch = space.sketches.index(record.sketch)
    if len(row) != len(space.holes(sketch)) or not all(type(x) is int and abs(x) < 2**62 for x in row):
        return None
    return Candidate(sketch, tuple(row))
