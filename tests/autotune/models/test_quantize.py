"""`quantize`: models of torch and of ONNX in few bits, what it says of them, and what it refuses."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from decoders import Sizes, decoder, imported_of
from graph_meaning import evaluate
from needs import imported
from space_cases import target
from state_models import untuned
from torch_cases import F, torch

import autotune as at
from autotune.errors import ModelError
from autotune.models.operators.known import to_numpy
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition
from schedules.graph.round_weights import Rounding
from schedules.model import Workload
from schedules.ops.rounded_weights import q4_0, q8_0, unpacked
from schedules.space import derive


class Mlp(torch.nn.Module):  # type: ignore[name-defined,misc]
    def __init__(self, dtype: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = torch.nn.Linear(24, 40, dtype=dtype)
        self.down = torch.nn.Linear(40, 24, bias=False, dtype=dtype)

    def forward(self, x: Any) -> Any:
        return x + self.down(F.gelu(self.up(x)))


def mlp(dtype: Any = None) -> tuple[Any, Any]:
    return Mlp(dtype).eval().requires_grad_(False), mlp_model(dtype)


@cache
def mlp_model(dtype: Any) -> Any:
    return imported_of(Mlp(dtype).eval().requires_grad_(False), torch.randn(3, 24, dtype=dtype))


def with_rounded(module: Any, group: int, form: str) -> Any:
    """The module with weights that are widened again, computed in float64."""
    for name, p in module.named_parameters():
        if p.dim() == 2 and "words" not in name:
            w = p.detach().float().numpy()
            both = q8_0(w, group) if form == "int8" else q4_0(w, group)
            p.data = torch.from_numpy(unpacked(*both, group, form))
    return module.double()


def rms(a: Any, b: Any) -> float:
    """The error of ``a`` beside the deviation of ``b``."""
    a, b = (np.asarray(v, np.float64) for v in (a, b))
    return float(np.sqrt(np.mean((a - b) ** 2)) / b.std())


@pytest.mark.parametrize("form", ["int4", "int8"])
def test_results_are_those_of_the_rounded_weights(form: str) -> None:
    module, model = mlp()
    x = torch.randn(3, 24)
    exact = at.quantize(model, weights=form, group=8, activations=None, least=0)
    want = with_rounded(module, 8, form)(x.double()).numpy()
    for graph in (exact.graph, optimize(exact.graph)):
        assert rms(evaluate(graph, [x.numpy()])[0], want) < 1e-6
    quick = at.quantize(model, weights=form, group=8, least=0)
    for graph in (quick.graph, optimize(quick.graph)):
        assert 1e-5 < rms(evaluate(graph, [x.numpy()])[0], want) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("form", ["int4", "int8", "bfloat16", "float16"])
def test_kernels_are_what_the_graph_says(form: str) -> None:
    _, model = mlp()
    made = at.quantize(model, weights=form, group=8, least=0)
    x = torch.randn(3, 24)
    assert rms(untuned(made)(x), evaluate(made.graph, [x.numpy()])[0]) < 1e-3


@pytest.mark.parametrize("form", ["bfloat16", "float16"])
def test_weights_may_be_floats_of_fewer_bits(form: str) -> None:
    module, model = mlp()
    x = torch.randn(3, 24)
    made = at.quantize(model, weights=form, least=0)
    kinds = {n: t.dtype for n, t in made.graph.dag.tensors.items() if n in made.graph.values}
    assert sorted(kinds.values()) == sorted([form, form, "float32"])
    for p in module.parameters():
        p.data = p.data.to(getattr(torch, form)).float() if p.dim() == 2 else p.data
    assert rms(evaluate(optimize(made.graph), [x.numpy()])[0], module(x)) < 1e-6


def test_weights_of_bfloat16_become_few_bits_too() -> None:
    module, model = mlp(dtype=torch.bfloat16)
    made = at.quantize(model, weights="int8", group=8, least=0)
    assert [t.why for t in made.quantized.products] == ["", ""]
    x = torch.randn(3, 24).bfloat16()
    assert rms(evaluate(made.graph, [to_numpy(x)])[0], module(x).float()) < 0.02


def test_it_says_what_became_of_each_product() -> None:
    _, model = mlp()
    made = at.quantize(model, group=8, least=0, keep="down.weight")
    assert model.quantized is None and made.quantized is not None
    lines = repr(made.quantized).split("\n")
    assert lines == [
        "1 of 2 products with weights of int4 in groups of 8, activations of int8: 7.68 KB of weights are "
        "4.56 KB",
        "  up/linear: 40x24",
        "  down/linear_1: keep='down.weight' names it",
    ]
    assert repr(made).endswith("; 1 of 2 products with weights of int4 in groups of 8, activations of int8>")
    assert made.quantized.nbytes == (2 * 960 * 4, 960 // 2 + 120 * 2 + 960 * 4)
    assert made.inputs == model.inputs and made.outputs == model.outputs and made.signature == model.signature


def test_what_is_small_stays() -> None:
    _, model = mlp()
    with pytest.raises(
        ModelError, match=r"up/linear: its 960 weights are fewer than 4096; down/linear_1: its"
    ):
        at.quantize(model, group=8)
    made = at.quantize(model, group=10, least=0)  # 24 numbers have no groups of 10
    assert [t.why for t in made.quantized.products] == [
        "groups of 10 do not divide the 24 numbers of its sum",
        "",
    ]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"weights": "int3"}, r"weights='int3' is not one of 'int4', .*None \(did you mean 'int8'\?\)"),
        ({"activations": "int4"}, "activations='int4' is not one of 'int8', None"),
        ({"scales": "int8"}, "scales='int8' is not one of 'float16', 'bfloat16', 'float32'"),
        ({"weights": None, "activations": None}, "weights=None and activations=None change nothing"),
        ({"group": 0}, "group=0 is no even number from 2 to 16384; give 32"),
        ({"group": 7}, "group=7 is no even number"),
        ({"group": 2.0}, r"group=2\.0 is no even number"),
        ({"group": True}, "group=True is no even number"),
        ({"weights": "int8", "group": -1}, "group=-1 is no number from 1 to 16384"),
        ({"least": -1}, "least=-1 is no number of weights"),
        (
            {"keep": "dwn.weight"},
            r"keep='dwn\.weight' names no weight and no node .*did you mean 'down_weight'",
        ),
        ({"keep": ["up*", "nothing*"]}, r"keep='nothing\*' names no weight"),
        ({"keep": "*"}, r"no product is quantized: up/linear: keep='\*' names it"),
        ({"weights": None}, "it has no product with weights of integers"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], why: str) -> None:
    _, model = mlp()
    with pytest.raises(ModelError, match=why):
        at.quantize(model, **({"least": 0, "group": 8} | options))


def test_other_things_are_refused() -> None:
    module, _ = mlp()
    with pytest.raises(ModelError, match="takes a model, not Mlp: give what at.import_torch"):
        at.quantize(module)
    plain = imported_of(torch.nn.GELU(), torch.randn(3, 4))
    with pytest.raises(ModelError, match="GELU: it has no product with a matrix that is known"):
        at.quantize(plain)


@pytest.mark.slow
def test_products_and_roundings_are_few_kernels() -> None:
    """Queries, keys and values are one product. A norm and the rounding after it are one kernel. Equal layers
    are the same tasks."""
    module = decoder(Sizes(hidden=64, inner=96))
    model = imported_of(module, torch.zeros(1, 1, dtype=torch.int64), torch.tensor([0]))
    made = at.quantize(model, least=0)
    assert all(t.why == "" for t in made.quantized.products)
    groups = [g for g in partition(optimize(made.graph)) if hasattr(g, "dag")]
    sums = [[s.name for s in g.dag.stages if s.outputs[0].dtype == "int32"] for g in groups]
    products = [
        g
        for g, names in zip(groups, sums, strict=True)
        if any("part" in n and "zeros" not in n for n in names)
    ]
    assert len(products) == 4 * 2 + 1  # qkv, o, gate and up, down; and the head
    assert len({Workload(g.dag).digest for g in products}) == 5
    rounding = [g for g in groups if any(t.dtype == "int8" for s in g.dag.stages for t in s.outputs)]
    assert len(rounding) <= 4 * 2 + 1
    assert not any(t.dtype == "int8" for g in products for s in g.dag.stages for t in s.outputs)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["int4", "int8"])
def test_a_decoder_with_a_state_is_near_its_rounded_weights(form: str) -> None:
    """Teacher-forced: the logits of 32 steps beside float64 of the same weights."""
    module = decoder(Sizes(hidden=64, inner=96, words=80, length=40), scale=0.08)
    model = imported_of(module, torch.zeros(1, 1, dtype=torch.int64), torch.tensor([0]))
    run = untuned(at.quantize(model, weights=form, least=0))
    exact = with_rounded(module, 32, form)
    errors, wants = [], []
    for n, token in enumerate(torch.randint(0, 64, (32,))):
        ids, pos = token.view(1, 1), torch.tensor([n])
        have, want = np.asarray(run(ids, pos), np.float64), exact(ids, pos).numpy()
        errors.append(have - want)
        wants.append(want)
        first, second = np.sort(want[0])[::-1][:2]
        if first - second > 4 * 0.03 * want.std():
            assert have.argmax() == want.argmax()
    assert np.sqrt(np.mean(np.square(errors))) <= 0.03 * np.std(wants)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("form", ["int4", "int8"])
def test_spaces_of_products_have_sums_of_sums(form: str, rows: int) -> None:
    """Other orders of axes fill the space with sketches that schedule each sum by itself."""
    module = torch.nn.Linear(128, 96).eval().requires_grad_(False)
    made = at.quantize(imported_of(module, torch.randn(rows, 128)), weights=form, least=0)
    _, product = partition(optimize(made.graph))
    names = derive(product.dag, target(vector_bytes=64)).sketches
    assert any("sums=nested" in n for n in names) and len(names) < 24


@pytest.mark.slow
def test_rows_may_be_open() -> None:
    module = Mlp().eval().requires_grad_(False)
    rows = torch.export.Dim("rows", min=1, max=9)
    model = imported_of(module, torch.randn(4, 24), dynamic_shapes=({0: rows},))
    run = untuned(at.quantize(model, weights="int8", group=8, least=0))
    for n in (1, 2, 9):
        x = torch.randn(n, 24)
        assert rms(run(x), module(x)) < 0.02


def of_bits(x: np.ndarray, known: dict[str, np.ndarray], **attributes: int) -> Any:
    """A model of one MatMulNBits."""
    nets, helper = imported("onnx_models"), imported("onnx.helper")
    node = helper.make_node("MatMulNBits", ["x", *known], ["y"], domain="com.microsoft", **attributes)
    ids = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = nets.model([node], [nets.value("x", x.shape)], ["y"], known, opset_imports=ids)
    model.ir_version = 9
    return model


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_activations_of_packed_weights_of_onnx_are_rounded(bits: int, zeros: bool) -> None:
    """MatMulNBits has the sums that weights of few bits have here."""
    rng = np.random.default_rng(0)
    q = rng.integers(0, 1 << bits, (5, 4, 16)).astype(np.uint8)
    packed = q if bits == 8 else q[..., ::2] | q[..., 1::2] << 4
    scales = rng.random(20).astype(np.float32)
    points = rng.integers(0, 1 << bits, (5, 4)).astype(np.uint8)
    known = {"b": packed, "s": scales}
    if zeros:
        known["z"] = (points if bits == 8 else points[:, ::2] | points[:, 1::2] << 4).reshape(-1)
    x = rng.standard_normal((3, 64)).astype(np.float32)
    model = at.import_onnx(of_bits(x, known, K=64, N=5, bits=bits, block_size=16))
    made = at.quantize(model, weights=None)
    assert repr(made.quantized) == "1 product with activations of int8"
    want = evaluate(model.graph, [x])[0]
    middle = points[..., None] if zeros else 1 << bits - 1
    exact = x @ ((q - 1.0 * middle) * scales.reshape(5, 4, 1)).reshape(5, 64).T
    np.testing.assert_allclose(want, exact, rtol=1e-4, atol=1e-4)
    for graph in (made.graph, optimize(made.graph)):
        assert any(t.dtype == "int8" for s in graph.dag.stages for t in s.outputs)
        assert rms(evaluate(graph, [x])[0], want) < 0.02
    with pytest.raises(ModelError, match="it has no product with weights of integers"):
        at.quantize(model, weights=None, keep="b")


class Intx(torch.nn.Module):  # type: ignore[name-defined,misc]
    """What torchao exports of weights of few bits: a byte each, and zeros of groups."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("q", torch.randint(-8, 8, (5, 64), dtype=torch.int8))
        self.register_buffer("z", torch.randint(-2, 2, (5, 4), dtype=torch.int8))
        self.register_buffer("s", torch.rand(5, 4))

    def forward(self, x: Any) -> Any:
        whole = self.q.view(5, 4, 16).to(torch.int32) - self.z[..., None].to(torch.int32)
        return F.linear(x, (whole.float() * self.s[..., None]).view(5, 64))


