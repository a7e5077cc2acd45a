"""Models of ONNX with dimensions that each call tells."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from needs import imported
from open_models import computed
from torch_cases import arrays

import autotune as at
from autotune.errors import ModelError
from autotune.models.model import Model
from schedules.graph.optimize import optimize

onnx = imported("onnx")
helper, TensorProto = onnx.helper, onnx.TensorProto
numpy_helper = onnx.numpy_helper


def graph(nodes: list[Any], inputs: dict[str, list[Any]], **weights: Any) -> bytes:
    """A model of float32 tensors; the last node makes its output."""
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    last = nodes[-1].output[0]
    out = helper.make_tensor_value_info(last, TensorProto.FLOAT, None)
    held = [numpy_helper.from_array(np.asarray(x), n) for n, x in weights.items()]
    made = helper.make_graph(nodes, "net", ports, [out], held)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def node(op: str, *inputs: str, made: str, **attributes: Any) -> Any:
    return helper.make_node(op, list(inputs), [made], **attributes)


# Rows of heads: shapes are computed from that of the input, as exporters do it.
HEADS = graph(
    [
        node("Shape", "x", made="shape"),
        node("Gather", "shape", "one", made="n"),
        node("Concat", "zero_", "n", "two", "minus", made="split", axis=0),
        node("Reshape", "x", "split", made="heads"),
        node("Transpose", "heads", made="turned", perm=[0, 2, 1, 3]),
        node("Squeeze", "n", made="count"),
        node("Range", "start", "count", "step", made="places"),
        node("Cast", "places", made="far", to=TensorProto.FLOAT),
        node("Unsqueeze", "far", "last", made="column"),
        node("Add", "turned", "column", made="y"),
    ],
    {"x": ["batch", "seq", 8]},
    one=np.array([1]), zero_=np.array([0]), two=np.array([2]), minus=np.array([-1]),
    start=np.array(0), step=np.array(1), last=np.array([1]),
)  # fmt: skip


def heads(x: np.ndarray) -> np.ndarray:
    b, n, _ = x.shape
    return x.reshape(b, n, 2, 4).transpose(0, 2, 1, 3) + np.arange(n, dtype=np.float32)[:, None]


def is_right(model: Model, want: Callable[..., np.ndarray], *shapes: tuple[int, ...]) -> None:
    for g in (model.graph, optimize(model.graph)):
        for shape in shapes:
            x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            (got,) = computed(replace(model, graph=g), [x])
            np.testing.assert_allclose(got, want(x), atol=1e-6)


def test_named_dimensions_are_open() -> None:
    model = at.import_onnx(HEADS, {"batch": 2, "seq": at.dim(1, 24, open=True)})
    assert model.graph.dag.open is not None
    assert [(s.name, s.least, s.most) for s in model.graph.dag.open.sizes] == [("seq", 1, 24)]
    assert model.inputs[0].shape == (2, 24, 8) and model.outputs[0].shape == (2, 2, 24, 4)
    is_right(model, heads, (2, 1, 8), (2, 2, 8), (2, 13, 8), (2, 24, 8))


def test_dimensions_of_an_input_are_open_together() -> None:
    sizes = at.dim(1, 4, "b", open=True), at.dim(2, 24, open=True)
    model = at.import_onnx(HEADS, {"x": (*sizes, 8)})
    assert model.graph.dag.open is not None
    assert [(s.name, s.least, s.most) for s in model.graph.dag.open.sizes] == [("b", 1, 4), ("x_1", 2, 24)]
    is_right(model, heads, (1, 2, 8), (3, 7, 8), (4, 24, 8))


def test_one_size_may_stand_in_several_inputs_and_in_arithmetic() -> None:
    n = at.dim(1, 9, open=True)
    pair = graph([node("Concat", "x", "y", made="z", axis=0)], {"x": ["a", 3], "y": ["b", 3]})
    model = at.import_onnx(pair, {"a": n, "b": n * 2 + 1})
    assert [p.shape[0] for p in (*model.inputs, *model.outputs)] == [9, 19, 28]
    x, y = np.ones((4, 3), np.float32), np.zeros((9, 3), np.float32)
    (got,) = computed(model, [x, y])
    assert np.array_equal(got, np.concatenate([x, y]))


def test_what_cannot_be_open_is_told_with_the_remedy() -> None:
    seq = at.dim(1, 24, open=True)
    with pytest.raises(ModelError, match=r"give autotune.dim\(1, 24\), or a number"):
        at.import_onnx(HEADS, {"batch": 2, "seq": at.dim(1, 24, open=False)})
    with pytest.raises(ModelError, match=r"an extent is 0 where seq is 1: raise the least size to 2"):
        at.import_onnx(HEADS, {"batch": 2, "seq": seq - 1})
    fixed = graph([node("Reshape", "x", "to", made="y")], {"x": ["n", 8]}, to=np.array([7, 8]))
    with pytest.raises(ModelError) as err:
        at.import_onnx(fixed, {"n": seq})
    text = str(err.value)
    assert "(Reshape): " in text and "which the import tries" in text
    assert text.endswith("give that size another range in shapes=, or a number)")
    waves = graph([node("DFT", "x", made="y", axis=1)], {"x": [1, "n", 1]})
    with pytest.raises(ModelError, match=r"the size n \(1 to 64\) cannot stay open:\n  node y: the element"):
        at.import_onnx(waves, {"n": at.dim(1, 64, open=True)})
    with pytest.raises(ModelError, match=r"island .* has fixed sizes"):
        det = graph([node("Det", "x", made="y")], {"x": ["n", 3, 3]})
        at.import_onnx(det, {"n": seq}, islands=True)
    with pytest.raises(ModelError, match="names 'sequence', which is neither an input"):
        at.import_onnx(HEADS, {"batch": 2, "seq": 4, "sequence": seq})


@pytest.mark.slow
def test_exported_modules_agree_with_onnxruntime() -> None:
    ort, torch = imported("onnxruntime"), imported("torch")
    nn, F = torch.nn, torch.nn.functional

    class Attention(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(40, 16), nn.Embedding(32, 16)
            self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

        def forward(self, ids: Any) -> Any:
            b, n = ids.shape
            x = self.tokens(ids) + self.places(torch.arange(n))
            q, k, v = self.qkv(x).view(b, n, 3, 2, 8).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.norm(x + self.out(y.transpose(1, 2).reshape(b, n, 16))).mean(1)

    conv = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(200, 3),
    )
    mlp = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    cases: list[tuple[Any, Callable[[int], Any], int]] = [
        (Attention(), lambda n: torch.randint(0, 40, (2, n)), 1),
        (conv, lambda b: torch.randn(b, 3, 10, 10), 0),
        (mlp, lambda b: torch.randn(b, 8), 0),
        (nn.LayerNorm(8), lambda n: torch.randn(3, n, 8), 1),
        (nn.Softmax(1), lambda n: torch.randn(3, n), 1),
        (nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 4)), lambda b: torch.randint(0, 20, (b,)), 0),
    ]
    for module, inputs, axis in cases:
        file = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module.eval(),
                (inputs(7),),
                file,
                dynamo=False,
                input_names=["x"],
                dynamic_axes={"x": {axis: "n"}},
            )
        session = ort.InferenceSession(file.getvalue())
        model = at.import_onnx(file.getvalue(), {"n": at.dim(1, 32, open=True)})
        for g in (model.graph, optimize(model.graph)):
            for n in (1, 2, 7, 19, 32):
                (x,) = arrays(inputs(n))
                (got,) = computed(replace(model, graph=g), [x])
                np.testing.assert_allclose(got, session.run(None, {"x": x})[0], atol=2e-6)
