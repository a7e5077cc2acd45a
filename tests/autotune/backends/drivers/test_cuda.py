"""On an NVIDIA GPU: every operator runs, and the tuning loop does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from grid_cases import SMALL, case, program, sampled
from needs import imported

import autotune as at
from autotune import backends
from autotune.backends.drivers.object import DeviceObject
from autotune.codegen.grid_code import grid_code
from autotune.codegen.simt import nvrtc
from autotune.codegen.simt.cuda import generate
from schedules import ops

on_gpu = pytest.mark.skipif(not backends.named("cuda").available(), reason="there is no NVIDIA GPU here")


@pytest.mark.skipif(backends.named("cuda").available(), reason="there is an NVIDIA GPU here")
def test_without_a_gpu_the_target_says_so() -> None:
    with pytest.raises(at.TargetError, match="no NVIDIA GPU here"):
        backends.parse("cuda")
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
        cubin = nvrtc.compile_cubin(made.text, backends.named("cuda").device().arch())
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


def tuned(tmp_path: Path, op: str, **params: int) -> at.Kernel:
    db = tmp_path / "tuning.db"
    at.tune(op, target="cuda", trials=4, budget_s=60, db=db, **params)
    return at.load(op, target="cuda", db=db, **params)


@pytest.mark.gpu
@on_gpu
def test_tensors_of_torch_in_place_on_its_stream_and_in_a_graph(tmp_path: Path) -> None:
    torch = imported("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    for op, params in (("softmax", {"m": 64, "n": 1000}), ("attention", {"heads": 2, "seq": 64, "dim": 32})):
        kernel = tuned(tmp_path, op, **params)
        x = [torch.randn(t.shape, device="cuda") for t in kernel.workload.dag.inputs]
        wanted = [torch.from_numpy(r) for r in ops.reference(kernel.workload, [t.cpu().numpy() for t in x])]
        out = torch.empty(wanted[0].shape, device="cuda")
        assert kernel(*x, out=out) is out
        torch.testing.assert_close(out.cpu(), wanted[0], rtol=1e-4, atol=1e-4)
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            torch.testing.assert_close(kernel(*x).cpu(), wanted[0], rtol=1e-4, atol=1e-4)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            kernel(*x, out=out)
        out.fill_(float("nan"))
        graph.replay()
        torch.testing.assert_close(out.cpu(), wanted[0], rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@on_gpu
def test_arrays_of_cupy_in_place_on_its_stream(tmp_path: Path) -> None:
    cupy = pytest.importorskip("cupy")
    kernel = tuned(tmp_path, "softmax", m=64, n=1000)
    host = np.random.default_rng(0).standard_normal((64, 1000)).astype("f4")
    (wanted,) = ops.reference(kernel.workload, [host])
    with cupy.cuda.Stream(non_blocking=True):
        x = cupy.asarray(host)
        y = kernel(x)
        assert isinstance(y, cupy.ndarray) and kernel(x, out=y) is y
        np.testing.assert_allclose(cupy.asnumpy(y), wanted, rtol=1e-4, atol=1e-6)
