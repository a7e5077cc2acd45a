"""Operators of torch whose places are data: sorting and writing. On small odd shapes, against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch_cases import Many, Of, compared, exported, ops, torch

import autotune as at
from autotune.errors import ModelError

Family = tuple[list[Any], list[Callable[..., Any]]]
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
    return [x, ids, src, once, torch.tensor([2, 0, 2])], [
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
        lambda x, i, s, p, r: assigned(x, p, r),
    ]


def assigned(x: Any, p: Any, r: Any) -> Any:
    y = x.clone()
    y[:, p[0]] = 3.0
    y[r[:2]] += 1
    y[y > 2] = 0.0
    return y


BUNDLES = {"ordering": (ordering, cumulative), "scattering": (scattering,)}


@pytest.mark.filterwarnings("ignore:The reduce argument", "ignore:index_reduce")
@pytest.mark.parametrize("bundle", BUNDLES)
def test_operators_of_places_mean_what_they_mean_in_torch(bundle: str) -> None:
    torch.manual_seed(3)
    inputs: list[Any] = []
    functions: list[Callable[..., Any]] = []
    for family in BUNDLES[bundle]:
        own, some = family()
        functions += [_of(fn, len(inputs), len(own)) for fn in some]
        inputs += own
    compared(Many(functions), *inputs, rtol=2e-5)


def _of(fn: Callable[..., Any], first: int, count: int) -> Callable[..., Any]:
    """A function of some of all inputs."""
    return lambda *xs: fn(*xs[first : first + count])


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
        lambda x: x[:1].expand(2**13, 2**7).contiguous().index_add(
            0, torch.zeros(2**13, dtype=torch.long), torch.zeros(2**13, 2**7)
        ),
        "more than 4294967296 comparisons",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_expression_is_refused_with_its_reason(case: str) -> None:
    fn, why = REFUSED[case]
    with pytest.raises(ModelError, match=why):
        at.import_torch(exported(Of(fn), torch.ones(3, 1)))
