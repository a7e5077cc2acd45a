"""Small graphs with states: caches that are written by rows, counters, and several writes of one state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import graph_cases as cases
import numpy as np
from needs import imported

import autotune as at
from autotune.backends import parse
from autotune.models.fallback import run_island
from autotune.models.model import Model
from autotune.models.module import Module
from autotune.models.preparation import prepared
from autotune.models.program import Program
from autotune.run.kernels import default_kernel
from schedules.graph.graph import Graph, GraphState

te = at.te


class StateBuilder(cases.Builder):
    """A `Builder` of graphs with states."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.states: dict[str, tuple[Any, Any]] = {}

    def state(self, name: str, *shape: int, dtype: str = "float32") -> Any:
        t = te.placeholder(shape, dtype, name)
        self.states[name] = (t, None)
        return t

    def becomes(self, name: str, new: Any) -> None:
        self.states[name] = (self.states[name][0], new)

    def model(self, *outputs: Any) -> Graph:
        """The graph of these outputs and the new values of the states."""
        news = [new for _, new in self.states.values()]
        self.inputs += [t for t, _ in self.states.values()]
        every = list(dict.fromkeys((*outputs, *news)))
        graph = self.graph(*every)
        names = dict(zip(every, graph.dag.outputs, strict=True))
        states = {n: GraphState(t.name, names[new]) for n, (t, new) in self.states.items()}
        inputs = tuple(n for n in graph.inputs if n not in self.states)
        return replace(graph, inputs=inputs, outputs=tuple(names[t] for t in outputs), states=states)


def put(old: Any, rows: Any, start: Any, axis: int, how: str = "range") -> Any:
    """``old`` with rows from ``start`` (an expression) on along an axis. ``how``: of the spellings that
    importers have one."""
    n, extent = rows.shape[axis], old.shape[axis]
    if how in ("range", "closed"):

        def value(*i: Any) -> Any:
            t = te.cast(i[axis], "int64")
            inside = te.all(start <= t, t < start + n)
            if how == "closed":
                inside = te.all(start - 1 < t, t <= start + (n - 1))
            own = t - start
            return te.select(inside, rows[(*i[:axis], own, *i[axis + 1 :])], old[i])

        return cases.stage(old.shape, value, "put")
    ids = te.compute((n,), lambda u: start + te.cast(u, "int64"), "ids")
    if how == "equal" and n == 1:
        return cases.stage(
            old.shape,
            lambda *i: te.select(
                te.equal(_from_end(ids[0], extent), te.cast(i[axis], "int64")),
                rows[(*i[:axis], 0, *i[axis + 1 :])],
                old[i],
            ),
            "put",
        )
    r = te.reduce_axis(n, "r")

    def last(*i: Any) -> Any:
        found = te.equal(_from_end(ids[r], extent), te.cast(i[axis], "int64"))
        return te.max(te.select(found, te.cast(r, "int32"), te.const(-1, "int32")), axis=r)

    latest = cases.stage(old.shape, last, "latest")

    def written(*i: Any) -> Any:
        own = te.maximum(latest[i], 0) % n
        return te.select(latest[i] >= 0, rows[(*i[:axis], own, *i[axis + 1 :])], old[i])

    return cases.stage(old.shape, written, "put")


def _from_end(x: Any, n: int) -> Any:
    return te.select(x < 0, x + n, x)


def cache(rows: int = 2, length: int = 8, heads: int = 2, dim: int = 3, how: str = "latest") -> Graph:
    """Attention over a cache of keys and values, which is masked behind the rows that were written."""
    b = StateBuilder()
    hidden = heads * dim
    x, pos = b.input("x", rows, hidden), b.input("pos", 1, dtype="int64")
    kept = []
    for name in "kv":
        old = b.state(name, 1, heads, length, dim)
        made = cases.dense(b, x, hidden, f"make_{name}", bias=False)
        turned = cases.transpose(cases.reshape(made, 1, rows, heads, dim), 0, 2, 1, 3)
        new = put(old, turned, pos[0], 2, how)
        b.becomes(name, new)
        kept.append(new)
    k, v = kept
    q = cases.dense(b, x, hidden, "q", bias=False)
    q = cases.transpose(cases.reshape(q, 1, rows, heads, dim), 0, 2, 1, 3)
    scores = cases.matmul(q, cases.transpose(k, 0, 1, 3, 2))
    masked = cases.stage(
        scores.shape,
        lambda a, h, s, t: te.select(
            te.cast(t, "int64") <= pos[0] + te.cast(s, "int64"), scores[a, h, s, t], 0.0
        ),
    )
    mixed = cases.matmul(masked, v)
    return b.model(cases.reshape(cases.transpose(mixed, 0, 2, 1, 3), rows, hidden))


