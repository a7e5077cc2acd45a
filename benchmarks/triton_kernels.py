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


def _configurations() -> list[Any]:
    tiles = [
        (128, 128, 16, 8),
        (128, 64, 32, 4),
        (64, 64, 32, 4),
        (64, 32, 32, 4),
        (128, 256, 16, 8),
        (32, 32, 32, 2),
    ]
    return [
        triton.Config({"BM": m, "BN": n, "BK": k}, num_warps=warps, num_stages=stages)
        for m, n, k, warps in tiles
        for stages in (2, 3, 4)
    ]


@triton.autotune(configs=_configurations(), key=["m", "n", "k"])
@triton.jit
def _matmul(a, b, out, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    columns = tl.cdiv(n, BN)
    i = tl.program_id(0) // columns * BM + tl.arange(0, BM)
    j = tl.program_id(0) % columns * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        r = start + tl.arange(0, BK)
        x = tl.load(a + i[:, None] * k + r[None, :], mask=(i[:, None] < m) & (r[None, :] < k), other=0.0)
        y = tl.load(b + r[:, None] * n + j[None, :], mask=(r[:, None] < k) & (j[None, :] < n), other=0.0)
        acc = tl.dot(x, y, acc, input_precision="ieee")
    tl.store(out + i[:, None] * n + j[None, :], acc, mask=(i[:, None] < m) & (j[None, :] < n))


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
    if name == "matmul" and not params.get("transpose_a") and not params.get("transpose_b"):
        (m, k), n = x[0].shape, x[1].shape[1]
        out = torch.empty((m, n), dtype=x[0].dtype, device=x[0].device)

        def matmul() -> Any:
            _matmul[lambda c: (triton.cdiv(m, c["BM"]) * triton.cdiv(n, c["BN"]),)](x[0], x[1], out, m, n, k)
            return out

        return matmul
    raise PeerError(f"there is no kernel of Triton's tutorials for {name}")
