"""Operators of torch at the edges: tensors without axes, other dtypes, special values, odd indices. What is
computed is what torch computes, to the bit where it is no sum or function."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_cases import F, Many, Of, called, close, compared, exported, ops, to_numpy, torch

import autotune as at
from autotune.errors import ModelError

INF, NAN = float("inf"), float("nan")
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int32", "int64", "int8", "uint8")
ODD = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, INF, -INF, NAN, 3.0, 100.0, -100.0]
# How far results are off by rounding, of their root mean square.
ROUNDED = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-10}


def agrees(op: Any, *args: Any, **how: Any) -> None:
    """The import computes what torch computes."""
    with torch.no_grad():
        want = op(*args, **how)
    every = [want] if isinstance(want, torch.Tensor) else list(want)
    for got, w in zip(called(op, *args, **how), every, strict=True):
        dtype = str(w.dtype).removeprefix("torch.")
        close(got, to_numpy(w.contiguous()), ROUNDED.get(dtype, 0), f"{op} of {args} {how}")


# --- tensors without axes -------------------------------------------------------------------------------

ALONG: list[Callable[[Any, int], Any]] = [
    lambda s, d: s.sum(d),
    lambda s, d: s.sum(d, keepdim=True),
    lambda s, d: s.mean(d),
    lambda s, d: s.max(d),
    lambda s, d: s.min(d),
    lambda s, d: s.amax(d),
    lambda s, d: s.amin((d,)),
    lambda s, d: s.softmax(d),
    lambda s, d: s.log_softmax(d),
    lambda s, d: F.softmin(s, d),
    lambda s, d: s.cumsum(d),
    lambda s, d: s.cumprod(d),
    lambda s, d: s.cummax(d),
    lambda s, d: s.logcumsumexp(d),
    lambda s, d: s.sort(d),
    lambda s, d: s.argsort(d),
    lambda s, d: s.topk(1, d),
    lambda s, d: s.argmax(d),
    lambda s, d: s.argmin(d, keepdim=True),
    lambda s, d: s.gather(d, torch.tensor(0)),
    lambda s, d: s.gather(d, torch.tensor([0, 0])),
    lambda s, d: s.index_select(d, torch.tensor([0])),
    lambda s, d: s.index_select(d, torch.tensor(0)),
    lambda s, d: s.squeeze(d),
    lambda s, d: s.unsqueeze(d),
    lambda s, d: s.flip(d),
    lambda s, d: s.norm(dim=d),
    lambda s, d: torch.linalg.vector_norm(s, 3, d),
    lambda s, d: s.logsumexp(d),
    lambda s, d: s.var(d),
    lambda s, d: s.var(d, correction=0),
    lambda s, d: torch.std_mean(s, d),
    lambda s, d: s.any(d),
    lambda s, d: s.all(d, keepdim=True),
    lambda s, d: s.prod(d),
    lambda s, d: s.median(d),
    lambda s, d: s.nanmedian(d),
    lambda s, d: s.kthvalue(1, d),
    lambda s, d: s.scatter(d, torch.tensor(0), 3.0),
    lambda s, d: s.index_add(d, torch.tensor([0]), torch.tensor(1.0)),
    lambda s, d: s.nansum(d),
    lambda s, d: s.nanmean(d),
    lambda s, d: s.aminmax(dim=d),
    lambda s, d: s.count_nonzero(d),
    lambda s, d: s.transpose(d, 0),
    lambda s, d: s.unfold(d, 1, 1),
    lambda s, d: F.normalize(s, dim=d),
    lambda s, d: ops._safe_softmax(s, d),
    lambda s, d: torch.movedim(s, d, 0),
    lambda s, d: torch.dist(s, s + d),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_a_tensor_without_axes_is_a_row_of_one() -> None:
    """Its axis is called 0 or -1."""
    values = [torch.tensor(v) for v in (2.5, -INF)]
    functions = [
        lambda *xs, f=f, i=i, d=d: f(xs[i], d) for f, (i, d) in itertools.product(ALONG, ((0, 0), (1, -1)))
    ]
    compared(Many(functions), *values)


@pytest.mark.parametrize("fn", [lambda s: torch.cat([s, s]), lambda s: s.unbind(0), lambda s: s.select(0, 0)])
def test_what_torch_refuses_of_them_is_not_exported(fn: Callable[[Any], Any]) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        exported(Of(fn), torch.tensor(1.0))


# --- reductions, cumulations and orders of any shape and dtype ------------------------------------------

# {operator: how its arguments after the tensor are made of an axis and of whether it is kept}
REDUCED: dict[str, Callable[[int, bool], tuple[Any, ...]]] = {
    "sum.dim_IntList": lambda d, k: ([d], k),
    "amax.default": lambda d, k: ([d], k),
    "amin.default": lambda d, k: ([d], k),
    "max.dim": lambda d, k: (d, k),
    "min.dim": lambda d, k: (d, k),
    "prod.dim_int": lambda d, k: (d, k),
    "any.dim": lambda d, k: (d, k),
    "all.dim": lambda d, k: (d, k),
    "any.dims": lambda d, k: ([d], k),
    "all.default": lambda d, k: (),
    "any.default": lambda d, k: (),
    "argmax.default": lambda d, k: (d, k),
    "argmin.default": lambda d, k: (d, k),
    "cumsum.default": lambda d, k: (d,),
    "cummax.default": lambda d, k: (d,),
    "cummin.default": lambda d, k: (d,),
    "sort.stable": lambda d, k: (),
    "flip.default": lambda d, k: ([d],),
}
OF_FLOATS: dict[str, Callable[[int, bool], tuple[Any, ...]]] = {
    "mean.dim": lambda d, k: ([d], k),
    "var.correction": lambda d, k: ([d],),
    "logsumexp.default": lambda d, k: ([d], k),
    "_softmax.default": lambda d, k: (d, False),
    "_log_softmax.default": lambda d, k: (d, False),
    "linalg_vector_norm.default": lambda d, k: (2, [d], k),
    "nanmedian.default": lambda d, k: (),
    "median.default": lambda d, k: (),
}


@st.composite
def reductions(draw: st.DrawFn) -> tuple[str, Any, tuple[Any, ...]]:
    dtype = draw(st.sampled_from([*FLOATS, *INTEGERS, "bool"]))
    shape = draw(st.lists(st.integers(1, 3), max_size=3))
    size = int(np.prod(shape))
    elements = st.sampled_from(ODD[:-2]) if dtype in FLOATS else st.integers(0, 1 if dtype == "bool" else 5)
    values = draw(st.lists(elements, min_size=size, max_size=size))
    table = REDUCED | OF_FLOATS if dtype in FLOATS else REDUCED
    name = draw(st.sampled_from(sorted(n for n in table if dtype != "bool" or not n.startswith("arg"))))
    axis = draw(st.integers(-max(len(shape), 1), max(len(shape), 1) - 1))
    x = torch.tensor(values, dtype=getattr(torch, dtype)).reshape(shape)
    if draw(st.booleans()) and len(shape) > 1:
        x = x.transpose(0, -1)  # not row-major
    return name, x, table[name](axis, draw(st.booleans()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@settings(max_examples=120, deadline=None)
@given(reductions())
def test_reductions_of_any_shape_dtype_and_values(case: tuple[str, Any, tuple[Any, ...]]) -> None:
    name, x, args = case
    packet, overload = name.split(".")
    how = {"correction": 0} if packet == "var" else {"stable": True} if packet == "sort" else {}
    if packet == "var" and not bool(x.isfinite().all()):
        x = torch.nan_to_num(x, 1.0, 2.0, -2.0)
    agrees(getattr(getattr(ops, packet), overload), x, *args, **how)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "int8", "float32", "bool"])
def test_any_and_all_of_every_dtype(dtype: str) -> None:
    """Of uint8 they are uint8. NaN is no zero."""
    x = torch.tensor([[0, 1, 7], [0, 0, 0], [3, 1, 2]]).to(getattr(torch, dtype))
    for op in (ops.any, ops.all):
        agrees(op.default, x)
        agrees(op.dim, x, 1)
        agrees(op.dim, x, -2, True)
        agrees(op.dims, x, [0, 1])
    assert called(ops.any.dim, x, 1)[0].dtype == ("uint8" if dtype == "uint8" else "bool")
    agrees(ops.all.default, torch.tensor([NAN, 1.0]))


# --- elements -------------------------------------------------------------------------------------------

ONE = (
    "sign",
    "signbit",
    "isnan",
    "isinf",
    "isfinite",
    "abs",
    "neg",
    "relu",
    "floor",
    "round",
    "trunc",
    "logical_not",
)
ONE_FLOAT = (
    "sqrt",
    "reciprocal",
    "asinh",
    "acosh",
    "sigmoid",
    "tanh",
    "hardshrink",
    "softshrink",
    "hardtanh",
)
TWO = (
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "eq.Tensor",
    "lt.Tensor",
    "add.Tensor",
    "mul.Tensor",
    "logical_xor",
)


def overload(name: str) -> Any:
    packet, _, kind = name.partition(".")
    return getattr(getattr(ops, packet), kind or "default")


def odd(dtype: str) -> Any:
    """Special values of a dtype."""
    kind = getattr(torch, dtype)
    if dtype in FLOATS:
        large = [1e30, -1e30, 1e-30] if dtype != "float16" else [6e4, -6e4, 6e-8]
        return torch.tensor([*ODD, *large], dtype=torch.float64).to(kind)
    if dtype == "bool":
        return torch.tensor([True, False])
    info = torch.iinfo(kind)
    return torch.tensor([0, 1, 2, 7, info.max, info.max - 1, info.min, info.min + 1], dtype=kind)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
def test_special_values_of_elements(dtype: str) -> None:
    x = odd(dtype)
    for name in ONE + (ONE_FLOAT if dtype in FLOATS else ()):
        if dtype == "bool" and name in ("abs", "neg", "relu", "floor", "round", "trunc"):
            continue
        if (dtype, name) != ("bfloat16", "signbit"):  # whose NaN has a sign
            agrees(overload(name), x)
    for name in TWO:
        agrees(overload(name), x[:, None].contiguous(), x[None].contiguous())
    if dtype != "bool":
        agrees(ops.threshold.default, x, 1.5, 7)
        agrees(ops.clamp.default, x, -1, 3)
        agrees(ops.clamp_min.default, x, 2)
        agrees(ops.hardtanh.default, x, 1.5 if dtype == "uint8" else -1.5, 2.5)


def test_a_number_is_made_one_of_the_dtype() -> None:
    b, i = torch.tensor([True, False]), torch.tensor([[1, 2], [3, 4]])
    agrees(ops.masked_fill.Scalar, b, b, 10)
    agrees(ops.scatter.value, b, 0, torch.tensor([1]), 3.0)
    agrees(ops.clamp.default, torch.tensor([1, 200], dtype=torch.uint8), -1, 100)
    agrees(ops.addmm.default, i, i, i, beta=0.6, alpha=2.5)
    agrees(ops.addbmm.default, i.float(), i[None].float(), i[None].float(), beta=0.5, alpha=2)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FLOATS), st.integers(-9, 9), st.lists(st.floats(width=16), min_size=1, max_size=8))
def test_round_at_decimals_is_torchs_to_the_bit(dtype: str, decimals: int, values: list[float]) -> None:
    x = torch.tensor([*values, *(v / 8 for v in range(-9, 10))], dtype=torch.float64).to(
        getattr(torch, dtype)
    )
    (got,) = called(ops.round.decimals, x, decimals=decimals)
    want = to_numpy(torch.round(x, decimals=decimals))
    known = ~np.isnan(want.astype("float64"))
    assert got.dtype == want.dtype and np.array_equal(np.isnan(got.astype("float64")), ~known)
    assert got[known].tobytes() == want[known].tobytes()


def test_round_of_numbers_beyond_all_powers() -> None:
    for dtype, decimals in itertools.product(FLOATS, (20, -20, 40, -40, 308)):
        agrees(ops.round.decimals, odd(dtype), decimals=decimals)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.sampled_from(INTEGERS), st.data())
def test_powers_of_integers_wrap_as_torchs(dtype: str, data: st.DataObject) -> None:
    """Exponents are data: small, large, and below 0."""
    info = torch.iinfo(getattr(torch, dtype))
    any_ = st.integers(info.min, info.max)
    bases = data.draw(st.lists(st.integers(max(info.min, -9), 9) | any_, min_size=1, max_size=4))
    powers = data.draw(st.lists(st.integers(max(info.min, -3), 70) | any_, min_size=1, max_size=4))
    a, b = (torch.tensor(v, dtype=getattr(torch, dtype)) for v in (bases, powers))
    agrees(ops.pow.Tensor_Tensor, a[:, None].contiguous(), b)


@pytest.mark.slow
def test_powers_with_one_number() -> None:
    b = torch.tensor([0, 1, 2, 10, 62, 63, 64, 100, -1, -2])
    compared(
        Many(
            [
                lambda b: torch.pow(2, b),
                lambda b: 3**b,
                lambda b: (-1) ** b,
                lambda b: 0**b,
                lambda b: 2.5**b,
                lambda b: b**100,
                lambda b: b**0,
                lambda b: torch.pow(b, torch.tensor(3)),
                lambda b: b ** b.int(),
                lambda b: torch.tensor([2]) ** b,
                lambda b: b ** torch.tensor([2, 3, 0, 1, 5, 2, 2, 1, 1, 7]),
            ]
        ),
        b,
    )


def test_medians_without_nan() -> None:
    x = torch.tensor([[1.0, NAN, 3, 2], [NAN, NAN, NAN, NAN], [INF, NAN, -INF, NAN], [4, 1, 2, 3]])
    for dtype in FLOATS:
        t = x.to(getattr(torch, dtype))
        agrees(ops.nanmedian.default, t)
        agrees(ops.nanmedian.default, t[1])
        agrees(ops.nanmedian.dim, t[[0, 2, 3]], 1)
        agrees(ops.nanmedian.dim, t[[0, 2, 3]], -1, True)
        (values, _) = called(ops.nanmedian.dim, t, 1)
        assert np.isnan(values[1]) and not np.isnan(values[[0, 2, 3]].astype("float64")).any()
    agrees(ops.nanmedian.dim, torch.tensor([[3, 1, 2]]), 1)


# --- groups, pads, pools --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 8), (1, 2), (2, 1), (3, 4, 1), (2, 4, 1, 1), (2, 4, 3)])
def test_groups_of_one(shape: tuple[int, ...]) -> None:
    """One element less its average is 0, so that the bias is left."""
    torch.manual_seed(0)
    x, w, b = torch.randn(shape), torch.randn(shape[1]), torch.randn(shape[1])
    for groups in {shape[1], 1}:
        every = {"w": w, "b": b}
        for weight, bias in ((None, None), ("w", "b"), ("w", None), (None, "b")):
            args = (x, groups, every.get(weight or ""), every.get(bias or ""), 0.1)
            (got,) = called(ops.group_norm.default, *args)
            np.testing.assert_allclose(got, ops.group_norm.default(*args), rtol=1e-5, atol=1e-5)
    if len(shape) > 2:
        how = (x, w, b, None, None, True, 0.1, 0.1, False)
        (got,) = called(ops.instance_norm.default, *how)
        np.testing.assert_allclose(got, torch.instance_norm(*how), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_pads_that_cut_off_read_what_was_there() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    cuts = [(m, c) for m in ("replicate", "reflect") for c in ((-2, 2), (2, -2), (-1, 3), (-1, -1), (3, -3))]
    cuts += [("replicate", (-4, 5)), ("circular", (-2, 1)), ("circular", (1, -1)), ("circular", (-1, -1))]
    compared(Many([lambda x, c=c, mode=mode: F.pad(x, c, mode=mode) for mode, c in cuts]), x)


@pytest.mark.slow
def test_a_pool_finds_the_last_nan_and_the_first_of_equals() -> None:
    x = torch.tensor([[[NAN, NAN, 1.0, 1.0, NAN, 2.0, -INF, -INF]]])
    compared(Of(lambda x: F.max_pool1d(x, 2, return_indices=True)), x)
    compared(Of(lambda x: F.max_pool2d(x[None], (1, 4), return_indices=True)), x)
    compared(Of(lambda x: F.adaptive_max_pool1d(x, 3, return_indices=True)), x)


def test_statistics_with_infinities() -> None:
    x = torch.tensor([[INF, 1.0], [-INF, 2.0], [INF, -INF], [1.0, 2.0]])
    agrees(ops.var_mean.correction, x, [1], correction=0)
    agrees(ops.std_mean.correction, x, [0], correction=0)


# --- indices --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_index_that_is_one_element() -> None:
    """It may count from the end, and may be computed."""
    x, n, m = torch.randn(4, 5, 6), torch.tensor(-3), torch.tensor(1, dtype=torch.int32)
    compared(
        Many(
            [
                lambda x, n, m: x[n],
                lambda x, n, m: x[:, m],
                lambda x, n, m: x[..., n],
                lambda x, n, m: x[n, m],
                lambda x, n, m: x[m, :, n],
                lambda x, n, m: x[n + 1],
                lambda x, n, m: x[:, n, None],
                lambda x, n, m: x[x[:, 0, 0].argmax()],
                lambda x, n, m: x[m.to(torch.int8)],
                lambda x, n, m: x[torch.tensor(-1)],
                lambda x, n, m: x[torch.tensor(2), torch.tensor([0, -1])],
                lambda x, n, m: x.index_select(1, m),
                lambda x, n, m: x.select(0, m),
                lambda x, n, m: x * n.item(),
                lambda x, n, m: (x * 2).long() > m.item(),
                lambda x, n, m: torch.full_like(x, m.item()),
            ]
        ),
        x,
        n,
        m,
    )


def test_a_number_that_is_data_is_no_result() -> None:
    with pytest.raises(ModelError, match="is a number that depends on data"):
        at.import_torch(exported(Of(lambda x: (x + 1, x.sum().item())), torch.ones(3)))


class Masked(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A mask that is an attribute is known; one that is a buffer may be loaded."""

    def __init__(self, kept: bool = False) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(6, 3)
        self.mask = torch.tensor([True, False, True, False])
        if kept:
            del self.mask
            self.register_buffer("mask", torch.tensor([True, False, True, False]))

    def forward(self, x: Any) -> Any:
        return self.inner(x[self.mask]).sum(0), self.inner(x)[~self.mask, 1:]


