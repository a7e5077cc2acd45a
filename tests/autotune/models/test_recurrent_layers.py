"""Recurrent layers of torch: one scan for each layer and direction, equal to torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_meaning import evaluate
from needs import imported
from torch_cases import arrays, called, close, compared, exported, ops

import autotune as at
from autotune.errors import ModelError
from autotune.models.preparation import prepared_programs
from autotune.models.torch_import import import_torch

torch = imported("torch")
nn = torch.nn

LAYERS = {
    "lstm": lambda: nn.LSTM(3, 5),
    "lstm of two layers both ways": lambda: nn.LSTM(3, 5, 2, bidirectional=True, batch_first=True),
    "lstm with a projection": lambda: nn.LSTM(3, 5, 2, proj_size=2, bidirectional=True),
    "lstm without biases": lambda: nn.LSTM(3, 5, bias=False),
    "gru": lambda: nn.GRU(3, 5),
    "gru of two layers both ways": lambda: nn.GRU(3, 5, 2, bidirectional=True, bias=False),
    "tanh": lambda: nn.RNN(3, 5, 2),
    "relu": lambda: nn.RNN(3, 5, nonlinearity="relu", bidirectional=True, batch_first=True),
}


pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(not supported with oneDNN|not tuned|assigned during export)"
)


def arguments(layer: Any, x: Any, first: Any = None) -> tuple[Any, tuple[Any, ...]]:
    """The operator of ATen that a layer calls, and its arguments."""
    kind = {"LSTM": "lstm", "GRU": "gru"}.get(
        type(layer).__name__, f"rnn_{getattr(layer, 'nonlinearity', '')}"
    )
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    batch = x.shape[0 if layer.batch_first else 1]
    sizes = [layer.proj_size or layer.hidden_size, layer.hidden_size][: 2 if kind == "lstm" else 1]
    zeros = [torch.zeros(count, batch, n) for n in sizes] if first is None else first
    given = zeros if kind == "lstm" else zeros[0]
    how = (layer.bias, layer.num_layers, 0.0, False, layer.bidirectional, layer.batch_first)
    return getattr(ops, kind).input, (x, given, [w.detach() for w in layer._flat_weights], *how)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    op, args = arguments(LAYERS[name](), torch.randn(4, 2, 3))
    for n, (got, want) in enumerate(zip(called(op, *args), op(*args), strict=True)):
        close(got, want.numpy(), 1e-5, f"result {n}")


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_first_states_are_given(name: str) -> None:
    torch.manual_seed(0)
    op, args = arguments(LAYERS[name](), torch.randn(4, 2, 3), [torch.randn(1, 2, 5), torch.randn(1, 2, 5)])
    for n, (got, want) in enumerate(zip(called(op, *args), op(*args), strict=True)):
        close(got, want.numpy(), 1e-5, f"result {n}")


def test_layers_that_drop_elements_are_refused() -> None:
    op, (x, given, weights, *how) = arguments(LAYERS["lstm"](), torch.randn(4, 2, 3))
    how[2:4] = 0.5, True
    with pytest.raises(ModelError, match=r"drops 0.5 of its elements at random; export module.eval\(\)"):
        called(op, x, given, weights, *how)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm", "gru of two layers both ways", "tanh"])
def test_exported_layers_are_one_scan_each(name: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]()
    model = compared(layer, torch.randn(4, 2, 3))
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    scans = [s for s in model.graph.dag.stages if s.scan]
    assert {s.axes[0].extent for s in scans} == {4}
    assert len([s for s in scans if s.name.split("_")[0] == "h"]) == count


@pytest.mark.slow
def test_a_sequence_without_a_batch() -> None:
    torch.manual_seed(0)
    compared(nn.GRU(3, 5), torch.randn(4, 3))


@pytest.mark.slow
def test_a_layer_is_one_kernel_beside_the_product_of_its_inputs() -> None:
    """However many steps it has. What is shown of the last step is copied."""
    parts = {}
    for steps in (3, 200):
        model = import_torch(exported(nn.LSTM(3, 5), torch.randn(steps, 1, 3)))
        (ready,) = prepared_programs(model)
        parts[steps] = [[(s.reducer is not None, bool(s.scan)) for s in p.dag.stages] for p in ready.parts]
        assert sum(any(s.scan for s in p.dag.stages) for p in ready.parts) == 1
    assert parts[3] == parts[200]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm", "gru of two layers both ways", "tanh"])
def test_compiled_layers_are_right(name: str, tmp_path: Any) -> None:
    """Widths that are no multiple of a vector's, and two rows of a batch."""
    torch.manual_seed(0)
    layer = LAYERS[name]()
    x = torch.randn(9, 2, 3)
    model = import_torch(exported(layer, x))
    net = at.compile_model(model, threads=1, db=tmp_path / "t.db", fallback=True)
    want = evaluate(model.graph, arrays(x))

    def flat(found: Any) -> list[np.ndarray]:
        several = isinstance(found, (tuple, list))
        return [a for f in found for a in flat(f)] if several else [np.asarray(found)]

    for a, b in zip(flat(net(x.numpy())), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
