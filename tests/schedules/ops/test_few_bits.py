"""Products with weights of few bits, beside numpy; and weights as GGML rounds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import imported

from schedules import te
from schedules.ops.few_bits import FORMATS, FewBits, RoundedRows, product, rounded_rows
from schedules.ops.rounded_weights import PIECE, q4_0, q8_0, unpacked

RNG = np.random.default_rng(0)
INTEGERS = [n for n, f in FORMATS.items() if f.zero is not None]


def codes_of(form: str, *shape: int) -> np.ndarray:
    """Random bytes for weights of that shape."""
    row = FORMATS[form]
    bytes_ = RNG.integers(0, 256, (*shape[:-1], shape[-1] // row.each))
    return bytes_.astype("uint8").view(row.dtype)


def given_as(
    form: str, shape: tuple[int, ...], group: int, offsets: bool = False
) -> tuple[FewBits, list[Any]]:
    """Tensors of weights, and integers for them."""
    codes = codes_of(form, *shape)
    by = (*shape[:-1], shape[-1] // group)
    arrays = [codes, RNG.integers(-4, 5, by).astype("float32")]
    tensors = [te.placeholder(a.shape, a.dtype.name, n) for n, a in zip("ws", arrays, strict=True)]
    more = te.placeholder(by, "float32", "o") if offsets else None
    arrays += [RNG.integers(-4, 5, by).astype("float32")] if offsets else []
    return FewBits(FORMATS[form], tensors[0], tensors[1], group, more), arrays


def numbers(form: str, arrays: list[Any], group: int) -> np.ndarray:
    """The weights that arrays stand for."""
    wide = FORMATS[form].numbers(arrays[0], group) * np.repeat(arrays[1].astype("float64"), group, -1)
    return wide + np.repeat(arrays[2], group, -1) if len(arrays) > 2 else wide


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("form", INTEGERS)
@pytest.mark.parametrize("group", [6, 12])
def test_a_product_of_integers_is_exact(form: str, group: int, offsets: bool) -> None:
    w, arrays = given_as(form, (5, 12), group, offsets)
    x = RNG.integers(-9, 10, (3, 12))
    scales = RNG.integers(1, 5, (3, 12 // group)).astype("float32")
    given_x = te.placeholder((3, 12), "int8", "x"), te.placeholder(scales.shape, "float32", "xs")
    tensors = [w.codes, w.scales, *([w.offsets] if w.offsets is not None else [])]
    y = product(RoundedRows(*given_x), w)
    got = te.evaluate(te.dag([*given_x, *tensors, y]), [x.astype("int8"), scales, *arrays])[0]
    want = (x * np.repeat(scales, group, -1)) @ numbers(form, arrays, group).T
    assert got.dtype == np.float32 and (got == want).all()
    of_floats = te.placeholder((3, 12), "float32", "x")
    y = product(of_floats, w)
    got = te.evaluate(te.dag([of_floats, *tensors, y]), [x.astype("float32"), *arrays])[0]
    assert (got == x @ numbers(form, arrays, group).T).all()


def test_axes_of_the_result_may_lie_in_any_order() -> None:
    """A batch is an axis of both; outputs may come first."""
    w, arrays = given_as("int4", (2, 5, 8), 4)
    x = te.placeholder((3, 2, 8), "float32", "x")
    y = product(x, w, rows=(2, 1), outputs=(1, 0))  # (output, batch, row)
    a = RNG.integers(-9, 10, (3, 2, 8)).astype("float32")
    got = te.evaluate(te.dag([x, w.codes, w.scales, y]), [a, *arrays])[0]
    assert got.shape == (5, 2, 3)
    assert (got == np.einsum("ibk,bjk->jbi", a, numbers("int4", arrays, 4))).all()


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 3), groups=st.integers(1, 3), group=st.integers(1, 9), power=st.integers(-130, 120),
    zeros=st.booleans(),
)  # fmt: skip
def test_activations_are_within_half_a_step(
    rows: int, groups: int, group: int, power: int, zeros: bool
) -> None:
    rng = np.random.default_rng(rows * 100 + groups * 10 + group)
    a = np.ldexp(rng.standard_normal((rows, groups * group)), power).astype("float32")
    a[0, :group] *= not zeros
    x = te.placeholder(a.shape, "float32", "x")
    r = rounded_rows(x, group)
    codes, scales = te.evaluate(te.dag([x, r.codes, r.scales]), [a])
    by = np.repeat(scales.astype("float64"), group, -1)
    assert codes.dtype == np.int8 and np.abs(codes.astype(int)).max() <= 127
    assert np.isfinite(scales).all()
    small = by * 127 < 2e-36  # these are 0
    assert (np.abs(codes * by - a)[~small] <= 0.5001 * by[~small]).all()
    whole = ~small.reshape(rows, groups, group)[..., 0]
    assert (np.abs(codes.reshape(rows, groups, group)).max(-1)[whole] == 127).all()


def test_activations_near_zero_are_zero() -> None:
    """Whose reciprocal has no number."""
    a = np.array([[0.0, 0.0, 1e-40, -1e-41, 1e-37, 0.0, 1e-30, -1e-30]], "float32")
    x = te.placeholder(a.shape, "float32", "x")
    r = rounded_rows(x, 2)
    codes, scales = te.evaluate(te.dag([x, r.codes, r.scales]), [a])
    assert codes.tolist() == [[0, 0, 0, 0, 0, 0, 127, -127]] and np.isfinite(scales).all()
    per = te.evaluate(te.dag([x, r.codes]), [np.abs(a) * 0])[0]
    assert (per == 0).all()


def test_halves_are_rounded_away_from_zero() -> None:
    w = np.array([[-127.0, 2.5, -2.5, 0.5, 1.49, -3.5]], "float32")
    assert q8_0(w, 6)[0].tolist() == [[-127, 3, -3, 1, 1, -4]]
    w = np.array([[-8.0, 2.5, -2.5, 7.0, 6.4, -7.6]], "float32")
    assert (FORMATS["int4"].numbers(q4_0(w, 6)[0], 6) == [[-8, 3, -2, 7, 6, -8]]).all()


def weights(*shape: int) -> np.ndarray:
    w = RNG.standard_normal(shape).astype("float32")
    w[0, :32] = 0
    w[1, :32] = 2.0 ** RNG.integers(-8, 8, 32)
    return w


def test_weights_are_rounded_as_gguf_rounds_them() -> None:
    gguf = imported("gguf")
    w = weights(7, 96)
    for kind, form, step in (("Q4_0", "int4_halves", 16), ("Q8_0", "int8", 32)):
        of = gguf.GGMLQuantizationType[kind]
        blocks = gguf.quants.quantize(w, of).reshape(7, 3, 2 + step)
        codes, scales = q4_0(w, format=form) if kind == "Q4_0" else q8_0(w)
        assert (scales == blocks[..., :2].copy().view("float16")[..., 0]).all()
        assert (codes.view("uint8") == blocks[..., 2:].reshape(7, -1)).all()
        assert (unpacked(codes, scales, 32, form) == gguf.quants.dequantize(blocks.reshape(7, -1), of)).all()


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 4), groups=st.integers(1, 4), group=st.integers(1, 8).map(lambda n: 2 * n),
    scales=st.sampled_from(["float16", "bfloat16", "float32"]),
    dtype=st.sampled_from(["float32", "float16", "float64"]),
)  # fmt: skip
def test_rounded_weights_are_near(rows: int, groups: int, group: int, scales: str, dtype: str) -> None:
    w = np.random.default_rng(group).standard_normal((rows, groups * group)).astype(dtype)
    slack = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-22}[scales]
    of = w.astype("float64").reshape(rows, groups, group)
    most = np.abs(of).max(-1, keepdims=True)
    both = [unpacked(*q4_0(w, group, scales, f), group, f, "float64") for f in ("int4", "int4_halves")]
    assert (both[0] == both[1]).all()
    error = np.abs(both[0].reshape(of.shape) - of)
    assert (error <= most / 8 * (1 + 8 * slack)).all()  # the end of the other sign is 7, not 8
    error = np.abs(unpacked(*q8_0(w, group, scales), group, "int8", "float64").reshape(of.shape) - of)
    assert (error <= most / 127 * (0.5 + 128 * slack)).all()


def test_weights_are_rounded_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    w = weights(9, 64)
    whole = [*q4_0(w), *q8_0(w)]
    monkeypatch.setattr("schedules.ops.rounded_weights.PIECE", 130)
    assert PIECE > 130
    assert all((a == b).all() for a, b in zip(whole, [*q4_0(w), *q8_0(w)], strict=True))


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: q4_0(np.zeros((2, 6), "float32"), group=3), "groups of 3: a byte has two weights"),
        (lambda: q4_0(np.zeros((2, 6), "float32"), group=4), "groups of 4 do not divide rows of 6 weights"),
        (lambda: q8_0(np.zeros((2, 6), "float32"), group=0), "groups of 0 do not divide rows of 6"),
    ],
)
def test_groups_that_do_not_fit_are_refused(call: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        call()