def counter() -> Graph:
    """A cache that is written where a counter says, which counts on."""
    b = StateBuilder()
    x = b.input("x", 2, 5)
    rows, n = b.state("rows", 9, 5), b.state("n", 1, dtype="int64")
    more = cases.stage((1,), lambda i: n[i] + 2, "more")
    new = put(rows, x, n[0], 0, "latest")
    b.becomes("rows", new)
    b.becomes("n", more)
    k = te.reduce_axis(9, "k")
    return b.model(te.compute((5,), lambda j: te.sum(new[k, j], axis=k), "total"), more_of(more))


def more_of(t: Any) -> Any:
    return cases.stage(t.shape, lambda *i: t[i] * 3, "thrice")


def twice() -> Graph:
    """One state that is written twice, with readers of what it was before, between and after."""
    b = StateBuilder()
    x, pos = b.input("x", 2, 4), b.input("pos", 2, dtype="int64")
    old = b.state("s", 7, 4)
    k = te.reduce_axis(7, "k")

    def total(t: Any, name: str) -> Any:
        return te.compute((4,), lambda j: te.sum(t[k, j], axis=k), name)

    first = put(old, x, pos[0], 0)
    double = cases.stage((1, 4), lambda i, j: x[1, j] * 2.0 + 1.0)
    second = put(first, double, pos[1], 0, "equal")
    b.becomes("s", second)
    return b.model(total(old, "before"), total(first, "between"), total(second, "after"))


def layers() -> Graph:
    """One tensor for several layers: a part of it is taken, written and put back."""
    b = StateBuilder()
    x, pos = b.input("x", 3, 2), b.input("pos", 1, dtype="int64")
    old = b.state("all", 2, 6, 2)
    part = cases.stage((6, 2), lambda t, d: old[1, t, d])
    written = put(part, x, pos[0], 0, "latest")
    new = cases.stage(
        old.shape, lambda z, t, d: te.select(te.equal(z, 1), written[t, d], old[z, t, d]), "back"
    )
    b.becomes("all", new)
    return b.model(cases.stage((2, 6, 2), lambda z, t, d: new[z, t, d] + 1.0))


def moving_average() -> Graph:
    """Rows that are made of what lay in their place."""
    b = StateBuilder()
    x, pos = b.input("x", 1, 4), b.input("pos", 1, dtype="int64")
    old = b.state("s", 6, 4)
    was = cases.stage((1, 4), lambda i, j: old[pos[0], j])
    rows = cases.stage((1, 4), lambda i, j: was[i, j] * 2.0 + x[i, j])
    new = put(old, rows, pos[0], 0, "equal")
    b.becomes("s", new)
    return b.model(cases.stage((6, 4), lambda i, j: new[i, j] * 2.0))


def decayed() -> Graph:
    """Rows whose expression has what lies in their place, in the update itself."""
    b = StateBuilder()
    x, pos = b.input("x", 1, 4), b.input("pos", 1, dtype="int64")
    old = b.state("s", 6, 4)
    new = cases.stage(
        old.shape,
        lambda i, j: te.select(
            te.equal(te.cast(i, "int64"), pos[0]), old[i, j] * 2.0 + old[5, j] + x[0, j], old[i, j]
        ),
        "decayed",
    )
    b.becomes("s", new)
    return b.model(cases.stage((6, 4), lambda i, j: new[i, j] * 2.0))


STATE_MODELS: Mapping[str, Any] = {
    "cache": cache,
    "one": lambda: cache(1, how="equal"),
    "range": lambda: cache(3, how="range"),
    "closed": lambda: cache(3, how="closed"),
    "counter": counter,
    "twice": twice,
    "layers": layers,
    "average": moving_average,
    "decayed": decayed,
}


def new_states(graph: Graph) -> dict[str, Any]:
    """Zeros for the states of a graph."""
    tensors = {n: graph.dag.tensors[s.tensor] for n, s in graph.states.items()}
    return {n: np.zeros(t.shape, t.dtype) for n, t in tensors.items()}


