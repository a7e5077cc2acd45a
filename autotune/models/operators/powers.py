"""Powers of integers whose exponents are data, as integers that wrap."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.models.operators.base import stage
from schedules import te
from schedules.dtypes import DTYPES, computed
from schedules.expr import Expr
from schedules.ops.axes import broadcast
from schedules.te.tensors import IterVar

# Bits of an exponent that one product of equal factors stands for.
DIGIT = 6


def integer_power(a: te.Tensor, b: te.Tensor, shape: Sequence[int], dtype: str) -> te.Tensor:
    """a to the power of b, of integers of one dtype that broadcast to ``shape``. Below 0 an exponent gives 1
    over the power, rounded towards zero, and 0 of 0.

    An exponent is made shorter where the power stays the same: an even number to the power of its bits is 0,
    and odd numbers form a group whose orders divide 2^(bits - 2). Its digits then each choose how many equal
    factors are multiplied (Knuth, The Art of Computer Programming, volume 2, section 4.6.3).
    """
    wide, bits = computed(dtype), 8 * DTYPES[dtype].itemsize

    def number(value: int) -> Expr:
        return te.const(value, wide)

    def short(*at: Expr) -> Expr:
        base, e = (te.cast(t[broadcast(t.shape, at)], wide) for t in (a, b))
        odd = te.not_equal(te.bitwise_and(base, number(1)), 0)
        long = te.select(odd, te.bitwise_and(e, number((1 << (bits - 2)) - 1)), number(bits))
        return te.select(e < 0, te.bitwise_and(e, number(1)), te.select(e < bits, e, long))

    exponent = stage(shape, short, "exponent")
    base = stage(a.shape, lambda *at: te.cast(a[at], wide), "base")
    factors = []
    for low in range(0, bits - 2, DIGIT):
        r = te.reduce_axis((1 << DIGIT) - 1, "r")

        def power(*at: Expr, low: int = low, base: te.Tensor = base, r: IterVar = r) -> te.Reduction:
            digit = te.bitwise_and(te.right_shift(exponent[at], low), number((1 << DIGIT) - 1))
            own = base[broadcast(base.shape, at)]
            return te.prod(te.select(te.cast(r, wide) < digit, own, number(1)), axis=r)

        factors.append(stage(shape, power, "power"))
        s = te.reduce_axis(1 << DIGIT, "s")

        def shifted(*at: Expr, base: te.Tensor = base, s: IterVar = s) -> te.Reduction:
            return te.prod(base[at], axis=s)

        base = stage(base.shape, shifted, "base")

    def value(*at: Expr) -> Expr:
        own, e = (te.cast(t[broadcast(t.shape, at)], wide) for t in (a, b))
        made = factors[0][at]
        for f in factors[1:]:
            made = made * f[at]
        nothing = te.all(e < 0, te.not_equal(own, 1), te.not_equal(own, -1))
        return te.cast(te.select(nothing, number(0), made), dtype)

    return stage(shape, value, "power")
