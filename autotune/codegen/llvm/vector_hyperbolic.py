"""sinh, cosh and the inverses asinh, acosh and atanh as LLVM IR: see `vector_math`, which has tanh.

The inverses are logarithms of 1 + a number that has all digits near 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from autotune.codegen.llvm.vector_body import Body
from autotune.codegen.llvm.vector_exp import log, one_more, reduce_exp, scaled

# S in sinh x = x + x³ S(x²) for |x| ≤ 1, by format, minimax; relative error 5.2e-11 and 8.8e-20.
_SINH = {
    32: (0.1666666716337204, 0.008333349600434303, 0.0001983615948120132, 2.8169515644549392e-06),
    64: (
        0.16666666666666669, 0.008333333333333148, 0.00019841269841431583, 2.7557319157148814e-06,
        2.50521231267083e-08, 1.6057260395502562e-10, 7.758733786204978e-13,
    ),
}  # fmt: skip


def _halves(b: Body, size: str) -> tuple[str, str]:
    """exp(x) / 2 and exp(-x) / 2, of x of at least 0. The first is finite wherever cosh is."""
    expm1, shifted = reduce_exp(b, b.at_most(size, b.fmt.exp_high + 1.0))
    n = b.sub(shifted, b.const(b.fmt.magic + b.fmt.bias + 1.0))
    half = scaled(b, expm1, n)
    return half, b.div(b.const(0.25), half)


def sinh(b: Body, x: str) -> str:
    size = b.intrinsic("fabs", x)
    square = b.mul(size, size)
    near = b.fma(b.mul(size, square), b.polynomial(square, _SINH[b.fmt.bits]), size)
    value = b.where(size, "olt", b.const(1.0), near, b.sub(*_halves(b, size)))
    return b.intrinsic("copysign", value, x)


def cosh(b: Body, x: str) -> str:
    return b.add(*_halves(b, b.intrinsic("fabs", x)))


def asinh(b: Body, x: str) -> str:
    """log(1 + y), y = |x| + x² / (1 + √(x² + 1))."""
    one = b.const(1.0)
    size = b.intrinsic("fabs", x)
    square = b.mul(size, size)
    root = b.intrinsic("sqrt", b.add(square, one))
    value = _log(b, size, b.add(size, b.div(square, b.add(root, one))))
    return b.intrinsic("copysign", value, x)


def acosh(b: Body, x: str) -> str:
    """log(1 + d + √(d (d + 2))), d = x - 1, which is exact near 1."""
    d = b.sub(x, b.const(1.0))
    root = b.intrinsic("sqrt", b.mul(d, b.add(d, b.const(2.0))))
    return b.where(x, "olt", b.const(1.0), b.const(math.nan), _log(b, x, b.add(d, root)))


def _log(b: Body, x: str, y: str) -> str:
    """log(1 + y), which is log 2x where that is as near, because squares may be infinite."""
    u, more = one_more(b, y)
    large = b.test(x, "ogt", b.const(math.ldexp(1.0, b.fmt.mantissa // 2 + 3)))
    return b.add(log(b, b.choose(large, x, u)), b.choose(large, b.const(math.log(2.0)), more))


def atanh(b: Body, x: str) -> str:
    """log(1 + y) / 2, y = 2|x| / (1 - |x|)."""
    size = b.intrinsic("fabs", x)
    u, more = one_more(b, b.div(b.add(size, size), b.sub(b.const(1.0), size)))
    return b.intrinsic("copysign", b.mul(b.add(log(b, u), more), b.const(0.5)), x)


# {function of the table: what writes it}.
EMITTERS: dict[str, Callable[..., str]] = {f.__name__: f for f in (sinh, cosh, asinh, acosh, atanh)}
