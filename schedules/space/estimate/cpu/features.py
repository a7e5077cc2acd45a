"""Features of candidates for CPUs: the quantities of the hottest blocks one by one, and sums over all
blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from schedules.space.estimate.counting import Number
from schedules.space.estimate.cpu.facts import BlockFacts
from schedules.space.estimate.cpu.quantities import FEATURES_PER_BLOCK, measure
from schedules.space.estimate.cpu.rates import CpuRates
from schedules.space.estimate.hottest import Hottest
from schedules.space.estimate.recording import Compiler
from schedules.space.holes import Columns

# Clock that turns cycles into seconds in estimates (GHz). Estimates only rank.
GIGAHERTZ = 3.0
# Blocks with features of their own, hottest first. The rest are summed.
HOT_BLOCKS = 3

# Columns of the features: those of the hottest blocks, then sums over all.
FEATURE_NAMES = (
    *(f"block{n}.{f}" for n in range(HOT_BLOCKS) for f in FEATURES_PER_BLOCK),
    "blocks",
    "total.cycles",
    "total.memory_bytes",
    "total.special",
    "est_time_s",
)


class CpuFeatures:
    """The features of a nest with these facts and holes. ``compiler``: as of `RecordedProgram`."""

    def __init__(
        self,
        facts: tuple[BlockFacts, ...],
        holes: Sequence[str],
        machine: CpuRates,
        compiler: Compiler | None = None,
    ) -> None:
        self._blocks, self._special = len(facts), sum(b.special for b in facts)

        def blocks(env: Columns) -> list[dict[str, Number]]:
            return [measure(b, env, machine) for b in facts]

        self._hottest = Hottest(holes, blocks, FEATURES_PER_BLOCK, "cycles", ("memory_bytes",), compiler)

    def __call__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Features of every row of a decision matrix, [rows, len(FEATURE_NAMES)]. Rows do not depend on each
        other."""
        out = np.empty((len(rows), len(FEATURE_NAMES)), dtype=np.float32)
        hot, rest = np.split(out, [HOT_BLOCKS * len(FEATURES_PER_BLOCK)], axis=1)
        sums = self._hottest(rows, hot)
        rest[:, 0], rest[:, 1] = self._blocks, sums["cycles"]
        rest[:, 2], rest[:, 3] = sums["memory_bytes"], self._special
        rest[:, 4] = sums["cycles"] / (GIGAHERTZ * 1e9)
        return out
