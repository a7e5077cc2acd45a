"""Words that several programs share: products of matrices, and sums of some of the terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autotune import te


def given(t: str, **shapes: Sequence[int]) -> list[Any]:
    """Placeholders of one dtype by name."""
    return [te.placeholder(tuple(shape), t, name) for name, shape in shapes.items()]


def product(a: Any, b: Any, name: str) -> Any:
    """The product of two matrices."""
    k = te.reduce_axis(a.shape[1], f"k_{name}")
    return te.compute((a.shape[0], b.shape[1]), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name)


def part(lo: Any, hi: Any, term: Callable[[Any], Any]) -> Any:
    """Σ term(k) for lo ≤ k < hi; both may depend on axes."""
    k = te.reduce_axis((lo, hi), "k")
    return te.sum(term(k), axis=k)
