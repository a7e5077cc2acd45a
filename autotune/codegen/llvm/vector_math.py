"""Elementary functions as LLVM vector IR text: those of `schedules.functions`.

`llvm.exp.v8f32` and similar intrinsics become scalar calls of libm, which are ten times as slow. Here each
function is a short sequence of vector instructions for float32 or float64 and any number of lanes; the
backend splits or widens odd numbers. Special values follow IEEE 754 and C: infinities, NaN, signed zero,
overflow to infinity, gradual underflow. There is no errno and no exception flag. Only exp branches
(`vector_exp`), sin, cos and tan, for large arguments (`vector_turns`), and fmod, for large quotients
(`vector_remainder`).

Multiply-add is `llvm.fmuladd`: one FMA if the target has it, else mul and add, never a call of `fma`.
Argument reductions are exact either way, because the high part of ln 2 has trailing zeros. No instruction has
fast-math flags; the magic-number roundings forbid `reassoc`.

Sources: polynomials are weighted minimax fits of our own (Remez exchange at 200 bits); the float32 erf is a
rational fit of our own (reweighted least squares); the float64 erf has the rational functions of Cephes
(ndtr.c, S. Moshier).

Largest relative errors measured over dense grids, with FMA (float32 / float64): exp 8.4e-8 / 1.6e-16, log
8.0e-8 / 1.6e-16, tanh 1.8e-7 / 3.7e-16, erf 3.0e-7 / 4.5e-16, sigmoid 1.8e-7 / 3.2e-16; sqrt, fmod,
abs, floor, ceil, trunc and round are exact. ADR 45 has the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from autotune.codegen.llvm import (
    vector_exp,
    vector_hyperbolic,
    vector_remainder,
    vector_roots,
    vector_turns,
)
from autotune.codegen.llvm.vector_body import FORMATS, Body
from autotune.codegen.llvm.vector_exp import power_of_two, reduce_exp
from schedules.errors import WorkloadError
from schedules.functions import FUNCTIONS as ROWS


@dataclass(frozen=True, slots=True)
class Expansion:
    """A function as instruction lines to paste into a body, and the `declare` lines that they need. `result`:
    the value. `label`: the block in which code continues, None for the block that the lines were pasted into.
    """

    lines: tuple[str, ...]
    result: str
    declares: tuple[str, ...]
    label: str | None


# Cephes ndtr.c, lowest power first: erf(x) = x T(x²)/U(x²) for |x| ≤ 1, and
# erfc(y) = exp(-y²) P(y)/Q(y) for 1 ≤ y < 8.
_ERF64_T = (
    5.55923013010394962768e4,
    7.00332514112805075473e3,
    2.23200534594684319226e3,
    9.00260197203842689217e1,
    9.60497373987051638749e0,
)
_ERF64_U = (
    4.92673942608635921086e4,
    2.26290000613890934246e4,
    4.59432382970980127987e3,
    5.21357949780152679795e2,
    3.35617141647503099647e1,
    1.0,
)
_ERF64_P = (
    5.57535335369399327526e2,
    1.02755188689515710272e3,
    9.34528527171957607540e2,
    5.26445194995477358631e2,
    1.96520832956077098242e2,
    4.86371970985681366614e1,
    7.46321056442269912687e0,
    5.64189564831068821977e-1,
    2.46196981473530512524e-10,
)
_ERF64_Q = (
    5.57535340817727675546e2,
    1.65666309194161350182e3,
    2.24633760818710981792e3,
    1.82390916687909736289e3,
    9.75708501743205489753e2,
    3.54937778887819891062e2,
    8.67072140885989742329e1,
    1.32281951154744992508e1,
    1.0,
)
# N and D in erf(x) = x N(x²) / D(x²) for |x| ≤ 3.93, where erf rounds to 1; relative error of the fit 2.9e-8.
_ERF32_ONE = 3.93
_ERF32_N = (
    1.1283791065216064,
    0.19025562703609467,
    0.051564402878284454,
    0.003601950127631426,
    0.00023058714577928185,
)
_ERF32_D = (
    1.0,
    0.5019420385360718,
    0.11301669478416443,
    0.014469575136899948,
    0.0010582187678664923,
    2.312012657057494e-05,
    -1.115905590154398e-07,
)


def _tanh(b: Body, x: str) -> str:
    """tanh|x| = E / (E + 2), E = exp(2|x|) - 1 = 2^n (exp(r) - 1) + (2^n - 1). Accurate down to denormals."""
    magnitude = b.at_most(b.intrinsic("fabs", x), b.fmt.tanh_one)
    expm1, shifted = reduce_exp(b, b.add(magnitude, magnitude))
    power = power_of_two(b, shifted)
    value = b.fma(power, expm1, b.sub(power, b.const(1.0)))
    return b.intrinsic("copysign", b.div(value, b.add(value, b.const(2.0))), x)


def _sigmoid(b: Body, x: str) -> str:
    """With z = exp(-|x|): 1 / (1 + z) for x ≥ 0, else z / (1 + z), so that small results keep their
    digits."""
    magnitude = b.intrinsic("fabs", x)
    negative = b.negative(magnitude)
    z = vector_exp.exp(b, negative)
    one = b.const(1.0)
    return b.div(b.where(x, "olt", b.const(0.0), z, one), b.add(z, one))


def _erf_float32(b: Body, x: str) -> str:
    """x N(x²) / D(x²), clamped where erf rounds to 1."""
    magnitude = b.at_most(b.intrinsic("fabs", x), _ERF32_ONE)
    square = b.mul(magnitude, magnitude)
    numerator = b.mul(magnitude, b.polynomial(square, _ERF32_N))
    value = b.div(numerator, b.polynomial(square, _ERF32_D))
    return b.intrinsic("copysign", b.at_most(value, 1.0), x)


def _erf_float64(b: Body, x: str) -> str:
    """Both ranges are computed, and share one division."""
    y = b.at_most(b.intrinsic("fabs", x), 6.0)
    square = b.mul(y, y)
    one = b.const(1.0)
    expm1, shifted = reduce_exp(b, b.negative(square))
    gauss = b.mul(b.add(expm1, one), power_of_two(b, shifted))
    outer_numerator = b.mul(gauss, b.polynomial(y, _ERF64_P))
    inner_numerator = b.mul(y, b.polynomial(square, _ERF64_T))
    numerator = b.where(y, "olt", one, inner_numerator, outer_numerator)
    denominator = b.where(y, "olt", one, b.polynomial(square, _ERF64_U), b.polynomial(y, _ERF64_Q))
    quotient = b.div(numerator, denominator)
    return b.intrinsic("copysign", b.where(y, "olt", one, quotient, b.sub(one, quotient)), x)


def _tf32(b: Body, x: str) -> str:
    if b.fmt.bits == 64:
        b32 = Body(FORMATS["float32"], b.lanes, b.prefix, b.features, b.code)
        return b32.widen(_tf32(b32, b32.narrow(x)))
    rounded = b.integer("and", b.integer("add", b.to_bits(x), 1 << 12), -1 << 13)
    return b.where(x, "uno", x, x, b.from_bits(rounded))


# {function: (body, operands) -> its value}.
_EMITTERS: dict[str, Callable[..., str]] = {
    **vector_exp.EMITTERS,
    **vector_turns.EMITTERS,
    **vector_hyperbolic.EMITTERS,
    **vector_roots.EMITTERS,
    "sqrt": lambda b, x: b.intrinsic("sqrt", x),
    "tanh": _tanh,
    "erf": lambda b, x: (_erf_float32 if b.fmt.bits == 32 else _erf_float64)(b, x),
    "sigmoid": _sigmoid,
    "fmod": vector_remainder.fmod,
    "abs": lambda b, x: b.intrinsic("fabs", x),
    "floor": lambda b, x: b.intrinsic("floor", x),
    "ceil": lambda b, x: b.intrinsic("ceil", x),
    "trunc": lambda b, x: b.intrinsic("trunc", x),
    "round": lambda b, x: b.intrinsic("roundeven", x),
    "tf32": _tf32,
}
# Names of the functions.
FUNCTIONS = tuple(name for name in ROWS if name in _EMITTERS)


def expand(
    fn: str, dtype: str, lanes: int, operands: Sequence[str], prefix: str, features: Collection[str] = ()
) -> Expansion:
    """Instructions for `fn(*operands)`, for emitters without an inliner. `features`: of the target, by LLVM's
    names; others are not used.

    `operands`: of type `<lanes x dtype>`, or the scalar type for one lane. Values are named `%{prefix}0`,
    `%{prefix}1`, … . Raises WorkloadError for an unknown function, dtype or lane count.
    """
    if fn not in _EMITTERS:
        raise WorkloadError(f"no vector function {fn!r}; use one of {', '.join(FUNCTIONS)}")
    if dtype not in FORMATS:
        raise WorkloadError(f"{fn} has no {dtype} version; cast to one of {', '.join(FORMATS)} first")
    if lanes < 1:
        raise WorkloadError(f"{fn} over {lanes} lanes; a vector has at least one")
    body = Body(FORMATS[dtype], lanes, prefix, features)
    result = _EMITTERS[fn](body, *operands)
    return Expansion(tuple(body.lines), result, tuple(body.declares), body.code.label)
