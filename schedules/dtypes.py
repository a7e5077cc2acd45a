"""The dtypes that tensors may have, in one table.

A dtype of storage is never computed with. Its values are widened to the dtype that its row names. A cast
makes what is stored: it rounds floats, and wraps integers. So no layer has arithmetic in it.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """One row. ``computed``: the dtype that its values are computed with. ``range``: all values, of integers
    and bool. ``largest``, ``epsilon`` and ``tiny``, the least normal number: of floating point. ``module``:
    the library that has its numpy dtype, where numpy has none."""

    name: str
    kind: str  # "float", "int" or "bool"
    itemsize: int  # bytes of an element
    computed: str
    range: range
    largest: float = 0.0
    epsilon: float = 0.0
    tiny: float = 0.0
    module: str = "numpy"

    @property
    def is_storage(self) -> bool:
        return self.computed != self.name

    @property
    def dlpack(self) -> int:
        """DLPack's number for it: code, bits and lanes, in 8, 8 and 16 bits from the lowest."""
        codes = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
        return codes[self.name.rstrip("0123456789")] | 8 * self.itemsize << 8 | 1 << 16

    @property
    def numpy(self) -> np.dtype[Any]:
        """numpy's dtype for it. (Listing dtypes imports no numpy.) ml_dtypes tells numpy the names of its
        dtypes when it is imported: ``np.dtype(name)`` knows them from then on."""
        import numpy as np

        importlib.import_module(self.module)
        return np.dtype(self.name)


def _float(
    name: str, itemsize: int, digits: int, exponent: int, computed: str = "", module: str = "numpy"
) -> DType:
    """A binary format of so many digits and a largest exponent (IEEE 754, table 3.5)."""
    epsilon = 2.0 ** (1 - digits)
    largest = (2.0 - epsilon) * 2.0**exponent
    least = 2.0 ** (1 - exponent)
    return DType(name, "float", itemsize, computed or name, range(0), largest, epsilon, least, module)


def _int(name: str, itemsize: int, computed: str = "") -> DType:
    """Two's complement."""
    half = 1 << 8 * itemsize - 1
    return DType(name, "int", itemsize, computed or name, range(-half, half))


DTYPES = {
    row.name: row
    for row in (
        _float("float16", 2, 11, 15, computed="float32"),
        _float("bfloat16", 2, 8, 127, computed="float32", module="ml_dtypes"),
        _float("float32", 4, 24, 127),
        _float("float64", 8, 53, 1023),
        _int("int8", 1, computed="int32"),
        DType("uint8", "int", 1, "int32", range(256)),
        _int("int32", 4),
        _int("int64", 8),
        DType("bool", "bool", 1, "int32", range(2)),
    )
}
FLOATS = tuple(name for name, row in DTYPES.items() if row.kind == "float")
COMPUTED = tuple(name for name, row in DTYPES.items() if row.kind == "float" or not row.is_storage)
NUMBERS = tuple(name for name, row in DTYPES.items() if row.kind != "bool")
_FLOATS, _INTEGERS = frozenset(FLOATS), frozenset(NUMBERS) - frozenset(FLOATS)
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


def wrapped(value: int, dtype: str) -> int:
    """An integer as one of ``dtype``: its lowest bits."""
    least = DTYPES[dtype].range[0]
    return (value - least) % (1 << 8 * DTYPES[dtype].itemsize) + least


def bound_dtype(dtype: str) -> str:
    """What says how far outputs of ``dtype`` may be from a reference: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"


def rounded(value: float, dtype: str) -> float:
    """A literal of ``dtype`` as kernels have it. Integers are exact."""
    if not is_float(dtype):
        return value
    import numpy as np

    with np.errstate(over="ignore"):
        return float(DTYPES[dtype].numpy.type(value))
