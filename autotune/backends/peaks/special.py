"""The least time of a workload's special functions: how many a second this CPU can do."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from autotune.backends.peaks.cpu_peaks import vector_lanes
from autotune.backends.peaks.scheduled_loop import loaded
from schedules import expr as E
from schedules import te
from schedules.functions import FUNCTIONS
from schedules.model import Target
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.flops import evaluations

# Elements of an array in the rate's loop: it fits the first cache.
ELEMENTS = 2048
# Length of a round (seconds), and number of rounds.
ROUND_S, ROUNDS = 1e-3, 10


def seconds(dag: ComputeDAG, target: Target, again: bool = False) -> float:
    """The least time for a workload's special functions, one after another, on the target's threads.
    ``again``: measure their rates again."""
    measured, one = measure_rate if again else rate, replace(target, threads=1)
    found = evaluations(dag).items()
    return sum(n / (measured(one, fn, dtype) * target.threads) for (fn, dtype), n in found)


def measure_rate(target: Target, fn: str, dtype: str = "float32") -> float:
    """Evaluations a second of one thread, on data in the first cache, with autotune's own vector code. The
    best of `ROUNDS` rounds. ``target``: with one thread."""
    x = te.placeholder((ELEMENTS,), dtype, name="x")
    y = te.compute((ELEMENTS,), lambda i: E.Call(fn, (x[i],) * FUNCTIONS[fn].arity), name="y")
    s = Schedule(te.dag([x, y]), target)
    _, inner = s.split(s.loops("y")[0], (None, 4 * vector_lanes(target, dtype)))
    s.vectorize(inner)
    code = loaded(s.dag, s.trace, target)
    data = np.linspace(0.1, 2.0, ELEMENTS, dtype=dtype)
    out = np.empty_like(data)
    pointers = [data.ctypes.data, out.ctypes.data]
    runs = max(1, round(ROUND_S / max(1e-9, code.bench(pointers, 20) * 1e-9 / 20)))
    return ELEMENTS * runs / (min(code.bench(pointers, runs) for _ in range(ROUNDS)) * 1e-9)


rate = cache(measure_rate)  # as it was when it was asked first
