"""The columns that a model of many tasks sees of a candidate.

Features of a space are amounts, such as cycles and bytes, which differ between tasks by orders of magnitude.
Proportions carry over from one operator to another, so they are added: amounts per instance, per vector, and
relative to what is usual for the task. Columns are found by name. A proportion of missing columns is NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_model.analytic import ESTIMATE
from cost_model.base import Features

# Version of what the columns mean, those of spaces too. Raise it with a formula: a model that a user trained
# on others is refused then.
COLUMNS = 1
# Blocks with columns of their own.
BLOCKS = 3
# Rows that are computed at a time, so that what is read twice is in the cache.
CHUNK = 1024
# Share of a sample, the best by the estimate, that says what is usual, and the least number of candidates.
BEST = 0.05
FEWEST = 8
# Smallest amount that counts, as a share of the usual one.
FLOOR = 1e-3

# {name: (numerator, denominator)} of each block. ``@`` columns are those of the whole candidate.
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
AMOUNTS = (  # columns that proportions are made of, in the order of the columns of shipped models
    "instances",
    "vectors",
    "registers",
    "spills",
    "unrolled",
    "outer",
    "loads",
    "gathers",
    "issue_cycles",
    "l1_traffic",
    "l2_traffic",
    "memory_bytes",
    "fetched_bytes",
    "from_l2",
    "from_l3",
    "from_memory",
    "selects",
    "cycles",
)
# Columns that are also divided by what is usual for the task (`Usual`).
COMPARED = (
    *(f"block{b}.{name}" for b in range(BLOCKS) for name in AMOUNTS),
    "total.cycles",
    "total.memory_bytes",
)
# Names of the columns that `inputs` adds.
DERIVED = (
    *(f"block{b}.{name}" for b in range(BLOCKS) for name in PROPORTIONS),
    "total.cycles_per_instance",
    "total.memory_per_instance",
    *(f"{name}_over_usual" for name in COMPARED),
    "estimate_over_usual",
)


# (numerator, denominator) of each proportion of `DERIVED`, by names of columns.
QUOTIENTS = (
    *(
        (f"block{b}.{top}", bottom[1:] if bottom.startswith("@") else f"block{b}.{bottom}")
        for b in range(BLOCKS)
        for top, bottom in PROPORTIONS.values()
    ),
    ("total.cycles", "block0.instances"),
    ("total.memory_bytes", "block0.instances"),
)


@dataclass(frozen=True)
class Usual:
    """What is usual for good candidates of a task: their estimate (seconds), and each of `COMPARED`, NaN
    where there is no such column."""

    estimate_s: float
    amounts: npt.NDArray[np.float32]


def usual(reference: Features, names: Sequence[str]) -> Usual:
    """Medians over the best of a random sample by the estimate; over all of it without an estimate."""
    place = {name: i for i, name in enumerate(names)}
    amounts = np.full(len(COMPARED), np.nan, dtype=np.float32)
    if not len(reference):
        return Usual(1.0, amounts)
    good, estimate_s = reference, 1.0
    if ESTIMATE in place:
        order = np.argsort(reference[:, place[ESTIMATE]], kind="stable")
        good = reference[order[: max(FEWEST, int(BEST * len(order)))]]
        estimate_s = max(float(np.median(good[:, place[ESTIMATE]])), 1e-12)
    for k, name in enumerate(COMPARED):
        if name in place:
            amounts[k] = np.median(good[:, place[name]])
    return Usual(estimate_s, amounts)


def inputs(matrix: Features, names: Sequence[str], wanted: Sequence[str], typical: Usual) -> Features:
    """The ``wanted`` columns of a matrix with columns ``names``, and `DERIVED`; NaN where columns are
    missing."""
    place = {name: i for i, name in enumerate(names)}
    there = _columns((k, place[name]) for k, name in enumerate(wanted) if name in place)
    quotients = _columns(
        (len(wanted) + k, place[top], place[bottom])
        for k, (top, bottom) in enumerate(QUOTIENTS)
        if top in place and bottom in place
    )
    compared = _columns((k, place[name]) for k, name in enumerate(COMPARED) if name in place)
    first = len(wanted) + len(QUOTIENTS)
    floor = FLOOR * np.abs(typical.amounts) + np.float32(1e-12)
    scale = np.log2(np.abs(typical.amounts) + floor)
    out = np.full((len(matrix), len(wanted) + len(DERIVED)), np.nan, dtype=np.float32)
    for begin in range(0, len(matrix), CHUNK):
        x, y = matrix[begin : begin + CHUNK], out[begin : begin + CHUNK]
        if len(there):
            to, of = there.T
            y[:, to] = x[:, of]
        if len(quotients):
            to, top, bottom = quotients.T
            y[:, to] = x[:, top] / np.maximum(x[:, bottom], np.float32(1e-9))
        if len(compared):
            to, of = compared.T
            y[:, first + to] = np.log2(np.abs(x[:, of]) + floor[to]) - scale[to]
        if ESTIMATE in place:
            y[:, -1] = np.log2(np.maximum(x[:, place[ESTIMATE]], 1e-12) / typical.estimate_s)
        y[~np.isfinite(y)] = np.nan
    return out


def _columns(places: Iterable[tuple[int, ...]]) -> npt.NDArray[np.int64]:
    """Places of columns as rows of an array; empty where there are none."""
    return np.array(list(places), dtype=np.int64)
