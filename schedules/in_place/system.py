"""Systems of linear equations and inequalities over integers, and a proof that one has no solution.

Equations are solved for variables whose factor is 1 or -1. Then variables are eliminated one after another
(Fourier-Motzkin), each inequality tightened to integers. So ``is_empty`` is never wrong when it says yes. It
may say no of a system that has fractions as solutions only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import gcd

# Inequalities at most: a system that grows beyond is not proved empty.
MOST = 400
# Pairs that are tried both ways at most; of others neither side is known.
MOST_PAIRS = 6

# A sum of variables with their factors, and a constant.
Sum = tuple[dict[str, int], int]


def plus(a: Sum, b: Sum, times: int = 1) -> Sum:
    """``a + times * b``."""
    terms = dict(a[0])
    for v, c in b[0].items():
        terms[v] = terms.get(v, 0) + times * c
    return {v: c for v, c in terms.items() if c}, a[1] + times * b[1]


@dataclass
class System:
    """``equal``: sums that are 0. ``least``: sums that are at least 0. ``either``: pairs, of which one is."""

    equal: list[Sum] = field(default_factory=list)
    least: list[Sum] = field(default_factory=list)
    either: list[tuple[Sum, Sum]] = field(default_factory=list)

    def is_empty(self) -> bool:
        """Whether it is proved that no integers satisfy it."""
        if self._is_empty(()):
            return True
        pairs = self.either[:MOST_PAIRS]
        return bool(pairs) and all(map(self._is_empty, product(*pairs)))

    def _is_empty(self, more: Sequence[Sum]) -> bool:
        equal, least = list(self.equal), [*self.least, *more]
        while equal:
            terms, const = equal.pop()
            if not terms:
                if const:
                    return True
                continue
            if const % gcd(*terms.values()):
                return True
            var = min(terms, key=lambda v: abs(terms[v]))
            equal = [_without(var, e, (terms, const)) for e in equal]
            least = [_without(var, e, (terms, const)) for e in least]
        return _no_solution(least)


def _without(var: str, e: Sum, equation: Sum) -> Sum:
    """``e``, times a number above 0, with a variable replaced by what an equation says of it."""
    factor, have = equation[0][var], e[0].get(var, 0)
    if not have:
        return e
    scaled: Sum = ({v: c * abs(factor) for v, c in e[0].items()}, e[1] * abs(factor))
    return plus(scaled, equation, -have if factor > 0 else have)


def _no_solution(least: list[Sum]) -> bool:
    found = _tightened(least)
    while found is not None and found:
        lower: dict[str, int] = {}
        upper: dict[str, int] = {}
        for terms in found:
            for v, c in terms:
                side = lower if c > 0 else upper
                side[v] = side.get(v, 0) + 1
        var = min(
            lower | upper,
            key=lambda v: (lower.get(v, 0) * upper.get(v, 0) - lower.get(v, 0) - upper.get(v, 0), v),
        )
        rest = [(dict(t), c) for t, c in found.items() if all(v != var for v, _ in t)]
        above = [(dict(t), c) for t, c in found.items() if dict(t).get(var, 0) > 0]
        below = [(dict(t), c) for t, c in found.items() if dict(t).get(var, 0) < 0]
        for a in above:
            for b in below:
                m, n = a[0][var], -b[0][var]
                left: Sum = ({v: c * n for v, c in a[0].items()}, a[1] * n)
                rest.append(plus(left, b, m))
        if len(rest) > MOST:
            return False
        found = _tightened(rest)
    return found is None


def _tightened(least: list[Sum]) -> Mapping[tuple[tuple[str, int], ...], int] | None:
    """{terms: the least constant}, each divided by what divides its factors; None where one cannot hold."""
    out: dict[tuple[tuple[str, int], ...], int] = {}
    for terms, const in least:
        if not terms:
            if const < 0:
                return None
            continue
        by = gcd(*terms.values())
        key = tuple(sorted((v, c // by) for v, c in terms.items()))
        out[key] = min(out.get(key, const // by), const // by)
    return out
