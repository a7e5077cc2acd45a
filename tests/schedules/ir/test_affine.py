"""Linear forms, bounds and simplification against evaluation on all points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given

from schedules import affine
from schedules import expr as E
from schedules.expr import Compare, Const, Expr, Hole, Load, Var

RANGES = {"i": (0, 3), "j": (-2, 2), "k": (1, 4)}
leaves = st.one_of(st.integers(-6, 6).map(Const), st.sampled_from([Var(v) for v in RANGES]))


def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(E.binary, st.sampled_from(["+", "-", "min", "max"]), inner, inner),
        st.builds(lambda a, c: E.binary("*", a, c), inner, st.integers(-4, 4)),
        st.builds(
            E.binary, st.sampled_from(["//", "%", "ceildiv"]), inner, st.integers(1, 5)
        ),
        st.builds(
            lambda op, a, b, x, y: E.select(E.compare(op, a, b), x, y),
            st.sampled_from(["<", "<=", "==", "!="]), inner, inner, inner, inner,
        ),
    )  # fmt: skip


indices = st.recursive(leaves, grow, max_leaves=6)


def points() -> Iterator[dict[str, int]]:
    for at in itertools.product(*(range(lo, hi + 1) for lo, hi in RANGES.values())):
        yield dict(zip(RANGES, at, strict=True))


@given(indices)
def test_simplified_equals(e: Expr) -> None:
    s = affine.simplify(e, RANGES)
    assert all(E.evaluate(s, p) == E.evaluate(e, p) for p in points())


digits = st.tuples(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24]), st.sampled_from(["i", "j", "l"]))


@pytest.mark.slow
@given(st.lists(digits, min_size=1, max_size=3), st.integers(-40, 40), st.sampled_from([4, 6, 8, 12, 16, 24]))
def test_quotients_of_sums_of_digits_equal(terms: list[tuple[int, str]], const: int, c: int) -> None:
    ranges = RANGES | {"l": (4, 7)}
    e: Expr = Const(const)
    for factor, name in terms:
        e = e + Var(name) * factor
    for op in ("//", "%"):
        whole = E.binary(op, e, c)
        s = affine.simplify(whole, ranges)
        for p, x in itertools.product(points(), range(4, 8)):
            assert E.evaluate(s, p | {"l": x}) == E.evaluate(whole, p | {"l": x})


def test_what_cannot_reach_the_next_multiple_has_no_part_in_a_quotient() -> None:
    x, lane = Var("x"), Var("lane")

    def simple(e: Expr, lanes: affine.Range) -> Expr:
        return affine.simplify(e, {"lane": lanes})

    assert simple((x * 16 + lane) // 32, (0, 15)) == x // 2
    assert simple((x * 48 + lane) // 32, (16, 31)) == (x * 3 + 1) // 2
    assert simple((x * 16 + lane) % 32, (0, 15)) == x % 2 * 16 + lane
    for lanes in ((0, 16), (8, 23)):
        assert simple((x * 16 + lane) // 32, lanes) == (x * 16 + lane) // 32


@given(indices)
def test_linear_form_equals(e: Expr) -> None:
    back = affine.from_linear(*affine.linear(e))
    assert all(E.evaluate(back, p) == E.evaluate(e, p) for p in points())


@given(indices)
def test_bounds_hold(e: Expr) -> None:
    r = affine.bounds(e, RANGES)
    if r is not None:
        values = [E.evaluate(e, p) for p in points()]
        assert r[0] <= min(values) and max(values) <= r[1]


@given(st.tuples(*(st.integers(-5, 5) for _ in range(4))))
def test_bounds_of_linear_forms_are_exact(c: tuple[int, int, int, int]) -> None:
    e = Var("i") * c[0] + Var("j") * c[1] + Var("k") * c[2] + c[3]
    values = [E.evaluate(e, p) for p in points()]
    assert affine.bounds(e, RANGES) == (min(values), max(values))


@given(st.sampled_from(["<", "<=", "==", "!="]), indices, indices)
def test_decided_conditions_hold_or_fail_everywhere(op: str, a: Expr, b: Expr) -> None:
    cond = E.compare(op, a, b)
    known = affine.decide(cond, RANGES)
    if known is not None:
        assert all(E.evaluate(cond, p) == known for p in points())


@pytest.mark.slow
@given(indices, st.lists(st.tuples(st.sampled_from(["<", "<="]), indices, indices), max_size=3))
def test_refined_bounds_hold_where_the_conditions_do(e: Expr, conds: list[tuple[str, Expr, Expr]]) -> None:
    cs = tuple(E.compare(op, a, b) for op, a, b in conds)
    r = affine.refine(cs, e, affine.bounds(e, RANGES), RANGES)
    if r is not None:
        for p in points():
            if all(E.evaluate(c, p) for c in cs):
                assert r[0] <= E.evaluate(e, p) <= r[1]


def test_refine_uses_a_guard_on_a_multiple_of_the_index() -> None:
    i, j = Var("i"), Var("j")
    e = i * 4 + j
    assert affine.refine((Compare("<", e, Const(10)),), e, (0, 15), {}) == (0, 9)
    assert affine.refine((Compare("<=", Const(1), e),), e - 1, (-1, 14), {}) == (0, 14)


def test_division_takes_out_multiples() -> None:
    i, j = Var("i"), Var("j")
    ranges = {"i": (0, 9), "j": (0, 3)}
    assert affine.simplify((i * 4 + j) // 4, ranges) == i
    assert affine.simplify((i * 4 + j) % 4, ranges) == j
    assert affine.simplify((i * 4 + j + 4) // 4, ranges) == i + 1


@given(indices, st.integers(1, 6), st.integers(-6, 6))
def test_a_quotient_is_compared_by_what_was_divided(e: Expr, n: int, m: int) -> None:
    cond = E.compare("<", e // n, m)
    s = affine.simplify(cond, RANGES)
    assert all(E.evaluate(s, p) == E.evaluate(cond, p) for p in points())
    i, whole = Var("i"), {"i": (0, 63)}
    assert affine.simplify(E.compare("<", i // 7, 7), whole) == E.compare("<", i, 49)


@given(grow(leaves), st.integers(1, 6), st.integers(1, 6), st.integers(-3, 3), leaves)
def test_digits_are_put_together(x: Expr, n: int, m: int, c: int, rest: Expr) -> None:
    e = (x // n // m) * (n * m * c) + (x // n % m) * (n * c) + (x % n) * c + rest
    terms, const = affine.rejoined(e)
    again = affine.from_linear(terms, const)
    for env in points():
        assert E.evaluate(again, env) == E.evaluate(e, env)


def test_digits_of_a_fused_loop_are_one_step() -> None:
    f = Var("f")
    for x in (f, E.minimum(f * 8, Const(100)) + Var("u")):
        e = (x // 3 // 3) * 144 + (x // 3 % 3) * 48 + (x % 3) * 16
        assert affine.rejoined(e) == affine.linear(x * 16)
    other = (f // 3) * 5 + f % 3  # rows farther apart than they are long
    assert affine.rejoined(other) == affine.linear(other)


def test_holes_are_coefficients() -> None:
    h = Hole("h")
    terms, const = affine.linear((Var("i") * h + Var("j")) * h + h)
    assert terms == {Var("i"): h * h, Var("j"): h} and const == h


def test_floating_point_keeps_its_order() -> None:
    x = Load("X", (Var("i") * 2 // 2,), "float32")
    one = Const(1.0, "float32")
    assert affine.simplify(x + one - one, {"i": (0, 3)}) == Load("X", (Var("i"),), "float32") + one - one


def test_what_is_remembered_keeps_the_sign_of_zero() -> None:
    """0.0 == -0.0, but they are not the same value."""
    for zero in (0.0, -0.0):
        kept = affine.simplify(E.select(Var("i") < 2, Const(zero, "float32"), Const(1.0, "float32")), RANGES)
        assert isinstance(kept, E.Select) and isinstance(kept.a, Const)
        assert math.copysign(1, kept.a.value) == math.copysign(1, zero)


@given(leaves, leaves, st.integers(-4, 4))
def test_isolate_splits_off_a_variable(a: Expr, b: Expr, c: int) -> None:
    e = a * c + b
    step, rest = affine.isolate(e, "i")
    whole = rest if step is None else step * Var("i") + rest
    for i in range(4):
        env = {"i": i, "j": -1, "k": 2}
        assert E.evaluate(whole, env) == E.evaluate(e, env)
