"""Recurrent networks of a known number of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autotune.models.lowering import functions as f
from autotune.models.lowering import recurrent as rec
from autotune.models.lowering.base import UnsupportedForm
from autotune.models.lowering.movement import part, reshape, transpose
from autotune.models.onnx_ops.table import OnnxNode, Value, onnx_op
from schedules import te
from schedules.expr import Expr

# {operator: (gates, functions by default)}.
_KINDS = {"RNN": (1, ["Tanh"]), "GRU": (3, ["Sigmoid", "Tanh"]), "LSTM": (4, ["Sigmoid", "Tanh", "Tanh"])}

# {function: (its value with alpha and beta, defaults of both)}.
_FUNCTIONS: dict[str, tuple[Callable[[Expr, float, float], Expr], float, float]] = {
    "relu": (lambda x, a, b: f.relu(x), 0, 0),
    "tanh": (lambda x, a, b: te.tanh(x), 0, 0),
    "sigmoid": (lambda x, a, b: te.sigmoid(x), 0, 0),
    "affine": (lambda x, a, b: x * a + b, 1, 0),
    "leakyrelu": (lambda x, a, b: f.leaky_relu(x, a), 0.01, 0),
    "thresholdedrelu": (lambda x, a, b: f.thresholded_relu(x, a), 1, 0),
    "scaledtanh": (lambda x, a, b: te.tanh(x * b) * a, 1, 1),
    "hardsigmoid": (lambda x, a, b: f.hard_sigmoid(x, a, b), 0.2, 0.5),
    "elu": (lambda x, a, b: f.elu(x, a), 1, 0),
    "softsign": (lambda x, a, b: f.softsign(x), 0, 0),
    "softplus": (lambda x, a, b: f.softplus(x), 0, 0),
}
_WITH_ALPHA = {
    "affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu",
}  # fmt: skip
_WITH_BETA = {"affine", "scaledtanh", "hardsigmoid"}


def _functions(node: OnnxNode, directions: int) -> list[rec.Fn]:
    """Of all directions. alpha and beta are listed for the functions that have one."""
    default = _KINDS[node.op][1] * directions
    names = [str(n).lower() for n in node.attr("activations") or default]
    if len(names) < len(default):
        raise ValueError(f"{len(names)} activations for {directions} directions")
    names = names[: len(default)]  # the schema of RNN has one too many
    alphas, betas = list(node.attr("activation_alpha", [])), list(node.attr("activation_beta", []))
    out: list[rec.Fn] = []
    for name in names:
        if name not in _FUNCTIONS:
            raise UnsupportedForm(f"activation {name} is not supported")
        fn, alpha, beta = _FUNCTIONS[name]
        a = float(alphas.pop(0)) if name in _WITH_ALPHA and alphas else alpha
        b = float(betas.pop(0)) if name in _WITH_BETA and betas else beta
        out.append(lambda x, fn=fn, a=a, b=b: fn(x, a, b))  # type: ignore[misc]
    return out


def _direction(t: te.Tensor, d: int) -> te.Tensor:
    return reshape(part(t, 0, d, 1), t.shape[1:])


def _lengths(node: OnnxNode, lengths: Value | None, steps: int) -> te.Tensor | None:
    """None where every sequence has all steps."""
    if lengths is None or (isinstance(lengths, np.ndarray) and bool((lengths == steps).all())):
        return None
    return node.tensor(lengths)


@onnx_op("RNN", "GRU", "LSTM", since=7)
def _recurrent(
    node: OnnxNode, x: Value, w: Value, r: Value, bias: Value | None = None, lengths: Value | None = None,
    first: Value | None = None, first_cell: Value | None = None, peephole: Value | None = None,
) -> list[te.Tensor | None]:  # fmt: skip
    """Outputs: all states (steps, directions, batch, hidden), the last ones, the last cells."""
    t, ws, rs = node.floats(x), node.tensor(w), node.tensor(r)
    batch_first = bool(node.attr("layout", 0))
    t = transpose(t, (1, 0, 2)) if batch_first else t
    steps, batch, count, n = t.shape[0], t.shape[1], ws.shape[0], rs.shape[2]
    gates, direction = _KINDS[node.op][0], node.attr("direction", "forward")
    if rs.shape[1] != gates * n or count != (2 if direction == "bidirectional" else 1):
        raise ValueError(f"weights of {list(ws.shape)} and {list(rs.shape)} for direction {direction!r}")
    if steps > rec.LONGEST:
        raise UnsupportedForm(f"it has {steps} steps, more than {rec.LONGEST}, each of which has own kernels")
    if node.attr("clip") is not None and node.attr("clip") <= 0:
        raise ValueError(f"clip {node.attr('clip')} is not above 0")
    step = {
        "RNN": rec.plain,
        "GRU": rec.gru(bool(node.attr("linear_before_reset", 0))),
        "LSTM": rec.lstm(bool(node.attr("input_forget", 0))),
    }[node.op]
    fns, each = _functions(node, count), len(_KINDS[node.op][1])
    names = ("h", "c") if node.op == "LSTM" else ("h",)
    starts = {"h": first, "c": first_cell}
    ys: list[te.Tensor] = []
    last: dict[str, list[te.Tensor]] = {name: [] for name in names}
    for d in range(count):
        b = None if bias is None else _direction(node.tensor(bias), d)
        own = rec.Layer(
            _direction(ws, d), _direction(rs, d),
            None if b is None else part(b, 0, 0, gates * n),
            None if b is None else part(b, 0, gates * n, gates * n),
            tuple(fns[d * each : (d + 1) * each]), float(node.attr("clip", 0.0)),
            None if peephole is None else _direction(node.tensor(peephole), d),
            _lengths(node, lengths, steps), direction == "reverse" or d == 1,
        )  # fmt: skip
        y, state = rec.run(
            own,
            t,
            {name: _first(node, starts[name], d, batch, n, t.dtype, batch_first) for name in names},
            step,
        )
        ys.append(y)
        for name in names:
            last[name].append(state[name])
    return _outputs(node, ys, [last[name] for name in names], t.dtype, batch_first)


def _first(
    node: OnnxNode, given: Value | None, d: int, batch: int, n: int, dtype: str, batch_first: bool
) -> te.Tensor:
    if given is None:
        return rec.zeros((batch, n), dtype)
    s = node.tensor(given)
    return _direction(transpose(s, (1, 0, 2)) if batch_first else s, d)


def _outputs(
    node: OnnxNode, ys: list[te.Tensor], last: Sequence[list[te.Tensor]], dtype: str, batch_first: bool
) -> list[te.Tensor | None]:
    """Those that are used."""
    every = rec.directions(ys, dtype) if node.wants(0) else None
    if every is not None and batch_first:
        every = transpose(every, (2, 0, 1, 3))
    out: list[te.Tensor | None] = [every]
    for i, states in enumerate(last):
        made = rec.directions(states, dtype) if node.wants(i + 1) else None
        if made is not None:
            made = transpose(made, (1, 0, 2)) if batch_first else made
        out.append(made)
    return out[: max(len(node.outputs), 1)]
