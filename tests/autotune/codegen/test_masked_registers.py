"""Masked lanes of variables of a function stay in registers, and read nothing that is masked out."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import check_compiled, expected, host, inputs

from autotune.codegen.llvm.store import Stores
from schedules import te
from schedules.schedule import Schedule


@pytest.mark.parametrize("dtype", ("float32", "float64", "int32"))
@pytest.mark.parametrize("n", (831, 835, 845))
def test_a_sum_in_lanes_stays_inside_of_its_arrays(
    n: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays end at pages that cannot be read. LLVM may make one instruction of a masked load and the choice
    of lanes, take the load apart again, and then loads without the mask."""
    made = Stores.__init__

    def in_registers(self: Stores, *args: Any) -> None:
        made(self, *args)
        self.scans = True

    monkeypatch.setattr(Stores, "__init__", in_registers)
    x, k = te.placeholder((1, n), dtype, "x"), te.reduce_axis(n, "k")
    s = Schedule([x, te.compute((1,), lambda i: te.sum(x[i, k], axis=k), "y")])
    part, _ = s.split("y_k", (4, None), "guard")
    sums = s.rfactor("y", part)
    s.parallel("y_ax0")
    _, lane = s.split("y_k_1", (None, 64), "guard")
    inner = s.rfactor(sums, lane)
    s.decompose_reduction(sums, "y_rf_rf_k")
    s.vectorize("y_rf_rf_k")
    s.compute_at(inner, s.fuse("y_rf_ax0", "y_rf_ax1"))
    s.reorder("y_rf_rf_ax0", "y_rf_rf_ax1", "y_rf_rf_r0", "y_rf_rf_ax2")
    s.vectorize("y_rf_rf_ax2")
    s.decompose_reduction(inner, "y_rf_rf_r0")
    s.partition("y_rf_rf_r0")
    s.parallel("y_rf_ax0_y_rf_ax1")
    data = inputs(s.dag, n)
    check_compiled(s.dag, s.trace, host(2), data, expected(s.dag, data))
