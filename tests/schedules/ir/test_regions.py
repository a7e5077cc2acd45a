"""Footprints against the set of points that loops touch."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

from schedules import expr as E
from schedules.expr import Const, Expr, Hole, Var
from schedules.ir.deps import recovered
from schedules.ir.regions import dense, footprint, span, union

INNER = {"a": 3, "b": 4, "c": 2}
EXTENTS: dict[str, Expr] = {v: Const(n) for v, n in INNER.items()}
OUTER = {"x": 5}


def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(lambda op, a, b: E.binary(op, a, b), st.sampled_from("+-"), inner, inner),
        st.builds(lambda a, c: E.binary("*", a, c), inner, st.integers(-3, 4)),
        st.builds(
            lambda op, a, c: E.binary(op, a, c), st.sampled_from(["//", "%"]), inner, st.integers(1, 5)
        ),
        st.builds(
            lambda op, a, c: E.binary(op, a, c), st.sampled_from(["min", "max"]), inner, st.integers(0, 9)
        ),
    )


leaves = st.one_of(st.integers(-3, 6).map(Const), st.sampled_from([Var(v) for v in (*INNER, *OUTER)]))
indices = st.recursive(leaves, grow, max_leaves=5)


def touched(e: tuple[Expr, ...], x: int) -> list[tuple[int, ...]]:
    out = []
    for at in itertools.product(*map(range, INNER.values())):
        env = dict(zip(INNER, at, strict=True)) | {"x": x}
        out.append(tuple(int(E.evaluate(i, env)) for i in e))
    return out


@given(indices, st.integers(0, 4))
def test_span_covers_every_point(e: Expr, x: int) -> None:
    s = span(e, EXTENTS)
    if s is not None:
        base, extent = (int(E.evaluate(y, {"x": x})) for y in s)
        assert all(base <= p < base + extent for (p,) in touched((e,), x))


@given(st.lists(st.integers(0, 4), min_size=4, max_size=4), st.integers(0, 4))
def test_span_of_a_linear_index_is_exact(c: list[int], x: int) -> None:
    e = Var("a") * c[0] + Var("b") * c[1] + Var("c") * c[2] + Var("x") * 3 + c[3]
    s = span(e, EXTENTS)
    assert s is not None
    base, extent = (int(E.evaluate(y, {"x": x})) for y in s)
    values = [p for (p,) in touched((e,), x)]
    assert (base, base + extent - 1) == (min(values), max(values))


@given(st.lists(indices, min_size=1, max_size=3), st.integers(0, 4), st.booleans())
def test_footprint_covers_what_is_inside_the_buffer(es: list[Expr], x: int, clip: bool) -> None:
    ((base, extent),) = footprint([(e,) for e in es], EXTENTS, (Const(12),), clip=clip)
    lo, n = int(E.evaluate(base, {"x": x})), int(E.evaluate(extent, {"x": x}))
    for e in es:
        assert all(lo <= p < lo + n for (p,) in touched((e,), x) if 0 <= p < 12)


def test_a_clipped_footprint_is_no_larger_than_the_buffer() -> None:
    e = Var("a") * 8 + Var("b")
    ((base, extent),) = footprint([(e,)], EXTENTS, (Const(10),), clip=True)
    assert (base, extent) == (Const(0), Const(10))


@given(st.lists(indices, min_size=1, max_size=2), st.integers(0, 4))
def test_dense_accesses_have_no_gaps(es: list[Expr], x: int) -> None:
    at = tuple(es)
    if dense(at, EXTENTS):
        points = set(touched(at, x))
        box = 1
        for d in range(len(at)):
            values = [p[d] for p in points]
            box *= max(values) - min(values) + 1
        assert len(points) == box


@given(st.lists(indices, min_size=1, max_size=2), st.integers(0, 4))
def test_recovered_variables_are_told_by_the_indices(es: list[Expr], x: int) -> None:
    told = recovered(list(es), EXTENTS)
    seen: dict[tuple[int, ...], tuple[int, ...]] = {}
    for at in itertools.product(*map(range, INNER.values())):
        env = dict(zip(INNER, at, strict=True)) | {"x": x}
        key = tuple(int(E.evaluate(i, env)) for i in es)
        value = tuple(env[v] for v in INNER if v in told)
        assert seen.setdefault(key, value) == value


@pytest.mark.parametrize(
    ("index", "told"),
    [
        (Var("a") * 4 + Var("b"), {"a", "b"}),
        (Var("a") + Var("b") * 3, {"a", "b"}),
        (Var("a") * 2 + Var("b"), set()),
        (Var("b") // 2 * 2 + Var("b") % 2, {"b"}),
    ],
)
def test_recovered_one_index(index: Expr, told: set[str]) -> None:
    assert recovered([index], EXTENTS) == told


def test_union_wants_a_constant_distance() -> None:
    x = Var("x")
    assert union((x, Const(2)), (x + 3, Const(2))) == (x, Const(5))
    assert union((x, Const(2)), (Var("y"), Const(2))) is None


def test_union_bounds_remainders() -> None:
    x, bit = Var("x"), Var("y") % 2
    for a, b in (((x, 3), (x + bit, 1)), ((x + bit, 1), (x, 3))):
        assert union((a[0], Const(a[1])), (b[0], Const(b[1]))) == (x, Const(3))
    assert union((x, Const(1)), (x + bit * 4 + 1, Const(2))) == (x, Const(7))
    assert union((x, Const(1)), (x - bit, Const(2))) == (x - bit, Const(2))
    assert union((x, Const(1)), (x + bit - 1, Const(2))) is None
    assert union((x, Const(1)), (x + bit * Var("z"), Const(2))) is None


def test_extents_are_expressions_over_holes() -> None:
    inner = {"a": Hole("h"), "b": Const(3)}
    s = span(Var("x") * 8 + Var("a") * 2 + Var("b"), inner)
    assert s is not None
    assert E.evaluate(s[1], {"h": 5}) == 2 * 4 + 3


@pytest.mark.parametrize(("step", "told"), [(4, {"a", "b"}), (3, set())])
def test_a_fused_loop_that_was_split_again_is_recovered(step: int, told: set[str]) -> None:
    v = Var("a") * step + Var("b")
    assert recovered([v // 5, v % 5], EXTENTS) == told
    assert recovered([Var("x") + v // 5, v % 5], EXTENTS) == told
    assert recovered([v // 5], EXTENTS) == set()
