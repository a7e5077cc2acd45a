"""Operators of torch whose places are data: sorting, writing, sampling, on small odd shapes."""

from __future__ import annotations

from typing import Any

import pytest
from torch_cases import F, Family, Many, Of, bundled, compared, exported, ops, torch

import autotune as at
from autotune.errors import ModelError

NAN, INF = float("nan"), float("inf")


def rand(*shape: int) -> Any:
    return torch.randn(shape)


def ints(*shape: int, low: int = -5, high: int = 6) -> Any:
    return torch.randint(low, high, shape)


def ordering() -> Family:
    """Equals and NaN are among them. torch promises an order of equals only where a sort is stable."""
    odd = torch.tensor([[3.0, NAN, -INF, 0.0, INF, 3.0, -0.0], [1.0, 1.0, NAN, NAN, 2.0, -INF, 1.0]])
    return [rand(3, 7, 2), odd, ints(4, 5)], [
        lambda x, o, i: x.sort(1),
        lambda x, o, i: x.sort(dim=0, descending=True),
        lambda x, o, i: o.sort(stable=True),
        lambda x, o, i: o.sort(stable=True, descending=True),
        lambda x, o, i: i.sort(stable=True, dim=0),
        lambda x, o, i: (i > 0).sort(stable=True, dim=1),
        lambda x, o, i: i.to(torch.int8).argsort(stable=True, descending=True),
        lambda x, o, i: x.argsort(-2),
        lambda x, o, i: x.half().sort(1).values,
        lambda x, o, i: x.topk(3, dim=1),
        lambda x, o, i: x.topk(2, dim=0, largest=False),
        lambda x, o, i: o.topk(4).values,
        lambda x, o, i: o.topk(4, largest=False).values,
        lambda x, o, i: x.topk(1).indices,
        lambda x, o, i: x.kthvalue(3, dim=1),
        lambda x, o, i: x.kthvalue(2, dim=1, keepdim=True),
        lambda x, o, i: x.median(1),
        lambda x, o, i: x.median(),
        lambda x, o, i: o.median(1).values,
        lambda x, o, i: o[:, :4].median(1, keepdim=True).values,
        lambda x, o, i: i.median(0).values,
        lambda x, o, i: x.quantile(0.3, dim=1),
        lambda x, o, i: x[0, 0, 0].sort(),
        lambda x, o, i: torch.bucketize(x, torch.tensor([-0.5, 0.0, 0.0, 1.0])),
        lambda x, o, i: torch.bucketize(i, torch.tensor([-2, 0, 3]), right=True, out_int32=True),
        lambda x, o, i: torch.bucketize(o, torch.tensor([0.0, 1.0, 3.0])),
        lambda x, o, i: torch.searchsorted(x[0].sort(0).values.T.contiguous(), x[1].T.contiguous()),
        lambda x, o, i: torch.searchsorted(torch.tensor([0.0, 1.0]), x, side="right"),
        lambda x, o, i: torch.histc(x, 4, -1.0, 1.5),
        lambda x, o, i: torch.histc(i.float(), 5, -5, 5),
    ]


def cumulative() -> Family:
    odd = torch.tensor([[3.0, -INF, 3.0, INF, 2.0], [0.0, 1.0, NAN, 1.0, NAN]])
    return [rand(2, 300), odd, ints(3, 5)], [
        lambda x, o, i: torch.arange(300.0).sub(i[0, 0]).cumsum(0),
        lambda x, o, i: x.cumsum(1),
        lambda x, o, i: (x / 9 + 1).cumprod(1),
        lambda x, o, i: x.cummax(1),
        lambda x, o, i: x.cummin(1),
        lambda x, o, i: i.cummax(0),
        lambda x, o, i: o.cummax(1),
        lambda x, o, i: o.cummin(1),
        lambda x, o, i: x.logcumsumexp(1),
        lambda x, o, i: (x * 90).logcumsumexp(0),
        lambda x, o, i: o[:, :2].logcumsumexp(1),
        lambda x, o, i: x[0, 0].cumsum(0),
        lambda x, o, i: (x > 0).cumsum(1),
        lambda x, o, i: x[:, :130].half().cumsum(1, dtype=torch.float64),
    ]


