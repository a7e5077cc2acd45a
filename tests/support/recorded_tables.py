"""A table measured on one machine: 500 random candidates of a 3×3 convolution, 56×56, 64 channels.

The shipped model was trained on this task among others: tests on it catch a model that broke, and say nothing
about tasks that it has not seen (benchmarks/search.md does)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from autotune.search.table import Sheet, Table, TableSpace

PATH = Path(__file__).parent / "data" / "conv2d.npz"


def conv2d() -> Table:
    """The table, with the features of the version that recorded it."""
    with np.load(PATH) as file:
        sketch, rows = file["sketch"], file["rows"].astype(np.int64)
        features, time_s = file["features"], file["time_s"].astype(np.float64)
        names, holes = tuple(map(str, file["names"])), [str(h).split("|") for h in file["holes"]]
    sheets = []
    for s in np.unique(sketch):
        mine = sketch == s
        unique, first = np.unique(rows[mine][:, : len(holes[s])], axis=0, return_index=True)
        sheets.append(
            Sheet(f"sketch {s}", tuple(holes[s]), unique, time_s[mine][first], features[mine][first])
        )
    return Table("conv2d", TableSpace(sheets, names))
