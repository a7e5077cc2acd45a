"""cbrt and hypot as LLVM IR: see `vector_math`."""

from __future__ import annotations

import math
from collections.abc import Callable

from autotune.codegen.llvm.vector_body import Body
from autotune.codegen.llvm.vector_exp import power_of_two, significand

# C in cbrt m = C(m), sqrt(1/2) ≤ m ≤ sqrt(2), by format; relative error 6.4e-4 and 1.2e-6.
_CBRT = {
    32: (0.5537055134773254, 0.5536623597145081, -0.1074770838022232),
    64: (
        0.421689818956858, 1.0560148584896139, -0.8360693424729151, 0.5109654599223907, -0.1795566697537304,
        0.026954888083220534,
    ),
}  # fmt: skip


def cbrt(b: Body, x: str) -> str:
    """With |x| = 2^3n a: 2^n cbrt a, by a polynomial and a step of Halley's, which cubes its error. The
    error of the step's difference counts for a third."""
    zero = b.const(0.0)
    size = b.intrinsic("fabs", x)
    k, m = significand(b, size)
    magic = b.const(b.fmt.magic)
    n = b.sub(b.fma(k, b.const(1 / 3), magic), magic)
    left = b.fma(n, b.const(-3.0), k)  # -1, 0 or 1
    below, above = b.test(left, "olt", zero), b.test(left, "ogt", zero)

    def by(low: float, high: float) -> str:
        return b.choose(below, b.const(low), b.choose(above, b.const(high), b.const(1.0)))

    a = b.mul(m, by(0.5, 2.0))
    t = b.mul(b.polynomial(m, _CBRT[b.fmt.bits]), by(2 ** (-1 / 3), 2 ** (1 / 3)))
    square = b.mul(t, t)
    difference = b.fma(b.negative(square), t, a)
    step = b.div(difference, b.fma(b.mul(square, t), b.const(2.0), a))
    power = power_of_two(b, b.add(n, b.const(b.fmt.magic + b.fmt.bias)))
    value = b.mul(b.fma(t, step, t), power)
    # 0 and infinity are their own halves; what is not a number stays so
    value = b.where(b.mul(size, b.const(0.5)), "one", size, value, size)
    return b.intrinsic("copysign", value, x)


def hypot(b: Body, x: str, y: str) -> str:
    """sqrt(x² + y²), scaled by a power of 2 where squares would be too large or too small. Infinite where one
    is, beside NaN too."""
    bias, one, infinity = b.fmt.bias, b.const(1.0), b.const(math.inf)
    sizes = [b.intrinsic("fabs", v) for v in (x, y)]
    large = b.where(sizes[0], "ogt", sizes[1], *sizes)
    up, down = bias - 27, bias // 2 + 8

    def by(of_small: int, of_large: int) -> str:
        small = b.where(large, "olt", b.const(2.0 ** -(bias // 2 - 13)), b.const(2.0**of_small), one)
        return b.where(large, "ogt", b.const(2.0 ** (bias // 2 - 4)), b.const(2.0**of_large), small)

    scale = by(up, -down)
    first, second = (b.mul(v, scale) for v in sizes)
    root = b.intrinsic("sqrt", b.fma(first, first, b.mul(second, second)))
    value = b.mul(root, by(-up, down))
    for size in sizes:
        value = b.where(size, "oeq", infinity, infinity, value)
    return value


# {function of the table: what writes it}.
EMITTERS: dict[str, Callable[..., str]] = {"cbrt": cbrt, "hypot": hypot}