def scattering() -> Family:
    """Sums of whole numbers are exact. Places are written twice, of which the last stays in torch too."""
    x, ids, src = ints(3, 6).float(), ints(3, 4, low=0, high=6), ints(3, 4).float()
    once = torch.stack([torch.randperm(6)[:4] for _ in range(3)])
    many, wide = ints(3, 9, low=0, high=6), ints(3, 9).float()
    return [x, ids, src, once, torch.tensor([2, 0, 2])], [
        lambda x, i, s, p, r: x.scatter_add(1, many, wide),
        lambda x, i, s, p, r: x.scatter_reduce(1, many, wide, "mean"),
        lambda x, i, s, p, r: x.scatter_reduce(1, many, wide, "amax", include_self=False),
        lambda x, i, s, p, r: x.scatter_reduce(1, many, wide, "amin"),
        lambda x, i, s, p, r: x.index_add(1, many[0], wide, alpha=2),
        lambda x, i, s, p, r: x.index_put((many % 3, many), wide, accumulate=True),
        lambda x, i, s, p, r: ops.embedding_dense_backward(wide[:, :, None] + x[0], many, 7, 2, False),
        lambda x, i, s, p, r: x.scatter(1, p, s),
        lambda x, i, s, p, r: x.scatter(1, i, 9.0),
        lambda x, i, s, p, r: x.scatter(-1, p[:2, :3], s),
        lambda x, i, s, p, r: x.scatter(0, i[:2] % 3, 1.5),
        lambda x, i, s, p, r: x.scatter_add(1, i, s),
        lambda x, i, s, p, r: x.long().scatter_add(1, i, s.long()),
        lambda x, i, s, p, r: x.scatter(1, i, s, reduce="multiply"),
        lambda x, i, s, p, r: x.scatter(1, i, 2.0, reduce="add"),
        *(
            lambda x, i, s, p, r, kind=kind, own=own: x.scatter_reduce(1, i, s, kind, include_self=own)
            for kind in ("sum", "prod", "mean", "amax", "amin")
            for own in (True, False)
        ),
        lambda x, i, s, p, r: x[0, 0].scatter(0, i[0, 0] * 0, 2.0),
        lambda x, i, s, p, r: (x > 0).scatter(1, p, s > 0),
        lambda x, i, s, p, r: x.index_add(0, r, x * 2, alpha=3),
        lambda x, i, s, p, r: x.index_add(1, r, x[:, :3]),
        lambda x, i, s, p, r: x.index_copy(1, p[0], s),
        lambda x, i, s, p, r: x.index_fill(1, r, 7.0),
        lambda x, i, s, p, r: x.index_reduce(0, r, x + 1, "amax"),
        lambda x, i, s, p, r: x.index_put((r,), x[:1]),
        lambda x, i, s, p, r: x.index_put((r, p[:, 0]), s[:, 0], accumulate=True),
        lambda x, i, s, p, r: ops.index_put(x[None], [None, r[:2]], s[0, 0]),
        lambda x, i, s, p, r: ops.index_put(x[:, None], [r[:2], None, p[:2, 0]], s[:2, :1]),
        lambda x, i, s, p, r: x.index_put((x > 1,), torch.tensor(0.5)),
        lambda x, i, s, p, r: x.index_put((x[:, 0] > 0,), torch.tensor(2.0), accumulate=True),
        lambda x, i, s, p, r: x.masked_scatter(x > 0, s.repeat(1, 3)),
        lambda x, i, s, p, r: ops.masked_scatter(x, (x[:, :1] > 0), s.repeat(1, 3)),
        lambda x, i, s, p, r: x.put(p[0], s[0]),
        lambda x, i, s, p, r: x.put(i[:2], s[:2], accumulate=True),
        lambda x, i, s, p, r: assigned(x, p, r),
    ]


def assigned(x: Any, p: Any, r: Any) -> Any:
    y = x.clone()
    y[:, p[0]] = 3.0
    y[r[:2]] += 1
    y[y > 2] = 0.0
    return y


def sampling() -> Family:
    """Grids reach outside of the image."""
    grid, volume = torch.rand(2, 4, 3, 2) * 3 - 1.5, torch.rand(2, 2, 3, 2, 3) * 3 - 1.5
    kinds = [(m, p, a) for m in ("bilinear", "nearest", "bicubic") for a in (True, False) for p in PADDINGS]
    return [rand(2, 3, 5, 4), grid, rand(2, 2, 3, 4, 3), volume], [
        *(lambda x, g, v, w, m=m, p=p, a=a: F.grid_sample(x, g, m, p, a) for m, p, a in kinds),
        lambda x, g, v, w: F.grid_sample(v, w, "bilinear", "border", True),
        lambda x, g, v, w: F.grid_sample(v, w, "nearest", "zeros", False),
        lambda x, g, v, w: F.affine_grid(x[:, 0, :2, :3], [2, 1, 3, 4], align_corners=False),
        lambda x, g, v, w: F.affine_grid(v[:, 0, :, :, 0], [2, 1, 2, 4, 3], align_corners=True),
        lambda x, g, v, w: F.interpolate(x, size=(3, 7), mode="bilinear", antialias=True),
        lambda x, g, v, w: F.interpolate(x, size=(2, 2), mode="bicubic", antialias=True),
        lambda x, g, v, w: F.interpolate(x, size=7, mode="nearest-exact"),
    ]


PADDINGS = ("zeros", "border", "reflection")


