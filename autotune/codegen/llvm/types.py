"""Names and literals of LLVM IR text."""

from __future__ import annotations

import struct
from functools import cache
from typing import NamedTuple

import numpy as np

from schedules.expr import is_float

# {dtype: LLVM's type}.
LLVM_TYPE = {
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "int32": "i32",
    "int64": "i64",
    "index": "i64",
    "bool": "i1",
}
# {LLVM's type: its name in intrinsics}.
_SUFFIX = {"half": "f16", "float": "f32", "double": "f64"}


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
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return f"0xH{int(np.float16(value).view(np.uint16)):04X}"
    if is_float(dtype):
        v = float(np.float32(value)) if dtype == "float32" else float(value)
        return f"0x{struct.unpack('>Q', struct.pack('>d', v))[0]:016X}"
    return str(int(value))
