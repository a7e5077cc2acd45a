"""Tangents of expressions: transposes of gradients, equal to differences, of whole numbers exactly."""

from __future__ import annotations

import numpy as np
import pytest
from gradient_cases import (
    OPERATIONS,
    OPERATORS,
    attention,
    cross_entropy,
    dense_gelu,
    evaluated,
    operator,
)
from hypothesis import given
from hypothesis import strategies as st

from schedules import te
from schedules.errors import WorkloadError
from schedules.te.dims import dim

D = "float64"
STEP = 1e-6


def x_of(*shape: int, name: str = "x", dtype: str = D) -> te.Tensor:
    return te.placeholder(shape, dtype, name)


def check(tensors, arrays=None, tolerance=1e-6, reverse=True) -> te.Tensor:
    """Compare the tangent of the last tensor with differences, and with the gradient: Σ w · jvp(v) is Σ v ·
    gradient(w), in float64."""
    rng = np.random.default_rng(3)
    y = tensors[-1]
    every = [t for t in tensors[:-1] if t.op is None]
    values = {t: rng.standard_normal(t.shape) for t in every if t.dtype == D} | (arrays or {})
    wrt = [t for t in every if t.dtype == D]
    ways = [te.placeholder(t.shape, D, f"v{n}") for n, t in enumerate(wrt)]
    (found,) = te.jvp(y, wrt, ways)
    assert found.shape == y.shape and found.dtype == y.dtype
    moved = {v: rng.standard_normal(v.shape) for v in ways}
    (got,) = evaluated([found], values | moved)

    def at(step: float) -> np.ndarray:
        near = {x: values[x] + step * moved[v] for x, v in zip(wrt, ways, strict=True)}
        return evaluated([y], values | near)[0]

    slope = (at(STEP) - at(-STEP)) / (2 * STEP)
    np.testing.assert_allclose(got, slope, atol=tolerance * max(1.0, np.abs(slope).max()))
    if reverse:
        w = te.placeholder(y.shape, D, "w")
        weights = rng.standard_normal(y.shape)
        back = evaluated(te.gradient(y, wrt, w), values | {w: weights})
        both = sum(float((g * moved[v]).sum()) for g, v in zip(back, ways, strict=True))
        assert abs(float((got * weights).sum()) - both) <= 1e-9 * max(np.abs(got).sum(), 1.0)
    return found


@pytest.mark.parametrize("case", OPERATORS)
def test_operators(case) -> None:
    name, params, layout = OPERATORS[case]
    check(operator(name, D, layout, **params))


def test_expressions_of_several_stages() -> None:
    check(dense_gelu(D))
    q, k, v, _, y = attention(D)
    check([q, k, v, y])
    x, t, loss = cross_entropy(D)
    check([x, t, loss], arrays={t: np.array([3, 0, 6, 2, 2], np.int64)})


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name) -> None:
    a, b = x_of(4, 5, name="a"), x_of(4, 5, name="b")
    y = te.compute((4, 5), lambda i, j: OPERATIONS[name](a[i, j], b[i, j]), "y")
    rng = np.random.default_rng(0)
    ins = [t for t in (a, b) if t in te.inputs(y)]
    check([*ins, y], {t: rng.uniform(0.3, 1.9, (4, 5)) for t in ins})


