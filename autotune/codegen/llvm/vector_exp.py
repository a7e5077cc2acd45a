"""exp, exp2, expm1, log, log1p, log2, log10 and pow as LLVM IR: see `vector_math`.

Only exp branches, around instructions for results that are not normal (a quarter of its instructions).
AVX-512 has an exp of its own (`vector_math_x86`).

Sources: log and the float64 logarithm of pow follow fdlibm (e_log.c, e_pow.c), log2 and log10 that of
FreeBSD (e_log2.c, e_log10.c).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from autotune.codegen.llvm import vector_math_x86
from autotune.codegen.llvm.vector_body import Body

# exp(x) - 1 rounds to -1 from here on.
EXPM1_LOW = -40.0
# exp of it is infinite in float32, and exp of its negation 0.
FLOAT32_ENDS = 200.0
# 2^x is infinite in float64 for it, and 0 for its negation.
EXP2_ENDS = 1100.0
# A power of any number but 1 is 0 or infinite for it, or rounds to the same as for a larger one.
LARGEST_POWER = 1e20
# 2/3 log2(e) and ln 2 as sums, the first part of 26 bits.
TWO_THIRDS_LOG2_E = (0.9617966860532761, 7.872699542894897e-09)
LN2 = (0.6931471675634384, 1.2996506893889889e-08)
# P in log(1+f) = f - f²/2 + f³ P(f), sqrt(1/2) ≤ 1+f ≤ sqrt(2); relative error of the sum 5.8e-9.
_LOG_FLOAT32 = (
    0.3333333134651184,
    -0.2500081956386566,
    0.20001226663589478,
    -0.16623356938362122,
    0.14201757311820984,
    -0.13160181045532227,
    0.1276157945394516,
    -0.07634502649307251,
)
# R in log(1+f) = 2s + s³ R(s²), s = f/(2+f), on the same interval; relative error 1.2e-18.
_LOG_FLOAT64 = (
    0.6666666666666735,
    0.3999999999941109,
    0.2857142874326274,
    0.22222198475988741,
    0.18183569739354394,
    0.1531390326453476,
    0.14797507479353875,
)
# L in ln m = 2/3 s (3 + s² + s⁴ L(s²)), s = (m-1)/(m+1), sqrt(1/2) ≤ m ≤ sqrt(2); relative error 7.3e-23.
_LOG2_FLOAT64 = (
    0.5999999999999996,
    0.428571428571674,
    0.3333333332635866,
    0.2727272829976189,
    0.2307683564997265,
    0.20004464278523987,
    0.17512446357604947,
    0.17981847538412335,
)


# log_b(e) and log_b(2) as sums, by base and format. Products with the first parts are exact: of an exponent,
# and of the upper bits of a number.
_BASES = {
    2: {
        32: ((1.4423828125, 0.00031222839606925845), (1.0, 0.0)),
        64: ((1.4426950216293335, 1.9259629911266175e-08), (1.0, 0.0)),
    },
    10: {
        32: ((0.4342041015625, 9.038033749675378e-05), (0.301025390625, 4.605039066518657e-06)),
        64: ((0.4342944771051407, 4.798111141615973e-09), (0.3010299950838089, 5.801722962879576e-10)),
    },
}


# {bits of a format: a mask that leaves the upper half of the bits of its significand}.
_UPPER = {32: -(1 << 12), 64: -(1 << 27)}


def reduce_exp(b: Body, x: str) -> tuple[str, str]:
    """(exp(r) - 1, n + bias + magic) with x = n ln 2 + r. The low bits of the second are the exponent of 2^n
    if that is normal."""
    r, _, shifted = b.reduced(x, b.fmt.magic + b.fmt.bias)
    return b.fma(b.mul(r, r), b.polynomial(r, b.fmt.expm1), r), shifted


def power_of_two(b: Body, shifted: str) -> str:
    """2^n from n + bias + magic, if 2^n is normal. The shift drops the bits of the magic number."""
    return b.from_bits(b.integer("shl", b.to_bits(shifted), b.fmt.mantissa))


def _exp_of_normal(b: Body, x: str) -> str:
    """exp(x), if it is a normal number."""
    expm1, shifted = reduce_exp(b, x)
    power = power_of_two(b, shifted)
    return b.fma(expm1, power, power)


def _exp_of_clamped(b: Body, x: str) -> str:
    """exp(x) for exp_low ≤ x ≤ exp_high. 2^n is two factors, so that underflow rounds once, at the end.
    Normal results have the same bits as those of `_exp_of_normal`, so a lane does not depend on its
    neighbours."""
    expm1, shifted = reduce_exp(b, x)
    return scaled(b, expm1, b.sub(shifted, b.const(b.fmt.magic + b.fmt.bias)))


def scaled(b: Body, expm1: str, n: str) -> str:
    """2^n (1 + expm1)."""
    biased = b.const(b.fmt.magic + b.fmt.bias)
    half = b.fma(n, b.const(0.5), biased)
    rest = b.add(b.sub(n, b.sub(half, biased)), biased)
    power = power_of_two(b, half)
    return b.mul(b.fma(expm1, power, power), power_of_two(b, rest))


def exp(b: Body, x: str) -> str:
    if vector_math_x86.has_exp(b):
        return vector_math_x86.exp(b, x)

    def clamped() -> tuple[str]:
        return (_exp_of_clamped(b, b.at_most(b.at_least(x, b.fmt.exp_low), b.fmt.exp_high)),)

    magnitude = b.intrinsic("fabs", x)
    (value,) = b.rarely(magnitude, "ugt", b.const(b.fmt.exp_normal), clamped, lambda: (_exp_of_normal(b, x),))
    return value


def exp2(b: Body, x: str) -> str:
    """2^n exp(r) with x = n + r / ln 2, of which n is exact."""
    ends = b.fmt.bias + b.fmt.mantissa + 2.0  # 0 or infinite beyond them
    bounded = b.at_most(b.at_least(x, -ends), ends)
    added = b.const(b.fmt.magic)
    n = b.sub(b.add(bounded, added), added)
    r = b.mul(b.sub(bounded, n), b.const(math.log(2.0)))
    return scaled(b, b.fma(b.mul(r, r), b.polynomial(r, b.fmt.expm1), r), n)


def expm1(b: Body, x: str) -> str:
    """exp(x) - 1 = 2^n (exp(r) - 1) + (2^n - 1), with what rounding leaves of r and of the sum added last."""
    fmt = b.fmt
    most = fmt.magic + 2 * fmt.bias  # of the largest 2^n; the result of a larger one is doubled at the end
    bounded = b.at_most(b.at_least(x, EXPM1_LOW), fmt.exp_high)
    added = b.const(fmt.magic + fmt.bias)
    shifted = b.fma(bounded, b.const(1.0 / math.log(2.0)), added)
    n = b.sub(shifted, added)
    high = b.fma(n, b.const(-fmt.ln2_high), bounded)
    low = b.mul(n, b.const(fmt.ln2_low))
    r = b.sub(high, low)
    left = b.sub(b.sub(high, r), low)
    power = power_of_two(b, b.at_most(shifted, most))
    curve = b.fma(b.mul(r, r), b.polynomial(r, fmt.expm1), left)
    less, line = b.sub(power, b.const(1.0)), b.mul(power, r)
    total = b.add(less, line)
    value = b.add(total, b.fma(power, curve, b.add(b.sub(less, total), line)))
    value = b.mul(value, b.where(shifted, "ogt", b.const(most), b.const(2.0), b.const(1.0)))
    return b.intrinsic("copysign", value, x)


def significand(b: Body, x: str) -> tuple[str, str]:
    """(k, m) of a positive finite x = 2^k m, m in [sqrt(1/2), sqrt(2))."""
    fmt = b.fmt
    sqrt_half = fmt.bits_of(math.sqrt(0.5))
    scaled = b.mul(x, b.const(math.ldexp(1.0, fmt.mantissa)))
    smallest = b.const(fmt.smallest_normal)
    normal = b.where(x, "olt", smallest, scaled, x)
    # The exponent becomes a float through the mantissa of 2^mantissa: x86 before AVX-512 converts no i64.
    exponent_bias = math.ldexp(1.0, fmt.mantissa) + fmt.bias
    bias = b.where(x, "olt", smallest, b.const(exponent_bias + fmt.mantissa), b.const(exponent_bias))
    offset = b.integer("add", b.to_bits(normal), fmt.one_bits - sqrt_half)
    exponent = b.integer("lshr", offset, fmt.mantissa)
    exponent = b.integer("or", exponent, fmt.bits_of(math.ldexp(1.0, fmt.mantissa)))
    k = b.sub(b.from_bits(exponent), bias)
    mantissa = b.integer("and", offset, (1 << fmt.mantissa) - 1)
    return k, b.from_bits(b.integer("add", mantissa, sqrt_half))


def log(b: Body, x: str) -> str:
    """log(x) with x = 2^k (1+f): log(1+f) + k ln 2, with the small parts added first."""
    fmt = b.fmt
    k, m = significand(b, x)
    f = b.sub(m, b.const(1.0))
    half_square = b.mul(b.mul(f, f), b.const(0.5))
    low = b.mul(k, b.const(fmt.ln2_low))
    if fmt.bits == 32:
        cube = b.mul(b.mul(f, f), f)
        small = b.sub(b.fma(cube, b.polynomial(f, _LOG_FLOAT32), low), half_square)
    else:
        # fdlibm e_log.c: log(1+f) = f - (f²/2 - s (f²/2 + s² R(s²))).
        s, tail = _tail_float64(b, f, half_square)
        small = b.sub(b.fma(s, tail, low), half_square)
    return _with_ends(b, x, b.fma(k, b.const(fmt.ln2_high), b.add(small, f)))


def _tail_float64(b: Body, f: str, half_square: str) -> tuple[str, str]:
    s = b.div(f, b.add(f, b.const(2.0)))
    z = b.mul(s, s)
    return s, b.fma(z, b.polynomial(z, _LOG_FLOAT64), half_square)


def _with_ends(b: Body, x: str, value: str) -> str:
    """The logarithm of x, whose value is right for positive numbers."""
    infinity = b.const(math.inf)
    value = b.where(x, "olt", infinity, value, x)
    zero = b.const(0.0)
    invalid = b.where(x, "oeq", zero, b.const(-math.inf), b.const(math.nan))
    return b.where(x, "ole", zero, invalid, value)


def _log_to(b: Body, x: str, base: int) -> str:
    """log_b(1+f) + k log_b(2), where log(1+f) is a sum of two numbers, of which products are exact."""
    (slope, slope_low), (unit, unit_low) = _BASES[base][b.fmt.bits]
    k, m = significand(b, x)
    f = b.sub(m, b.const(1.0))
    half_square = b.mul(b.mul(f, f), b.const(0.5))
    if b.fmt.bits == 32:
        curve = b.mul(b.mul(b.mul(f, f), f), b.polynomial(f, _LOG_FLOAT32))
    else:
        curve = b.mul(*_tail_float64(b, f, half_square))
    high = b.from_bits(b.integer("and", b.to_bits(b.sub(f, half_square)), _UPPER[b.fmt.bits]))
    low = b.add(b.sub(b.sub(f, high), half_square), curve)
    first, whole = b.mul(high, b.const(slope)), b.mul(k, b.const(unit))
    rest = b.fma(b.add(low, high), b.const(slope_low), b.mul(low, b.const(slope)))
    rest = b.fma(k, b.const(unit_low), rest)
    total = b.add(whole, first)
    rest = b.add(rest, b.add(b.sub(whole, total), first))
    return _with_ends(b, x, b.add(rest, total))


def log2(b: Body, x: str) -> str:
    """Exact of powers of 2."""
    return _log_to(b, x, 2)


def log10(b: Body, x: str) -> str:
    return _log_to(b, x, 10)


def log1p(b: Body, x: str) -> str:
    u, more = one_more(b, x)
    return b.intrinsic("copysign", b.add(log(b, u), more), x)


def one_more(b: Body, x: str) -> tuple[str, str]:
    """(u, c / u), of which log(1 + x) = log(u) + c / u: 1 + x = u + c exactly, u rounded."""
    one = b.const(1.0)
    u = b.add(x, one)
    rest = b.sub(u, x)
    c = b.add(b.sub(x, b.sub(u, rest)), b.sub(one, rest))
    more = b.div(c, u)
    return u, b.where(more, "ord", more, more, b.const(0.0))  # NaN at -1 and infinity


def pow(b: Body, x: str, y: str) -> str:
    """|x|^y, then the sign and the special values of C (annex F of C11). float32 goes by way of float64."""
    if b.fmt.bits == 32:
        wide = b.widened()
        x, y = b.widen(x), b.widen(y)
        return b.narrow(_signed_power(wide, x, y, _power_for_float32))
    return _signed_power(b, x, y, _power_float64)


def _signed_power(b: Body, x: str, y: str, power: Callable[[Body, str, str], str]) -> str:
    one, infinity = b.const(1.0), b.const(math.inf)
    size = b.intrinsic("fabs", x)
    half = b.mul(y, b.const(0.5))
    whole = b.test(b.intrinsic("floor", y), "oeq", y)
    odd = b.both(whole, b.test(b.intrinsic("floor", half), "one", half))
    value = power(b, size, y)
    value = b.where(size, "oeq", one, one, value)
    root = b.both(b.test(x, "olt", b.const(0.0)), b.test(b.intrinsic("floor", y), "une", y))
    root = b.both(root, b.test(size, "one", infinity))
    value = b.choose(root, b.const(math.nan), value)
    value = b.choose(odd, b.intrinsic("copysign", value, x), value)
    return b.where(y, "oeq", b.const(0.0), one, value)


def _power_for_float32(b: Body, x: str, y: str) -> str:
    """exp(y log x) for x ≥ 0, in float64. Beyond ±`FLOAT32_ENDS` float32 has 0 or infinity."""
    exponent = b.mul(y, log(b, x))
    return _exp_of_normal(b, b.at_most(b.at_least(exponent, -FLOAT32_ENDS), FLOAT32_ENDS))


def _high(b: Body, x: str) -> str:
    """The upper 26 bits of a float64's significand: products of two such numbers are exact."""
    return b.from_bits(b.integer("and", b.to_bits(x), _UPPER[64]))


