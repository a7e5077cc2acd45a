"""Quantised programs of torch: what PT2E leaves in a program, packed weights, floats of 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graph_meaning import evaluate
from needs import imported
from torch_cases import F, torch

import autotune as at
from autotune.models.operators.known import to_numpy
from schedules.graph.edit import factors, is_product
from schedules.graph.optimize import optimize

imported("torch.ao.quantization.fx._decomposed")  # registers the operators
ops = torch.ops.quantized_decomposed
INT8, UINT8 = (-128, 127, torch.int8), (0, 255, torch.uint8)


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A function of inputs and of buffers."""

    def __init__(self, fn: Callable[..., Any], **buffers: Any) -> None:
        super().__init__()
        self.fn = fn
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, *xs: Any) -> Any:
        return self.fn(self, *xs)


def alike(net: Any, *xs: Any, rtol: float = 1e-5, share: float = 0.0) -> Any:
    """The graph before and after rewrites gives what torch does; so large a share of integers may be a step
    apart. Returns the graph after them."""
    graph = at.import_torch(torch.export.export(net, xs)).graph
    want = net(*xs)
    want = want if isinstance(want, (tuple, list)) else (want,)
    after = optimize(graph)
    for which in (graph, after):
        for have, other in zip(evaluate(which, [to_numpy(x) for x in xs]), map(to_numpy, want), strict=True):
            assert have.shape == other.shape
            a, b = have.astype(np.float64), other.astype(np.float64)
            if other.dtype.kind in "iu":
                assert np.abs(a - b).max() <= 1 and np.mean(a != b) <= share
            else:
                np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * float(np.sqrt(np.mean(b * b))))
    return after


def integer_products(graph: Any) -> int:
    every = [s for s in graph.dag.stages if is_product(s) and s.outputs[0].dtype == "int32"]
    assert {x.dtype for s in every for x in factors(s.values[0])} <= {"int8", "uint8"}
    return len(every)


def rand(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def ints(*shape: int, low: int = -128, high: int = 128, dtype: Any = torch.int8) -> Any:
    return torch.randint(low, high, shape, dtype=dtype, generator=torch.Generator().manual_seed(1))


def weights(n: int, *depth: int, zero: int = 0) -> dict[str, Any]:
    """Weights as PT2E keeps them: int8, a scale and a zero point (int64) a channel."""
    points = torch.full((n,), zero, dtype=torch.int64)
    return {"w": ints(n, *depth), "s": torch.rand(n) * 0.02 + 0.01, "z": points}


def wide(net: Any) -> Any:
    return ops.dequantize_per_channel(net.w, net.s, net.z, 0, *INT8)


@pytest.mark.fast("which1-3")
@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("which", [INT8, UINT8])
def test_static_quantisation_of_linear_layers(which: tuple[int, int, Any], zero: int) -> None:
    def forward(net: Any, x: Any) -> Any:
        q = ops.quantize_per_tensor(x, 0.03, 5, *which)
        y = F.linear(ops.dequantize_per_tensor(q, 0.03, 5, *which), wide(net), net.b)
        return ops.quantize_per_tensor(y.relu(), 0.1, -9 if which is INT8 else 9, *which)

    after = alike(Net(forward, b=rand(7), **weights(7, 12, zero=zero)), rand(6, 12) * 3, share=0.03)
    assert integer_products(after) == 1


@pytest.mark.slow
def test_static_quantisation_of_convolutions() -> None:
    def forward(net: Any, x: Any) -> Any:
        q = ops.quantize_per_tensor(x, 0.02, 131, *UINT8)
        return F.conv2d(ops.dequantize_per_tensor(q, 0.02, 131, *UINT8), wide(net), None, 2, 1)

    after = alike(Net(forward, **weights(6, 3, 3, 3)), rand(2, 3, 7, 6))
    assert integer_products(after) == 1


@pytest.mark.slow
def test_parameters_that_are_tensors() -> None:
    def forward(net: Any, x: Any) -> Any:
        low, high = torch.tensor(0), torch.tensor(255)
        q = ops.quantize_per_tensor.tensor2(x, net.xs, net.xz, low, high, torch.uint8)
        x = ops.dequantize_per_tensor.tensor2(q, net.xs, net.xz, low, high, torch.uint8)
        return q, F.linear(x, wide(net))

    scale, zero = torch.tensor(0.05), torch.tensor(130)
    after = alike(Net(forward, xs=scale, xz=zero, **weights(7, 12)), rand(6, 12), share=0.02)
    assert integer_products(after) == 1


@pytest.mark.slow
@pytest.mark.parametrize("which", [INT8, UINT8])
@pytest.mark.parametrize("choose", ["choose_qparams", "choose_qparams_symmetric"])
def test_dynamic_quantisation(choose: str, which: tuple[int, int, Any]) -> None:
    def forward(net: Any, x: Any) -> Any:
        scale, zero = getattr(ops, choose).tensor(x, which[0], which[1], 1e-6, which[2])
        q = ops.quantize_per_tensor.tensor(x, scale, zero, *which)
        x = ops.dequantize_per_tensor.tensor(q, scale, zero, *which)
        return F.linear(x, wide(net)), scale, zero, q

    after = alike(Net(forward, **weights(7, 12)), rand(6, 12) + 1, share=0.02)
    assert integer_products(after) == 1


@pytest.mark.slow
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_scale_a_row(symmetric: bool) -> None:
    def forward(net: Any, x: Any) -> Any:
        name = "choose_qparams_per_token" + ("" if symmetric else "_asymmetric")
        scale, zero = getattr(ops, name)(x, torch.int8)
        q = ops.quantize_per_token(x, scale, zero, *INT8)
        return F.linear(ops.dequantize_per_token(q, scale, zero, *INT8, torch.float32), wide(net)), q

    after = alike(Net(forward, **weights(7, 12)), rand(2, 6, 12) + 1, share=0.02)
    assert integer_products(after) == 1


@pytest.mark.slow
def test_quantisation_by_channels_and_by_groups() -> None:
    def forward(net: Any, x: Any) -> Any:
        q = ops.quantize_per_channel(x, net.s, net.z, 0, *INT8)
        g = ops.quantize_per_channel_group(x, net.gs, net.gz, *INT8, 4)
        back = ops.dequantize_per_channel_group(g, net.gs, net.gz, *INT8, 4, torch.float32)
        return q, g, back, ops.dequantize_per_channel_group(net.w, net.gs, None, *INT8, 4, torch.float32)

    groups = {"gs": torch.rand(8, 3) * 0.02 + 0.01, "gz": torch.arange(24).view(8, 3)}
    alike(Net(forward, **groups, **weights(8, 12, zero=3)), rand(8, 12), share=0.02)


@pytest.mark.slow
def test_groups_along_the_sum_stay_groups() -> None:
    def forward(net: Any, x: Any) -> Any:
        q = ops.quantize_per_tensor(x, 0.03, 5, *UINT8)
        w = ops.dequantize_per_channel_group(net.w, net.gs, None, *INT8, 4, torch.float32)
        return F.linear(ops.dequantize_per_tensor(q, 0.03, 5, *UINT8), w)

    net = Net(forward, gs=torch.rand(8, 3) * 0.02 + 0.01, **weights(8, 12))
    assert integer_products(alike(net, rand(6, 12))) == 0


# --- packed weights, floats of 8 bits ---------------------------------------------------------


@pytest.mark.fast("80-float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [16, 64, 80, 128])
def test_pairs_of_4_bits(rows: int, dtype: str) -> None:
    """In the order that this CPU's kernels have; rows that fill no block lie in pairs."""

    def forward(net: Any, x: Any) -> Any:
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, net.w, 32, net.p)

    kind = getattr(torch, dtype)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
        ints(rows, 64, low=0, high=16, dtype=torch.int32), 1
    )
    net = Net(forward, w=packed, p=rand(2, rows, 2).to(kind))
    alike(net, rand(3, 64).to(kind), rtol=1e-4 if dtype == "float32" else 2e-2)


