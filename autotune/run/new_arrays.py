"""New arrays for results. A large one lies in memory that an earlier result had and nobody uses any more.

The kernel of the system clears every page of new memory when it is first written: more time than many kernels
take. So memory of large results is kept when the last array, view, tensor or buffer over it is gone, up to
`MOST_IDLE` bytes, and given to the next result of that size. It is made of huge pages, of which there are few
to clear. While nobody uses it, the system may take it back (MADV_FREE).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import prod
from mmap import mmap
from typing import Any

import numpy as np

from autotune.codegen.runtime.laid import over
from autotune.platform import pages
from autotune.platform.pages import HUGE_PAGE, KEEPS_IDLE
from schedules.strides import MemoryLayout

# Bytes of a result that lies in such memory, at least: numpy asks for huge pages from there on too.
LARGE = 4 << 20
# Bytes that are kept for results to come, at most.
MOST_IDLE = 256 << 20

# {bytes: memory that nobody uses}. Lists are changed by single calls only: results end in any thread, and in
# the midst of anything, where a lock could wait for its own thread.
_idle: dict[int, list[mmap]] = {}


def maker_of(layout: MemoryLayout, dtype: np.dtype[Any]) -> Callable[[], np.ndarray]:
    """`maker` of an array that lies as ``layout`` says."""
    if layout.strides is None:
        return maker(layout.shape, dtype)
    make = maker((layout.span,), dtype)
    return lambda: over(make(), layout)


def maker(shape: Sequence[int], dtype: np.dtype[Any]) -> Callable[[], np.ndarray]:
    """A function that gives a new array of this shape and dtype, whose elements may be anything. It raises
    MemoryError."""
    if not _is_large(shape, dtype.itemsize):
        return partial(np.empty, tuple(shape), dtype)
    return partial(_large, tuple(shape), dtype)


def tensor_maker(torch: Any, shape: Sequence[int], dtype: Any) -> Callable[[], Any] | None:
    """A function that gives a new tensor of torch, contiguous on the CPU, like `maker`; None where it would
    be small: torch has faster ways."""
    return partial(_large_tensor, torch, tuple(shape), dtype) if _is_large(shape, dtype.itemsize) else None


def idle_bytes() -> int:
    """Bytes that are kept for results to come."""
    return sum(size * len(blocks) for size, blocks in [*_idle.items()])


def _is_large(shape: Sequence[int], itemsize: int) -> bool:
    return KEEPS_IDLE and prod(shape) * itemsize >= LARGE


def _large(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    memory = _lent(prod(shape) * dtype.itemsize)
    return np.empty(shape, dtype) if memory is None else np.ndarray(shape, dtype, memory)


def _large_tensor(torch: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    memory = _lent(prod(shape) * dtype.itemsize)
    if memory is None:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(memory, dtype=dtype, count=prod(shape)).view(shape)


def _lent(nbytes: int) -> Any:
    """A buffer of ``nbytes`` at least, which begins with a huge page. Whoever has a view of it has it too.
    None where the system gives none."""
    size = -(-nbytes // HUGE_PAGE) * HUGE_PAGE
    try:
        block = _idle[size].pop()
    except (KeyError, IndexError):
        try:
            block = pages.block(size + HUGE_PAGE)
        except (OSError, OverflowError):
            return None
    first = -ctypes.addressof(ctypes.c_char.from_buffer(block)) % HUGE_PAGE
    lent = _kind(size).from_buffer(block, first)
    lent.block, lent.kept = block, _kept
    return lent


@lru_cache(256)
def _kind(size: int) -> Any:
    """The type of a buffer. An object is made for each result, and ends with the last view of it."""

    def ended(self: Any, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing() and (block := getattr(self, "block", None)) is not None:
            self.kept(size, block)

    return type("Lent", (ctypes.c_ubyte * size,), {"__del__": ended})


def _kept(size: int, block: mmap) -> None:
    """Keep memory that nobody uses any more. Where that is too much, what is kept of other sizes goes."""
    if size > MOST_IDLE:
        return
    pages.idle(block)
    _idle.setdefault(size, []).append(block)
    for other in sorted([*_idle], key=lambda n: n == size):
        while idle_bytes() > MOST_IDLE:
            try:
                _idle[other].pop(0)
            except IndexError:
                break
