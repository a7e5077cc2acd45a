"""Floats of 8 bits in programs of torch: weights of them, and casts, which end at the largest number of a
dtype without an infinity."""

from __future__ import annotations

from typing import Any

import pytest
from graph_meaning import evaluate
from torch_cases import compared, torch

nn = torch.nn


class Stored(nn.Module):  # type: ignore[misc,name-defined]
    """A product with a weight of 8 bits."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.register_buffer("w", torch.randn(8, 5).to(dtype))

    def forward(self, x: Any) -> Any:
        return x @ self.w.float()


class Rounded(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Any) -> Any:
        return x.to(self.dtype), x.to(self.dtype).float() * 2


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_a_weight_of_8_bits_stays_one(dtype: str) -> None:
    model = compared(Stored(getattr(torch, dtype)), torch.randn(3, 8))
    assert [v.dtype.name for v in model.graph.values.values()] == [dtype]
    outer = torch.tensor([0.0, -0.0, 1.0625, 448.0, 464.0, 465.0, -500.0, 1e9, -torch.inf, 2.0**-10])
    outer = outer[:8] if dtype == "float8_e5m2" else outer
    module = Rounded(getattr(torch, dtype))
    model = compared(module, outer)
    got = evaluate(model.graph, [outer.numpy()])[1]
    assert got.tolist() == module(outer)[1].tolist()
