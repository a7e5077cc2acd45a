"""Reads the decisions that made a trace from the record that keeps them, and says which tasks have some."""

from __future__ import annotations

from kernels_db.records import Record
from schedules.errors import WorkloadError
from schedules.model import Workload
from schedules.space.base import Candidate, Space
from schedules.te.compute_dag import ComputeDAG

DECISIONS = "decisions"  # key in the environment of a record
# Most stages of a task of a log whose space is derived to learn from it: the time grows with their square.
STAGES = 64


def candidate_of(record: Record, space: Space) -> Candidate | None:
    """The decisions that a record states, if they fit a sketch of this space; else None."""
    row = record.environment.get(DECISIONS)
    if record.sketch not in space.sketches or not isinstance(row, list):
        return None
    sketch = space.sketches.index(record.sketch)
    if len(row) != len(space.holes(sketch)) or not all(type(x) is int and abs(x) < 2**62 for x in row):
        return None
    return Candidate(sketch, tuple(row))


def learnable(workload: Workload) -> ComputeDAG:
    """The DAG of a workload of a log, which may be a stranger's, under canonical names. Raises
    `WorkloadError` where it takes long to make a space of it."""
    if len(workload.dag.stages) > STAGES:
        raise WorkloadError(f"it has more than {STAGES} stages, of which no space is made here")
    return workload.canonical
