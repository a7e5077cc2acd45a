"""Names and literals of LLVM IR text."""

from __future__ import annotations

import struct
from functools import cache
from typing import NamedTuple

from schedules.dtypes import DTYPES, STORED_FLOATS, bits, is_float, rounded

# How LLVM spells dtypes: as types, and in the names of intrinsics. Floats of storage are their bits, but for
# float16: conversions of LLVM's own are calls to a library where the processor has none.
LLVM_TYPE = {
    **{name: f"i{8 * row.itemsize}" for name, row in DTYPES.items()},
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "index": "i64",
    "bool": "i1",
}
# Dtypes whose conversions are those of `schedules.conversions`.
CONVERTED = frozenset(STORED_FLOATS) - {"float16"}
IN_MEMORY = {"bool": "uint8"}  # as what a dtype lies in memory, where that is another
_SUFFIX = {"half": "f16", "float": "f32", "double": "f64"}


def in_memory(dtype: str) -> str:
    """The dtype whose bytes tensors of ``dtype`` have."""
    return IN_MEMORY.get(dtype, dtype)


class Value(NamedTuple):
    """An SSA value or literal. ``lanes``: 1 for a scalar."""

    ref: str
    dtype: str
    lanes: int = 1

    @property
    def type(self) -> str:
        """LLVM's type of the value."""
        return vector(LLVM_TYPE[self.dtype], self.lanes)

    def __str__(self) -> str:
        return f"{self.type} {self.ref}"


@cache
def vector(scalar: str, lanes: int) -> str:
    """LLVM's type of a vector, or the scalar type for one lane."""
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


@cache
def mangle(scalar: str, lanes: int) -> str:
    """The suffix of an overloaded intrinsic."""
    name = _SUFFIX.get(scalar, scalar)
    return name if lanes == 1 else f"v{lanes}{name}"


def literal(value: int | float | bool, dtype: str) -> str:
    """A scalar constant. Floating point is written as the hexadecimal of its double, which is exact."""
    if dtype == "bool":
        return "true" if value else "false"
    if dtype in STORED_FLOATS:
        return f"0xH{bits(value, dtype):04X}" if LLVM_TYPE[dtype] == "half" else str(bits(value, dtype))
    if is_float(dtype):
        return f"0x{struct.unpack('>Q', struct.pack('>d', rounded(value, dtype)))[0]:016X}"
    return str(int(value))
