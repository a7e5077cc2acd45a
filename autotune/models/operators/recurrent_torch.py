"""Recurrent networks of torch: several layers, each in one or two directions, each direction one scan."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.models.operators import functions as f
from autotune.models.operators.axes import reshape
from autotune.models.operators.base import UnsupportedForm
from autotune.models.operators.known import Value
from autotune.models.operators.movement import concat, part, transpose
from autotune.models.operators.node import TorchNode
from autotune.models.operators.recurrent import Fn, Layer, Step, gru, lstm, plain, run
from autotune.models.operators.table import aten
from schedules import te

# {operator: (its step, its functions, gates, names of its states)}. Gates lie as torch has them: i, f, the
# candidate, o of an LSTM; r, z, the candidate of a GRU.
_KINDS: dict[str, tuple[Step, tuple[Fn, ...], int, tuple[str, ...]]] = {
    "lstm": (lstm(order=(0, 3, 1, 2)), (te.sigmoid, te.tanh, te.tanh), 4, ("h", "c")),
    "gru": (gru(True, order=(1, 0, 2)), (te.sigmoid, te.tanh), 3, ("h",)),
    "rnn_tanh": (plain, (te.tanh,), 1, ("h",)),
    "rnn_relu": (plain, (f.relu,), 1, ("h",)),
}


@aten("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")
def _recurrent(
    node: TorchNode, x: te.Tensor, first: Value | Sequence[Value], weights: Sequence[Value], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> list[te.Tensor]:  # fmt: skip
    """Outputs: the states of all steps, then the last ones of all layers and directions, of each state."""
    if train and dropout:
        raise UnsupportedForm(f"it drops {dropout:g} of its elements at random; export module.eval()")
    step, functions, gates, names = _KINDS[node.name]
    count = 2 if bidirectional else 1
    given = [node.tensor(w) for w in weights]
    each = len(given) // (num_layers * count)
    starts = dict(zip(names, first if isinstance(first, (list, tuple)) else [first], strict=True))
    x = transpose(x, (1, 0, 2)) if batch_first else x
    last: dict[str, list[te.Tensor]] = {name: [] for name in names}
    ys: list[te.Tensor] = []
    for n in range(num_layers * count):
        w, r, *rest = given[n * each : (n + 1) * each]
        b, rb = (rest[0], rest[1]) if has_biases else (None, None)
        wr = rest[-1] if each == (5 if has_biases else 3) else None
        layer = Layer(w, r, b, rb, functions, gates, backwards=n % count == 1, projection=wr)
        start = {name: _nth(node.tensor(t), n) for name, t in starts.items()}
        y, state = run(layer, x, start, step)
        for name in names:
            last[name].append(reshape(state[name], (1, *state[name].shape)))
        ys.append(y)
        if len(ys) == count:
            x, ys = concat(ys, 2), []
    y = transpose(x, (1, 0, 2)) if batch_first else x
    return [y, *(concat(last[name], 0) for name in names)]


def _nth(t: te.Tensor, n: int) -> te.Tensor:
    return reshape(part(t, 0, n, 1), t.shape[1:])