def windows() -> Family:
    return [rand(2, 3, 7, 5), rand(2, 12, 4)], [
        lambda x, c: F.adaptive_avg_pool2d(x, (3, 4)),
        lambda x, c: F.adaptive_avg_pool2d(x, (9, 2)),
        lambda x, c: F.adaptive_avg_pool1d(x[0], 3),
        lambda x, c: F.adaptive_avg_pool3d(x, (2, 2, 3)),
        lambda x, c: F.adaptive_max_pool2d(x, (3, 4), return_indices=True),
        lambda x, c: F.adaptive_max_pool2d(x, (7, 1), return_indices=True),
        lambda x, c: F.adaptive_max_pool2d(-x.abs(), (4, 2)),
        lambda x, c: F.max_pool2d(x, 3, 2, 1, return_indices=True),
        lambda x, c: F.max_pool2d(x, 2, dilation=2, ceil_mode=True, return_indices=True),
        lambda x, c: F.max_pool1d(x[0], 2, return_indices=True),
        lambda x, c: F.max_pool3d(x, 2, return_indices=True),
        lambda x, c: F.max_unpool2d(*F.max_pool2d(x[..., :6, :4], 2, return_indices=True), 2),
        lambda x, c: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(7, 5)),
        lambda x, c: F.unfold(x, (3, 2), padding=1, stride=2),
        lambda x, c: F.unfold(x[0], 2, dilation=(2, 1)),
        lambda x, c: F.fold(c, (4, 4), 2, stride=2),
        lambda x, c: F.fold(c[0], (3, 3), 2),
        lambda x, c: F.fold(c, (2, 4), (3, 2), dilation=(1, 2), padding=(1, 0)),
        lambda x, c: F.fold(F.unfold(x, 3, padding=1), (7, 5), 3, padding=1),
        lambda x, c: F.rrelu(x),
    ]


def bags() -> Family:
    """Of bags of one size, and of bags whose ends are data, one of them empty."""
    table, pairs, flat = rand(9, 4), ints(3, 5, low=0, high=9), ints(7, low=0, high=9)
    ends = torch.tensor([2, 2, 5])
    return [table, pairs, flat, torch.tensor([0, 3, 3]), rand(3, 5), rand(2, 4, 3), ends], [
        *(lambda t, p, f, o, y, z, e, m=m: F.embedding_bag(p, t, mode=m) for m in ("sum", "mean", "max")),
        *(lambda t, p, f, o, y, z, e, m=m: F.embedding_bag(f, t, o, mode=m) for m in ("sum", "mean", "max")),
        lambda t, p, f, o, y, z, e: F.embedding_bag(p, t, mode="sum", per_sample_weights=y),
        lambda t, p, f, o, y, z, e: F.embedding_bag(f, t, o, mode="mean", include_last_offset=True),
        lambda t, p, f, o, y, z, e: F.embedding_bag(p, t, mode="mean", padding_idx=3),
        lambda t, p, f, o, y, z, e: F.embedding_bag(p, t, mode="max", padding_idx=3),
        *(lambda t, p, f, o, y, z, e, r=r: torch.cdist(z, z[:1] + 1, p=r) for r in (2.0, 1.0, 0.0, INF, 3.0)),
        lambda t, p, f, o, y, z, e: F.bilinear(y[:, :4], y, rand_of(6, 4, 5), t[0].repeat(2)[:6]),
        lambda t, p, f, o, y, z, e: F.bilinear(z, z, rand_of(2, 3, 3)),
        lambda t, p, f, o, y, z, e: F.grouped_mm(whole(5, 8), whole(3, 8, 8), offs=e.int()),
    ]


def whole(*shape: int) -> Any:
    """Numbers whose products are exact in bfloat16."""
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) % 5 - 2).bfloat16()


def rand_of(*shape: int) -> Any:
    """The same numbers at every call."""
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


BUNDLES = {
    "ordering": (ordering, cumulative),
    "scattering": (scattering, bags),
    "windows": (sampling, windows),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The reduce argument", "ignore:index_reduce")
@pytest.mark.parametrize("bundle", BUNDLES)
def test_operators_of_places_mean_what_they_mean_in_torch(bundle: str) -> None:
    torch.manual_seed(3)
    functions, inputs = bundled(BUNDLES[bundle])
    compared(Many(functions), *inputs, rtol=2e-5)


# --- refusals ---------------------------------------------------------------------------------

REFUSED = {
    "a long axis": (lambda x: x.expand(3, 2**15).contiguous().sort(1)[0], "32768 elements, more than 16384"),
    "bounds of data": (lambda x: torch.histc(x, 4), "its bounds are those of its data"),
    "a sorter": (
        lambda x: torch.searchsorted(x[0], x, sorter=torch.arange(1)), "sorter is not supported"
    ),
    "means of integers": (
        lambda x: x.long().scatter_reduce(0, torch.zeros(1, 1, dtype=torch.long), x.long(), "mean"),
        "means of integers have no expression",
    ),
    "sums of bool": (lambda x: (x > 0).index_put((torch.tensor([0]),), x[:1] > 0, True), "bool is not"),
    "too much": (
        lambda x: x[:1].expand(2**13, 2**7).contiguous().index_copy(
            0, torch.zeros(2**13, dtype=torch.long), torch.zeros(2**13, 2**7)
        ),
        "more than 4294967296 comparisons",
    ),
}  # fmt: skip


@pytest.mark.fast("bounds of data", "a sorter")
@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_expression_is_refused_with_its_reason(case: str) -> None:
    fn, why = REFUSED[case]
    with pytest.raises(ModelError, match=why):
        at.import_torch(exported(Of(fn), torch.ones(3, 1)))
