"""Matrices of short convolutions with few multiplications: Toom, Cook and Winograd.

The product of two polynomials follows from its values at some points. So ``m`` outputs of a convolution with
``r`` weights follow from ``m + r - 1`` products: ``inverse @ ((weights @ w) * (data @ x))``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import prod

Rows = tuple[tuple[Fraction, ...], ...]

# Where polynomials are evaluated, beside infinity: powers of two, by which nothing is rounded. A point beside
# the negative of its reciprocal amplifies errors less than beside its negative (Barabasz et al., 2020).
POINTS = tuple(map(Fraction, ("0", "1", "-1", "1/2", "-2", "-1/2", "2")))


@dataclass(frozen=True)
class ShortConvolution:
    """``outputs`` neighbouring outputs of a convolution with ``taps`` weights. ``data``: of the elements that
    they read, n x n. ``weights``: n x taps. ``inverse``: of the products, outputs x n."""

    outputs: int
    taps: int
    data: Rows
    weights: Rows
    inverse: Rows

    @property
    def products(self) -> int:
        """How many multiplications of data by weights there are, and elements that are read."""
        return self.outputs + self.taps - 1


@cache
def short_convolution(outputs: int, taps: int) -> ShortConvolution:
    """The matrices F(outputs, taps). Data and outputs are multiplied by powers of two and sums of them.

    Raises ValueError where `POINTS` are too few, and for numbers below 1.

    >>> [int(c) for c in short_convolution(2, 3).data[0]]
    [-1, 0, 1, 0]
    """
    n = outputs + taps - 1
    if min(outputs, taps) < 1 or n > len(POINTS) + 1:
        raise ValueError(
            f"F({outputs}, {taps}) needs {n - 1} points, and there are {len(POINTS)}; take fewer outputs"
        )
    at = POINTS[: n - 1]
    others = [[b for b in at if b != a] for a in at]
    scale = [prod((a - b for b in rest), start=Fraction(1)) for a, rest in zip(at, others, strict=True)]
    infinity = tuple(Fraction(k == taps - 1) for k in range(taps))
    data = [_with_roots(rest, n) for rest in others]
    weights = [tuple(a**k / s for k in range(taps)) for a, s in zip(at, scale, strict=True)]
    inverse = (tuple(a**i for a in at) + (Fraction(i == outputs - 1),) for i in range(outputs))
    return ShortConvolution(outputs, taps, (*data, _with_roots(at, n)), (*weights, infinity), tuple(inverse))


def _with_roots(roots: Sequence[Fraction], n: int) -> tuple[Fraction, ...]:
    """The first ``n`` coefficients of the polynomial with these roots, the constant first."""
    found = [Fraction(1)]
    for r in roots:
        found = [a - r * b for a, b in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return tuple(found + [Fraction(0)] * (n - len(found)))
