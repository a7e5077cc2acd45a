"""The dtypes that tensors may have, in one table.

A dtype of storage is widened to the one that it is computed with wherever something is computed, and a cast
rounds what is stored. So no layer has arithmetic in it, only conversions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """One row. ``computed``: the dtype that its values are computed with. ``range``: of integers, all values.
    ``largest``, ``epsilon`` and ``tiny``, the least normal number: of floating point, those of the dtype."""

    name: str
    kind: str  # "float" or "int"
    itemsize: int  # bytes of an element
    computed: str
    numpy: np.dtype[Any]
    range: range
    largest: float
    epsilon: float
    tiny: float

    @property
    def is_storage(self) -> bool:
        return self.computed != self.name


def _row(name: str, computed: str = "") -> DType:
    """A dtype that numpy has too."""
    numpy = np.dtype(name)
    size, computed = numpy.itemsize, computed or name
    if numpy.kind == "f":
        info = np.finfo(numpy)
        facts = (float(info.max), float(info.eps), float(info.tiny))
        return DType(name, "float", size, computed, numpy, range(0), *facts)
    ends = np.iinfo(numpy)
    return DType(name, "int", size, computed, numpy, range(int(ends.min), int(ends.max) + 1), 0.0, 0.0, 0.0)


DTYPES = {
    row.name: row
    for row in (
        _row("float16", computed="float32"),
        _row("float32"),
        _row("float64"),
        _row("int32"),
        _row("int64"),
    )
}  # fmt: skip
FLOATS = tuple(name for name, row in DTYPES.items() if row.kind == "float")
_FLOATS, _INTEGERS = frozenset(FLOATS), frozenset(DTYPES) - frozenset(FLOATS)
_STORAGE = frozenset(name for name, row in DTYPES.items() if row.is_storage)


def is_float(dtype: str) -> bool:
    """Whether values of a dtype are floating point. Of an index and of bool they are not."""
    return dtype in _FLOATS


def is_integer(dtype: str) -> bool:
    """Whether values of a tensor's dtype are integers. An index is in no tensor."""
    return dtype in _INTEGERS


def is_storage(dtype: str) -> bool:
    """Whether a dtype is not computed with."""
    return dtype in _STORAGE


def computed(dtype: str) -> str:
    """The dtype that values of a dtype are computed with."""
    return DTYPES[dtype].computed if dtype in _STORAGE else dtype


def bound_dtype(dtype: str) -> str:
    """What says how far outputs of ``dtype`` may be from a reference: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"
