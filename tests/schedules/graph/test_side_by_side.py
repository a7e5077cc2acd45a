"""Products of one tensor whose widths differ are one product, and its parts lie where they are read."""

from __future__ import annotations

from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st

import autotune as at
from schedules.graph.common import eliminate_common
from schedules.graph.graph import Argument, Graph, Group
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition
from schedules.graph.side_by_side import lie_in_whole, stack_unequal
from schedules.ops.few_bits import FORMATS, FewBits, product, rounded_rows

te = at.te


def linear(b: cases.Builder, x: Any, n: int, name: str, bias: bool = False) -> Any:
    """x · wᵀ of whole numbers, plus a bias."""
    k = te.reduce_axis(x.shape[1], "k")
    w = b.constant(f"{name}_w", n, x.shape[1])
    y = te.compute((x.shape[0], n), lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), name)
    if not bias:
        return y
    c = b.constant(f"{name}_b", n)
    return te.compute(y.shape, lambda i, j: y[i, j] + c[j], f"{name}_biased")


def few_bits(b: cases.Builder, x: Any, n: int, name: str, form: str, group: int = 4) -> Any:
    """The same of codes of few bits, whose scales are powers of two."""
    k = x.codes.shape[1]
    f = FORMATS[form]
    codes = te.placeholder((n, k // f.each), f.dtype, f"{name}_w")
    scales = te.placeholder((n, k // group), "float32", f"{name}_s")
    numbers = np.iinfo(f.dtype)
    drawn = b.rng.integers(numbers.min, numbers.max + 1, codes.shape).astype(f.dtype)
    b.constants[f"{name}_w"] = codes, drawn
    b.constants[f"{name}_s"] = scales, np.exp2(b.rng.integers(-2, 3, scales.shape)).astype("float32")
    return product(x, FewBits(f, codes, scales, group), name=name)


def integers(b: cases.Builder, codes: Any, n: int) -> Any:
    """A product of bytes."""
    w, k = te.placeholder((n, 8), "int8", f"w{n}"), te.reduce_axis(8, "k")
    b.constants[w.name] = w, b.rng.integers(-9, 9, w.shape).astype("int8")

    def value(i: Any, j: Any) -> Any:
        return te.sum(te.cast(codes[i, k], "int32") * te.cast(w[j, k], "int32"), axis=k)

    return te.compute((codes.shape[0], n), value, f"sums{n}")


def heads(x: Any, n: int) -> Any:
    size = x.shape[1] // n
    return te.compute((x.shape[0], n, size), lambda i, h, d: te.maximum(x[i, h * size + d], -50.0), "heads")


def same(a: Graph, b: Graph) -> None:
    arrays = cases.inputs_of(a)
    for x, y in zip(evaluate(a, arrays), evaluate(b, arrays), strict=True):
        np.testing.assert_array_equal(x, y)


def wide(graph: Graph) -> list[int]:
    """The widths of products that were stacked."""
    made = [s for s in graph.dag.stages if s.name.endswith("_wide") and s.reduce_axes]
    return [int(a.extent) for s in made for a in s.axes if a.var.startswith("z")]


PRODUCTS = {
    "widths": st.lists(st.integers(1, 3), min_size=2, max_size=4),
    "rows": st.integers(1, 3),
    "bias": st.booleans(),
    "form": st.sampled_from((None, "int8", "int4", "int4_halves")),
}


@settings(max_examples=4, deadline=None)
@given(**PRODUCTS)
def test_products_of_any_widths_keep_their_values(
    widths: list[int], rows: int, bias: bool, form: str | None
) -> None:
    check_products(widths, rows, bias, form)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(**PRODUCTS)
def test_many_products_of_any_widths_keep_their_values(
    widths: list[int], rows: int, bias: bool, form: str | None
) -> None:
    check_products(widths, rows, bias, form)


def check_products(widths: list[int], rows: int, bias: bool, form: str | None) -> None:
    b = cases.Builder(sum(widths) * 10 + rows)
    x = b.input("x", rows, 8)
    of = rounded_rows(x, 4) if form else x
    ys = []
    for n, heads_ in enumerate(widths):
        name = f"y{n}"
        y = few_bits(b, of, heads_ * 4, name, form) if form else linear(b, x, heads_ * 4, name, bias)
        ys.append(heads(y, heads_))
    graph = b.graph(*ys)
    after = optimize(graph)
    same(graph, after)
    if form or len(set(widths)) > 1:
        assert any(s.name.endswith("_wide") for s in after.dag.stages)


def test_queries_keys_and_values_are_one_product_whose_parts_lie_in_it() -> None:
    b = cases.Builder()
    x = b.input("x", 3, 8)
    q, k, v = (linear(b, x, n, name, bias=True) for name, n in (("q", 8), ("k", 4), ("v", 4)))
    graph = b.graph(heads(q, 4), heads(k, 2), heads(v, 2))
    after = optimize(graph)
    same(graph, after)
    assert wide(after) == [16] and sum(isinstance(g, Group) for g in partition(after)) == 4
    assert [after.views[n].start for n in ("q_biased", "k_biased", "v_biased")] == [0, 8, 12]
    assert after.dag.tensors["k_biased"].strides is not None, "rows of 4 lie 16 apart"
    assert all(after.joins[n] == (after.views[n].tensor,) for n in after.views)


def test_what_follows_in_one_way_only_stays_with_the_whole() -> None:
    """A bias of two of three, and a function of the third: the products alone are one."""
    b = cases.Builder()
    x = b.input("x", 2, 8)
    q, k = (linear(b, x, n, name, bias=True) for name, n in (("q", 8), ("k", 4)))
    v = cases.relu(linear(b, x, 12, "v"))
    graph = b.graph(heads(q, 2), heads(k, 2), heads(v, 2))
    after = stack_unequal(graph)
    same(graph, after)
    assert wide(after) == [24] and not [s for s in after.dag.stages if s.name == "q_biased_wide"]


@pytest.mark.parametrize("why", ("equal", "returned", "joined", "other"))
def test_what_is_left_as_it_is(why: str) -> None:
    b = cases.Builder()
    x = b.input("x", 2, 8)
    y = linear(b, cases.relu(x) if why == "other" else x, 8 if why == "equal" else 12, "y")
    z = linear(b, x, 8, "z")
    if why == "returned":
        outputs = [y, heads(z, 2)]
    elif why == "joined":
        outputs = [te.compute((2, 20), lambda i, j: te.select(j >= 8, y[i, j - 8], z[i, j]))]
    else:
        outputs = [heads(y, 2), heads(z, 2)]
    graph = b.graph(*outputs)
    assert stack_unequal(graph) is graph


def by_heads(b: cases.Builder, x: Any, h: int, name: str) -> Any:
    """A product whose weights walk two axes: heads, and 3 numbers of each."""
    k, w = te.reduce_axis(x.shape[1], "k"), b.constant(f"{name}_w", h, 3, x.shape[1])
    return te.compute((x.shape[0], h, 3), lambda i, p, q: te.sum(x[i, k] * w[p, q, k], axis=k), name)


def largest(y: Any) -> Any:
    r = te.reduce_axis(y.shape[2], "r")
    return te.compute(y.shape[:2], lambda i, h: te.max(y[i, h, r], axis=r))


FOLLOWERS: dict[str, Any] = {
    "axes in another order": lambda y: te.compute(
        (3, 2, y.shape[1]), lambda d, i, h: te.maximum(y[i, h, d], 0.0)
    ),
    "heads within numbers": lambda y: te.compute(
        (2, 3, y.shape[1]), lambda i, d, h: te.maximum(y[i, h, d], 0.0)
    ),
    "one number of each head": lambda y: te.compute(y.shape[:2], lambda i, h: te.maximum(y[i, h, 0], 0.0)),
    "numbers from the end on": lambda y: te.compute(y.shape, lambda i, h, d: te.maximum(y[i, h, 2 - d], 0.0)),
    "the largest of each head": largest,
}


@pytest.mark.parametrize("how", FOLLOWERS)
def test_what_follows_walks_two_axes_in_any_way(how: str) -> None:
    b = cases.Builder()
    x = b.input("x", 2, 5)
    ys = [FOLLOWERS[how](by_heads(b, x, h, f"y{h}")) for h in (2, 4, 1)]
    graph = b.graph(*(cases.stage(y.shape, lambda *i, y=y: y[i] + 1.0) for y in ys))
    after = stack_unequal(graph)
    same(graph, after)
    assert wide(after) == [21]
    same(graph, optimize(graph))


def test_sums_of_integers_are_stacked_with_their_scales_only() -> None:
    b = cases.Builder()
    x = b.input("x", 2, 8)
    of = rounded_rows(x, 4)
    graph = eliminate_common(b.graph(*(heads(few_bits(b, of, 8, f"y{n}", "int4"), 2) for n in range(2))))
    after = stack_unequal(graph)
    same(graph, after)
    assert wide(after) == [16, 16], "the products of groups, and their sums"

    b = cases.Builder()
    codes = b.input("codes", 2, 8, dtype="int8")
    ys = []
    for n in (4, 6):
        sums = integers(b, codes, n)
        y = te.compute((2, n), lambda i, j, s=sums, by=1.0 / n: te.cast(s[i, j], "float32") * by)
        ys.append(heads(y, 2))
    graph = b.graph(*ys)
    assert stack_unequal(graph) is graph, "each has a scale of its own"


def test_only_views_of_what_kernels_make_lie_in_it() -> None:
    b = cases.Builder()
    x = b.input("x", 4, 6)
    y = te.compute(x.shape, lambda i, j: te.maximum(x[i, j], 0.0), "y")
    part = te.compute((4, 2), lambda i, j: y[i, j + 3], "part")
    turned = te.compute((6, 4), lambda i, j: y[j, i], "turned")
    again = te.compute((4, 12), lambda i, j: y[i, j // 2], "again")
    given_ = te.compute((4, 2), lambda i, j: x[i, j], "given")
    every = (part, turned, again, given_)
    graph = b.graph(*(te.compute(t.shape, lambda i, j, t=t: t[i, j] + 1.0) for t in every))
    after = lie_in_whole(graph)
    same(graph, after)
    assert set(after.views) == {"part", "turned"}
    assert after.views["part"] == Argument("y", 3)
    assert after.dag.tensors["turned"].strides == (1, 6)