def test_weights_of_a_byte_each_are_packed() -> None:
    torch.manual_seed(0)
    module, x = Intx().eval(), torch.randn(3, 64)
    model = imported_of(module, x)
    after = optimize(model.graph)
    assert {n.split("_")[-1]: v.dtype.name for n, v in after.values.items()} == {
        "codes": "int8", "scales": "float32"
    }  # fmt: skip
    np.testing.assert_allclose(evaluate(after, [x.numpy()])[0], module(x), rtol=1e-5, atol=1e-4)
    assert rms(evaluate(at.quantize(model, weights=None).graph, [x.numpy()])[0], module(x)) < 0.02


def test_two_steps_are_one() -> None:
    _, model = mlp()
    weights = at.quantize(model, group=8, activations=None, least=0)
    both = at.quantize(weights, weights=None)
    assert Workload(both.graph.dag).digest == Workload(at.quantize(model, group=8, least=0).graph.dag).digest


def test_one_weight_at_a_time_is_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of weights that are made of others, one value is there at a time."""
    import weakref

    from schedules.graph.constant_products import KnownTensors

    live: list[Any] = []
    real = KnownTensors.value

    def value(self: Any, name: str) -> Any:
        assert not any(ref() is not None for ref in live), "an earlier weight is still there"
        made = real(self, name)
        if name not in self.graph.values:
            live.append(weakref.ref(made))
        return made

    class Scaled(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (torch.nn.Parameter(torch.randn(24, 24)) for _ in range(2))
            self.s = torch.nn.Parameter(torch.rand(24))

        def forward(self, x: Any) -> Any:
            return x @ (self.a * self.s) @ (self.b * self.s)

    monkeypatch.setattr(KnownTensors, "value", value)
    made = at.quantize(imported_of(Scaled().eval(), torch.randn(2, 24)), group=8, least=0)
    assert len(live) == 2 and [t.constants for t in made.quantized.products] == [("a", "s"), ("b", "s")]
    assert Rounding("int8").group == 32
