"""sin, cos, tan and their inverses as LLVM IR: see `vector_math`. The first three are in float64, for float32
too.

x = q π/2 + r with |r| ≤ π/4. Up to `NEAR` π/2 is taken in parts whose products with q are exact (Cody and
Waite), so that r has all its digits. Larger arguments are rare: one function for a vector, which is called if
a lane has one, multiplies these lanes by as many bits of 2/π as matter (Payne and Hanek, SIGNUM 18, 1983).
Other lanes keep what they have, so a lane does not depend on its neighbours.

Sines and cosines of r are polynomials, minimax fits of our own; what rounding leaves of r is added as in
fdlibm (k_sin.c, k_cos.c).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from autotune.codegen.llvm.vector_body import Body

# Largest argument that is reduced in vectors.
NEAR = 50000.0
# π/2 as a sum of parts, of 38, 38 and 53 bits, and the sum of the last two.
HALF_PI = (1.5707963267923333, 2.5633441515839558e-12, 1.0562999066987428e-23)
HALF_PI_REST = 2.563344151594519e-12
# π/4 as a sum, by format: products of the first part with 0 to 4 are exact.
QUARTER_PI = {32: (0.785398006439209, 1.5695823932524066e-07), 64: (0.7853981633974474, 9.18794589678809e-16)}
# π/2 as a sum, by format.
HALF_PI_IN_TWO = {
    32: (1.5707963705062866, -4.371138828673793e-08), 64: (1.5707963267948966, 6.123233995736766e-17)
}  # fmt: skip
# P in asin s = s + s³ P(s²) for 0 ≤ s ≤ 1/2, minimax; relative error 4.9e-9.
_ASIN_FLOAT32 = (
    0.16666752099990845,
    0.07495299726724625,
    0.04547014459967613,
    0.02418035827577114,
    0.042165305465459824,
)
# P as above, relative error 9.5e-19.
_ASIN_FLOAT64 = (
    0.1666666666666676,
    0.07499999999970798,
    0.04464285717461336,
    0.03038194270773027,
    0.02237221498876352,
    0.017351611999025927,
    0.013980820672812675,
    0.011398911485512097,
    0.010780255919775033,
    0.003706399154880119,
    0.021707467251098896,
    -0.02099908852368095,
    0.032628639203257086,
)
# A in atan t = t + t³ A(t²) for |t| ≤ 1/2, minimax; relative error 5.32e-9.
_ATAN_FLOAT32 = (
    -0.3333323299884796,
    0.19994226098060608,
    -0.14175011217594147,
    0.10160020738840103,
    -0.05132606253027916,
)
# A as above, relative error 4.04e-18.
_ATAN_FLOAT64 = (
    -0.3333333333333298,
    0.1999999999990302,
    -0.14285714276380956,
    0.11111110659490668,
    -0.09090896242104574,
    0.07692073881615674,
    -0.06663810372998748,
    0.05858297614808703,
    -0.0512200116156672,
    0.0418649379760446,
    -0.027434811761233024,
    0.010116768452992758,
)
# S in sin r = r + r³ S(r²), relative error 3.6e-9; C in cos r = 1 + r² C(r²), 5.4e-11.
_SIN_FLOAT32 = (-0.16666654943574724, 0.008332178141739659, -0.0001951729844762084)
_COS_FLOAT32 = (-0.4999999972511431, 0.04166662332442595, -0.0013886763788898335, 2.4390449807586504e-05)
# S as above, relative error 3.4e-18; C in cos r = 1 - r²/2 + r⁴ C(r²), 4.7e-20.
_SIN_FLOAT64 = (
    -0.16666666666666632,
    0.008333333333322425,
    -0.0001984126982981711,
    2.7557313695264046e-06,
    -2.50507586572778e-08,
    1.5896828082623324e-10,
)
_COS_FLOAT64 = (
    0.0416666666666666,
    -0.001388888888887414,
    2.48015872894924e-05,
    -2.755731435536934e-07,
    2.0875723697791052e-09,
    -1.13596703966322e-11,
)


def sin(b: Body, x: str) -> str:
    def made(w: Body, x: str) -> str:
        s, c, turns = _parts(w, x, b.fmt.bits)
        value = _negated(w, w.choose(w.some_bits(turns, 1), c[0], s[0]), w.integer("lshr", turns, 1))
        return value if b.fmt.bits == 64 else w.where(x, "oeq", w.const(0.0), x, value)  # -0 too

    return _in_float64(b, x, made)


def cos(b: Body, x: str) -> str:
    def made(w: Body, x: str) -> str:
        s, c, turns = _parts(w, x, b.fmt.bits)
        half = w.integer("lshr", w.integer("add", turns, 1), 1)
        return _negated(w, w.choose(w.some_bits(turns, 1), s[0], c[0]), half)

    return _in_float64(b, x, made)


def tan(b: Body, x: str) -> str:
    """sin / cos; for float64 with what rounding left of both."""

    def made(w: Body, x: str) -> str:
        s, c, turns = _parts(w, x, b.fmt.bits)
        odd = w.some_bits(turns, 1)
        above = [w.choose(odd, v, u) for u, v in zip(s, c, strict=True)]
        below = [w.choose(odd, u, v) for u, v in zip(s, c, strict=True)]
        value = w.div(above[0], below[0])
        if b.fmt.bits == 64:
            left = w.sub(above[1], w.mul(value, below[1]))
            value = w.fma(left, w.div(w.const(1.0), below[0]), value)
        return w.where(x, "oeq", w.const(0.0), x, _negated(w, value, turns))

    return _in_float64(b, x, made)


def _in_float64(b: Body, x: str, made: Callable[[Body, str], str]) -> str:
    if b.fmt.bits == 64:
        return made(b, x)
    return b.narrow(made(b.widened(), b.widen(x)))


def _negated(b: Body, x: str, turns: str) -> str:
    """``x``, negated where an integer is odd."""
    return b.from_bits(b.integer("xor", b.to_bits(x), b.integer("shl", turns, 63)))


def _parts(b: Body, x: str, bits: int) -> tuple[list[str], list[str], str]:
    """(sin r, cos r, an integer whose last two bits are those of q), for results of 32 or 64 bits. Of 64 bits
    each function has a second value, what rounding left of it."""
    added = b.const(b.fmt.magic)
    shifted = b.fma(x, b.const(2.0 / math.pi), added)
    q = b.sub(shifted, added)
    first = b.fma(q, b.const(-HALF_PI[0]), x)
    near: tuple[str, ...]
    if bits == 32:
        near = (b.fma(q, b.const(-HALF_PI_REST), first), shifted)
    else:
        r = b.fma(q, b.const(-HALF_PI[1]), first)
        rest = b.fma(q, b.const(-HALF_PI[1]), b.sub(first, r))
        near = (r, shifted, b.fma(q, b.const(-HALF_PI[2]), rest))
    size = b.intrinsic("fabs", x)
    r, shifted, *left = b.rarely(size, "ugt", b.const(NEAR), lambda: _far(b, x, near), lambda: near)
    functions = _of_quadrant_float64(b, r, left[0]) if left else _of_quadrant_float32(b, r)
    return (*functions, b.to_bits(shifted))


def _of_quadrant_float32(b: Body, r: str) -> tuple[list[str], list[str]]:
    z = b.mul(r, r)
    s = b.fma(b.mul(z, r), b.polynomial(z, _SIN_FLOAT32), r)
    return [s], [b.fma(z, b.polynomial(z, _COS_FLOAT32), b.const(1.0))]


def _of_quadrant_float64(b: Body, r: str, left: str) -> tuple[list[str], list[str]]:
    """Of r + left: fdlibm's sums, and what rounding left of each. The sine of -0 is -0, as r is not added to
    but taken from."""
    one, half = b.const(1.0), b.const(-0.5)
    z = b.mul(r, r)
    cube = b.mul(z, r)
    curve = b.fma(cube, b.polynomial(z, _SIN_FLOAT64[1:]), b.mul(half, left))
    bend = b.fma(b.negative(z), curve, b.negative(left))
    bend = b.fma(cube, b.const(-_SIN_FLOAT64[0]), bend)
    s = b.sub(r, bend)
    line = b.fma(half, z, one)
    tail = b.fma(b.negative(r), left, b.fma(half, z, b.sub(one, line)))
    tail = b.fma(b.mul(z, z), b.polynomial(z, _COS_FLOAT64), tail)
    c = b.add(line, tail)
    return [s, b.sub(b.sub(r, s), bend)], [c, b.add(b.sub(line, c), tail)]


# --- large arguments --------------------------------------------------------------------------

# 64 zeros, then the first 1216 bits of 2/π, in words of 64.
_BITS = (
    0x0000000000000000, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041,
    0xFE5163ABDEBBC561, 0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484, 0xE99C7026B45F7E41, 0x3991D639835339F4, 0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
)  # fmt: skip
# π/2 in units of 2^-63.
_HALF_PI_BITS = 14488038916154245684


def _far(b: Body, x: str, near: tuple[str, ...]) -> tuple[str, ...]:
    """``near``, (r, a number whose last two bits are those of q, what rounding left of r), with other values
    where x is beyond `NEAR`."""
    given = (x, *near)
    t = b.type
    name = f"@at_far_turns_{len(near)}x{b.lanes}"
    made = f"{{ {', '.join([t] * len(near))} }}"
    for text in (_TABLE, *_INTRINSICS, _REDUCE, _lanes_function(name, b.lanes, len(near))):
        b.declares[text] = None
    found = b.emit(f"call {made} {name}({', '.join(f'{t} {v}' for v in given)})")
    return tuple(b.emit(f"extractvalue {made} {found}, {i}") for i in range(len(near)))


_TABLE = (
    f"@at_two_over_pi = private constant [{len(_BITS)} x i64] "
    f"[{', '.join(f'i64 {w}' for w in _BITS)}], align 64"
)
_INTRINSICS = (
    "declare i64 @llvm.fshl.i64(i64, i64, i64)",
    "declare i128 @llvm.ctlz.i128(i128, i1)",
    "declare double @llvm.fabs.f64(double)",
)
# x = m 2^e, m of 53 bits. Bits of 2/π of a weight of 4 2^-e or more give whole turns. So the 192 bits after
# these, times m, are the position in the turn in units of 2^-190, with an error of 2^53 units. No double is
# nearer to a multiple of π/2 than 2^-62 of it, so at least 2^-75 of r is right.
_REDUCE = f"""\
define private {{ double, double, double }} @at_far_turn(double %x) noinline cold nounwind {{
  %bits = bitcast double %x to i64
  %field = lshr i64 %bits, 52
  %exponent = and i64 %field, 2047
  %fraction = and i64 %bits, {(1 << 52) - 1}
  %m = or i64 %fraction, {1 << 52}
  %at = sub i64 %exponent, {1075 - 62}
  %word = lshr i64 %at, 6
  %by = and i64 %at, 63
  %p0 = getelementptr [{len(_BITS)} x i64], ptr @at_two_over_pi, i64 0, i64 %word
  %p1 = getelementptr i64, ptr %p0, i64 1
  %p2 = getelementptr i64, ptr %p0, i64 2
  %p3 = getelementptr i64, ptr %p0, i64 3
  %w0 = load i64, ptr %p0
  %w1 = load i64, ptr %p1
  %w2 = load i64, ptr %p2
  %w3 = load i64, ptr %p3
  %a = call i64 @llvm.fshl.i64(i64 %w0, i64 %w1, i64 %by)
  %b = call i64 @llvm.fshl.i64(i64 %w1, i64 %w2, i64 %by)
  %c = call i64 @llvm.fshl.i64(i64 %w2, i64 %w3, i64 %by)
  %wide = zext i64 %m to i128
  %wide.b = zext i64 %b to i128
  %wide.c = zext i64 %c to i128
  %low = mul i128 %wide, %wide.c
  %carry = lshr i128 %low, 64
  %times.b = mul i128 %wide, %wide.b
  %middle = add i128 %times.b, %carry
  %times.a = mul i64 %m, %a
  %wide.a = zext i64 %times.a to i128
  %upper = shl i128 %wide.a, 64
  %position = add i128 %upper, %middle
  %quarter = lshr i128 %position, 126
  %q = trunc i128 %quarter to i64
  %low64 = trunc i128 %low to i64
  %two = lshr i64 %low64, 62
  %two.wide = zext i64 %two to i128
  %shifted = shl i128 %position, 2
  %rest = or i128 %shifted, %two.wide
  %back = icmp slt i128 %rest, 0
  %up = zext i1 %back to i64
  %q.near = add i64 %q, %up
  %opposite = sub i128 0, %rest
  %size = select i1 %back, i128 %opposite, i128 %rest
  %zeros = call i128 @llvm.ctlz.i128(i128 %size, i1 false)
  %normal = shl i128 %size, %zeros
  %top = lshr i128 %normal, 64
  %product = mul i128 %top, {_HALF_PI_BITS}
  %first = lshr i128 %product, 75
  %first64 = trunc i128 %first to i64
  %second = lshr i128 %product, 32
  %second64 = trunc i128 %second to i64
  %second43 = and i64 %second64, {(1 << 43) - 1}
  %r = sitofp i64 %first64 to double
  %left = sitofp i64 %second43 to double
  %zeros64 = trunc i128 %zeros to i64
  %r.exponent = sub i64 {1023 - 52}, %zeros64
  %r.bits = shl i64 %r.exponent, 52
  %r.scale = bitcast i64 %r.bits to double
  %left.exponent = sub i64 {1023 - 95}, %zeros64
  %left.bits = shl i64 %left.exponent, 52
  %left.scale = bitcast i64 %left.bits to double
  %negative = icmp slt i64 %bits, 0
  %turned = xor i1 %negative, %back
  %sign = select i1 %turned, double -1.0, double 1.0
  %r.scaled = fmul double %r, %r.scale
  %r.signed = fmul double %r.scaled, %sign
  %left.scaled = fmul double %left, %left.scale
  %left.signed = fmul double %left.scaled, %sign
  %q.opposite = sub i64 0, %q.near
  %q.signed = select i1 %negative, i64 %q.opposite, i64 %q.near
  %q.bits = and i64 %q.signed, 3
  %q.number = bitcast i64 %q.bits to double
  %nan = fsub double %x, %x
  %r.known = fadd double %r.signed, %nan
  %out0 = insertvalue {{ double, double, double }} poison, double %r.known, 0
  %out1 = insertvalue {{ double, double, double }} %out0, double %q.number, 1
  %out2 = insertvalue {{ double, double, double }} %out1, double %left.signed, 2
  ret {{ double, double, double }} %out2
}}"""


def _lanes_function(name: str, lanes: int, count: int) -> str:
    """A function of x and ``count`` values of each lane, which sets them where x is beyond `NEAR`."""
    t = "double" if lanes == 1 else f"<{lanes} x double>"
    made, one = (f"{{ {', '.join([x] * n)} }}" for x, n in ((t, count), ("double", 3)))
    numbers = range(count)

    lines = [
        f"define private {made} {name}({t} %x, {', '.join(f'{t} %v{i}' for i in numbers)}) "
        "noinline cold nounwind {",
        "entry:",
        "  br label %each",
        "each:",
        "  %lane = phi i64 [ 0, %entry ], [ %next, %done ]",
        *(f"  %u{i} = phi {t} [ %v{i}, %entry ], [ %w{i}, %done ]" for i in numbers),
        *([f"  %one = extractelement {t} %x, i64 %lane"] if lanes > 1 else []),
        f"  %size = call double @llvm.fabs.f64(double {'%one' if lanes > 1 else '%x'})",
        f"  %far = fcmp ugt double %size, {NEAR}",
        "  br i1 %far, label %set, label %done",
        "set:",
        f"  %found = call {one} @at_far_turn(double {'%one' if lanes > 1 else '%x'})",
    ]
    for i in numbers:
        lines.append(f"  %e{i} = extractvalue {one} %found, {i}")
        if lanes > 1:
            lines.append(f"  %s{i} = insertelement {t} %u{i}, double %e{i}, i64 %lane")
    set_ = "s" if lanes > 1 else "e"
    lines += [
        "  br label %done",
        "done:",
        *(f"  %w{i} = phi {t} [ %u{i}, %each ], [ %{set_}{i}, %set ]" for i in numbers),
        "  %next = add i64 %lane, 1",
        f"  %more = icmp ult i64 %next, {lanes}",
        "  br i1 %more, label %each, label %out",
        "out:",
    ]
    value = "poison"
    for i in numbers:
        lines.append(f"  %o{i} = insertvalue {made} {value}, {t} %w{i}, {i}")
        value = f"%o{i}"
    return "\n".join([*lines, f"  ret {made} {value}", "}"])


def atan2(b: Body, y: str, x: str) -> str:
    """k π/4 ± atan t, |t| ≤ 1/2: by which of the sizes is the larger, and how they compare with each
    other, of x's sign and of y's."""
    fmt = b.fmt
    zero, one = b.const(0.0), b.const(1.0)
    width, height = b.intrinsic("fabs", x), b.intrinsic("fabs", y)
    steep = b.test(height, "ogt", width)
    large, small = b.choose(steep, height, width), b.choose(steep, width, height)
    # Sums of the largest numbers would be infinite.
    shrink = b.where(large, "ogt", b.const(math.ldexp(1.0, fmt.bias - 1)), b.const(0.25), one)
    large, small = b.mul(large, shrink), b.mul(small, shrink)
    apart = b.sub(large, small)  # NaN of two infinities
    turned = b.test(apart, "ult", small)
    less = b.where(apart, "ord", apart, b.sub(zero, apart), zero)
    over = b.choose(turned, less, small)
    under = b.choose(turned, b.add(small, large), large)
    angle = _small_angle(b, b.div(over, b.where(under, "oeq", zero, one, under)))
    k = b.choose(turned, one, zero)
    mirrored = (steep, 2.0), (b.test(b.intrinsic("copysign", one, x), "olt", zero), 4.0)
    value = b.intrinsic("copysign", _from_quarters(b, k, angle, *mirrored), y)
    return b.where(x, "uno", y, b.add(x, y), value)


def _small_angle(b: Body, t: str) -> str:
    """atan t for |t| ≤ 1/2."""
    square = b.mul(t, t)
    curve = b.polynomial(square, _ATAN_FLOAT32 if b.fmt.bits == 32 else _ATAN_FLOAT64)
    return b.fma(b.mul(t, square), curve, t)


def _from_quarters(b: Body, k: str, angle: str, *mirrored: tuple[str, float]) -> str:
    """k π/4 + angle, taken from an even number of quarters where a test holds, one test after another."""
    for mirror, end in mirrored:
        k = b.choose(mirror, b.sub(b.const(end), k), k)
        angle = b.choose(mirror, b.negative(angle), angle)
    high, low = QUARTER_PI[b.fmt.bits]
    return b.fma(k, b.const(high), b.fma(k, b.const(low), angle))


def atan(b: Body, x: str) -> str:
    """`atan2` beside 1, whose sums are finite."""
    zero, one = b.const(0.0), b.const(1.0)
    size = b.intrinsic("fabs", x)
    steep = b.test(size, "ogt", one)
    large, small = b.choose(steep, size, one), b.choose(steep, one, size)
    turned = b.test(b.sub(large, small), "olt", small)
    over = b.choose(turned, b.sub(small, large), small)
    angle = _small_angle(b, b.div(over, b.choose(turned, b.add(small, large), large)))
    return b.intrinsic("copysign", _from_quarters(b, b.choose(turned, one, zero), angle, (steep, 2.0)), x)


def asin(b: Body, x: str) -> str:
    near, start, rest = _arc(b, x)
    high, low = (b.const(part) for part in HALF_PI_IN_TWO[b.fmt.bits])
    twice = b.add(start, start)
    far = b.sub(high, twice)
    left = b.sub(b.sub(high, far), twice)  # what rounding left of the difference
    far = b.add(far, b.add(b.sub(low, b.add(rest, rest)), left))
    return b.intrinsic("copysign", b.choose(near, b.add(start, rest), far), x)


def acos(b: Body, x: str) -> str:
    near, start, rest = _arc(b, x)
    high, low = (b.const(part) for part in HALF_PI_IN_TWO[b.fmt.bits])
    below = b.test(x, "olt", b.const(0.0))
    half = b.add(start, b.choose(below, b.sub(rest, low), rest))
    half = b.choose(below, b.sub(high, half), half)
    signed = b.intrinsic("copysign", rest, x)
    return b.choose(near, b.sub(high, b.sub(x, b.sub(low, signed))), b.add(half, half))


def _arc(b: Body, x: str) -> tuple[str, str, str]:
    """(whether |x| < 1/2, s, r): asin|x| = s + r there, and elsewhere π/2 - 2 (s + r), r the smaller. NaN
    beyond 1."""
    one, half = b.const(1.0), b.const(0.5)
    size = b.intrinsic("fabs", x)
    near = b.test(size, "olt", half)
    far = b.mul(b.sub(one, size), half)
    square = b.choose(near, b.mul(size, size), far)
    start = b.choose(near, size, b.intrinsic("sqrt", far))
    curve = b.polynomial(square, _ASIN_FLOAT32 if b.fmt.bits == 32 else _ASIN_FLOAT64)
    return near, start, b.mul(b.mul(start, square), curve)


# {function of the table: what writes it}.
EMITTERS: dict[str, Callable[..., str]] = {f.__name__: f for f in (sin, cos, tan, atan, asin, acos, atan2)}
