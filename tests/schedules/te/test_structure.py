"""How alike expressions are: equal keys for one structure, doublings between sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from small_shapes import SMALL

from schedules import ops, te
from schedules.te.structure import OTHER_ORDER, Structure, distance, structure


def of(op: str, layout: str | None = None, dtype: str | None = None, **params: Any) -> Structure:
    return structure(ops.workload(op, {**SMALL[op], **params}, dtype, layout).dag)


def test_every_operator_has_a_structure_of_its_own() -> None:
    keys = {op: of(op).key for op in SMALL}
    assert len(set(keys.values())) == len(keys)


@pytest.mark.parametrize(
    ("op", "one", "other", "doublings"),
    [
        ("matmul", {"m": 8}, {"m": 64}, 3),
        ("matmul", {"m": 8, "n": 4, "k": 2}, {"m": 4, "n": 8, "k": 2}, 2),
        ("conv2d", {"padding": 0}, {"padding": 1}, None),
        ("conv2d", {"stride": 1}, {"stride": 2}, None),
        ("conv2d", {"k": 3}, {"k": 1, "padding": 0}, None),
        ("max_pool2d", {}, {"k": 3, "stride": 1, "padding": 1}, None),
        ("softmax", {"n": 8}, {"n": 16}, 4),  # four stages
    ],
)
def test_sizes_strides_and_padding_are_no_structure(
    op: str, one: Mapping[str, Any], other: Mapping[str, Any], doublings: float | None
) -> None:
    a, b = of(op, **one), of(op, **other)
    assert a.key == b.key and 0 < distance(a, b) < math.inf
    if doublings is not None:
        assert distance(a, b) == pytest.approx(doublings)


def test_a_dtype_is_no_structure_and_a_layout_is_some_way() -> None:
    assert distance(of("matmul"), of("matmul", dtype="float64")) == 0
    a, b = of("conv2d", "NHWC"), of("conv2d", "NCHW")
    assert a.key == b.key and distance(a, b) == OTHER_ORDER


def test_what_computes_otherwise_is_infinitely_far() -> None:
    a, k = te.placeholder((4, 8), name="a"), te.reduce_axis(8, "k")
    b = te.placeholder((4, 8), name="b")
    made = {
        "sum": te.compute((4,), lambda i: te.sum(a[i, k] * b[i, k], axis=k)),
        "max": te.compute((4,), lambda i: te.max(a[i, k] * b[i, k], axis=k)),
        "of a sum": te.compute((4,), lambda i: te.sum(a[i, k] + b[i, k], axis=k)),
        "of a square": te.compute((4,), lambda i: te.sum(a[i, k] * a[i, k] * b[i, k], axis=k)),
        "turned": te.compute((4,), lambda i: te.sum(a[i, k] * b[0, k], axis=k)),
    }
    found = {name: structure(te.dag([a, b, t])) for name, t in made.items()}
    for x, s in found.items():
        for y, other in found.items():
            assert (distance(s, other) == 0) == (x == y), (x, y)
