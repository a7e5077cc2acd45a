"""Gradients of expressions against differences in float64, and of whole numbers exactly."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from children import ROOT, python_path
from gradient_cases import (
    OPERATIONS,
    OPERATORS,
    ROUNDS,
    SLOPES,
    attention,
    check,
    cross_entropy,
    dense_gelu,
    evaluated,
    operator,
)

from schedules import te
from schedules.errors import WorkloadError
from schedules.functions import FUNCTIONS
from schedules.te.reverse_mode.copies import without_copies

D = "float64"


def x_of(*shape: int, name: str = "x", dtype: str = D) -> te.Tensor:
    return te.placeholder(shape, dtype, name)


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


# --- operations ------------------------------------------------------------------------------


def test_every_function_has_a_slope_or_is_flat() -> None:
    assert SLOPES == {name for name, row in FUNCTIONS.items() if row.change is not None}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name) -> None:
    a, b = x_of(4, 5, name="a"), x_of(4, 5, name="b")
    y = te.compute((4, 5), lambda i, j: OPERATIONS[name](a[i, j], b[i, j]), "y")
    rng = np.random.default_rng(0)
    values = {t: rng.uniform(0.3, 1.9, (4, 5)) for t in (a, b)}
    check([a, b, y], [t for t in (a, b) if t in te.inputs(y)], values)


@pytest.mark.parametrize("name", sorted(ROUNDS))
def test_rounding_hands_on_what_it_is_given(name) -> None:
    x, dy = x_of(4), te.placeholder((4,), "float64", "dy")
    y = te.compute((4,), lambda i: getattr(te, name)(x[i]) * 3.0, "y")
    given = np.array([1.1, -2.3, 0.7, 5.9])
    (got,) = evaluated(te.gradient(y, [x], dy), {x: given, dy: given})
    np.testing.assert_array_equal(got, 3.0 * given)


@pytest.mark.slow
def test_parts_that_are_used_again_hand_on_once() -> None:
    """As a tree, a value that doubles itself eight times has thousands of paths to its input."""
    x = x_of(3)

    def doubled(i):
        v = x[i]
        for n in range(8):
            v = v + te.select(i < n % 3, v, v)
        return v

    y = te.compute((3,), doubled, "y")
    (dx,) = te.gradient(y, x)
    assert evaluated([dx], {x: np.zeros(3)} if te.inputs(dx) else {})[0].tolist() == [256] * 3
    check([x, te.compute((3,), lambda i: te.sin(te.exp(x[i])) * te.exp(x[i]) + te.exp(x[i]), "z")])


def of_numbers(fn, *values: list[float]) -> list[list[float]]:
    """The gradients of ``fn`` of vectors at some numbers."""
    n = len(values[0])
    ts = [x_of(n, name=f"x{k}") for k in range(len(values))]
    y = te.compute((n,), lambda i: fn(*(t[i] for t in ts)), "y")
    arrays = {t: np.array(v, D) for t, v in zip(ts, values, strict=True)}
    return [evaluated([g], arrays)[0].tolist() for g in te.gradient(y, ts)]


def test_where_there_is_no_derivative() -> None:
    assert of_numbers(lambda a, b: te.maximum(a, b), [1, 2, 3], [2, 2, 2]) == [[0, 0.5, 1], [1, 0.5, 0]]
    assert of_numbers(lambda a, b: te.minimum(a, b), [1, 2, 3], [2, 2, 2]) == [[1, 0.5, 0], [0, 0.5, 1]]
    assert of_numbers(lambda a: te.maximum(a, 0.0), [-1, 0, 1]) == [[0, 0, 1]]
    assert of_numbers(lambda a: te.maximum(0.0, a) * 3.0, [-1, 0, 1]) == [[0, 0, 3]]
    assert of_numbers(lambda a: te.clip(a, 0.0, 6.0), [-1, 0, 1, 6, 7]) == [[0, 0, 1, 0, 0]]
    assert of_numbers(te.abs, [-2, 0, 2]) == [[-1, 0, 1]]
    assert of_numbers(lambda a, b: te.pow(a, b), [0, 0, 2], [0, 2, 3]) == [[0, 0, 12], [0, 0, 8 * np.log(2)]]


def reduced(how, *shape: int) -> tuple[te.Tensor, te.Tensor]:
    x, k = x_of(*shape), te.reduce_axis(shape[-1], "k")
    return x, te.compute(shape[:-1], lambda i: how(x[i, k], axis=k), "y")


def test_extremes_share_their_gradient_among_ties() -> None:
    for how in (te.max, te.min):
        x, y = reduced(how, 3, 5)
        check([x, y])
        (g,) = te.gradient(y, x)
        rows = np.array([[1, 2, 2, 0, 2], [3, 1, 1, 1, 2], [-1, -1, -1, -1, -1]], D)
        hit = rows == (rows.max if how is te.max else rows.min)(axis=1, keepdims=True)
        np.testing.assert_array_equal(evaluated([g], {x: rows})[0], hit / hit.sum(1, keepdims=True))


def test_products_with_zeros() -> None:
    x, y = reduced(te.prod, 4, 3)
    check([x, y])
    (g,) = te.gradient(y, x)
    rows = np.array([[2, 3, 4], [2, 0, 4], [0, 0, 5], [0, 0, 0]], D)
    want = [[12, 8, 6], [0, 8, 0], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_array_equal(evaluated([g], {x: rows})[0], want)


def test_reducers_over_tuples() -> None:
    x, k = x_of(3, 5), te.reduce_axis(5, "k")
    both = te.reducer((0.0, -te.inf), lambda a, b: (a[0] + b[0], te.maximum(a[1], b[1])), "both")
    total, top = te.compute((3,), lambda i: both((x[i, k] * x[i, k], x[i, k]), axis=k), ("total", "top"))
    check([x, te.compute((3,), lambda i: total[i] * top[i], "y")])
    check([x, top])

    def join(a, b):
        wins = te.any(a[1] > b[1], te.all(te.equal(a[1], b[1]), a[0] < b[0]))
        return te.select(wins, a[0], b[0]), te.select(wins, a[1], b[1])

    argmax = te.reducer(lambda i, v: (te.max_value(i), -te.inf), join, "argmax")
    _, value = te.compute((3,), lambda i: argmax((te.cast(k, "int32"), x[i, k]), axis=k), ("place", "value"))
    with pytest.raises(WorkloadError, match=r"stage value reduces by argmax, which has no derivative here"):
        te.gradient(value, x)


# --- indices ---------------------------------------------------------------------------------


def view(shape: tuple[int, ...], out: tuple[int, ...], index) -> tuple[te.Tensor, te.Tensor]:
    x = x_of(*shape)
    return x, te.compute(out, lambda *at: x[index(*at)] * (1.0 + te.cast(at[0], D)), "y")


VIEWS = {
    "transposed": ((3, 4), (4, 3), lambda i, j: (j, i)),
    "part": ((7, 5), (3, 2), lambda i, j: (i + 2, j + 1)),
    "each third": ((8,), (3,), lambda i: 3 * i + 1),
    "backwards": ((5,), (5,), lambda i: 4 - i),
    "each second backwards": ((8,), (4,), lambda i: 7 - 2 * i),
    "flattened": ((3, 4), (12,), lambda i: (i // 4, i % 4)),
    "folded": ((12,), (3, 4), lambda i, j: i * 4 + j),
    "folded again": ((2, 6), (3, 4), lambda i, j: ((i * 4 + j) // 6, (i * 4 + j) % 6)),
    "of three": ((24,), (2, 3, 4), lambda i, j, k: (i * 3 + j) * 4 + k),
    "to three": ((2, 3, 4), (24,), lambda i: (i // 12, i // 4 % 3, i % 4)),
    "part of a fold": ((12,), (2, 3), lambda i, j: i * 4 + j + 1),
    "repeated": ((4,), (12,), lambda i: i // 3),
    "repeated in part": ((4,), (7,), lambda i: (i + 2) // 3),
    "tiled": ((4,), (11,), lambda i: i % 4),
    "broadcast": ((3,), (4, 3, 2), lambda i, j, k: j),
    "to all": ((1,), (4, 3), lambda i, j: 0),
    "diagonal": ((4, 4), (4,), lambda i: (i, i)),
    "windows": ((7,), (5, 3), lambda i, j: i + j),
    "windows apart": ((9,), (3, 3), lambda i, j: 3 * i + j),
    "windows with steps": ((10,), (4, 2), lambda i, j: 2 * i + 3 * j),
    "steps of two": ((9,), (3, 3), lambda i, j: 2 * i + 2 * j),
    "sum and difference": ((7, 7), (4, 4), lambda i, j: (i + j, i - j + 3)),
    "cut off": ((4,), (6,), lambda i: te.minimum(i, 3)),
    "folded with steps": ((26,), (4, 3), lambda i, j: i * 6 + j * 2 + 1),
    "negative digits": ((12,), (3, 4), lambda i, j: i * 4 + 3 - j),
}


@pytest.mark.parametrize("name", VIEWS)
def test_indices(name) -> None:
    check([*view(*VIEWS[name])])


def test_several_reads_of_one_tensor() -> None:
    x = x_of(6, 4)

    def stencil(i, j):
        here = x[i, j] * x[i, j]
        above = te.select(i > 0, x[i - 1, j], 0.0)
        below = te.select(te.logical_not(i >= 5), x[i + 1, j] * x[i, j], 1.0)
        return here + above * below + x[i, 3 - j] + x[0, 0]

    check([x, te.compute((6, 4), stencil, "y")])
    k = te.reduce_axis(6, "k")
    check([x, te.compute((6, 4), lambda i, j: te.sum(x[k, j] * x[i, j] + x[i, 0], axis=k), "y")])


def test_conditions_that_only_a_factor_tells_stay() -> None:
    """Beyond its ends x is 0 in a copy, and exp(0) is not."""
    x, w, k = x_of(6), x_of(4, name="w"), te.reduce_axis(4, "k")
    y = te.compute((6,), lambda i: te.sum(te.select(k <= i, te.exp(x[i - k]) * w[k], 0.0), axis=k), "y")
    check([x, w, y])


def test_joined_tensors() -> None:
    a, b = x_of(3, name="a"), x_of(4, name="b")
    check([a, b, te.compute((7,), lambda i: te.select(i < 3, a[i], b[i - 3]) * te.cast(i, D), "y")])


def test_a_read_that_never_happens() -> None:
    x = x_of(3)
    y = te.compute((3,), lambda i: te.select(i > 5, x[i - 3], x[i]), "y")
    (g,) = te.gradient(y, x)
    assert evaluated([g], {x: np.zeros(3)})[0].tolist() == [1, 1, 1]


def test_indices_that_are_read_from_tensors() -> None:
    table, ids = x_of(5, 3, name="table"), te.placeholder((4, 2), "int32", "ids")
    y = te.compute((4, 2, 3), lambda i, j, k: table[ids[i, j], k] * table[ids[i, 0], 2 - k], "y")
    places = np.array([[0, 3], [3, 3], [9, 1], [-2, 4]], np.int32)  # held inside, as the values are
    check([table, ids, y], arrays={ids: places})
    row = te.compute((4, 3), lambda i, k: table[ids[i, 1], k], "row")
    dy = te.placeholder((4, 3), D, "dy")
    (dtable,) = te.gradient(row, table, dy)
    given = np.arange(12.0).reshape(4, 3)
    want = np.zeros((5, 3))
    np.add.at(want, places[:, 1], given)
    np.testing.assert_array_equal(evaluated([dtable], {ids: places, dy: given})[0], want)
    # An index that moves is no window: it is summed over all that may read an element.
    x, at = x_of(6), te.placeholder((3,), "int64", "at")
    z = te.compute((3, 2), lambda i, j: te.select(j > 0, x[at[i]], x[2 * i + j]), "z")
    check([x, at, z], arrays={at: np.array([5, 0, 5])})


def test_names_of_axes_do_not_matter() -> None:
    x, w = x_of(3, 4), x_of(4, 2, name="w")
    r0 = te.reduce_axis(4, "i1")
    y = te.compute((2, 3), lambda r0_, i0: te.sum(x[i0, r0] * w[r0, r0_], axis=r0), "y")
    check([x, w, y])


# --- whole expressions -----------------------------------------------------------------------


def test_several_outputs_and_no_output_gradients() -> None:
    x, k = x_of(3, 4), te.reduce_axis(4, "k")
    y = te.compute((3,), lambda i: te.sum(x[i, k], axis=k), "y")
    z = te.compute((3, 4), lambda i, j: x[i, j] * y[i], "z")
    (g,) = te.gradient([y, z], x)
    assert te.inputs(g) == [x]
    at = np.arange(12.0).reshape(3, 4)
    rest = at.sum(1, keepdims=True) + at.sum(1, keepdims=True)
    np.testing.assert_array_equal(evaluated([g], {x: at})[0], np.broadcast_to(1 + rest, at.shape))
    # Without factors a sum is a number.
    (ones,) = te.gradient(y, x)
    assert te.inputs(ones) == [] and ones.op.reducer is None


def test_with_respect_to_stages() -> None:
    q, _, v, p, y = attention(D)
    dy = te.placeholder(y.shape, D, "dy")
    dp, dv = te.gradient(y, [p, v], dy)
    j = [np.random.default_rng(s).standard_normal((2, 5, n)) for s, n in enumerate((3, 3, 3, 3))]
    arrays = dict(zip([q, te.inputs(y)[1], v, dy], j, strict=True))
    (got,) = evaluated([dp], arrays)
    np.testing.assert_allclose(got, np.einsum("hic,hjc->hij", j[3], j[2]), rtol=1e-12)
    assert p not in te.inputs(dp) and dv.shape == v.shape
    (same,) = te.gradient(y, y, dy)
    np.testing.assert_array_equal(evaluated([same], arrays)[0], j[3])


def test_saved_tensors_become_placeholders() -> None:
    x, y = operator("softmax", D, m=3, n=4)
    dy = te.placeholder(y.shape, D, "dy")
    stages = {t.name: t for t in reads_behind(y)}
    (dx,) = te.gradient(y, x, dy, saved=[stages["e"], stages["inv_sum"]])
    ins = te.inputs(dx)
    assert sorted(t.name for t in ins) == ["dy", "e", "inv_sum"] and all(t.op is None for t in ins)
    assert [s.name for s in te.dag([*ins, dx]).stages][-1] == "dx"
    values = {x: np.random.default_rng(0).standard_normal(x.shape), dy: np.ones(y.shape) * 1.5}
    made = {n: evaluated([stages[n]], values)[0] for n in ("e", "inv_sum")}
    (plain,) = te.gradient(y, x, dy)
    (got,) = evaluated([dx], {t: made.get(t.name, values.get(t)) for t in ins})
    np.testing.assert_allclose(got, evaluated([plain], values)[0], rtol=1e-12, atol=1e-15)


def test_an_expression_is_cut_into_several() -> None:
    params = {"b": 1, "h": 6, "w": 5, "ci": 2, "co": 3, "kh": 3, "kw": 3, "stride": 2, "padding": 1}
    x, _, y = operator("conv2d", D, **params)
    (dx,) = te.gradient(y, x, te.placeholder(y.shape, D, "dy"))
    phases = dx.op.reads()
    (rest,) = te.cut(dx, phases)
    assert len(phases) == 4 and len(te.dag([*te.inputs(rest), rest]).stages) == 1
    rng = np.random.default_rng(0)
    values = {t: rng.integers(-3, 4, t.shape).astype(D) for t in te.inputs(dx)}
    parts = dict(zip(te.inputs(rest), evaluated(phases, values), strict=True))
    np.testing.assert_array_equal(evaluated([rest], parts)[0], evaluated([dx], values)[0])
    assert te.cut([dx], []) == [dx]


def reads_behind(t: te.Tensor) -> list[te.Tensor]:
    found = [t]
    for x in found:
        found += [u for u in (x.op.reads() if x.op else []) if u not in found]
    return found


def test_what_is_summed_is_summed_as_whole_numbers() -> None:
    """The gradient of a linear function is its transpose: <dy, f(x)> = <dx, x>, exactly."""
    rng = np.random.default_rng(5)
    for params, layout in (
        ({"b": 2, "h": 9, "w": 7, "ci": 4, "co": 3, "kh": 3, "kw": 3, "stride": 2, "padding": 1}, "NHWC"),
        ({"b": 1, "h": 8, "w": 7, "ci": 4, "co": 6, "kh": 3, "kw": 2, "stride": (3, 1), "groups": 2}, "NCHW"),
        (
            {
                "b": 1,
                "h": 12,
                "w": 9,
                "ci": 2,
                "co": 2,
                "kh": 3,
                "kw": 3,
                "stride": (3, 2),
                "dilation": (2, 1),
            },
            "NHWC",
        ),
    ):
        x, w, y = operator("conv2d", "float32", layout, **params)
        dy = te.placeholder(y.shape, "float32", "dy")
        values = {t: rng.integers(-4, 5, t.shape).astype("float32") for t in (x, w, dy)}
        want = float((evaluated([y], values)[0] * values[dy]).sum())
        for t, g in zip((x, w), te.gradient(y, [x, w], dy), strict=True):
            (got,) = evaluated([g], values)
            assert got.dtype == np.float32 and float((got * values[t]).sum()) == want != 0


def test_dtypes_of_storage() -> None:
    x, w = x_of(3, 4, dtype="bfloat16"), x_of(4, 2, name="w", dtype="bfloat16")
    k = te.reduce_axis(4, "k")
    total = te.compute((3, 2), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), "total")
    y = te.compute((3, 2), lambda i, j: te.cast(te.maximum(total[i, j], 0.0), "bfloat16"), "y")
    dy = te.placeholder((3, 2), "bfloat16", "dy")
    dx, dw = te.gradient(y, [x, w], dy)
    assert dx.dtype == dw.dtype == "bfloat16" and total.dtype == "float32"
    values = {t: np.random.default_rng(1).integers(-3, 4, t.shape).astype(np.float32) for t in (x, w, dy)}
    (got,) = evaluated([dx], {t: v.astype(te.dag([x, w, y]).inputs[0].dtype) for t, v in values.items()})
    d = values[dy] * (values[x] @ values[w] > 0)
    np.testing.assert_array_equal(got.astype(np.float32), d @ values[w].T)
    # Of another dtype than its reader.
    z = x_of(3, dtype="float32")
    wide = te.compute((3,), lambda i: te.cast(z[i], D) * 3.0, "wide")
    (dz,) = te.gradient(wide, z)
    assert dz.dtype == "float32" and evaluated([dz], {z: np.ones(3, "f4")})[0].tolist() == [3, 3, 3]


# --- form ------------------------------------------------------------------------------------


def products(g: te.Tensor) -> list:
    return [s for s in te.dag([*te.inputs(g), g]).stages if s.reducer is not None]


def conditions(stage) -> list:
    from schedules import expr as E

    return [x for v in stage.values for x in E.walk(v) if isinstance(x, (E.Select, E.Compare))]


def test_a_convolution_computes_nothing_that_is_dropped() -> None:
    x, w, y = operator("conv2d", D, b=2, h=6, w=5, ci=3, co=4, kh=3, kw=3, padding=1)
    dx, dw = te.gradient(y, [x, w], te.placeholder(y.shape, D, "dy"))
    for g, extents in ((dx, (2, 6, 5, 3)), (dw, (3, 3, 3, 4))):
        copy, (product,) = te.dag([*te.inputs(g), g]).stages[0], products(g)
        assert tuple(a.extent for a in product.axes) == extents and not conditions(product)
        assert len(te.dag([*te.inputs(g), g]).stages) == 2 and copy.reducer is None
    # The copy has one row and one column of zeros on each side, as the forward pass has.
    assert te.dag([*te.inputs(dx), dx]).stages[0].outputs[0].shape == (2, 8, 7, 4)


def test_a_stage_that_two_copies_read_is_computed_once() -> None:
    x, w, k = x_of(4, 3), x_of(4, 5, name="w"), te.reduce_axis(3, "k")
    y = te.compute((4, 5), lambda i, j: te.sum(x[i, k] * w[i, j], axis=k), "y")
    first, last = (te.compute((3, 5), lambda i, j, n=n: y[i + n, j], f"from{n}") for n in (0, 1))
    one, two = without_copies([first, last], ())
    assert len(te.dag([x, w, one, two]).stages) == 3
    (alone,) = without_copies([last], ())
    assert len(te.dag([x, w, alone]).stages) == 1
    values = {t: np.random.default_rng(0).standard_normal(t.shape) for t in (x, w)}
    np.testing.assert_array_equal(evaluated([alone], values)[0], evaluated([last], values)[0])


def test_windows_without_a_product_are_written_out() -> None:
    params = {"b": 1, "h": 7, "w": 6, "c": 2, "k": 3, "stride": 2, "padding": 1}
    for name in ("max_pool2d", "avg_pool2d"):
        x, y = operator(name, D, **params)
        (dx,) = te.gradient(y, x, te.placeholder(y.shape, D, "dy"), saved=[y])
        assert not products(dx)


def test_short_sums_of_products_and_of_rows_stay_sums() -> None:
    x, w, y = operator("depthwise_conv2d", D, b=1, h=5, w=5, c=3, kh=3, kw=3, padding=1)
    dx, _ = te.gradient(y, [x, w], te.placeholder(y.shape, D, "dy"))
    assert len(products(dx)) == 1, "windows of products"
    rows, bias = x_of(4, 3), x_of(3, name="bias")
    y = te.compute((4, 3), lambda i, j: rows[i, j] + bias[j], "y")
    (dbias,) = te.gradient(y, bias, te.placeholder((4, 3), D, "dy"))
    assert len(products(dbias)) == 1, "no window"


def test_factors_of_all_terms_are_taken_out_of_a_sum() -> None:
    a, b, c, k = x_of(4, 3, name="a"), x_of(3, 5, name="b"), x_of(4, name="c"), te.reduce_axis(3, "k")
    value = lambda i, j: te.sum(a[i, k] * b[k, j] * 0.5 / c[i], axis=k)  # noqa: E731
    y = te.compute((4, 5), value, "y")
    da, db, dc = check([a, b, c, y], arrays={c: np.array([0.5, 1.0, 2.0, 3.0])})
    names = {"a": ("dy", "b"), "b": ("dy", "a", "c"), "c": ("dy", "a", "b", "c")}
    for g, t in ((da, "a"), (db, "b"), (dc, "c")):
        (product,) = products(g)
        assert sorted({x.buffer for x in product.reads()} - {"c"}) == sorted(set(names[t]) - {"c"})
        assert ("c" in {x.buffer for x in product.reads()}) == (t == "b"), (
            "c is the same for all terms but of b"
        )


def test_strides_become_phases_of_different_size() -> None:
    params = {"b": 1, "h": 8, "w": 8, "ci": 3, "co": 4, "kh": 3, "kw": 3, "stride": 2, "padding": 1}
    x, _, y = operator("conv2d", D, **params)
    (dx,) = te.gradient(y, x, te.placeholder(y.shape, D, "dy"))
    taps = [np.prod([a.extent for a in s.reduce_axes]) // 4 for s in products(dx)]
    assert sorted(taps) == [1, 2, 2, 4] and not any(map(conditions, products(dx)))
    # What no window reads has no product.
    x, _, y = operator("conv2d", D, **(params | {"kh": 1, "kw": 1, "padding": 0}))
    (dx,) = te.gradient(y, x, te.placeholder(y.shape, D, "dy"))
    (product,) = products(dx)
    assert product.outputs[0].shape == (1, 4, 4, 3)


def test_the_maximum_of_a_softmax_has_no_gradient() -> None:
    for tensors in (operator("softmax", D, m=3, n=4), cross_entropy(D)):
        (dx,) = te.gradient(tensors[-1], tensors[0])
        assert "ties" not in [s.name for s in te.dag([*te.inputs(dx), dx]).stages]


@pytest.mark.parametrize(
    "of",
    [
        lambda x, top, total, i, j: te.exp(x[i, j] - top[i]) / total[i] * top[i],
        lambda x, top, total, i, j: te.exp(x[i, j] - top[i]) / (total[i] + 1.0),
        lambda x, top, total, i, j: te.exp(x[i, j] - top[2 - i]) / total[2 - i],
        lambda x, top, total, i, j: te.exp(x[i, j] - 2.0 * top[i]) / total[i],
        lambda x, top, total, i, j: te.select(top[i] > 0.3, te.const(2.0, D), 1.0) * (x[i, j] - top[i]),
        lambda x, top, total, i, j: te.tanh(x[i, j] - top[i]),
        lambda x, top, total, i, j: te.exp(te.exp(x[i, j] - top[i])),
        lambda x, top, total, i, j: te.sqrt(te.exp(x[i, j] - top[i])) / total[i],
        lambda x, top, total, i, j: te.log(total[i]) + top[i],
        lambda x, top, total, i, j: x[i, j] * te.sqrt(te.exp(top[i] * 2.0) * total[i] * total[i]),
    ],
)
def test_maxima_that_do_matter(of) -> None:
    x, a, b = x_of(3, 4), te.reduce_axis(4, "a"), te.reduce_axis(4, "b")
    top = te.compute((3,), lambda i: te.max(x[i, a], axis=a), "top")
    total = te.compute((3,), lambda i: te.sum(te.exp(x[i, b] - top[i]), axis=b), "total")
    check([x, te.compute((3, 4), lambda i, j: of(x, top, total, i, j), "y")])


def test_equal_stages_are_one_and_names_tell_what_they_are() -> None:
    x, y = operator("layer_norm", D, m=3, n=4)[::3]
    (dx,) = te.gradient(y, x)
    names = [s.name for s in te.dag([*te.inputs(dx), dx]).stages]
    assert names[-1] == "dx" and len(names) == len(set(names))
    x, k = x_of(3, 4), te.reduce_axis(4, "k")
    y = te.compute((3, 3), lambda i, j: te.sum(x[i, k] * x[j, k], axis=k), "y")
    (dx,) = te.gradient(y, x, te.placeholder((3, 3), D, "dy"))
    assert [s.name for s in te.dag([*te.inputs(dx), dx]).stages] == ["dx_part", "dx_part_1", "dx"]
    a, b = x_of(3, name="a"), x_of(3, name="b")
    c = te.compute((3,), lambda i: a[i] + b[i], "c")
    da, db = te.gradient(c, [a, b], te.placeholder((3,), D, "dc"))
    assert [t.name for t in te.dag([*te.inputs([da, db]), da, db]).params] == ["dc", "da", "db"]


def test_a_gradient_has_one_digest_in_every_process() -> None:
    code = (
        "from gradient_cases import operator\nfrom schedules import te\n"
        "from schedules.model import Workload\n"
        "x, w, y = operator('conv2d_transpose', 'float32', h=3, w=3, ci=1, co=1, k=4, stride=2, padding=1)\n"
        "dx = te.gradient(y, x)[0]\nprint(Workload(te.dag([*te.inputs(dx), dx])).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
            env={"PYTHONPATH": python_path(__file__), "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "2")
    }  # fmt: skip
    assert len(digests) == 1


# --- refusals --------------------------------------------------------------------------------


def test_what_is_refused() -> None:
    x, i, other = x_of(3), te.placeholder((3,), "int32", "i"), x_of(3, name="other")
    y = te.compute((3,), lambda k: x[k] * te.cast(i[k], D), "y")
    flat = te.compute((3,), lambda k: te.floor(x[k]) + te.cast(x[k] > 0.0, D), "flat")
    short = te.placeholder((2,), D, "short")
    for args, message in (
        ((y, other), r"no output depends on input tensor other\[3\] float64 by what has a derivative; leave"),
        ((flat, x), r"no output depends on input tensor x\[3\] float64"),
        ((y, i), r"tensor i\[3\] int32 of inputs is not floating point"),
        ((y, [x, x]), r"tensor x\[3\] float64 stands twice in inputs"),
        ((y, []), "inputs is empty"),
        ((y, 3), r"inputs are te tensors, not 3 \(int\)"),
        ((y, x, [short, short]), "2 output_gradients for 1 outputs"),
        ((y, x, short), r"tensor short\[2\] float64 does not fit tensor y\[3\] float64"),
        ((y, x, x_of(3, dtype="float32")), "does not fit"),
        ((y, x, 1.0), "output_gradients are te tensors, not 1.0"),
    ):
        with pytest.raises(WorkloadError, match=message):
            te.gradient(*args)
    with pytest.raises(WorkloadError, match=r"te.inputs: tensors are te tensors, not 'y'"):
        te.inputs(["y"])
    with pytest.raises(WorkloadError, match=r"te.cut: stages are te tensors, not 3"):
        te.cut(y, 3)
    import autotune as at

    m = at.dim(1, 8, open=False)
    a = te.placeholder((m,), D, "a")
    with pytest.raises(WorkloadError, match="sizes that vary; differentiate it at each size"):
        te.gradient(te.compute((m,), lambda k: a[k] * 2.0, "b"), a)
