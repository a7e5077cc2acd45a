"""Programs of torch that were exported with ``dynamic_shapes=``: one model for every size of a range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from needs import imported
from open_models import computed
from torch_cases import Of, arrays, exported

import autotune as at
from autotune.errors import ModelError
from autotune.models.model import Model
from schedules.graph.optimize import optimize
from schedules.te.open_sizes import OpenSize

torch = imported("torch")
nn, F, Dim = torch.nn, torch.nn.functional, torch.export.Dim
Inputs = Callable[..., tuple[Any, ...]]


class Encoder(nn.Module):  # type: ignore[misc,name-defined]
    """A layer of a transformer over tokens, whose mask and places are made of the length of the sequence."""

    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(40, 16), nn.Embedding(32, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
        self.causal = causal

    def forward(self, ids: Any) -> Any:
        n = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n) if self.causal else None
        y = self.layer(self.tokens(ids) + self.places(torch.arange(n)), src_mask=mask)
        return y, y[:, -1], y.mean(1)


def is_right(module: Any, inputs: Inputs, dims: Any, *sizes: tuple[int, ...]) -> Model:
    """The model, which was compared with torch at sizes, before and after the rewrites."""
    module = module.eval()
    model = at.import_torch(exported(module, *inputs(*sizes[0]), dynamic_shapes=dims))
    for graph in (model.graph, optimize(model.graph)):
        for size in sizes:
            xs = inputs(*size)
            with torch.no_grad():
                made = module(*xs)
            want = arrays(*(made if isinstance(made, tuple) else (made,)))
            got = computed(replace(model, graph=graph), arrays(*xs))
            for a, b in zip(got, want, strict=True):
                assert a.shape == b.shape and np.allclose(a, b, atol=2e-6), size
    return model


def test_a_batch_is_open() -> None:
    mlp = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    model = is_right(mlp, lambda b: (torch.randn(b, 8),), ({0: Dim("b", max=20)},), (7,), (1,), (2,), (20,))
    assert model.graph.dag.open is not None
    assert model.graph.dag.open.sizes == (OpenSize("input_0", 1, 20),)
    assert [(x.of, x.at) for x in model.graph.dag.open.inputs] == [(0, 0)]
    assert model.inputs[0].shape == (20, 8) and model.outputs[0].shape == (20, 3)


def test_expressions_of_a_size_are_extents_values_and_indices() -> None:
    def fn(x: Any) -> Any:
        n = x.shape[0]
        doubled = torch.cat([x, x + 1.0])
        far = torch.arange(n)[:, None] - torch.arange(n)[None]
        near = F.softmax(x @ x.T + torch.where(far.abs() < 3, 0.0, -1e9) + far * 0.5, -1) @ x
        return doubled, near, x[-1], x.mean(0), F.pad(x, (0, 0, 2, 0)), x.reshape(-1)

    dims = ({0: Dim("n", max=16)},)
    model = is_right(Of(fn), lambda n: (torch.randn(n, 3),), (dims,), (7,), (1,), (2,), (5,), (16,))
    assert [p.shape[0] for p in model.outputs] == [32, 16, 3, 3, 18, 48]


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_a_sequence_is_open(causal: bool) -> None:
    def ids(n: int) -> Any:
        return (torch.randint(0, 40, (2, n)),)

    model = is_right(Encoder(causal), ids, ({1: Dim("n", max=32)},), (7,), (1,), (2,), (19,), (32,))
    assert (
        sum(v.size == 32 * 32 for v in model.graph.values.values()) == causal
    )  # the mask of the largest size


@pytest.mark.slow
def test_batch_and_sequence_are_open_together() -> None:
    """An attention layer has both in one axis, which is taken apart."""

    def ids(b: int, n: int) -> Any:
        return (torch.randint(0, 40, (b, n)),)

    dims = ({0: Dim("b", max=4), 1: Dim("n", max=32)},)
    is_right(Encoder(), ids, dims, (3, 7), (1, 1), (2, 5), (4, 32), (1, 32), (4, 1))


@pytest.mark.slow
def test_layers_of_all_kinds_are_open() -> None:
    conv = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip
    batch = ({0: Dim("b", max=9)},)
    is_right(conv, lambda b: (torch.randn(b, 3, 10, 10),), batch, (5,), (1,), (2,), (9,))
    tokens = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 4))
    is_right(tokens, lambda b: (torch.randint(0, 20, (b,)),), batch, (5,), (1,), (9,))
    middle = ({1: Dim("n", max=33)},)
    is_right(nn.LayerNorm(8), lambda n: (torch.randn(3, n, 8),), middle, (7,), (1,), (33,))
    is_right(nn.Softmax(1), lambda n: (torch.randn(3, n),), middle, (7,), (1,), (33,))
    recurrent = nn.LSTM(4, 4)
    steps = Of(lambda x: recurrent(x)[0])
    is_right(steps, lambda b: (torch.randn(3, b, 4),), ((middle[0],),), (7,), (2,), (33,))


def refused(fn: Callable[..., Any], *args: Any, largest: int | None = None, **dims: Any) -> str:
    program = exported(Of(fn), *args, dynamic_shapes=((tuple(dims.values())),))
    with pytest.raises(ModelError) as err:
        at.import_torch(program, largest=largest)
    return str(err.value)


def test_a_size_without_a_largest_one_is_named() -> None:
    text = refused(lambda x: x + 1, torch.randn(4, 3), x={0: Dim("b")})
    assert "dimension 0 of input 'xs_0' has no largest size: give one in the export" in text
    assert 'torch.export.Dim("n", max=512)' in text and "import_torch(exported, largest=512)" in text
    program = exported(Of(lambda x: x + 1), torch.randn(4, 3), dynamic_shapes=(({0: Dim("b")},),))
    assert at.import_torch(program, largest=32).inputs[0].shape == (32, 3)


def test_numbers_that_a_call_tells_are_refused() -> None:
    text = refused(lambda x, k: x * k, torch.randn(4, 3), 3, x={0: Dim("b", max=8)}, k=Dim.DYNAMIC)
    assert "input 'xs_1' is a number that each call tells, and no size of a tensor" in text


def test_what_cannot_be_open_is_told_by_node() -> None:
    batch = {0: Dim("b", max=64)}
    text = refused(lambda x: x.median(0)[0], torch.randn(7, 3), x=batch)
    assert "the size xs_0_0 (1 to 64) cannot stay open:\n  node median: the number " in text
    assert text.splitlines()[-1].startswith("give the export another range")
    text = refused(lambda x: x * x.shape[0] ** 0.5, torch.randn(7, 3), x=batch)
    assert "node mul: it computes with the number" in text and "which depends on a size otherwise" in text
    text = refused(lambda x: (x, x.shape[0]), torch.randn(7, 3), x=batch)
    assert "what it takes or returns beside tensors depends on a size" in text
    text = refused(lambda x: x * torch.arange(x.shape[0] - 1, -1, -1)[:, None], torch.randn(7, 3), x=batch)
    assert ": the elements of its constant" in text and "not the first ones of those" in text


@pytest.mark.parametrize(
    "f, least, most, at_end",
    [
        (lambda x: x.sum(0) + torch.zeros(max(x.shape[0], 2), 3), 1, 20, 1),
        (lambda x: x.sum(0) + torch.zeros(max(x.shape[0], 10), 3), 8, 40, 8),
        (lambda x: x.sum(0) * min(x.shape[0], 23), 1, 24, 24),
    ],
    ids=["two", "least", "largest"],
)
def test_numbers_that_are_others_at_an_end_alone_are_refused(
    f: Any, least: int, most: int, at_end: int
) -> None:
    class Ends(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return f(x)

    dims = ({0: Dim("n", min=least, max=most)},)
    program = exported(Ends(), torch.randn(12, 3), dynamic_shapes=dims)
    with pytest.raises(ModelError, match=f"at x_0 = {at_end} it has other numbers than between the ends"):
        at.import_torch(program)