@pytest.mark.parametrize("capability", ["AVX512", "AVX2", "DEFAULT"])
@pytest.mark.parametrize("rows", [16, 32, 48, 64, 96, 144])
def test_pairs_cover_every_byte_once(capability: str, rows: int) -> None:
    from autotune.models.operators.packed_weights import _Block
    from schedules.expr import Const
    from schedules.expr import evaluate as value_of

    block, seen = _Block.of(rows, capability), set()
    for n in range(rows):
        for k in range(6):
            of = block.full if n < block.whole else block.rest
            byte, upper = of(Const(n), Const(k), 6)
            seen.add((int(value_of(byte, {})), int(value_of(upper, {}))))
    assert seen == {(b, u) for b in range(rows * 3) for u in (0, 1)}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_of_8_bits(dtype: str) -> None:
    kind = getattr(torch, dtype)
    net = Net(
        lambda net, x: torch.ops.aten._weight_int8pack_mm(x, net.w, net.p),
        w=ints(32, 64),
        p=torch.rand(32).to(kind),
    )
    alike(net, rand(3, 64).to(kind), rtol=1e-4 if dtype == "float32" else 2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("out", ["float32", "bfloat16"])
def test_products_of_floats_of_8_bits(out: str, rows: bool) -> None:
    def forward(net: Any, a: Any, b: Any) -> Any:
        kind = torch.float8_e4m3fn
        return torch._scaled_mm(a.to(kind), b.to(kind).t(), net.sa, net.sb, out_dtype=getattr(torch, out))

    sa, sb = (torch.rand(16, 1), torch.rand(1, 32)) if rows else (torch.tensor(0.5), torch.tensor(0.25))
    try:
        Net(forward, sa=sa, sb=sb)(rand(16, 48), rand(32, 48))
    except (RuntimeError, NotImplementedError) as err:
        pytest.skip(f"torch has no such product here: {err}")
    alike(Net(forward, sa=sa, sb=sb), rand(16, 48), rand(32, 48), rtol=1e-5 if out == "float32" else 1e-2)
