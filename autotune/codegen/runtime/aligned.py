"""Arrays that begin where a line of the caches does; numpy's large ones begin 16 bytes after one, so that
every vector of 64 bytes lies in two."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from schedules.model import LINE


def zeros(shape: Sequence[int], dtype: str) -> np.ndarray:
    """As `numpy.zeros`, beginning with a line."""
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + LINE, np.uint8)
    first = -raw.ctypes.data % LINE
    return raw[first : first + nbytes].view(dtype).reshape(shape)
