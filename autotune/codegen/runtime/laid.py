"""Arrays of numpy over memory with strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from schedules.strides import MemoryLayout


def over(memory: np.ndarray, layout: MemoryLayout) -> np.ndarray:
    """The array that lies in ``memory``, one dimension of ``layout.span`` elements, without a copy."""
    before, _ = layout.reach
    item = memory.itemsize
    strides = [s * item for s in layout.steps]
    return np.ndarray(layout.shape, memory.dtype, memory, before * item, strides)


def laid(values: np.ndarray, layout: MemoryLayout, make: Callable[..., Any] = np.zeros) -> np.ndarray:
    """New memory with an array of these values that lies as ``layout`` says. Where elements share a place,
    one of them is there. ``make``: makes memory of a shape and a dtype."""
    array = over(make((layout.span,), values.dtype), layout)
    array[...] = values
    return array


def settled_values(values: np.ndarray, layout: MemoryLayout) -> np.ndarray:
    """The values, alike where the elements of a layout share a place: what an array that lies so can hold."""
    return values if layout.is_apart else np.ascontiguousarray(laid(values, layout))
