"""How far apart numbers are."""

from __future__ import annotations

from typing import Any

import numpy as np


def distance(a: Any, b: Any) -> Any:
    """|a - b| in float64. Of integers it is the rounded difference, not that of rounded numbers: those of 64
    bits that lie side by side may be 1024 apart once both are in float64."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind != "i" or b.dtype.kind != "i":
        return np.abs(np.subtract(a, b, dtype=np.float64))
    a, b = np.broadcast_arrays(a.astype(np.int64), b.astype(np.int64))
    apart = np.subtract(np.maximum(a, b), np.minimum(a, b))  # may wrap; right once it has no sign
    return apart.astype(np.uint64).astype(np.float64)
