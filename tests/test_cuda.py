"""On an NVIDIA GPU: every operator runs, and the tuning loop does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from grid_cases import SMALL, case, program, sampled

import autotune as at
from autotune import targets
from autotune.codegen import nvrtc
from autotune.codegen.cuda import generate
from autotune.codegen.gridcode import grid_code
from autotune.devices import select
from autotune.devices.object import DeviceObject

on_gpu = pytest.mark.skipif(not select.available("cuda"), reason="there is no NVIDIA GPU here")


@pytest.mark.skipif(select.available("cuda"), reason="there is an NVIDIA GPU here")
def test_without_a_gpu_the_target_says_so() -> None:
    with pytest.raises(at.TargetError, match="no NVIDIA GPU here"):
        targets.parse("cuda")
    c = case("add")
    p = program(c.dag, next(sampled(c.dag, 1))[1])
    with pytest.raises(at.CompileError, match="no NVIDIA GPU here"):
        DeviceObject(grid_code(p, "cuda", generate(p)).to_bytes())


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("op", SMALL)
def test_every_operator(op: str) -> None:
    c = case(op)
    for name, trace in sampled(c.dag, 3, seed=9):
        p = program(c.dag, trace)
        made = generate(p)
        cubin = nvrtc.compile_cubin(made.text, select.device("cuda").arch())
        loaded = DeviceObject(grid_code(p, "cuda", made, cubin.data, cubin.facts).to_bytes())
        outputs = c.poisoned()
        assert loaded.bench([x.ctypes.data for x in (*c.inputs, *outputs)], 2) > 0
        loaded.close()
        c.check(outputs, name)


@pytest.mark.gpu
@on_gpu
def test_tune_then_load(tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    shape = {"m": 512, "n": 512, "k": 512}
    result = at.tune("matmul", target="cuda", trials=16, budget_s=120, db=db, **shape)
    assert result.best is not None and not set(result.failed) - {"slow"}
    kernel = at.load("matmul", target="cuda", db=db, **shape)
    a, b = (np.random.default_rng(n).integers(-4, 5, (512, 512)).astype("f4") for n in range(2))
    np.testing.assert_array_equal(kernel(a, b), a @ b)
