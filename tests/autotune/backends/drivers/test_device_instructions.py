"""Each instruction of matrix units with each way to load its operands: on an NVIDIA GPU where there is one,
else emulated."""

from __future__ import annotations

import numpy as np
import pytest
from grid_cases import need_cxx
from warp_instructions import Use, numbers, schedule, uses

import autotune as at
from autotune import backends
from schedules.instructions import INSTRUCTIONS

GPU = backends.named("cuda").available()


@pytest.mark.slow
@pytest.mark.parametrize("use", list(uses()), ids=str)
def test_a_product_of_integers_is_exact(use: Use) -> None:
    if not GPU:
        need_cxx()
    s = schedule(use)
    kernel = at.build(s, target="cuda" if GPU else "h100-emulator")
    source = kernel.source()
    assert f"at_{use.mma}(" in source
    assert source.count("at_ldmatrix_x4") >= sum(load is not None for load in use.loads)
    a, b = (x.astype(np.float64) for x in numbers(s.dag))
    a, b = (x.T if t else x for x, t in zip((a, b), use.transposed, strict=True))
    np.testing.assert_array_equal(np.asarray(kernel(*numbers(s.dag)), np.float64), a @ b)


def test_all_products_and_loads_are_tried() -> None:
    tried = {name for use in uses() for name in (use.mma, *use.loads)}
    dtypes = {INSTRUCTIONS[use.mma].meaning.tensors[x].dtype for use in uses() for x in "ab"}
    of_warps = [x for x in INSTRUCTIONS.values() if x.threads > 1]
    assert {x.name for x in of_warps if x.meaning.inputs[0].dtype in dtypes} <= tried
