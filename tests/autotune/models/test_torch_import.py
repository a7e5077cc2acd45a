"""Exported programs of torch as models: ports, weights, refusals, networks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_meaning import evaluate
from torch_cases import Many, compared, exported, torch

import autotune as at
from autotune.errors import ModelError
from schedules.graph.optimize import optimize

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))
import networks

nn = torch.nn


class Mixed(nn.Module):  # type: ignore[misc,name-defined]
    """Parameters, buffers and a constant; one output twice, an input, None, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.register_buffer("shift", torch.arange(3.0))
        self.register_buffer("kept", torch.ones(3), persistent=False)

    def forward(self, x: Any, more: dict[str, Any], n: int = 2) -> Any:
        y = self.inner(x) + self.shift * torch.tensor([1.0, 2.0, 3.0]) + self.kept
        return y, {"same": y, "input": more["z"], "nothing": None, "n": n}, more["z"] * n


def test_ports_are_the_tensors_of_the_program_in_its_order() -> None:
    module = Mixed()
    x, z = torch.randn(2, 4), torch.randint(0, 9, (3,))
    model = at.import_torch(exported(module, x, {"z": z}))
    assert [(p.name, p.shape, p.dtype) for p in model.inputs] == [
        ("x", (2, 4), "float32"), ("more_z", (3,), "int64")
    ]  # fmt: skip
    assert [(p.shape, p.dtype) for p in model.outputs] == [
        ((2, 3), "float32"), ((2, 3), "float32"), ((3,), "int64"), ((3,), "int64")
    ]  # fmt: skip
    assert len({p.name for p in model.outputs}) == len({p.tensor for p in model.outputs}) == 4
    assert model.name == "Mixed" and "Mixed" in model.source
    y, other, doubled = module(x, {"z": z})
    got = evaluate(model.graph, [x.numpy(), z.numpy()])
    for a, b in zip(got, (y, other["same"], z, doubled), strict=True):
        assert np.allclose(a, b.detach().numpy(), atol=1e-6)


def test_weights_are_named_and_share_their_memory() -> None:
    module = Mixed()
    model = at.import_torch(exported(module, torch.randn(2, 4), {"z": torch.zeros(3)}))
    values = model.graph.values
    assert {"inner_weight", "inner_bias", "shift", "kept"} <= set(values)
    assert np.shares_memory(values["inner_weight"], module.inner.weight.detach().numpy())
    assert {o.split("/")[0] for o in model.graph.origins.values()} >= {"inner"}


@pytest.mark.slow
def test_what_is_known_is_computed_and_weights_are_no_literals() -> None:
    class Known(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, by: float) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.tensor(by))

        def forward(self, x: Any) -> Any:
            places = torch.arange(5) * 2 + 1
            return x * places * self.by + torch.full((5,), 3.0) ** 2

    models = [compared(Known(by), torch.randn(2, 5)) for by in (1.0, 2.0)]
    assert [sorted(m.graph.values) for m in models] == [["by", "mul"]] * 2 or len(models[0].graph.values) == 2
    assert models[0].graph.dag == models[1].graph.dag  # the value of a weight is not in an expression
    (places,) = [v for n, v in models[0].graph.values.items() if n != "by"]
    assert places.tolist() == [1, 3, 5, 7, 9]


def test_tied_weights_are_one_constant() -> None:
    class Tied(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Any) -> Any:
            return self.b(self.a(x))

    assert len(compared(Tied(), torch.randn(3, 4)).graph.values) == 1


