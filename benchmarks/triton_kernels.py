"""The kernels of Triton's own tutorials, for comparison: elementwise, softmax, matrix product (no tf32)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from autotune.measure.compare.peers import PeerError


@triton.jit
def _add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


@triton.jit
def _softmax(x, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + at, mask=at < n, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * n + at, e / tl.sum(e, axis=0), mask=at < n)


# Tiles of a product by bytes of an element: (rows, columns, summed, warps).
TILES = {
    4: [
        (128, 128, 16, 8),
        (128, 64, 32, 4),
        (64, 64, 32, 4),
        (64, 32, 32, 4),
        (128, 256, 16, 8),
        (32, 32, 32, 2),
    ],
    2: [
        (128, 256, 64, 8),
        (256, 128, 64, 8),
        (128, 128, 64, 4),
        (128, 128, 32, 4),
        (64, 128, 64, 4),
        (64, 64, 64, 4),
    ],
    1: [(128, 256, 128, 8), (128, 128, 128, 4), (128, 128, 64, 4), (64, 128, 128, 4), (64, 64, 128, 4)],
}
GROUP = 8  # rows of tiles that are computed together, for the second cache


def _configurations(nbytes: int) -> list[Any]:
    return [
        triton.Config({"BM": m, "BN": n, "BK": k}, num_warps=warps, num_stages=stages)
        for m, n, k, warps in TILES[nbytes]
        for stages in ((2, 3, 4) if nbytes == 4 else (3, 4))
    ]


@triton.jit
def _matmul(
    a, b, out, m, n, k, am, ak, bk, bn, SUM: tl.constexpr, GROUP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    turn, across = tl.program_id(0) // (GROUP * tl.cdiv(n, BN)), tl.program_id(0) % (GROUP * tl.cdiv(n, BN))
    high = min(tl.cdiv(m, BM) - turn * GROUP, GROUP)
    i = (turn * GROUP + across % high) * BM + tl.arange(0, BM)
    j = across // high * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=SUM)
    for start in range(0, k, BK):
        r = start + tl.arange(0, BK)
        x = tl.load(a + i[:, None] * am + r[None, :] * ak, mask=(i[:, None] < m) & (r[None, :] < k), other=0)
        y = tl.load(b + r[:, None] * bk + j[None, :] * bn, mask=(r[:, None] < k) & (j[None, :] < n), other=0)
        acc = tl.dot(x, y, acc, input_precision="ieee", out_dtype=SUM)
    tl.store(
        out + i[:, None] * n + j[None, :],
        acc.to(out.dtype.element_ty),
        mask=(i[:, None] < m) & (j[None, :] < n),
    )


# {bytes of an element: the kernel with the tiles for it}
_PRODUCTS = {
    size: triton.autotune(configs=_configurations(size), key=["m", "n", "k"])(_matmul) for size in TILES
}


@triton.autotune(
    configs=[
        triton.Config({"BM": m, "BN": n}, num_warps=warps, num_stages=stages)
        for m, n, warps in ((128, 128, 8), (128, 64, 8), (128, 64, 4), (64, 64, 4))
        for stages in (2, 3)
    ],
    key=["seq", "DIM", "CAUSAL"],
)
@triton.jit
def _attention(
    q, k, v, out, seq, scale, DIM: tl.constexpr, CAUSAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    start = tl.program_id(1).to(tl.int64) * seq * DIM  # of a head
    i, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, DIM)
    rows = start + i[:, None] * DIM + d[None, :]
    x = tl.load(q + rows, mask=i[:, None] < seq, other=0)
    top = tl.full((BM,), -float("inf"), tl.float32)
    total, acc = tl.zeros((BM,), tl.float32), tl.zeros((BM, DIM), tl.float32)
    end = min(seq, (tl.program_id(0) + 1) * BM) if CAUSAL else seq
    for first in range(0, end, BN):
        j = first + tl.arange(0, BN)
        y = tl.load(k + start + j[None, :] * DIM + d[:, None], mask=j[None, :] < seq, other=0)
        scores = tl.dot(x, y) * (scale * 1.44269504)  # exp2 is what a GPU has
        seen = (j[None, :] < seq) & (i[:, None] >= j[None, :]) if CAUSAL else (j[None, :] < seq)
        scores = tl.where(seen, scores, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        p, before = tl.exp2(scores - higher[:, None]), tl.exp2(top - higher)
        total, acc, top = total * before + tl.sum(p, 1), acc * before[:, None], higher
        z = tl.load(v + start + j[:, None] * DIM + d[None, :], mask=j[:, None] < seq, other=0)
        acc = tl.dot(p.to(z.dtype), z, acc)
    tl.store(out + rows, acc / total[:, None], mask=i[:, None] < seq)


def operator(name: str, params: dict[str, Any], x: list[Any]) -> Callable[[], Any]:
    """A call that gives the result. Raises `PeerError` for what there is no kernel of here."""
    if name == "add":
        out, n = torch.empty_like(x[0]), x[0].numel()

        def add() -> Any:
            _add[(triton.cdiv(n, 1024),)](x[0], x[1], out, n, BLOCK=1024)
            return out

        return add
    if name == "softmax":
        out, (m, n) = torch.empty_like(x[0]), x[0].shape

        def softmax() -> Any:
            _softmax[(m,)](x[0], out, n, BLOCK=triton.next_power_of_2(n))
            return out

        return softmax
    if name == "matmul":
        return _product(params, *x)
    if name == "attention" and not params.get("attn_mask"):
        return _attend(params, *x)
    raise PeerError(f"there is no kernel of Triton's tutorials for {name}")


def _product(params: dict[str, Any], a: Any, b: Any) -> Callable[[], Any]:
    a, b = (t.T if params.get(f"transpose_{n}") else t for n, t in (("a", a), ("b", b)))
    (m, k), n = a.shape, b.shape[1]
    sums, dtype = (tl.float32, a.dtype) if a.is_floating_point() else (tl.int32, torch.int32)
    out = torch.empty((m, n), dtype=dtype, device=a.device)
    kernel = _PRODUCTS[a.element_size()]

    def matmul() -> Any:
        grid = lambda c: (triton.cdiv(m, c["BM"]) * triton.cdiv(n, c["BN"]),)  # noqa: E731
        kernel[grid](a, b, out, m, n, k, *a.stride(), *b.stride(), SUM=sums, GROUP=GROUP)
        return out

    return matmul


def _attend(params: dict[str, Any], q: Any, k: Any, v: Any) -> Callable[[], Any]:
    b, heads, seq, dim = q.shape
    out, scale = torch.empty_like(q), params.get("scale") or dim**-0.5

    def attention() -> Any:
        grid = lambda c: (triton.cdiv(seq, c["BM"]), b * heads)  # noqa: E731
        _attention[grid](q, k, v, out, seq, scale, DIM=dim, CAUSAL=bool(params.get("is_causal")))
        return out

    return attention
