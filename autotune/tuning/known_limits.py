"""What records keep so that a report can draw rooflines without measuring: the machine's limit, and traffic.

The keys stand in the ``environment`` of records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from schedules.space.base import Candidate, Space

# Keys in the environment of a record: of what the machine can do, where that was measured before it
# (``seconds`` that the workload needs at least, and the rates that this follows from); and of the bytes that
# a candidate moves from and to memory, by the estimate.
LIMIT, MEMORY_BYTES = "limit", "memory_bytes"
ESTIMATED_BYTES = "total.memory_bytes"  # the feature; spaces of GPUs have none


def moved(space: Space, candidate: Candidate) -> dict[str, int]:
    """The estimate of what a candidate moves, as a part of an environment; empty where the space has none."""
    if ESTIMATED_BYTES not in space.feature_names:
        return {}
    row = np.array([candidate.row], dtype=np.int64)
    value = float(space.features(candidate.sketch, row)[0, space.feature_names.index(ESTIMATED_BYTES)])
    return {MEMORY_BYTES: int(value)} if np.isfinite(value) else {}
