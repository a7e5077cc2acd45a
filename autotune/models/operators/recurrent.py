"""Recurrent networks: one product for the inputs of all steps, then a scan.

A layer goes over x (steps, batch, in) and gives its states as (steps, batch, hidden), and the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from autotune.models.operators import functions as f
from autotune.models.operators.axes import reshape
from autotune.models.operators.base import UnsupportedForm, cast, number, stage
from autotune.models.operators.indexing import reverse_sequence
from autotune.models.operators.known import KnownTensor, Value
from autotune.models.operators.movement import concat, part, transpose
from autotune.models.operators.node import OnnxNode
from autotune.models.operators.table import Floats, onnx_op
from schedules import te
from schedules.dtypes import computed
from schedules.expr import Expr

Fn = Callable[[Expr], Expr]


@dataclass(frozen=True)
class Layer:
    """One direction of a layer. ``w`` (gates · hidden, in) and ``r`` (gates · hidden, shown) are the weights
    of inputs and of states; ``b`` and ``rb`` (gates · hidden,) are added to their products. ``functions``: of
    the gates, of the candidate, of the cell. ``gates``: how many, with the candidate. ``clip``: bound of what
    functions are given, 0 for none. ``peephole`` (3 · hidden,): of the gates i, o, f by the cell. ``lengths``
    (batch,): steps of each sequence. ``backwards``: from the last step to the first. ``projection`` (shown,
    hidden): a factor of the states "h", which are of its size."""

    w: te.Tensor
    r: te.Tensor
    b: te.Tensor | None
    rb: te.Tensor | None
    functions: tuple[Fn, ...]
    gates: int
    clip: float = 0.0
    peephole: te.Tensor | None = None
    lengths: te.Tensor | None = None
    backwards: bool = False
    projection: te.Tensor | None = None

    @property
    def hidden(self) -> int:
        return self.r.shape[0] // self.gates


States = dict[str, te.Tensor]
# step(what the steps have in common, what all inputs give, the states): the next states, "h" and others.
Step = Callable[["_Steps", te.Tensor, States], States]


class _Steps:
    """What the stages of a step have in common: their first axis is that of the scan."""

    def __init__(self, layer: Layer, x: te.Tensor) -> None:
        self.layer, self.steps, self.batch, self.n = layer, x.shape[0], x.shape[1], layer.hidden
        self.dtype = x.dtype
        # backwards over sequences of different lengths each is turned around instead
        self.reverse = layer.backwards and layer.lengths is None
        self.weights = transpose(layer.r, (1, 0))  # columns lie side by side, as the gates of a step do

    def before(self, state: te.Tensor, t: Expr, b: Expr, j: Expr) -> Expr:
        """An element of a state as the step before left it."""
        return state[t + 1 if self.reverse else t - 1, b, j]

    def bounded(self, v: Expr) -> Expr:
        by = self.layer.clip
        return te.maximum(te.minimum(v, by), -by) if by else v

    def product(self, h: Callable[[Expr, Expr, Expr], Expr], first: int = 0, count: int = 0) -> te.Tensor:
        """A state times columns of the weights from gate ``first`` on."""
        columns = (count or self.weights.shape[1] // self.n - first) * self.n
        k, r = te.reduce_axis(self.weights.shape[0], "k"), self.weights

        def value(t: Expr, b: Expr, j: Expr) -> te.Reduction:
            return te.sum(h(t, b, k) * r[k, j + first * self.n], axis=k)

        return stage((self.steps, self.batch, columns), value, "dot")

    def added(self, i: Expr) -> Expr:
        """What is added to the product of states."""
        rb = self.layer.rb
        return number(0, self.dtype) if rb is None else te.cast(rb[i], computed(self.dtype))

    def next(self, old: te.Tensor, value: Callable[[Expr, Expr, Expr], Expr], name: str) -> te.Tensor:
        """What a step stores in a state: a value, or what was there, where a sequence has ended."""
        n = self.layer.lengths

        def stored(t: Expr, b: Expr, j: Expr) -> Expr:
            new = te.cast(value(t, b, j), self.dtype)
            return new if n is None else te.select(te.cast(t, n.dtype) < n[b], new, self.before(old, t, b, j))

        return stage((self.steps, *old.shape[1:]), stored, name)

    def projected(self, h: te.Tensor, p: te.Tensor) -> te.Tensor:
        """A state times the weights of what a layer shows."""
        k = te.reduce_axis(self.n, "k")
        return stage((*h.shape[:2], p.shape[0]), lambda t, b, j: te.sum(p[j, k] * h[t, b, k], axis=k), "dot")


def run(layer: Layer, x: te.Tensor, start: States, step: Step) -> tuple[te.Tensor, States]:
    """(the states "h" of all steps, the last state). ``start``: the first state, of (batch, hidden) each.
    Raises ValueError for shapes that do not fit."""
    steps, batch, n = x.shape[0], x.shape[1], layer.hidden
    if layer.w.shape[1] != x.shape[2] or layer.w.shape[0] != layer.r.shape[0]:
        raise ValueError(f"weights of {list(layer.w.shape)} and {list(layer.r.shape)} for {list(x.shape)}")
    for name, first in start.items():
        own = n if layer.projection is None or name != "h" else layer.projection.shape[0]
        if first.shape != (batch, own):
            raise ValueError(f"the first state {name} is of {list(first.shape)}, not {[batch, own]}")
    common = _Steps(layer, x)
    lengths = layer.lengths
    turned = lengths if layer.backwards else None
    given = x if turned is None else reverse_sequence(x, turned, 1, 0)
    k, w, b = te.reduce_axis(x.shape[2], "k"), layer.w, layer.b

    def products(t: Expr, i: Expr, j: Expr) -> te.Reduction:
        return te.sum(given[t, i, k] * w[j, k], axis=k)

    inputs = stage((steps, batch, w.shape[0]), products, "dot")
    if b is not None:
        dot = inputs
        inputs = stage(dot.shape, lambda t, i, j: dot[t, i, j] + b[j], "inputs")
    states = {
        name: te.state((steps, *first.shape), x.dtype, partial(_first, first), 0, name, common.reverse)
        for name, first in start.items()
    }
    made = step(common, inputs, states)
    every = dict(zip(made, te.scan([states[s] for s in made], [*made.values()]), strict=True))
    last = 0 if common.reverse else steps - 1
    state = {name: reshape(part(t, 0, last, 1), t.shape[1:]) for name, t in every.items()}
    y = every["h"]
    if lengths is not None:
        y = _shown(y, lengths)
    return (y if turned is None else reverse_sequence(y, turned, 1, 0)), state


def _first(start: te.Tensor, t: Expr, b: Expr, j: Expr) -> Expr:
    """A state before the first step."""
    return start[b, j]


def _shown(h: te.Tensor, lengths: te.Tensor) -> te.Tensor:
    """The states of all steps, 0 where a sequence has ended."""
    zero = te.const(0, h.dtype)

    def value(t: Expr, b: Expr, j: Expr) -> Expr:
        return te.select(te.cast(t, lengths.dtype) < lengths[b], h[t, b, j], zero)

    return stage(h.shape, value, "shown")


# --- cells ------------------------------------------------------------------------------------


def plain(s: _Steps, x: te.Tensor, states: States) -> States:
    """f(x + R·h) (Elman, Finding structure in time, 1990)."""
    (f,) = s.layer.functions
    h = states["h"]
    dot = s.product(partial(s.before, h))

    def value(t: Expr, b: Expr, j: Expr) -> Expr:
        return f(s.bounded(x[t, b, j] + dot[t, b, j] + s.added(j)))

    return {"h": s.next(h, value, "h")}


def lstm(input_forget: bool = False, order: Sequence[int] = (0, 1, 2, 3)) -> Step:
    """Hochreiter and Schmidhuber, Long short-term memory, 1997; peepholes: Gers and Schmidhuber, 2000.
    ``order``: the places of the gates i, o, f and of the candidate. ``input_forget``: f is 1 - i."""

    def step(s: _Steps, x: te.Tensor, states: States) -> States:
        f, g, h = s.layer.functions
        n, p, cell = s.n, s.layer.peephole, states["c"]
        dot = s.product(partial(s.before, states["h"]))

        def gate(nth: int, fn: Fn, at_step: Sequence[Expr], of: Expr | None = None) -> Expr:
            t, b, j = at_step
            at = j + order[nth] * n
            v = x[t, b, at] + dot[t, b, at] + s.added(at)
            if of is not None and p is not None:
                v = v + p[j + nth * n] * of
            return fn(s.bounded(v))

        def next_cell(*at: Expr) -> Expr:
            old = s.before(cell, *at)
            i = gate(0, f, at, old)
            forget = 1.0 - i if input_forget else gate(2, f, at, old)
            return forget * old + i * gate(3, g, at)

        def next_state(*at: Expr) -> Expr:
            return gate(1, f, at, new[at]) * h(new[at])

        new = s.next(cell, next_cell, "c")
        if s.layer.projection is None:
            return {"h": s.next(states["h"], next_state, "h"), "c": new}
        whole = stage(new.shape, lambda *at: te.cast(next_state(*at), s.dtype), "whole")
        small = s.projected(whole, s.layer.projection)
        return {"h": s.next(states["h"], lambda *at: small[at], "h"), "c": new}

    return step


def gru(linear_before_reset: bool, order: Sequence[int] = (0, 1, 2)) -> Step:
    """Cho et al., Learning phrase representations, 2014. ``order``: the places of the gates z, r and of the
    candidate. ``linear_before_reset``: r is a factor of the product R·h, not of h."""

    def step(s: _Steps, x: te.Tensor, states: States) -> States:
        f, g = s.layer.functions
        n, h = s.n, states["h"]
        before = partial(s.before, h)
        dot = s.product(before, 0, 3 if linear_before_reset else 2)

        def gate(nth: int, t: Expr, b: Expr, j: Expr) -> Expr:
            at = j + order[nth] * n
            return f(s.bounded(x[t, b, at] + dot[t, b, at] + s.added(at)))

        if linear_before_reset:

            def candidate(t: Expr, b: Expr, j: Expr) -> Expr:
                at = j + order[2] * n
                return g(s.bounded(x[t, b, at] + gate(1, t, b, j) * (dot[t, b, at] + s.added(at))))

        else:
            reset = stage(
                (s.steps, s.batch, n), lambda *at: te.cast(gate(1, *at) * before(*at), s.dtype), "reset"
            )
            third = s.product(lambda *at: reset[at], 2)

            def candidate(t: Expr, b: Expr, j: Expr) -> Expr:
                return g(s.bounded(x[t, b, j + 2 * n] + third[t, b, j] + s.added(j + 2 * n)))

        def next_state(*at: Expr) -> Expr:
            z = gate(0, *at)
            return (1.0 - z) * candidate(*at) + z * before(*at)

        return {"h": s.next(h, next_state, "h")}

    return step


def zeros(shape: Sequence[int], dtype: str) -> te.Tensor:
    return stage(shape, lambda *at: te.const(0, dtype), "zeros")


def directions(ys: Sequence[te.Tensor], dtype: str) -> te.Tensor:
    """One after the other along a new axis in front of the last two."""
    return concat(
        [cast(reshape(y, (*y.shape[:-2], 1, *y.shape[-2:])), dtype) for y in ys], len(ys[0].shape) - 2
    )


# --- rows -------------------------------------------------------------------------------------

# {operator: (gates, functions by default, names of its states)}.
_KINDS = {
    "RNN": (1, ["Tanh"], ("h",)), "GRU": (3, ["Sigmoid", "Tanh"], ("h",)),
    "LSTM": (4, ["Sigmoid", "Tanh", "Tanh"], ("h", "c")),
}  # fmt: skip

# {function: (its value, with alpha and beta if it has them; their defaults)}.
_FUNCTIONS: dict[str, tuple[Callable[..., Expr], tuple[float, ...]]] = {
    "relu": (f.relu, ()),
    "tanh": (te.tanh, ()),
    "sigmoid": (te.sigmoid, ()),
    "affine": (lambda x, a, b: x * a + b, (1, 0)),
    "leakyrelu": (f.leaky_relu, (0.01,)),
    "thresholdedrelu": (f.thresholded_relu, (1,)),
    "scaledtanh": (lambda x, a, b: te.tanh(x * b) * a, (1, 1)),
    "hardsigmoid": (f.hard_sigmoid, (0.2, 0.5)),
    "elu": (f.elu, (1,)),
    "softsign": (f.softsign, ()),
    "softplus": (f.softplus, ()),
}


def _functions(node: OnnxNode, directions: int) -> list[Fn]:
    """Of all directions. alpha and beta are listed for the functions that have one."""
    given = node.attributes
    default = _KINDS[node.op][1] * directions
    names = [str(n).lower() for n in given.get("activations") or default]
    if len(names) < len(default):
        raise ValueError(f"{len(names)} activations for {directions} directions")
    left = [list(given.get(n) or []) for n in ("activation_alpha", "activation_beta")]
    out: list[Fn] = []
    for name in names[: len(default)]:  # the schema of RNN has one too many
        if name not in _FUNCTIONS:
            raise UnsupportedForm(f"activation {name} is not supported")
        fn, defaults = _FUNCTIONS[name]
        own = [float(row.pop(0)) if row else x for row, x in zip(left, defaults, strict=False)]
        out.append(lambda x, fn=fn, own=own: fn(x, *own))  # type: ignore[misc]
    return out


@onnx_op("RNN", "GRU", "LSTM", since=7)
def _recurrent(
    node: OnnxNode, x: Floats, w: te.Tensor, r: te.Tensor, bias: Value | None = None,
    lengths: Value | None = None, first: Value | None = None, first_cell: Value | None = None,
    peephole: Value | None = None, *, layout: bool = False, direction: str = "forward", clip: float = 0.0,
    linear_before_reset: bool = False, input_forget: bool = False,
) -> list[te.Tensor | None]:  # fmt: skip
    """Outputs: all states (steps, directions, batch, hidden), the last ones, the last cells."""
    x = transpose(x, (1, 0, 2)) if layout else x
    steps, batch, count, n = x.shape[0], x.shape[1], w.shape[0], r.shape[2]
    gates, functions, names = _KINDS[node.op]
    if r.shape[1] != gates * n or count != (2 if direction == "bidirectional" else 1):
        raise ValueError(f"weights of {list(w.shape)} and {list(r.shape)} for direction {direction!r}")
    if "clip" in node.attributes and clip <= 0:
        raise ValueError(f"clip {clip} is not above 0")
    if isinstance(lengths, KnownTensor) and bool((lengths.array() == steps).all()):
        lengths = None  # every sequence has all steps
    step = {"RNN": plain, "GRU": gru(linear_before_reset), "LSTM": lstm(input_forget)}[node.op]
    fns, each = _functions(node, count), len(functions)

    def of(t: te.Tensor, d: int) -> te.Tensor:
        """What belongs to a direction."""
        return reshape(part(t, 0, d, 1), t.shape[1:])

    def start(given: Value | None, d: int) -> te.Tensor:
        if given is None:
            return zeros((batch, n), x.dtype)
        t = node.tensor(given)
        return of(transpose(t, (1, 0, 2)) if layout else t, d)

    ys: list[te.Tensor] = []
    last: dict[str, list[te.Tensor]] = {name: [] for name in names}
    for d in range(count):
        b = None if bias is None else of(node.tensor(bias), d)
        layer = Layer(
            of(w, d), of(r, d), None if b is None else part(b, 0, 0, gates * n),
            None if b is None else part(b, 0, gates * n, gates * n),
            tuple(fns[d * each : (d + 1) * each]), gates, clip,
            None if peephole is None else of(node.tensor(peephole), d),
            None if lengths is None else node.tensor(lengths), direction == "reverse" or d == 1,
        )  # fmt: skip
        starts = dict(zip(("h", "c"), (first, first_cell), strict=True))
        y, state = run(layer, x, {name: start(starts[name], d) for name in names}, step)
        ys.append(y)
        for name in names:
            last[name].append(state[name])
    every = directions(ys, x.dtype) if 0 in node.used else None
    out = [transpose(every, (2, 0, 1, 3)) if every is not None and layout else every]
    for i, name in enumerate(names, 1):
        made = directions(last[name], x.dtype) if i in node.used else None
        out.append(transpose(made, (1, 0, 2)) if made is not None and layout else made)
    return out
