"""Indices that are computed of floats: each lane of a vector has its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autotune as at
from schedules.schedule import Schedule

te = at.te
INDICES: dict[str, Callable[[Any], Any]] = {
    "round": lambda x: te.round(x),
    "floor": lambda x: te.floor(x) + te.round(x * 0.5),
    "exp": lambda x: te.exp(x * 0.01) * te.exp(x * 0.01),
    "clip": lambda x: te.clip(te.round(x * 0.7) + 3.0, 0.0, 255.0),
}


@pytest.mark.parametrize("tail", ["guard", "shift"])
@pytest.mark.parametrize("lanes", [4, 16])
@pytest.mark.parametrize("name", INDICES)
def test_a_table_is_read_where_each_lane_says(name: str, lanes: int, tail: str) -> None:
    table, x = te.placeholder((256,), "uint8", "table"), te.placeholder((53,), "float32", "x")
    place = te.compute((53,), lambda i: te.cast(INDICES[name](x[i]), "int32"), "place")
    y = te.compute((53,), lambda i: te.select(x[i] > -20.0, table[place[i]], te.const(7, "uint8")), "y")
    z = te.compute(
        (53,), lambda i: te.cast(te.cast(y[i], "int32") ^ te.cast(table[place[i]], "int32"), "uint8"), "z"
    )
    s = Schedule([table, x, z])
    s.inline("place")
    s.inline("y")
    _, inner = s.split(s.loops("z")[-1], [None, lanes], tail)
    s.vectorize(inner)
    rng = np.random.default_rng(0)
    given = [rng.permutation(256).astype(np.uint8), rng.uniform(-50, 300, 53).astype(np.float32)]
    want = te.evaluate(te.dag([table, x, z]), given)[0]
    np.testing.assert_array_equal(at.build(s, threads=1)(*given), want)
