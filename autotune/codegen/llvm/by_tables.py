"""Widens floats of 8 bits by two tables of 128 bytes each, which registers hold (AVX-512 VBMI).

Each such float is a bfloat16 too, which is the upper half of a float32. Its two bytes are looked up, 64 at a
time: `vpermi2b` takes the lowest 7 bits of a byte as an index, and so drops the sign, which is put back
(Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2). It takes 14 instructions for 64
numbers in place of 28 (`by_half`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from autotune.codegen.llvm import by_half
from autotune.codegen.llvm.pieces import joined
from autotune.codegen.llvm.scope import Scopes
from autotune.codegen.llvm.types import Value, vector
from schedules.dtypes import DTYPES

FEATURE = "avx512vbmi"
WIDTH = 64  # bytes of a register
_UPPER, _WIDE = DTYPES["bfloat16"], DTYPES["float32"]
_PICK = "llvm.x86.avx512.vpermi2var.qi.512"
_BYTES, _WORDS, _FLOATS = vector("i8", WIDTH), vector("i32", 16), vector("float", 16)
PICK = f"declare {_BYTES} @{_PICK}({_BYTES}, {_BYTES}, {_BYTES})"


def applies(dtype: str, lanes: int, features: Collection[str]) -> bool:
    """Whether so many numbers of a dtype are widened so on a target with these features."""
    row = DTYPES.get(dtype)
    if row is None or row.kind != "float" or row.itemsize != 1 or FEATURE not in features:
        return False
    if by_half.applies(dtype, features) and by_half.is_upper(dtype):
        return False  # moving its bits is less work still
    return lanes % WIDTH == 0 and row.exponent <= _UPPER.exponent and row.mantissa <= _UPPER.mantissa


def widened(x: Value, s: Scopes, declare: Callable[[str], None]) -> str:
    """The float32 of values of 8 bits."""
    declare(PICK)
    parts = []
    for at in range(0, x.lanes, WIDTH):
        # As bytes are interleaved below, number n of the register is 4 * (n // 16) + n % 16 // 2 % 4 of
        # quarter n % 2 + n // 8 % 2 * 2 of its bytes.
        order = [n % 2 * 16 + n // 8 % 2 * 32 + n // 16 * 4 + n // 2 % 4 for n in range(WIDTH)]
        code = f"{_BYTES} {s.emit(f'shufflevector {x}, {x.type} poison, {_mask([at + n for n in order])}')}"
        parts += _sixty_four(code, x.dtype, s)
    return joined(parts, "float32", 16, x.lanes, s).ref


def picked(low: str, high: str, code: str, s: Scopes) -> str:
    """What 64 bytes ``code`` find in a table of 128 by their lowest 7 bits, which `PICK` declares. ``low``,
    ``high``: its halves."""
    return s.emit(f"call {_BYTES} @{_PICK}({_BYTES} {low}, {code}, {_BYTES} {high})")


def _sixty_four(code: str, dtype: str, s: Scopes) -> list[str]:
    """Four vectors of 16 floats, of 64 bytes in the order in which they are interleaved."""
    lower, upper = (picked(_table(t[:WIDTH]), _table(t[WIDTH:]), code, s) for t in _halves(dtype))
    sign = s.emit(f"and {code}, splat (i8 -128)")
    upper = s.emit(f"or {_BYTES} {upper}, {sign}")
    out = []
    for half in (0, 8):
        within = [16 * q + half + k + side * WIDTH for q in range(4) for k in range(8) for side in (0, 1)]
        pairs = s.emit(f"shufflevector {_BYTES} {lower}, {_BYTES} {upper}, {_mask(within)}")
        words = s.emit(f"bitcast {_BYTES} {pairs} to {_WORDS}")
        for made in (f"shl {_WORDS} {words}, splat (i32 16)", f"and {_WORDS} {words}, splat (i32 -65536)"):
            out.append(s.emit(f"bitcast {_WORDS} {s.emit(made)} to {_FLOATS}"))
    return out


def _halves(dtype: str) -> tuple[list[int], list[int]]:
    """The lower and the upper bytes of the bfloat16 of all numbers that have no sign."""
    numbers = np.arange(1 << 7, dtype=np.uint8).view(DTYPES[dtype].numpy).astype(np.float32)
    words = numbers.view(np.uint32) >> 8 * (_WIDE.itemsize - _UPPER.itemsize)
    return [int(w) & 255 for w in words], [int(w) >> 8 for w in words]


def _table(entries: list[int]) -> str:
    return f"<{', '.join(f'i8 {x}' for x in entries)}>"


def _mask(lanes: list[int] | range) -> str:
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {k}' for k in lanes)}>"
