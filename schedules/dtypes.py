"""The dtypes that tensors may have, in one table.

A dtype of storage is never computed with. Its values are widened to the dtype that its row names. A cast
makes what is stored: it rounds floats, and wraps integers. So no layer has arithmetic in it. How the bits of
a float of storage are widened and rounded follows from its row too: see `schedules.conversions`.
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
    and bool. ``largest``, ``epsilon`` and ``tiny``, the least normal number: of floating point. ``mantissa``:
    its bits; ``infinite``: whether floating point has infinities; without them what is too large becomes NaN.
    ``code``: DLPack's number for its kind. ``module``: the library that has its numpy dtype, where numpy has
    none."""

    name: str
    kind: str  # "float", "int" or "bool"
    itemsize: int  # bytes of an element
    computed: str
    range: range
    code: int
    largest: float = 0.0
    epsilon: float = 0.0
    tiny: float = 0.0
    mantissa: int = 0
    infinite: bool = True
    module: str = "numpy"

    @property
    def is_storage(self) -> bool:
        return self.computed != self.name

    @property
    def dlpack(self) -> int:
        """DLPack's number for it: code, bits and lanes, in 8, 8 and 16 bits from the lowest."""
        return self.code | 8 * self.itemsize << 8 | 1 << 16

    @property
    def exponent(self) -> int:
        """Bits of the exponent, of floating point."""
        return 8 * self.itemsize - 1 - self.mantissa

    @property
    def numpy(self) -> np.dtype[Any]:
        """numpy's dtype for it. (Listing dtypes imports no numpy.) ml_dtypes tells numpy the names of its
        dtypes when it is imported: ``np.dtype(name)`` knows them from then on."""
        import numpy as np

        importlib.import_module(self.module)
        return np.dtype(self.name)


def _float(
    name: str, itemsize: int, mantissa: int, computed: str = "", code: int = 2, infinite: bool = True,
    module: str = "numpy",
) -> DType:  # fmt: skip
    """A binary format with so many bits of mantissa (IEEE 754, table 3.5). One without infinities has numbers
    of the largest exponent too, and only its largest mantissa is NaN."""
    bias, epsilon = (1 << 8 * itemsize - 2 - mantissa) - 1, 2.0**-mantissa
    largest = (2.0 - epsilon) * 2.0**bias if infinite else (2.0 - 2 * epsilon) * 2.0 ** (bias + 1)
    least = 2.0 ** (1 - bias)
    wide = computed or name
    return DType(
        name, "float", itemsize, wide, range(0), code, largest, epsilon, least, mantissa, infinite, module
    )


def _int(name: str, itemsize: int, computed: str = "") -> DType:
    """Two's complement."""
    half = 1 << 8 * itemsize - 1
    return DType(name, "int", itemsize, computed or name, range(-half, half), 0)


def _unsigned(name: str, itemsize: int, computed: str) -> DType:
    """Stored only: a wider dtype with a sign has all its values."""
    return DType(name, "int", itemsize, computed, range(1 << 8 * itemsize), 1)


DTYPES = {
    row.name: row
    for row in (
        _float("float16", 2, 10, computed="float32"),
        _float("bfloat16", 2, 7, computed="float32", code=4, module="ml_dtypes"),
        _float("float8_e4m3fn", 1, 3, computed="float32", code=10, infinite=False, module="ml_dtypes"),
        _float("float8_e5m2", 1, 2, computed="float32", code=12, module="ml_dtypes"),
        _float("float32", 4, 23),
        _float("float64", 8, 52),
        _int("int8", 1, computed="int32"),
        _unsigned("uint8", 1, "int32"),
        _int("int16", 2, computed="int32"),
        _unsigned("uint16", 2, "int32"),
        _int("int32", 4),
        _unsigned("uint32", 4, "int64"),
        _int("int64", 8),
        DType("bool", "bool", 1, "int32", range(2), 6),
    )
}
FLOATS = tuple(name for name, row in DTYPES.items() if row.kind == "float")
STORED_FLOATS = tuple(name for name in FLOATS if DTYPES[name].is_storage)
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


def holds(new: str, old: str) -> bool:
    """Whether a dtype of numbers has all values of another, so that converting loses nothing."""
    a, b = DTYPES[new], DTYPES[old]
    if new == old or "bool" in (a.kind, b.kind):
        return new == old
    if b.kind == "int":
        ends = b.range[0], b.range[-1]
        return all(x in a.range for x in ends) if a.kind == "int" else ends[1] < 1 << a.mantissa + 1
    if a.kind == "int" or a.mantissa < b.mantissa or a.largest < b.largest or (b.infinite and not a.infinite):
        return False
    return a.tiny * a.epsilon <= b.tiny * b.epsilon  # the least number of each


def offset_to(old: str, new: str) -> int | None:
    """What must be added to all values of an integer dtype to have all of another of as many bytes: 128 from
    int8 to uint8. None where nothing leads there."""
    a, b = DTYPES[old], DTYPES[new]
    if not (is_integer(old) and is_integer(new)) or a.itemsize != b.itemsize:
        return None
    return b.range[0] - a.range[0]


def wrapped(value: int, dtype: str) -> int:
    """An integer as one of ``dtype``: its lowest bits."""
    least = DTYPES[dtype].range[0]
    return (value - least) % (1 << 8 * DTYPES[dtype].itemsize) + least


def bound_dtype(dtype: str) -> str:
    """What says how far outputs of ``dtype`` may be from a reference: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"


def rounded(value: float, dtype: str) -> float:
    """A literal of ``dtype`` as kernels have it. Integers are exact."""
    return float(_in(value, dtype)) if is_float(dtype) else value


def bits(value: float, dtype: str) -> int:
    """The bits of a literal of ``dtype``, as a number that is not negative."""
    return int(_in(value, dtype).view(f"u{DTYPES[dtype].itemsize}"))


def _in(value: float, dtype: str) -> np.ndarray:
    import numpy as np

    with np.errstate(all="ignore"):
        return np.array(value, DTYPES[dtype].numpy)
