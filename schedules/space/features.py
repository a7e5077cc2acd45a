"""Features of candidates: the quantities of their hottest blocks one by one, and sums over all."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from schedules.space.holes import Columns
from schedules.space.quantities import FEATURES_PER_BLOCK, BlockFacts, Machine, hottest, measure

GIGAHERTZ = 3.0  # cycles to seconds in estimates, which only rank
HOT_BLOCKS = 3  # blocks whose features stand one by one, hottest first; the rest are summed

FEATURE_NAMES = (
    *(f"block{n}.{f}" for n in range(HOT_BLOCKS) for f in FEATURES_PER_BLOCK),
    "blocks",
    "total.cycles",
    "total.memory_bytes",
    "total.special",
    "est_time_s",
)


def features(
    facts: tuple[BlockFacts, ...], env: Columns, rows: int, machine: Machine
) -> npt.NDArray[np.float32]:
    """The features of every row of a decision matrix, [rows, len(FEATURE_NAMES)]; ``env`` has its columns
    by the names of the holes. A row's features depend on no other row."""
    found = [measure(b, env, machine) for b in facts]
    width = len(FEATURES_PER_BLOCK)
    table, hot = hottest(found, FEATURES_PER_BLOCK, rows, "cycles", HOT_BLOCKS)
    out = np.zeros((rows, len(FEATURE_NAMES)), dtype=np.float32)
    out[:, : hot.shape[1]] = hot
    total = table[:, :, FEATURES_PER_BLOCK.index("cycles")].sum(axis=1)
    memory = table[:, :, FEATURES_PER_BLOCK.index("memory_bytes")].sum(axis=1)
    special = sum(b.special for b in facts)
    out[:, HOT_BLOCKS * width :] = np.stack(
        [np.full(rows, len(found)), total, memory, np.full(rows, special), total / (GIGAHERTZ * 1e9)], axis=1
    )
    return out