@pytest.mark.parametrize(
    "dtype", ["bfloat16", *(pytest.param(d, marks=pytest.mark.soak) for d in ("float16", "float64"))]
)
def test_other_dtypes_of_weights(dtype: str) -> None:
    module = nn.Sequential(nn.Linear(8, 5), nn.ReLU()).to(getattr(torch, dtype))
    x = torch.randn(3, 8).to(getattr(torch, dtype))
    compared(module, x, rtol={"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-12}[dtype])


SLOW = [pytest.param(n, marks=pytest.mark.soak) for n in networks.NETWORKS if n not in ("resnet18", "vit")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "vit", *SLOW])
def test_a_small_network_is_what_torch_computes(name: str) -> None:
    module, inputs, _ = networks.network(name, **networks.SMALL[name])
    compared(module, *inputs)


def test_known_tensors_are_strided_as_they_are_in_the_program() -> None:
    """Where all elements are one number, none is stored more than once here."""

    class Strided(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            ones = torch.ones_like(x)
            places = torch.arange(12).reshape(3, 4).t().contiguous().t()
            return x[:2, :3] + ones.as_strided((2, 3), (4, 1), 1) * places.as_strided((2, 3), (1, 3), 2)

    compared(Strided(), torch.randn(3, 4))


@pytest.mark.slow
@pytest.mark.parametrize("norm_first", [False, True])
def test_whole_layers_of_a_transformer_are_what_torch_computes(norm_first: bool) -> None:
    """The operators that the modules of torch call in evaluation, and an export does not: torch.compile
    does."""
    layer = nn.TransformerEncoderLayer(
        8, 2, 12, batch_first=True, activation="gelu" if norm_first else "relu", norm_first=norm_first
    )
    a, names = layer.self_attn, ("norm1", "norm2", "linear1", "linear2")
    rest = [t for n in names for t in (getattr(layer, n).weight, getattr(layer, n).bias)]
    own = (a.in_proj_weight, a.in_proj_bias, a.out_proj.weight, a.out_proj.bias)
    columns = torch.tensor([[False, True, False], [True, True, True]])  # the second sees nothing
    rows = torch.ones(3, 3).triu(1).bool()
    every = rows.expand(2, 2, 3, 3) | torch.tensor([True, False]).view(2, 1, 1, 1) & torch.eye(3).bool()
    masks = [(None, None), (columns, 1), (rows, 0), (every, 2)]

    def whole(x: Any, mask: Any, kind: int | None) -> Any:
        return torch._transformer_encoder_layer_fwd(
            x, 8, 2, *own, norm_first, norm_first, 1e-5, *rest, mask, kind
        )

    def attended(x: Any, mask: Any, kind: int | None) -> Any:
        return torch._native_multi_head_attention(x, x, x, 8, 2, *own, mask, False, True, kind)[0]

    functions = [lambda x, fn=fn, m=m, k=k: fn(x, m, k) for fn in (whole, attended) for m, k in masks]
    for p in layer.parameters():
        p.requires_grad_(False)
    compared(Many(functions), torch.randn(2, 3, 8))


# --- refusals ---------------------------------------------------------------------------------


class Of(nn.Module):  # type: ignore[misc,name-defined]
    """A function as a module, with a buffer."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("state", torch.zeros(3))

    def forward(self, *xs: Any) -> Any:
        return self.fn(self, *xs)


def refusal(fn: Callable[..., Any], *args: Any, train: bool = False, **how: Any) -> str:
    module = Of(fn)
    program = exported(module, *args, **how)
    if train:
        module.train()
        program = torch.export.export(module, args)
    with pytest.raises(ModelError) as err:
        at.import_torch(program)
    return str(err.value)


def test_all_operators_without_an_expression_are_told_at_once() -> None:
    def fn(self: Any, x: Any) -> Any:
        y = torch.special.i0(x) + torch.linalg.inv(x) + torch.special.i0(x * 2)
        return y.relu(), torch.mode(x)[1], torch.rand(3) + x

    text = refusal(fn, torch.randn(4, 4)[:3, :3])
    assert "torch program Of: " in text and "nodes cannot be imported" in text
    assert "aten.i0.default (2): i0, i0_1: no expression for it" in text
    assert "aten.mode.default (1)" in text
    assert (
        "aten.rand.default (1): rand: it makes random numbers; dropout makes none after module.eval()" in text
    )
    assert text.splitlines()[-1].startswith(
        "export a part of the module without them; or take torch.compile("
    )
    assert "relu" not in text.replace("no_relu", "")  # what only reads them is not blamed


def test_other_things_are_refused_with_the_remedy() -> None:
    for thing in (torch.ones(2), "net.pt2", None):
        with pytest.raises(ModelError, match=r"not a \w+: give torch.export.export\(module.eval\(\)"):
            at.import_torch(thing)


class Scaled(nn.Module):
    """A module whose dropout is without effect in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(4, 3), nn.Dropout()

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.linear(x)) * scale


@pytest.mark.slow
def test_a_module_is_exported_with_its_example_inputs() -> None:
    module, x, scale = Scaled(), torch.randn(2, 4), torch.randn(3)
    module.linear.eval()
    wanted = Scaled.forward(module.eval(), x, scale).detach().numpy()
    module.train()
    module.linear.eval()
    for inputs in ((x, scale), [x, scale], {"x": x, "scale": scale}):
        model = at.import_torch(module, inputs)
        (got,) = evaluate(model.graph, [x.numpy(), scale.numpy()])
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
        assert module.training and module.dropout.training and not module.linear.training, "as it was"
    alone = at.import_torch(nn.ReLU(), x)
    assert [t.shape for t in alone.inputs] == [(2, 4)]


def test_a_module_without_fitting_inputs_is_refused_with_the_remedy() -> None:
    module = Scaled()
    with pytest.raises(ModelError, match=r"needs example inputs of a module: import_torch\(module, \(x,\)\)"):
        at.import_torch(module)
    with pytest.raises(ModelError, match="torch cannot export the Scaled: "):
        at.import_torch(module, (torch.randn(2, 4),))
    assert module.training
    with pytest.raises(ModelError, match="an exported program has its inputs; leave out inputs="):
        at.import_torch(exported(nn.ReLU(), torch.ones(2)), (torch.ones(2),))
    with pytest.raises(at.WorkloadError, match="Linear is a model of torch: tune it with autotune"):
        at.tune(nn.Linear(2, 2))


@pytest.mark.slow
def test_a_batch_norm_in_training_is_refused_with_the_remedy() -> None:
    text = refusal(lambda self, x: self.norm(x), torch.randn(4, 3), train=True)
    assert "norm" in text and "it is in training: export module.eval()" in text


def test_dtypes_that_are_not_supported_are_named() -> None:
    assert "input 'xs_0' is complex64, which is not supported" in refusal(
        lambda self, x: x.real + 1, torch.ones(3, dtype=torch.complex64)
    )
    assert "uint64, which is not supported" in refusal(lambda self, x: x.to(torch.uint64), torch.ones(3))


def test_training_is_refused() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    program = torch.export.export(module.train(), (torch.randn(2, 3),))
    with pytest.raises(ModelError, match=r"aten\.\w+\.default \(1\): 1/\w+: it makes random numbers"):
        at.import_torch(program)


def test_sizes_that_depend_on_data_are_refused() -> None:
    assert "depends on data" in refusal(lambda self, x: torch.nonzero(x) + 1, torch.ones(3))
    assert "on data" in refusal(lambda self, x: x[x > 0], torch.ones(3))


# --- known index lists after a sum with a constant --------------------------------------------


class Listed(nn.Module):  # type: ignore[misc,name-defined]
    """A linear layer whose reshaped columns are taken by a list."""

    def __init__(self, take: Callable[[Any], Any]) -> None:
        super().__init__()
        self.inner, self.take = whole_linear(12, 48), take

    def forward(self, x: Any) -> Any:
        return self.take(self.inner(x))


class FusedHeads(nn.Module):  # type: ignore[misc,name-defined]
    """Attention as Falcon has it: groups of queries and one key and value each, in one product."""

    def __init__(self, kv_heads: int, groups: int, dim: int) -> None:
        super().__init__()
        self.shape = kv_heads, groups + 2, dim
        self.qkv = whole_linear(12, kv_heads * (groups + 2) * dim)

    def forward(self, x: Any) -> Any:
        batch, length, _ = x.shape
        qkv = self.qkv(x).view(batch, length, *self.shape)
        query, key, value = qkv[:, :, :, :-2], qkv[:, :, :, [-2]], qkv[:, :, :, [-1]]
        key, value = torch.broadcast_to(key, query.shape), torch.broadcast_to(value, query.shape)
        query, key, value = (v.flatten(2, 3).transpose(1, 2) for v in (query, key, value))
        return (query @ key.transpose(2, 3)) @ value


def whole_linear(inputs: int, outputs: int) -> Any:
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randint(-2, 3, p.shape))
    return layer


