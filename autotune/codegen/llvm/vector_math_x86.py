"""exp of float32 with AVX-512, by a table of 32 powers of two in two registers.

x = (n + j/32) ln 2 + r, exp(x) = 2^n 2^(j/32) exp(r), |r| ≤ ln(2)/64, so that a parabola is enough for exp(r)
(table and polynomial after Tang, ACM TOMS 15, 1989). `vpermi2ps` looks 2^(j/32) up in all lanes at once.
`vscalefps` multiplies by 2^n with one rounding, also for results that are not normal, so nothing branches.
This takes five multiply-adds and a product; the polynomial alone takes nine. Largest relative error measured
over a dense grid: 1.7e-7; of sigmoid with it 2.6e-7.

Arguments far outside need no bounds. There n alone gives the result, 0, infinity or NaN (`vscalefps` takes
2^±inf times a NaN for infinity or 0), as long as the mantissa is finite. The rounding of n makes r as large
as 1e31 there. So the highest bit of r's exponent is cleared, which is 0 wherever |r| < 2. That is one
instruction of any port; two bounds would compete with the multiply-adds.
"""

from __future__ import annotations

from autotune.codegen.llvm.vector_body import Body

# Lanes of a register.
PIECE = 16
# Table entries: as many as two registers hold.
STEPS = 32
# exp(r) - 1 = r (C1 + C2 r) for |r| ≤ ln(2)/64, minimax: absolute error 5.3e-8.
C1, C2 = 1.0000146627426147, 0.5
# LLVM's intrinsics for `vpermi2ps` and `vscalefps`, and the types of a register.
_PERMUTE = "@llvm.x86.avx512.vpermi2var.ps.512"
_SCALE = "@llvm.x86.avx512.mask.scalef.ps.512"
_F, _I = f"<{PIECE} x float>", f"<{PIECE} x i32>"
# Clears the highest bit of the exponent: the result is below 2.
_BELOW_2 = ~(1 << 30)
# Rounding mode of the control register.
_AS_SET = 4


def has_exp(b: Body) -> bool:
    """Whether a body is float32 in whole registers and the target has AVX-512."""
    return "avx512f" in b.features and b.fmt.bits == 32 and b.lanes % PIECE == 0


def exp(b: Body, x: str) -> str:
    """exp(x) for whole registers of float32."""
    if b.lanes == PIECE:
        return _exp(b, x)
    parts = []
    for first in range(0, b.lanes, PIECE):
        mask = ", ".join(f"i32 {first + k}" for k in range(PIECE))
        part = b.emit(f"shufflevector {b.type} {x}, {b.type} poison, {_I} <{mask}>")
        parts.append(_exp(b.narrowed(PIECE), part))
    return _joined(b, parts)


def _exp(b: Body, x: str) -> str:
    r, n, shifted = b.reduced(x, b.fmt.magic / STEPS)  # n in multiples of 1 / STEPS
    r = b.emit(f"bitcast {_I} {b.emit(f'and {_I} {b.to_bits(r)}, splat (i32 {_BELOW_2})')} to {_F}")
    b.declares[f"declare {_F} {_PERMUTE}({_F}, {_I}, {_F})"] = None
    low, high = (_table(b, first) for first in (0, PIECE))
    bits = b.to_bits(shifted)
    power = b.emit(f"call {_F} {_PERMUTE}({_F} {low}, {_I} {bits}, {_F} {high})")
    expm1 = b.mul(b.fma(r, b.const(C2), b.const(C1)), r)
    value = b.fma(expm1, power, power)
    b.declares[f"declare {_F} {_SCALE}({_F}, {_F}, {_F}, i16, i32)"] = None
    return b.emit(f"call {_F} {_SCALE}({_F} {value}, {_F} {n}, {_F} poison, i16 -1, i32 {_AS_SET})")


def _table(b: Body, first: int) -> str:
    """2^(j/32) for the lanes of a register."""
    return f"<{', '.join(f'float {b.literal(2.0 ** ((first + k) / STEPS))}' for k in range(PIECE))}>"


def _joined(b: Body, parts: list[str]) -> str:
    """The lanes of all parts in sequence."""
    lanes = PIECE
    whole = parts[0]
    for part in parts[1:]:
        wide = f"<{lanes} x float>"
        spread = ", ".join(f"i32 {k}" if k < PIECE else "i32 poison" for k in range(lanes))
        part = b.emit(f"shufflevector {_F} {part}, {_F} poison, <{lanes} x i32> <{spread}>")
        mask = ", ".join(f"i32 {k}" for k in range(lanes + PIECE))
        lanes += PIECE
        whole = b.emit(f"shufflevector {wide} {whole}, {wide} {part}, <{lanes} x i32> <{mask}>")
    return whole
