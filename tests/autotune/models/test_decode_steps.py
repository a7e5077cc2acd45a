"""A step of a decoder of language: what its kernels are, and that rewrites keep what it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graph_meaning import evaluate
from graph_memory import run_in_memory

import autotune as at
from autotune.models.assembling import Kept, assemble
from autotune.models.decoder import Cache, Decoder, DecoderLayer, decode
from autotune.models.operators.matmul import linear
from autotune.models.outline import outline
from schedules.dtypes import DTYPES
from schedules.graph.edit import is_product
from schedules.graph.graph import Graph, Group
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition
from schedules.ops.few_bits import FORMATS, FewBits, product, rounded_rows
from schedules.ops.rounded_weights import q4_0, q8_0
from schedules.te.dims import dim

te = at.te
HIDDEN, HEADS, KV, HEAD, INNER, WORDS, PLACES, GROUP = 32, 4, 2, 8, 24, 11, 12, 8


class Decoding:
    """A small decoder with random weights, rounded as ``form`` says."""

    def __init__(self, form: str | None, bias: bool = False) -> None:
        self.form, self.bias, self.rng = form, bias, np.random.default_rng(5)
        self.constants: dict[Any, Any] = {}
        self.rounded: dict[Any, Any] = {}

    def known(self, name: str, values: np.ndarray) -> Any:
        t = te.placeholder(values.shape, values.dtype.name, name)
        self.constants[t] = values
        return t

    def vector(self, name: str, n: int = HIDDEN) -> Any:
        return self.known(name, 1 + self.rng.standard_normal(n).astype("float32") / 8)

    def product(self, name: str, n: int, k: int, bias: bool = False) -> Callable[[Any], Any]:
        w = self.rng.standard_normal((n, k)).astype("float32") / 4
        b = self.vector(f"{name}_b", n) if bias else None
        if self.form is None:
            t = self.known(name, w)
            return lambda x: linear(x, t, b)
        codes, scales = q8_0(w, GROUP) if self.form == "int8" else q4_0(w, GROUP, format=self.form)
        few = FewBits(FORMATS[self.form], self.known(name, codes), self.known(f"{name}_s", scales), GROUP)

        def made(x: Any) -> Any:
            y = product(self.of(x), few)
            return y if b is None else te.compute(y.shape, lambda i, j: y[i, j] + b[j], "biased")

        return made

    def of(self, x: Any) -> Any:
        """Activations as int8, once for all that read them."""
        if x not in self.rounded:
            self.rounded[x] = rounded_rows(x, GROUP)
        return self.rounded[x]

    def layer(self, n: int) -> DecoderLayer:
        def made(name: str, m: int, k: int, bias: bool = False) -> Any:
            return self.product(f"{name}{n}", m, k, bias and self.bias)

        return DecoderLayer(
            self.vector(f"n1_{n}"), made("q", HEADS * HEAD, HIDDEN, True), made("k", KV * HEAD, HIDDEN, True),
            made("v", KV * HEAD, HIDDEN, True), made("o", HIDDEN, HEADS * HEAD), self.vector(f"n2_{n}"),
            made("gate", INNER, HIDDEN), made("up", INNER, HIDDEN), made("down", HIDDEN, INNER),
        )  # fmt: skip

    def graph(self, layers: int = 2, rows: int = 1, cache: str = "float32") -> Graph:
        table = self.known("table", self.rng.standard_normal((WORDS, HIDDEN)).astype("float32"))
        angle = np.arange(PLACES)[:, None] * 8.0 ** -np.arange(0, 1, 2 / HEAD)
        cos, sin = (self.known(f.__name__, f(angle).astype("float32")) for f in (np.cos, np.sin))

        def embedded(ids: Any) -> Any:
            return te.compute((ids.shape[0], HIDDEN), lambda i, j: table[ids[i], j], "embedded")

        of = Decoder(
            HEADS, KV, HEAD, HEAD, 1e-5, embedded, [*map(self.layer, range(layers))], self.vector("norm"),
            self.product("head", WORDS, HIDDEN), cos, sin,
        )  # fmt: skip
        n: Any = dim(1, rows, "rows", open=True) if rows > 1 else 1
        tokens, position = te.placeholder((n,), "int64", "tokens"), te.placeholder((), "int64", "position")
        names = [(f"keys_{i}", f"values_{i}") for i in range(layers)]
        caches = [Cache(*(te.placeholder((PLACES, KV, HEAD), cache, x) for x in pair)) for pair in names]
        logits, made = decode(of, tokens, position, caches, lambda t, name: t)
        states = {}
        for (k, v), old, new in zip(names, caches, made, strict=True):
            states |= {k: Kept(old.keys, new.keys), v: Kept(old.values, new.values)}
        inputs = {"tokens": tokens, "position": position}
        return assemble(inputs, [("logits", logits)], self.constants, {}, "net", "net", states=states).graph


def groups(graph: Graph) -> list[Group]:
    return [g for g in partition(graph) if isinstance(g, Group)]


@pytest.mark.parametrize(
    ("form", "bias", "cache", "rows"),
    [
        (None, False, "float32", 1),
        ("int4_halves", True, "float16", 1),
        pytest.param("int8", True, "bfloat16", 1, marks=pytest.mark.slow),
        pytest.param("int4_halves", True, "float32", 5, marks=pytest.mark.slow),
        pytest.param(None, False, "float16", 5, marks=pytest.mark.slow),
        pytest.param("int8", False, "float32", 5, marks=pytest.mark.slow),
    ],
)
def test_steps_compute_what_the_decoder_says(form: str | None, bias: bool, cache: str, rows: int) -> None:
    graph = Decoding(form, bias).graph(1 if rows == 1 else 2, rows, cache)
    after = optimize(graph)
    ol = outline(after, partition(after))
    shape = (PLACES, KV, HEAD)
    want, got = ({n: np.zeros(shape, DTYPES[cache].numpy) for n in graph.states} for _ in range(2))
    at_ = 0
    for n in (1, 1) if rows == 1 else (4, 5, 1):
        tokens, position = np.arange(at_, at_ + n) % WORDS, np.array(at_)
        if rows == 1:
            (x,) = evaluate(graph, [tokens, position], want)
            (y,) = run_in_memory(ol, after.values, [tokens, position], states=got)
        else:
            for i in range(n):  # row by row, by the decoder of one row
                one = Decoding(form, bias).graph(2, 1, cache)
                (x,) = evaluate(one, [tokens[i : i + 1], position + i], want)
            (y,) = run_in_memory(ol, after.values, [tokens, position], sizes={"rows": n}, states=got)
        np.testing.assert_allclose(y, x, atol=2e-3 * np.abs(x).max())
        at_ += n
        for name in graph.states:
            np.testing.assert_allclose(
                got[name].astype("float64"), want[name].astype("float64"), atol=2e-2, err_msg=name
            )
            assert got[name][:at_].any(axis=(1, 2)).all() and not got[name][at_:].any()


@pytest.mark.fast("int4_halves")
@pytest.mark.parametrize("form", (None, "int8", "int4_halves"))
def test_a_layer_is_a_dozen_kernels(form: str | None) -> None:
    """Norm with rounding; q, k and v; rows of keys and of values; q at its place; attention; rounding; o and
    residual; norm with rounding; gate and up; their product with rounding; down and residual."""
    a = groups(optimize(Decoding(form).graph(1)))
    apart = 3  # the embedding, the last norm, the head
    assert len(a) == apart + (12 if form else 10), "of floats there is no rounding apart"
    products = [g for g in a if any(map(is_product, g.dag.stages))]
    assert len(products) == 6, "q, k, v; attention; o; gate, up; down; head"
    (attention,) = (g for g in a if sum(map(is_product, g.dag.stages)) == 2)
    (out,) = attention.dag.outputs
    assert attention.dag.tensors[out].shape == (KV, HEADS // KV, HEAD), "whatever digits its readers have"
    if form:
        rounding = [g for g in a if any(t.dtype == "int8" for t in map(g.dag.tensors.get, g.dag.outputs))]
        assert len(rounding) == 5 and not [g for g in rounding if any(map(is_product, g.dag.stages))]
        zeros = 1 if form == "int4_halves" else 0
        assert all(len(g.outputs) == 2 + zeros for g in rounding), "codes, scales, sums for the zero of codes"
        of_rows = [len(g.dag.stages) for g in rounding]
        assert of_rows == [6 + zeros, 3 + zeros, 6 + zeros, 4 + zeros, 6 + zeros]


@pytest.mark.slow
@pytest.mark.parametrize("rows", (1, 5))
def test_products_of_groups_walk_their_rows_in_order(rows: int) -> None:
    """Also where attention made the activations, head by head."""
    graph = optimize(Decoding("int4_halves").graph(2, rows))
    shapes = [
        next(t.shape for t in g.dag.inputs if t.dtype == "int8")
        for g in groups(graph)
        if any(map(is_product, g.dag.stages)) and any(t.dtype == "int8" for t in g.dag.inputs)
    ]
    many = () if rows == 1 else (rows,)
    assert len(shapes) == (9 if rows == 1 else 10), "q of the last row is apart from k and v of all"
    assert {s for s in shapes if s[0] == rows or rows == 1} == {(*many, 4, 2, 4), (*many, 3, 2, 4)}