def random_states(draw: Any) -> Graph:
    """A graph with one or two states of two or three dimensions, each written up to three times, by
    positions of the call, of a counter, or fixed; with readers of every value, also of several at once."""
    b = StateBuilder(draw(0, 99))
    pos = b.input("pos", 3, dtype="int64")
    outputs = []
    values = []
    for s in range(draw(1, 2)):
        shape = tuple(draw(2, 5) for _ in range(draw(2, 3)))
        now = b.state(f"s{s}", *shape)
        values.append(now)
        for u in range(draw(0, 3)):
            axis = draw(0, len(shape) - 1)
            rows = draw(1, shape[axis])
            x = b.input(f"x{s}{u}", *(rows if d == axis else n for d, n in enumerate(shape)))
            made = _mixed(draw, x, values)
            start = pos[draw(0, 2)] + draw(0, 1)
            if rows == shape[axis] or draw(0, 3) == 0:
                start = te.const(draw(0, shape[axis] - rows), "int64")
            how = ("range", "equal", "latest", "closed")[draw(0, 3)]
            if isinstance(start, type(te.const(0, "int64"))) and how == "equal":
                how = "range"
            now = put(now, made, start, axis, how)
            values.append(now)
        b.becomes(f"s{s}", cases.stage(shape, lambda *i, t=now: t[i] * 1.0) if now.op is None else now)
    for _ in range(draw(1, 4)):
        outputs.append(_read(draw, values[draw(0, len(values) - 1)], values))
    read = [x for t in (*outputs, *(new for _, new in b.states.values())) for x in _inputs_of(t)]
    b.inputs = [x for x in b.inputs if x in read]
    # what no stage reads is read last
    for t in [pos] * (pos not in read) + [t for t, _ in b.states.values() if t not in read]:
        outputs.append(cases.stage(t.shape, lambda *i, t=t: t[i] + 1))
    b.inputs = [*dict.fromkeys((pos, *b.inputs))]
    return b.model(*outputs)


def _inputs_of(t: Any) -> Any:
    """The inputs of which a tensor is made."""
    if t.op is None:
        yield t
    for x in () if t.op is None else t.op.reads():
        yield from _inputs_of(x)


def _mixed(draw: Any, x: Any, values: list[Any]) -> Any:
    """Rows as they are, a map of them, or of them and an element of a state."""
    kind = draw(0, 3)
    if kind == 0:
        return x
    if kind == 1:
        return cases.stage(x.shape, lambda *i: x[i] * 2.0 + 1.0)
    t = values[draw(0, len(values) - 1)]
    corner = tuple(draw(0, n - 1) for n in t.shape)
    return cases.stage(x.shape, lambda *i: x[i] + t[corner] if kind == 2 else x[i] - t[corner] * 2.0)


def _read(draw: Any, t: Any, values: list[Any]) -> Any:
    """A sum over an axis, a map, or a map of two values of one shape."""
    kind = draw(0, 2)
    if kind == 0:
        axis = draw(0, len(t.shape) - 1)
        k = te.reduce_axis(t.shape[axis], "k")
        rest = tuple(n for d, n in enumerate(t.shape) if d != axis)
        return cases.stage(rest, lambda *i: te.sum(t[(*i[:axis], k, *i[axis:])], axis=k))
    same = [v for v in values if v.shape == t.shape]
    other = same[draw(0, len(same) - 1)]
    if kind == 1:
        return cases.stage(t.shape, lambda *i: t[i] + 1.0)
    return cases.stage(t.shape, lambda *i: t[i] + other[i] * 3.0)


def untuned(model: Model) -> Module:
    """The plain loops of every kernel, compiled."""
    ready = prepared(model)
    ol = ready.outline(lambda w: None)
    target = parse("cpu", 1)
    kernels = [default_kernel(w, target) for w in ol.tasks]
    initial = {n: s.initial for n, s in ready.graph.states.items() if s.initial is not None}
    program = Program.of(ol, kernels, ready.graph.values.__getitem__, run_island, initial=initial)
    return Module(program, target, model.name, [None] * len(kernels), None, model.signature)


def static_cache(
    architecture: str = "Llama",
    attention: str = "sdpa",
    rows: int | None = 1,
    context: int = 32,
    dtype: str = "float32",
) -> tuple[Any, dict[str, Any]]:
    """A small language model of transformers ("Llama", "Qwen2") whose `StaticCache` of ``context`` places
    lies in buffers, and the arguments of its export: ``rows`` tokens in a call, or with None 1 to 8."""
    torch, transformers = imported("torch"), imported("transformers")
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

    config = getattr(transformers, f"{architecture}Config")(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=256, max_position_embeddings=64, attn_implementation=attention,
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, f"{architecture}ForCausalLM")(config).eval().requires_grad_(False)
    model = model.to(getattr(torch, dtype))
    model.generation_config = transformers.GenerationConfig(
        use_cache=True, cache_implementation="static", max_length=context,
        cache_config={"batch_size": 1, "max_cache_len": context},
    )  # fmt: skip
    n = rows or 8
    how = {"input_ids": torch.arange(n)[None], "cache_position": torch.arange(n)}
    return TorchExportableModuleWithStaticCache(model), how
