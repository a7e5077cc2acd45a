"""What is told of indices that speak of a size: bounds hold at every point, and proofs are sound."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Var
from schedules.te.open_sizes import variable

N, J = Var(variable("n")), Var("i")
RANGES = {N.name: (2, 9), "i": (0, 6)}
POINTS = [{N.name: n, "i": i} for n, i in product(range(2, 10), range(7))]


def drawn(rng: Random, depth: int) -> Expr:
    """A random index over a size and a loop variable. Divisors are above 0."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([N, J, Const(rng.randint(-4, 9))])
    op = rng.choice(["+", "-", "min", "max", "*", "//", "%", "ceildiv"])
    a = drawn(rng, depth - 1)
    if op == "*":
        return E.binary(op, a, rng.randint(-3, 4))
    if op in ("//", "%", "ceildiv"):
        by = rng.choice([Const(rng.randint(1, 5)), N, E.ceildiv(N, 3)])
        return E.binary(op, a, by)
    return E.binary(op, a, drawn(rng, depth - 1))


@pytest.mark.parametrize("seed", range(4))
def test_bounds_hold_at_every_point(seed: int) -> None:
    rng = Random(seed)
    known = 0
    for _ in range(120):
        e = drawn(rng, 4)
        values = [int(E.evaluate(e, p)) for p in POINTS]
        for r in (affine.bounds(e, RANGES), affine.bounds(affine.simplify(e, RANGES), RANGES)):
            if r is not None:
                known += 1
                assert r[0] <= min(values) and max(values) <= r[1], E.show(e)
        most = affine.most(e, RANGES)
        assert most is None or max(values) <= most, E.show(e)
        assert [int(E.evaluate(affine.simplify(e, RANGES), p)) for p in POINTS] == values, E.show(e)
    assert known > 100


def test_one_side_of_a_minimum_bounds_a_sum() -> None:
    e = E.minimum(J * 4, N - 4) + 3 - N
    assert affine.bounds(e, RANGES) is not None and affine.bounds(e, RANGES)[1] == -1
    assert affine.decide(E.compare("<", E.minimum(J * 4, N - 4) + 3, N), RANGES) is True
    assert affine.decide(E.compare("<", E.minimum(J * 4, N - 4) + 4, N), RANGES) is None
    assert affine.decide(E.compare("<=", N, E.maximum(J, N)), RANGES) is True


def test_a_rest_is_below_its_divisor() -> None:
    assert affine.decide(E.compare("<", J // 2 % N, N), RANGES) is True
    assert affine.decide(E.compare("<", J // 2 % N, N), {"i": (0, 6)}) is None
    assert affine.decide(E.compare("<", J % N, N - 1), RANGES) is None


def test_the_most_of_a_minimum_is_that_of_the_known_side() -> None:
    assert affine.most(E.minimum(Var("unknown"), N) * 2 + 1, RANGES) == 19
    assert affine.most(E.minimum(Var("unknown"), Var("other")), RANGES) is None


def test_sides_of_many_minima_are_not_tried_in_all_their_orders() -> None:
    """There are 12! times 2**12."""
    e: Expr = N
    for k in range(12):
        e = e + E.minimum(Var(f"i{k}"), N - k)
    ranges = {N.name: (2, 9)} | {f"i{k}": (0, k) for k in range(12)}
    least, most = affine.bounds(e, ranges) or (0, 0)
    assert least <= 2 + sum(min(0, 2 - k) for k in range(12)) < 9 <= most
