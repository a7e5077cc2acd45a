"""Scaled integers of any spelling become codes with scales of groups, and the product keeps its value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules import te
from schedules.graph.graph import Graph
from schedules.graph.group_scales import scale_sums_of_groups
from schedules.graph.optimize import optimize

N, K, GROUP = 5, 48, 8
stage = cases.stage
Weight = Callable[[cases.Builder], Any]


def known(b: cases.Builder, name: str, value: np.ndarray) -> Any:
    t = te.placeholder(value.shape, value.dtype.name, name)
    b.constants[name] = (t, value)
    return t


def codes(b: cases.Builder, dtype: str = "int8", least: int = -8, most: int = 7) -> Any:
    value = b.rng.integers(least, most + 1, (N, K))
    value[0, :2] = least, most
    return known(b, "q", value.astype(dtype))


def scales(b: cases.Builder, dtype: str = "float32", groups: int = K // GROUP) -> Any:
    return known(b, "s", b.rng.integers(1, 5, (N, groups)).astype(dtype))


def plain(b: cases.Builder) -> Any:
    q, s = codes(b), scales(b)
    return stage((N, K), lambda n, k: te.cast(q[n, k], "float32") * s[n, k // GROUP])


def with_zeros(b: cases.Builder) -> Any:
    """Zero points are integers of their own."""
    q, s = codes(b, "uint8", 0, 255), scales(b, "float16")
    z = known(b, "z", b.rng.integers(0, 256, (N, K // GROUP)).astype("uint8"))

    def value(n: Any, k: Any) -> Any:
        whole = te.cast(q[n, k], "float32") - te.cast(z[n, k // GROUP], "float32")
        return whole * te.cast(s[n, k // GROUP], "float32")

    return stage((N, K), value)


def packed(b: cases.Builder) -> Any:
    """Two in a byte, of which 8 is the zero; with a scale that is a product."""
    q, s = known(b, "q", b.rng.integers(0, 256, (N, K // 2)).astype("uint8")), scales(b)
    c = known(b, "c", b.rng.integers(1, 3, (N,)).astype("float32"))

    def value(n: Any, k: Any) -> Any:
        code = te.cast(q[n, k // 2] >> te.cast(k % 2 * 4, "int32") & 15, "float32")
        return (code - 8.0) * s[n, k // GROUP] * c[n]

    return stage((N, K), value)


def shifted(b: cases.Builder) -> Any:
    """Floats are added, as in torch's packed product. Its groups are read from the other side."""
    q = codes(b)
    p = known(b, "p", b.rng.integers(-4, 5, (K // GROUP, N, 2)).astype("float32"))
    return stage((N, K), lambda n, k: p[k // GROUP, n, 1] + p[k // GROUP, n, 0] * te.cast(q[n, k], "float32"))


def by_maps(b: cases.Builder) -> Any:
    """A scale that a map has flattened."""
    q, s = codes(b), scales(b)
    flat = stage((N * (K // GROUP),), lambda i: s[i // (K // GROUP), i % (K // GROUP)], "flat")
    wide = stage((N, K), lambda n, k: te.cast(q[n, k], "float32"), "wide")
    return stage((N, K), lambda n, k: wide[n, k] * flat[n * (K // GROUP) + k // GROUP])


def two_sizes(b: cases.Builder) -> Any:
    """Scales of 8 and zeros of 24: groups are the largest that have one of either."""
    q, s = codes(b), scales(b)
    z = known(b, "z", b.rng.integers(-3, 4, (N, K // 24)).astype("float32"))
    return stage((N, K), lambda n, k: (te.cast(q[n, k], "float32") + z[n, k // 24]) * s[n, k // GROUP])


def one_a_row(b: cases.Builder) -> Any:
    q, s = codes(b, least=-128, most=127), known(b, "s", b.rng.integers(1, 5, (N,)).astype("float32"))
    return stage((N, K), lambda n, k: te.cast(q[n, k], "float32") * s[n])


# {form: (what codes are kept as, their groups, whether there are offsets)}.
FORMS: dict[Weight, tuple[str, int, bool]] = {
    plain: ("uint8", GROUP, False), with_zeros: ("int8", GROUP, True), packed: ("uint8", GROUP, False),
    shifted: ("uint8", GROUP, True), by_maps: ("uint8", GROUP, False), two_sizes: ("uint8", GROUP, True),
    one_a_row: ("int8", K, False),
}  # fmt: skip


def graph_of(weight: Weight, seed: int = 0, rows: int = 3) -> Graph:
    b = cases.Builder(seed)
    x, w, k = b.input("x", rows, K), weight(b), te.reduce_axis(K, "k")
    return b.graph(te.compute((rows, N), lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), "y"))


@pytest.mark.parametrize("weight", FORMS)
@pytest.mark.parametrize("seed", range(3))
def test_a_product_of_scaled_integers_is_what_it_was(weight: Weight, seed: int) -> None:
    graph = graph_of(weight, seed)
    made = scale_sums_of_groups(graph)
    dtype, group, offsets = FORMS[weight]
    values = {n.split("_")[-1]: v for n, v in made.values.items()}
    assert values.keys() == {"codes", "scales"} | ({"offsets"} if offsets else set())
    assert values["codes"].dtype == dtype and values["scales"].shape == (N, K // group)
    assert values["scales"].dtype == np.float16, "integers have few bits"
    x = np.random.default_rng(seed).integers(-9, 10, (3, K)).astype("float32")
    want = evaluate(graph, [x])[0]
    for one in (made, optimize(graph)):
        np.testing.assert_array_equal(evaluate(one, [x])[0], want)
    assert scale_sums_of_groups(made) is made


def other(name: str) -> Weight:
    def each(b: cases.Builder) -> Any:
        """A scale for each weight."""
        q, s = codes(b), scales(b, groups=K)
        return stage((N, K), lambda n, k: te.cast(q[n, k], "float32") * s[n, k])

    def uneven(b: cases.Builder) -> Any:
        q, s = codes(b), scales(b, groups=7)  # the last group has 6
        return stage((N, K), lambda n, k: te.cast(q[n, k], "float32") * s[n, k // 7])

    def wide(b: cases.Builder) -> Any:
        q, s = codes(b, "int32", -300, 300), scales(b)
        return stage((N, K), lambda n, k: te.cast(q[n, k], "float32") * s[n, k // GROUP])

    def bent(b: cases.Builder) -> Any:
        q, s = codes(b), scales(b)
        return stage((N, K), lambda n, k: te.exp(te.cast(q[n, k], "float32")) * s[n, k // GROUP])

    def floats(b: cases.Builder) -> Any:
        w, s = b.constant("w", N, K), scales(b)
        return stage((N, K), lambda n, k: w[n, k] * s[n, k // GROUP])

    return {"each": each, "uneven": uneven, "wide": wide, "bent": bent, "floats": floats}[name]


@pytest.mark.parametrize("name", ["each", "uneven", "wide", "bent", "floats"])
def test_what_is_no_scaled_integer_stays(name: str) -> None:
    graph = graph_of(other(name))
    assert scale_sums_of_groups(graph) is graph


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 99), power=st.integers(-20, 20), rows=st.integers(1, 3))
def test_any_scale_is_near(seed: int, power: int, rows: int) -> None:
    rng = np.random.default_rng(seed)

    def weight(b: cases.Builder) -> Any:
        q, s = codes(b, "uint8", 0, 15), known(b, "s", np.ldexp(rng.random((N, 6)), power).astype("float32"))
        z = known(b, "z", rng.integers(0, 16, (N, 6)).astype("float32"))
        return stage((N, K), lambda n, k: (te.cast(q[n, k], "float32") - z[n, k // 8]) * s[n, k // 8])

    graph = graph_of(weight, seed, rows)
    x = rng.standard_normal((rows, K)).astype("float32")
    want, have = evaluate(graph, [x])[0], evaluate(scale_sums_of_groups(graph), [x])[0]
    np.testing.assert_allclose(have, want, rtol=1e-4, atol=float(np.ldexp(1e-4, power)))


def test_integers_beyond_32_bits_stay() -> None:
    b = cases.Builder()
    q = known(b, "q", b.rng.integers(2**33, 2**33 + 4, (N, K)))
    t, x = te.reduce_axis(K, "t"), b.input("x", 2, K)
    w = stage((N, K), lambda n, k: te.cast(q[n, k], "float32"))
    graph = b.graph(te.compute((2, N), lambda i, j: te.sum(x[i, t] * w[j, t], axis=t), "y"))
    assert scale_sums_of_groups(graph) is graph
