"""What the interpreter counts when it runs a lowered nest, if that is short enough."""

from __future__ import annotations

import math

import numpy as np

from autotune.progress.units import size
from autotune.report.explain.explanation import Row, Section
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.ir import Nest
from schedules.ir.interp import run
from schedules.passes.lower import lower
from schedules.te.compute_dag import ComputeDAG

MOST = 100_000  # instances of all blocks that are run: about a second


def section(dag: ComputeDAG, nest: Nest) -> Section:
    """Elements loaded and stored in each buffer; or why they were not counted."""
    points = sum(math.prod(a.extent for a in (*s.axes, *s.reduce_axes)) for s in dag.stages)
    if points > MOST:
        text = f"none: {points:,} points are too many to be interpreted (at most {MOST:,})"
        return Section("Counted", (Row("loads and stores", text, "definition", {"points": points}),))
    counts = count(nest)
    item = {b.name: DTYPES[b.dtype].itemsize for b in nest.buffers}
    rows = []
    for name in sorted({key.partition(" ")[2] for key in counts}):
        loads, stores = counts.get(f"load {name}", 0), counts.get(f"store {name}", 0)
        moved = (loads + stores) * item.get(name, 4)
        text = f"{loads:,} loads, {stores:,} stores: {size(moved)}"
        rows.append(Row(name, text, "counter", {"loads": loads, "stores": stores, "bytes": moved}))
    return Section("Counted: elements loaded and stored, vectors lane by lane", tuple(rows))


def count(nest: Nest) -> dict[str, int]:
    """The interpreter's counters of a lowered nest, on arrays of ones."""
    func = lower(nest)
    arrays = {}
    for b in func.params:
        shape = tuple(int(E.evaluate(n, {})) for n in b.given or b.shape)
        arrays[b.name] = np.ones(shape, np.dtype(b.dtype))
    counts: dict[str, int] = {}
    run(func, arrays, counts=counts)
    return counts
