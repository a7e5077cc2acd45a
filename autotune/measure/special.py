"""Counts the special functions that a workload evaluates, and measures how many a second this CPU can do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from math import prod

import numpy as np

from autotune.building.from_trace import build_object
from autotune.codegen.llvm.compile import load_object
from autotune.measure.cpu_peaks import vector_lanes
from schedules import expr as E
from schedules import te
from schedules.functions import FUNCTIONS
from schedules.model import Target
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

# Elements of an array in the rate's loop: it fits the first cache.
ELEMENTS = 2048
# Length of a round (seconds), and number of rounds.
ROUND_S, ROUNDS = 1e-3, 10


def evaluations(dag: ComputeDAG) -> Counter[tuple[str, str]]:
    """{(function, dtype): evaluations}, each stage counted on its own."""
    found: Counter[tuple[str, str]] = Counter()
    for s in dag.stages:
        points = prod(a.extent for a in (*s.axes, *s.reduce_axes))
        for v in (*s.values, *(s.reducer.combine if s.reducer is not None else ())):
            for x in E.walk(v):
                if isinstance(x, E.Call) and not FUNCTIONS[x.fn].cheap:
                    found[x.fn, E.dtype_of(x)] += points
    return found


def seconds(dag: ComputeDAG, target: Target) -> float:
    """The least time for a workload's special functions, one after another, on the target's threads."""
    return sum(n / (rate(target, fn, dtype) * target.threads) for (fn, dtype), n in evaluations(dag).items())


def rate(target: Target, fn: str, dtype: str = "float32") -> float:
    """Evaluations a second of one thread, on data in the first cache, with autotune's own vector code. The
    best of `ROUNDS` rounds."""
    return _rate(replace(target, threads=1), fn, dtype)


@cache
def _rate(target: Target, fn: str, dtype: str) -> float:
    x = te.placeholder((ELEMENTS,), dtype, name="x")
    y = te.compute((ELEMENTS,), lambda i: E.Call(fn, (x[i],) * FUNCTIONS[fn].arity), name="y")
    s = Schedule(te.dag([x, y]), target)
    _, inner = s.split(s.loops("y")[0], (None, 4 * vector_lanes(target, dtype)))
    s.vectorize(inner)
    loaded = load_object(build_object(s.dag, s.trace, target))
    data = np.linspace(0.1, 2.0, ELEMENTS, dtype=dtype)
    out = np.empty_like(data)
    pointers = [data.ctypes.data, out.ctypes.data]
    runs = max(1, round(ROUND_S / max(1e-9, loaded.bench(pointers, 20) * 1e-9 / 20)))
    return ELEMENTS * runs / (min(loaded.bench(pointers, runs) for _ in range(ROUNDS)) * 1e-9)
