"""Divisions of integers whose divisor is a known zero, in expressions of files."""

from __future__ import annotations

import numpy as np
import pytest

from autotune import targets
from autotune.run.kernels import default_kernel
from schedules import te
from schedules.model import Workload
from schedules.te.compute_dag import ComputeDAG


def divided(op: str, dtype: str, divisor: object, tested: str) -> object:
    """JSON of ``x op divisor``. ``tested``: the dtype of the operands; "index" is computed with axes."""
    x = te.placeholder((4,), dtype, "x")
    v = te.dag([x, te.compute((4,), lambda i: x[i] + 1, "y")]).to_json()
    axis = ["var", v["stages"][0]["axes"][0][0]]
    value = (
        ["cast", dtype, [op, axis, divisor]]
        if tested == "index"
        else [op, ["load", "x", dtype, axis], divisor]
    )
    v["stages"][0]["values"] = [value]
    return v


@pytest.mark.parametrize("op", ["//", "%"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_written_division_by_zero_is_refused_and_one_that_is_found_later_gives_zero(
    op: str, dtype: str
) -> None:
    for divisor, tested in ((["const", dtype, 0], dtype), (0, "index")):
        with pytest.raises(ValueError, match="by zero"):
            ComputeDAG.from_json(divided(op, dtype, divisor, tested))
    one = ["const", dtype, 1]
    for divisor, tested in ((["-", one, one], dtype), (["cast", dtype, 0], dtype), (["-", 1, 1], "index")):
        w = Workload(ComputeDAG.from_json(divided(op, dtype, divisor, tested)))
        kernel = default_kernel(w, targets.detect(1))
        np.testing.assert_array_equal(kernel(np.arange(4, dtype=dtype)), np.zeros(4, dtype))
