"""Weights that a kernel reads with an offset, or with their sums, can be given back."""

from __future__ import annotations

from dataclasses import replace

import helpers
import numpy as np
import pytest

from autotune.models.weights import Use, place, recover
from autotune.run.kernels import kernel_of
from schedules import te
from schedules.model import Workload
from schedules.schedule import Schedule


@pytest.mark.parametrize("offset", ["a", "b", "zero point"])
def test_weights_that_packing_changes_are_kept_as_they_are(offset: str) -> None:
    dtype = "int32" if offset == "zero point" else "int8"
    a, b = te.placeholder((3, 6), dtype, "a"), te.placeholder((6, 4), dtype, "b")
    k = te.reduce_axis(6, "k")
    c = te.compute((3, 4), lambda i, j: te.sum((a[i, k] - 3) * b[k, j], axis=k), "c")
    s = Schedule(replace(te.dag([a, b, c]), constants=("b",)))
    if offset == "b":
        s.cache_read_offset("c", "b", 128)
    else:
        s.cache_read_offset("c", "a", 128 if offset == "a" else 0)
        s.cache_read("c", "b")
    kernel = kernel_of(Workload(s.dag), helpers.host(), s.trace)
    value = np.arange(-12, 12).reshape(6, 4).astype(dtype)
    ways = [Use("w", 0, 1)]
    have = place([kernel], ways, value)
    np.testing.assert_array_equal(recover([kernel], have, (6, 4), dtype), value)
    x = np.arange(18).reshape(3, 6).astype(dtype)
    np.testing.assert_array_equal(kernel(x, have[ways[0]]), (x.astype("int32") - 3) @ value)
