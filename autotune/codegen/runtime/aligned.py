"""Arrays that begin where a line of the caches does; numpy's large ones begin 16 bytes after one, so that
every vector of 64 bytes lies in two. What is kept for many calls, as packed weights are, lies in huge pages
too, beside others: numpy asks for such pages for large arrays alone."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from math import prod
from threading import Lock
from typing import Any

import numpy as np

from schedules.model import LINE

# Bytes of memory that arrays share, and of the least and the largest of these. Larger ones have huge pages of
# their own, smaller ones are few.
BLOCK, LEAST, MOST = 32 << 20, 32 << 10, 8 << 20


def zeros(shape: Sequence[int], dtype: str) -> np.ndarray:
    """As `numpy.zeros`, beginning with a line."""
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + LINE, np.uint8)
    first = -raw.ctypes.data % LINE
    return raw[first : first + nbytes].view(dtype).reshape(shape)


def empty(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """As `numpy.empty`, beginning with a line."""
    nbytes = prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + LINE, np.uint8)
    first = -raw.ctypes.data % LINE
    return raw[first : first + nbytes].view(dtype).reshape(shape)


def kept_zeros(shape: Sequence[int], dtype: str) -> np.ndarray:
    """As `zeros`, for an array that is kept. Its memory is free again when all of its block are gone, or at
    once if it was the last that was made."""
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    if not LEAST <= nbytes < MOST:
        return zeros(shape, dtype)
    return np.ndarray(tuple(shape), np.dtype(dtype), _blocks.part(nbytes))


class _Blocks:
    """Memory that is given out from the front on. Whoever has an array has its part, and so the block."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._block = self._last = _gone
        self._start = self._end = self._used = 0

    def part(self, nbytes: int) -> Any:
        """Zeros, from the beginning of a line on."""
        with self._lock:
            block = self._block()
            if self._last() is None:  # nobody has it any more
                self._end = self._start
            first = 0 if block is None else self._end + -(block.ctypes.data + self._end) % LINE
            if block is None or first + nbytes > block.size:
                block = np.zeros(BLOCK, np.uint8)
                self._block, self._used = weakref.ref(block), 0
                first = -block.ctypes.data % LINE
            part = (ctypes.c_ubyte * nbytes).from_buffer(block, first)
            block[first : min(first + nbytes, self._used)] = 0
            self._last, self._start, self._end = weakref.ref(part), first, first + nbytes
            self._used = max(self._used, self._end)
            return part


def _gone() -> Any:
    """As a reference to what is gone."""


_blocks = _Blocks()