def _power_float64(b: Body, x: str, y: str) -> str:
    """x^y for x ≥ 0: 2^(y log2 x), with the logarithm and the product as sums of two numbers."""
    bounded = b.at_most(b.at_least(y, -LARGEST_POWER), LARGEST_POWER)
    high, low = _log2_in_two(b, x)
    first = _high(b, bounded)
    p_low = b.fma(b.sub(bounded, first), high, b.mul(bounded, low))
    p_high = b.mul(first, high)
    fits = b.test(b.intrinsic("fabs", p_high), "olt", b.const(EXP2_ENDS))
    p_low = b.choose(fits, p_low, b.const(0.0))
    value = _exp2_of_two(b, b.at_most(b.at_least(p_high, -EXP2_ENDS), EXP2_ENDS), p_low)
    # 0 and infinity are their own halves; anything that is not a number stays so
    end = b.where(y, "olt", b.const(0.0), b.div(b.const(1.0), x), x)
    value = b.where(b.mul(x, b.const(0.5)), "oeq", x, end, value)
    return b.where(x, "ord", y, value, b.add(x, y))


def _log2_in_two(b: Body, x: str) -> tuple[str, str]:
    """log2(x) of a positive number as a sum, its first part of 26 bits (after fdlibm e_pow.c). With
    s = (m - 1) / (m + 1): ln m = 2/3 s (3 + s² + s⁴ L(s²))."""
    k, m = significand(b, x)
    one, three = b.const(1.0), b.const(3.0)
    above, below = b.sub(m, one), b.add(m, one)
    inverse = b.div(one, below)
    s = b.mul(above, inverse)
    s_high, below_high = _high(b, s), _high(b, below)
    below_low = b.sub(m, b.sub(below_high, one))
    rest = b.sub(b.sub(above, b.mul(s_high, below_high)), b.mul(s_high, below_low))
    s_low = b.mul(inverse, rest)
    square = b.mul(s, s)
    tail = b.mul(b.mul(square, square), b.polynomial(square, _LOG2_FLOAT64))
    tail = b.fma(s_low, b.add(s_high, s), tail)
    square = b.mul(s_high, s_high)
    t_high = _high(b, b.add(b.add(three, square), tail))
    t_low = b.sub(tail, b.sub(b.sub(t_high, three), square))
    u = b.mul(s_high, t_high)
    v = b.fma(s_low, t_high, b.mul(t_low, s))
    p_high = _high(b, b.add(u, v))
    p_low = b.sub(v, b.sub(p_high, u))
    z_high = b.mul(b.const(TWO_THIRDS_LOG2_E[0]), p_high)
    z_low = b.fma(b.const(TWO_THIRDS_LOG2_E[1]), p_high, b.mul(p_low, b.const(sum(TWO_THIRDS_LOG2_E))))
    high = _high(b, b.add(b.add(z_high, z_low), k))
    return high, b.sub(z_low, b.sub(b.sub(high, k), z_high))


def _exp2_of_two(b: Body, high: str, low: str) -> str:
    """2^(high + low), ``low`` the smaller."""
    added = b.const(b.fmt.magic)
    n = b.sub(b.add(high, added), added)
    f = b.sub(high, n)
    t = _high(b, b.add(f, low))
    u = b.mul(t, b.const(LN2[0]))
    v = b.fma(b.sub(low, b.sub(t, f)), b.const(sum(LN2)), b.mul(t, b.const(LN2[1])))
    r = b.add(u, v)
    left = b.sub(v, b.sub(r, u))
    curve = b.fma(b.mul(r, r), b.polynomial(r, b.fmt.expm1), b.fma(left, r, left))
    return scaled(b, b.add(r, curve), n)


# {function of the table: what writes it}.
EMITTERS: dict[str, Callable[..., str]] = {
    f.__name__: f for f in (exp, exp2, expm1, log, log1p, log2, log10, pow)
}