def whole(fn, *arrays: object) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(tangents along ones, gradients of the sum) of a function of vectors of whole numbers."""
    values = [np.array(a, D) for a in arrays]
    ins = [x_of(*a.shape, name=f"x{n}") for n, a in enumerate(values)]
    y = fn(*ins)
    ways = [te.placeholder(t.shape, D, f"v{n}") for n, t in enumerate(ins)]
    given = dict(zip(ins, values, strict=True)) | {v: np.ones(v.shape) for v in ways}
    return evaluated(te.jvp(y, ins, ways), given), evaluated(te.gradient(y, ins), given)


def test_ties_are_those_of_gradients() -> None:
    """Half of each that ties, an n-th of n maxima, nothing at 0 against a number."""
    (t,), _ = whole(lambda x: te.compute((3,), lambda i: te.maximum(x[i], 0.0), "y"), [-1, 0, 2])
    assert t.tolist() == [0, 0, 1]
    (t,), back = whole(
        lambda x, z: te.compute((2,), lambda i: te.maximum(x[i], z[i] * 3.0), "y"), [3, 1], [1, 1]
    )
    assert t.tolist() == [2, 3] and [b.tolist() for b in back] == [[0.5, 0], [1.5, 3]]
    k = te.reduce_axis(4, "k")
    (t,), (back,) = whole(
        lambda x: te.compute((1,), lambda i: te.max(x[k] * x[k], axis=k), "y"), [2, -2, 1, 2]
    )
    assert t.tolist() == [(4 - 4 + 4) / 3] and back.tolist() == [4 / 3, -4 / 3, 0, 4 / 3]
    (t,), _ = whole(lambda x: te.compute((3,), lambda i: te.abs(x[i]) + te.floor(x[i]), "y"), [-2, 0, 2])
    assert t.tolist() == [-1, 0, 1]


def test_products_with_zeros() -> None:
    k = te.reduce_axis(3, "k")
    for row in ([2, 3, 5], [2, 0, 5], [0, 0, 5]):
        (t,), (back,) = whole(lambda x: te.compute((1,), lambda i: te.prod(x[k], axis=k), "y"), row)
        assert t[0] == back.sum()


def test_triangles() -> None:
    a, b = x_of(5, 5, name="a"), x_of(5, name="b")

    def row(fold, i):
        j = te.reduce_axis((0, i + 1), "j")
        return fold(a[i, j] * b[j], axis=j)

    for fold in (te.sum, te.max, te.prod):
        check([a, b, te.compute((5,), lambda i, fold=fold: row(fold, i), "y")])


def test_what_selects_guard_is_read_nowhere_else() -> None:
    x = x_of(6)
    y = te.compute((6,), lambda i: te.select(i > 0, x[i - 1] * x[i - 1], 7.0), "y")
    check([x, y])


def test_tensors_read_at_indices_of_tensors() -> None:
    x, i = x_of(5, 3), te.placeholder((4,), "int32", "i")
    y = te.compute((4, 3), lambda n, j: x[i[n], j] * x[0, j], "y")
    check([x, i, y], {i: np.array([4, 0, 0, 2], np.int32)})


def test_several_outputs_inputs_and_stages() -> None:
    x = x_of(4)
    z = te.compute((4,), lambda i: te.exp(x[i]), "z")
    y = te.compute((4,), lambda i: z[i] * z[i] + x[i], "y")
    v = te.placeholder((4,), D, "v")
    a, b = te.jvp([y, z], x, v)
    values = {x: np.arange(4.0), v: np.array([1.0, 2, 3, 4])}
    e = np.exp(values[x])
    got = evaluated([a, b], values)
    np.testing.assert_allclose(got[0], (2 * e * e + 1) * values[v])
    np.testing.assert_allclose(got[1], e * values[v])
    (alone,) = te.jvp(y, z)  # of a stage; x stands still
    assert {t.name for t in te.inputs(alone)} == {"x", "z_dot"}
    (kept,) = te.cut(te.jvp(y, z), [z])
    assert {t.name for t in te.inputs(kept)} == {"z", "z_dot"}
    (same,) = te.jvp(x, x, v)
    assert evaluated([same], values)[0].tolist() == [1, 2, 3, 4]


def test_of_a_tangent_is_a_second_derivative() -> None:
    x = x_of(3)
    y = te.compute((3,), lambda i: x[i] * x[i] * x[i], "y")
    one, two = (te.placeholder((3,), D, n) for n in "uv")
    (first,) = te.jvp(y, x, one)
    (second,) = te.jvp(first, x, two)
    found = evaluated([second], {x: np.array([1.0, 2, 3]), one: np.ones(3), two: np.full(3, 2.0)})
    assert found[0].tolist() == [12, 24, 36]
    (mixed,) = te.gradient(first, [x])
    assert evaluated([mixed], {x: np.array([1.0, 2, 3]), one: np.ones(3)})[0].tolist() == [6, 12, 18]


def test_half_floats_are_computed_with_as_float32() -> None:
    x = x_of(4, dtype="float16")
    y = te.compute((4,), lambda i: te.cast(te.exp(x[i]) * 2.0, "float16"), "y")
    (t,) = te.jvp(y, x)
    assert t.dtype == "float16" and t.name == "y_dot"
    dag = te.dag([*te.inputs(t), t])
    got = te.evaluate(dag, [np.zeros(4, np.float16), np.ones(4, np.float16)])[0]
    assert got.dtype == np.float16 and got.tolist() == [2] * 4


def test_open_sizes_stay_open() -> None:
    n = dim(1, 64, "n")
    x, w = te.placeholder((n, 3), D, "x"), te.placeholder((3,), D, "w")
    k = te.reduce_axis(3, "k")
    y = te.compute((n,), lambda i: te.tanh(x[i, 0] * w[0]), "y")
    s = te.compute((n,), lambda i: te.sum(x[i, k] * w[k] * x[i, k], axis=k), "s")
    for out in (y, s):
        (t,) = te.jvp(out, [x, w])
        assert te.dag([*te.inputs(t), t]).open
        at = te.dag([*te.inputs(t), t], {n: 5})
        assert at.tensors[at.outputs[0]].shape == (5,)


# --- scans -----------------------------------------------------------------------------------


def cell(dtype: str = D, reverse: bool = False) -> list[te.Tensor]:
    """A recurrent layer whose step is several stages, with a first state that is given."""
    x, w, h0 = (te.placeholder(s, dtype, n) for s, n in (((6, 3), "x"), ((3, 3), "w"), ((3,), "h0")))
    h = te.state((6, 3), dtype, init=lambda t, j: h0[j], name="h", reverse=reverse)
    k = te.reduce_axis(3, "k")
    before = 1 if reverse else -1
    g = te.compute((6, 3), lambda t, j: te.sum(w[j, k] * h[t + before, k], axis=k), "g")
    out = te.scan(h, te.compute((6, 3), lambda t, j: te.tanh(g[t, j] + x[t, j]), "h"))
    return [x, w, h0, te.compute((6, 3), lambda t, j: out[t, j] * out[t, 0], "y")]


def two_states() -> list[te.Tensor]:
    a, b = x_of(7, name="a"), x_of(7, name="b")
    y, z = te.scan(
        [(7,), (7,)],
        lambda y, z, t: (a[t] * y[t - 1] + z[t - 1] * z[t - 1], te.sin(y[t - 2]) + b[t]),
        init=[lambda t: a[0] * 0.5, 0.25],
        dtype=D,
    )
    return [a, b, te.compute((7,), lambda t: y[t] * z[t], "out")]


def plane() -> list[te.Tensor]:
    """A scan along two axes, which reads to the left, above, and above to the right."""
    a = x_of(4, 5, name="a")
    y = te.scan(
        (4, 5),
        lambda y, i, j: a[i, j] * y[i, j - 1] + te.select(j < 4, y[i - 1, j + 1], 0.5) * y[i - 1, j],
        init=1.0,
        axis=(0, 1),
        dtype=D,
    )
    return [a, y]


def triangular() -> list[te.Tensor]:
    """The solution of a triangular system: each step reads all before it."""
    a, b = x_of(5, 5, name="a"), x_of(5, name="b")
    x = te.state((5,), D, name="x")

    def row(i):
        j = te.reduce_axis((0, i), "j")
        return te.sum(a[i, j] * x[j], axis=j)

    dot = te.compute((5,), row, "dot")
    return [a, b, te.scan(x, te.compute((5,), lambda i: b[i] - dot[i], "x"))]


def largest_of_states() -> list[te.Tensor]:
    """A step reads the largest element of the step before, as the best path does."""
    x, h = x_of(5, 3), te.state((5, 3), D, init=0.25, name="h")
    k = te.reduce_axis(3, "k")
    top = te.compute((5, 3), lambda t, j: te.max(h[t - 1, k] * x[t, k], axis=k), "top")
    return [x, te.scan(h, te.compute((5, 3), lambda t, j: top[t, j] + te.sin(x[t, j]), "h"))]


SCANS = {
    "largest of states": largest_of_states,
    "triangular system": triangular,
    "cell": cell,
    "cell backwards": lambda: cell(reverse=True),
    "two states": two_states,
    "two axes": plane,
    "cumulative sum": lambda: [x := x_of(5, 3), te.cumsum(x, axis=1)],
    "cumulative product": lambda: [x := x_of(5, 3), te.cumprod(x, reverse=True, exclusive=True)],
    "cumulative maximum": lambda: [x := x_of(6, 3), te.cummax(x)],
}


@pytest.mark.parametrize("name", SCANS)
def test_scans(name: str) -> None:
    check(SCANS[name]())


def test_the_tangent_of_a_scan_is_a_scan_in_its_order() -> None:
    *ins, y = cell(reverse=True)
    (t,) = te.jvp(y, ins)
    steps = {s.name: s.scan for s in te.dag([*te.inputs(t), t]).stages if s.scan}
    assert steps.keys() >= {"g_dot", "h_dot"} and {d for s in steps.values() for _, d in s} == {-1}


# --- random ----------------------------------------------------------------------------------

LINEAR = st.lists(st.sampled_from([-2, -1, 0, 1, 2]), min_size=12, max_size=12)


@given(LINEAR, LINEAR, LINEAR, st.integers(1, 3), st.booleans())
def test_of_whole_numbers_it_is_the_transpose_exactly(a, v, w, lag, reverse) -> None:
    """A recurrence of products: Σ w · jvp(v) = Σ gradient(w) · v, in whole numbers."""
    x = x_of(12)
    step = lag if reverse else -lag
    y = te.scan((12,), lambda y, t: y[t + step] * x[t] + x[t], init=1.0, reverse=reverse, dtype=D)
    out = te.compute((12,), lambda t: y[t] * x[11 - t], "out")
    way, weight = (te.placeholder((12,), D, n) for n in ("v", "w"))
    values = {x: np.array(a, D), way: np.array(v, D), weight: np.array(w, D)}
    (forward,) = evaluated(te.jvp(out, x, way), values)
    (back,) = evaluated(te.gradient(out, x, weight), values)
    assert float(forward @ values[weight]) == float(back @ values[way])


# --- refusals --------------------------------------------------------------------------------


def test_refusals() -> None:
    x, i = x_of(3), te.placeholder((3,), "int32", "i")
    y = te.compute((3,), lambda n: x[n] + te.cast(i[n], D), "y")
    flat = te.compute((3,), lambda n: te.floor(x[n]), "flat")
    for args, words in (
        (([], x), "te.jvp: outputs is empty"),
        ((y, []), "te.jvp: inputs is empty"),
        ((y, i), r"te.jvp: tensor i\[3\] int32 of inputs is not floating point"),
        ((y, [x, x]), "stands twice in inputs"),
        ((y, 3), "te.jvp: inputs are te tensors, not 3"),
        ((y, x, [x, x]), "2 tangents for 1 inputs; give one for each"),
        ((y, x, x_of(4)), "does not fit"),
        ((y, x, 1.0), "tangents are te tensors, not a float; kernels take the arrays"),
        ((y, x_of(3, name="z")), "depends on none of the inputs by what has a derivative; give one"),
    ):
        with pytest.raises(WorkloadError, match=words):
            te.jvp(*args)
    (still,) = te.jvp(flat, x)
    assert evaluated([still], {x: np.ones(3)})[0].tolist() == [0, 0, 0]
    k = te.reduce_axis(3, "k")

    def join(a, b):
        wins = te.any(a[1] > b[1], te.all(te.equal(a[1], b[1]), a[0] < b[0]))
        return te.select(wins, a[0], b[0]), te.select(wins, a[1], b[1])

    argmax = te.reducer(lambda i, v: (te.max_value(i), -te.inf), join, "argmax")
    _, top = te.compute((1,), lambda n: argmax((te.cast(k, "int32"), x[k]), axis=k), ("place", "top"))
    with pytest.raises(WorkloadError, match=r"te.jvp: stage .* reduces by argmax"):
        te.jvp(top, x)
