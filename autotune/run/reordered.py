"""A workload that a log holds with its tensors in another order, which is part of what a workload is found
by, so that it is another one; the message of what is not found says so. Names are not part of it
(`schedules.te.names`), but tell here which tensor is which."""

from __future__ import annotations

import json
from typing import Any

from kernels_db import lookup
from schedules.model import Workload
from schedules.te.compute_dag import ComputeDAG


def reordered(workload: Workload, where: str) -> str | None:
    """In which order a stored workload lists the same tensors, in words; None if there is none such."""
    members = _unordered(workload.dag)
    for text, names in lookup.of_flops(where, workload.flops):
        try:
            other = Workload.from_json(text, names=json.loads(names)).dag
        except (ValueError, TypeError, AttributeError, RecursionError):  # damaged, or of another version
            continue
        if _unordered(other) == members and other != workload.dag:
            listed = ", ".join(t.name for t in other.params)
            return f"stored there with its tensors in another order: {listed}; list them so"
    return None


def _unordered(dag: ComputeDAG) -> Any:
    """The JSON of a DAG, whatever order its tensors are listed in."""
    v = dag.to_json()
    return v | {k: sorted(v[k], key=str) for k in ("inputs", "stages", "outputs")}
