"""What a model that has to know many tasks sees of a candidate.

The features of a space are amounts: cycles, bytes, instances, which differ between tasks by orders of
magnitude. What carries over from one operator to another are proportions, so they are put beside them: per
instance, per vector, against what is usual for the task. Columns are found by name; a formula whose columns
are missing is a missing value, which trees can handle.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_model.analytic import ESTIMATE
from cost_model.base import Features

BLOCKS = 3
CHUNK = 1024  # rows at a time, so that what is read twice is in the cache
BEST = 0.03  # share of a sample that says what a good estimate is

# name -> (numerator, denominator); of each block. ``@`` columns are those of the whole candidate.
PROPORTIONS = {
    "share": ("cycles", "@total.cycles"),
    "issue_per_vector": ("issue_cycles", "vectors"),
    "loads_per_vector": ("loads", "vectors"),
    "gathers_per_point": ("gathers", "unrolled"),
    "spilled": ("spills", "registers"),
    "cycles_per_instance": ("cycles", "instances"),
    "l1_per_instance": ("l1_traffic", "instances"),
    "l2_per_instance": ("l2_traffic", "instances"),
    "memory_per_instance": ("memory_bytes", "instances"),
    "fetched_per_instance": ("fetched_bytes", "instances"),
    "from_l2_per_instance": ("from_l2", "instances"),
    "from_l3_per_instance": ("from_l3", "instances"),
    "from_memory_per_instance": ("from_memory", "instances"),
    "selects_per_instance": ("selects", "instances"),
    "outer_per_instance": ("outer", "instances"),
    "instances_of_hottest": ("instances", "@block0.instances"),
}
DERIVED = (
    *(f"block{b}.{name}" for b in range(BLOCKS) for name in PROPORTIONS),
    "total.cycles_per_instance",
    "total.memory_per_instance",
    "estimate_over_usual",
)


QUOTIENTS = (
    *(
        (f"block{b}.{top}", bottom[1:] if bottom.startswith("@") else f"block{b}.{bottom}")
        for b in range(BLOCKS)
        for top, bottom in PROPORTIONS.values()
    ),
    ("total.cycles", "block0.instances"),
    ("total.memory_bytes", "block0.instances"),
)


def usual(reference: Features, names: Sequence[str]) -> float:
    """The estimate, in seconds, of good candidates among a random sample; 1 where there is no estimate."""
    if ESTIMATE not in names or not len(reference):
        return 1.0
    estimates = np.sort(reference[:, list(names).index(ESTIMATE)].astype(np.float64))
    best = estimates[: max(4, int(BEST * len(estimates)))]
    return float(max(np.median(best), 1e-12))


def inputs(matrix: Features, names: Sequence[str], wanted: Sequence[str], usual_s: float) -> Features:
    """The ``wanted`` columns of a matrix with columns ``names``, and `DERIVED`; NaN where there are none."""
    place = {name: i for i, name in enumerate(names)}
    there = [(k, place[name]) for k, name in enumerate(wanted) if name in place]
    quotients = [
        (len(wanted) + k, place[top], place[bottom])
        for k, (top, bottom) in enumerate(QUOTIENTS)
        if top in place and bottom in place
    ]
    out = np.full((len(matrix), len(wanted) + len(DERIVED)), np.nan, dtype=np.float32)
    for begin in range(0, len(matrix), CHUNK):
        x, y = matrix[begin : begin + CHUNK], out[begin : begin + CHUNK]
        if there:
            to, of = np.array(there).T
            y[:, to] = x[:, of]
        if quotients:
            to, top, bottom = np.array(quotients).T
            y[:, to] = x[:, top] / np.maximum(x[:, bottom], np.float32(1e-9))
        if ESTIMATE in place:
            y[:, -1] = np.log2(np.maximum(x[:, place[ESTIMATE]], 1e-12) / usual_s)
        y[~np.isfinite(y)] = np.nan
    return out
