"""The remainder of floating point, C's fmod, as LLVM IR: see `vector_math`. It is exact, for any quotient.

All is done in float64, for float32 too. A step takes a multiple of the divisor away, of as many bits as its
product with the divisor is exact with. Quotients below `NEAR` take one step. Others are rare: a function
takes steps in all lanes until no lane has more than the divisor left, 26 bits of the quotient at a time. The
remainder is exact in each lane, so a lane does not depend on its neighbours.
"""

from __future__ import annotations

from autotune.codegen.llvm.vector_body import Body

# Quotients below it are whole numbers of 26 bits at most.
NEAR = 2.0**26
# A mask of the bits of a float64 whose significand keeps 26 bits.
_UPPER = -(1 << 27)
# A divisor times this, and times its square, takes the place of a divisor of which the quotient is infinite.
_SCALE = 2.0**700


def fmod(b: Body, x: str, y: str) -> str:
    w = b if b.fmt.bits == 64 else b.widened()
    sizes = [b.intrinsic("fabs", v) for v in (x, y)]
    size, by = sizes if w is b else (b.widen(v) for v in sizes)
    quotient = w.div(size, by)
    (rest,) = w.rarely(
        quotient, "oge", w.const(NEAR),
        lambda: (_far(w, size, by),),
        lambda: (_taken(w, size, by, w.intrinsic("trunc", quotient), b.fmt.bits),),
    )  # fmt: skip
    rest = w.where(size, "olt", by, size, rest)  # of an infinite divisor too
    return b.intrinsic("copysign", rest if w is b else b.narrow(rest), x)


def _less(b: Body, rest: str, by: str, quotient: str, bits: int) -> str:
    """``rest - quotient * by``, exact: ``quotient`` has 26 bits, ``by`` as many as a number of ``bits``."""
    if bits == 32:
        return b.sub(rest, b.mul(quotient, by))
    upper = b.from_bits(b.integer("and", b.to_bits(by), _UPPER))
    lower = b.sub(by, upper)
    return b.sub(b.sub(rest, b.mul(quotient, upper)), b.mul(quotient, lower))


def _taken(b: Body, size: str, by: str, quotient: str, bits: int) -> str:
    """The remainder of sizes after one step. A quotient of float64 that was rounded up to a whole number is
    one too large."""
    rest = _less(b, size, by, quotient, bits)
    return rest if bits == 32 else b.where(rest, "olt", b.const(0.0), b.add(rest, by), rest)


def _far(b: Body, size: str, by: str) -> str:
    t, name = b.type, f"@at_far_remainder_x{b.lanes}"
    b.declares[_far_function(name, Body(b.fmt, b.lanes, "v", b.features), b.declares)] = None
    return b.emit(f"call {t} {name}({t} {size}, {t} {by})")


def _far_function(name: str, b: Body, declares: dict[str, None]) -> str:
    """A function of a size and a divisor that takes steps as long as a lane has more than the divisor."""
    size = b.intrinsic("fabs", "%rest")
    by = "%by"
    for scale in (_SCALE, _SCALE):  # of the multiples that are at most the rest the largest
        scaled = b.mul(by, b.const(scale))
        by = b.where(size, "oge", scaled, scaled, by)
    bits = b.integer("and", b.to_bits(b.div("%rest", by)), _UPPER)
    rest = _less(b, "%rest", by, b.intrinsic("trunc", b.from_bits(bits)), 64)
    rest = b.where(size, "olt", "%by", "%rest", rest)
    more = b.any(b.test(b.intrinsic("fabs", rest), "oge", "%by"))
    steps = list(b.lines)
    out = b.where(rest, "olt", b.const(0.0), b.add(rest, "%by"), rest)
    declares.update(b.declares)
    return "\n".join((
        f"define private {b.type} {name}({b.type} %size, {b.type} %by) noinline cold nounwind {{",
        "entry:",
        "  br label %step",
        "step:",
        f"  %rest = phi {b.type} [ %size, %entry ], [ {rest}, %step ]",
        *(f"  {line}" for line in steps),
        f"  br i1 {more}, label %step, label %done",
        "done:",
        *(f"  {line}" for line in b.lines[len(steps) :]),
        f"  ret {b.type} {out}",
        "}",
    ))  # fmt: skip