@pytest.mark.slow
def test_a_mask_that_is_known() -> None:
    x, mask = torch.randn(4, 5, 6), torch.tensor([True, False, True, False])
    compared(
        Many(
            [
                lambda x: x[mask],
                lambda x: x[:, torch.eye(5, 6) > 0],
                lambda x: x[mask].reshape(-1, 3) * 2,
                lambda x: torch.masked_select(x, torch.arange(6) % 2 == 0),
                lambda x: x[mask][0],
                lambda x: x[:, None][mask],
                lambda x: x[torch.zeros(4, dtype=torch.bool)].sum(),
            ]
        ),
        x,
    )
    model = compared(Masked(), x)
    assert {"inner_weight", "inner_bias"} <= set(model.graph.values)
    for module in (Of(lambda x: x[x > 0]), Masked(kept=True)):
        with pytest.raises(ModelError, match="the shape of its output depends on data"):
            at.import_torch(exported(module, x))


def test_what_torch_cannot_decompose_is_a_model_error() -> None:
    class Writes(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.hidden = torch.zeros(4)

        def forward(self, x: Any) -> Any:
            self.hidden.copy_(x)
            return x + self.hidden

    with pytest.raises(ModelError, match="torch program Writes: torch cannot decompose it: .*mutated"):
        at.import_torch(exported(Writes(), torch.ones(4)))
