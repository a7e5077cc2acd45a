"""Rounds vectors of float32 to bfloat16 by the instructions of AVX512-BF16 (Zen 4, Cooper Lake, and later).

They round as `schedules.conversions` does, and NaN has the same bits. But they take subnormal numbers for 0.
So a subnormal number becomes a normal one first: with bit 23 set it has the same mantissa and the least
exponent. Its rounded bits are too many by that bit, which is taken off afterwards. Masks do both. For 32
numbers that takes half as long as the integer arithmetic of `schedules.conversions`.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VCVTNEPS2BF16, VCVTNE2PS2BF16
and VFPCLASSPS.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from autotune.codegen.llvm.pieces import joined, pieces
from autotune.codegen.llvm.scope import Scopes
from autotune.codegen.llvm.types import LLVM_TYPE, Value, vector
from schedules.dtypes import DTYPES

FEATURES = frozenset({"avx512bf16", "avx512bw", "avx512dq", "avx512vl"})
# Fewest lanes that are rounded so.
FEWEST = 8
_SUBNORMAL = 32  # a class of `vfpclassps`
_LEAST = 1 << DTYPES["float32"].mantissa  # the bits of the least normal number


def applies(x: Value, features: Collection[str]) -> bool:
    """Whether a value is rounded so on a target with these features."""
    return x.dtype == "float32" and x.lanes >= FEWEST and FEATURES.issubset(features)


def rounded(x: Value, s: Scopes, declare: Callable[[str], None]) -> Value:
    """The bfloat16 that are nearest to numbers, of two the even one.

    x: a vector of float32, for which `applies` holds. declare: keeps declarations of functions."""
    width = 8 if x.lanes == 8 else 16 if x.lanes <= 16 else 32
    parts = [_rounded(piece, s, declare) for piece in pieces(x, width, s)]
    return joined(parts, "bfloat16", width, x.lanes, s)


def _rounded(x: Value, s: Scopes, declare: Callable[[str], None]) -> str:
    """The bits of as many numbers as one instruction rounds: of a register, or 32 of two."""
    n, width = x.lanes, min(x.lanes, 16)
    found = [_normal(half, s, declare) for half in pieces(x, width, s)]
    name = "2ps2bf16.512" if n > width else f"ps2bf16.{32 * width}"
    bf16, word = vector("bfloat", n), vector(LLVM_TYPE["bfloat16"], n)
    given = [number for number, _ in reversed(found)]  # the first operand has the upper lanes
    name = f"@llvm.x86.avx512bf16.cvtne{name}"
    declare(f"declare {bf16} {name}({', '.join(g.type for g in given)})")
    bits = s.emit(f"call {bf16} {name}({', '.join(map(str, given))})")
    bits = s.emit(f"bitcast {bf16} {bits} to {word}")
    less = s.emit(f"sub {word} {bits}, splat (i16 {_LEAST >> 16})")
    small = joined([mask for _, mask in found], "bool", width, n, s)
    return s.emit(f"select {small}, {word} {less}, {word} {bits}")


def _normal(x: Value, s: Scopes, declare: Callable[[str], None]) -> tuple[Value, str]:
    """(numbers, of which those that are subnormal have one bit more; which these are)."""
    words, mask = vector("i32", x.lanes), vector("i1", x.lanes)
    name = f"@llvm.x86.avx512.fpclass.ps.{32 * x.lanes}"
    declare(f"declare {mask} {name}({x.type}, i32 immarg)")
    small = s.emit(f"call {mask} {name}({x}, i32 {_SUBNORMAL})")
    bits = s.emit(f"bitcast {x} to {words}")
    more = s.emit(f"or {words} {bits}, splat (i32 {_LEAST})")
    bits = s.emit(f"select {mask} {small}, {words} {more}, {words} {bits}")
    return Value(s.emit(f"bitcast {words} {bits} to {x.type}"), x.dtype, x.lanes), small
