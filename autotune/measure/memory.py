"""Whether a workload's arrays fit into the free memory. Asked before any of them is made, because Linux kills
a process that takes too much without telling it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

from autotune.platform.cpus import memory_left
from autotune.platform.files import CGROUPS
from schedules.errors import WorkloadError
from schedules.te.compute_dag import ComputeDAG

# Copies of each input and output: here, shared, at up to four places in the worker, and bounds.
COPIES = 9
# Bytes for an element of any tensor while the reference computes: itself and a temporary in float64.
WIDE_BYTES = 16
# Share of the free memory that is left to others.
RESERVE = 0.1


def needed_bytes(dag: ComputeDAG) -> int:
    """Most bytes that measuring a DAG takes, about, in all its processes together."""
    params = sum(t.nbytes for t in dag.params)
    elements = sum(math.prod(t.shape) for t in dag.tensors.values())
    return COPIES * params + WIDE_BYTES * elements


def free_bytes(root: Path = CGROUPS) -> int:
    """Bytes that can still be taken: the machine's free memory, or less where a container's limit is
    nearer. Where the system tells neither: as if all could."""
    try:
        free = int(psutil.virtual_memory().available)
    except OSError:  # no /proc
        free = sys.maxsize
    left = memory_left(root)
    return free if left is None else min(free, left)


def fit(dags: Iterable[ComputeDAG], free: int) -> bool:
    """Whether all of these can be measured at a time within ``free`` bytes."""
    return sum(map(needed_bytes, dags)) <= (1 - RESERVE) * free


def check_fits(dag: ComputeDAG, free: int | None = None) -> None:
    """Raises `WorkloadError` unless a DAG can be measured within ``free`` bytes (default: `free_bytes`)."""
    needed, free = needed_bytes(dag), free_bytes() if free is None else free
    if not fit([dag], free):
        raise WorkloadError(
            f"measuring {', '.join(f'{n}{list(dag.tensors[n].shape)}' for n in dag.outputs)} takes about "
            f"{needed / 2**30:.3g} GiB of memory, and {free / 2**30:.3g} GiB are free; use smaller sizes"
        )
