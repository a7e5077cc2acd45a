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
    order = np.array([place.get(name, -1) for name in wanted], dtype=np.int64)
    out = np.full((len(matrix), len(wanted) + len(DERIVED)), np.nan, dtype=np.float32)
    out[:, np.flatnonzero(order >= 0)] = matrix[:, order[order >= 0]]

    def column(name: str) -> np.ndarray | None:
        return matrix[:, place[name]] if name in place else None

    k = len(wanted)
    for b in range(BLOCKS):
        for top, bottom in PROPORTIONS.values():
            below = bottom[1:] if bottom.startswith("@") else f"block{b}.{bottom}"
            _divide(column(f"block{b}.{top}"), column(below), out[:, k])
            k += 1
    for top in ("total.cycles", "total.memory_bytes"):
        _divide(column(top), column("block0.instances"), out[:, k])
        k += 1
    estimate = column(ESTIMATE)
    if estimate is not None:
        np.log2(np.maximum(estimate, 1e-12) / usual_s, out=out[:, k], casting="unsafe")
    out[~np.isfinite(out)] = np.nan
    return out


def _divide(top: np.ndarray | None, bottom: np.ndarray | None, out: np.ndarray) -> None:
    if top is not None and bottom is not None:
        np.divide(top, np.maximum(bottom, 1e-9), out=out)