@pytest.mark.fast("<lambda>0")
@pytest.mark.parametrize(
    "take",
    [
        lambda y: y.view(2, 9, 6, 8)[:, :, [2, 0, 5, -1]],
        lambda y: y.view(2, 9, 6, 8)[:, :, [2, 0, 5, -1]][..., [1, 7, 3]],
        lambda y: torch.relu(y).view(18 * 6, 8)[[2, 0, 5, 100, -1]] + 1,
        lambda y: y.view(2, 9, 6, 8)[:, :, [2, 0]] + y.view(2, 9, 6, 8)[:, :, [1, 1]],
        lambda y: y.view(2, 9, 6, 8).permute(2, 0, 1, 3)[[3, 1]].reshape(2, -1)[:, [5, 0, 9]],
        lambda y: y.view(2, 9, 6, 8)[:, [0, 8], [5, -6]],
    ],
)
def test_known_index_lists_of_a_reshaped_axis(take: Callable[[Any], Any]) -> None:
    optimized(Listed(take), torch.randint(-2, 3, (2, 9, 12)).float())


@pytest.mark.slow
def test_heads_that_are_taken_from_one_product_by_lists() -> None:
    for shape in ((2, 3, 4), (1, 5, 2), (3, 1, 4)):
        optimized(FusedHeads(*shape), torch.randint(-2, 3, (2, 5, 12)).float())


def optimized(module: Any, x: Any) -> None:
    """The rewritten graph of a module gives the module's own bits."""
    graph = optimize(at.import_torch(exported(module.eval(), x)).graph)
    np.testing.assert_array_equal(evaluate(graph, [x.numpy()])[0], module(x).detach().numpy())
