"""`quantize`: a model with weights of few bits, of one with floats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from autotune.errors import ModelError
from autotune.models.model import Model
from autotune.models.quantized import QuantizedModel
from schedules.errors import suggest
from schedules.graph.constant_products import ConstantProduct
from schedules.graph.graph import Graph
from schedules.graph.group_scales import scale_sums_of_groups
from schedules.graph.integers import integer_products
from schedules.graph.round_activations import CodeSum, round_activations
from schedules.graph.round_weights import Rounding, Treated, round_weights

# {what a user writes: how it is stored}.
FORMATS = {"int4": "int4_halves", "int8": "int8", "bfloat16": "bfloat16", "float16": "float16"}
SCALES = ("float16", "bfloat16", "float32")
LEAST = 1 << 12  # numbers of a weight, below which rounding gains nothing
MOST_GROUP = 1 << 14
SHOWN = 5  # products that an error names


def quantize(
    model: Model,
    *,
    weights: str | None = "int4",
    group: int = 32,
    activations: str | None = "int8",
    scales: str = "float16",
    keep: str | Sequence[str] = (),
    least: int = LEAST,
) -> Model:
    """A model whose linear layers have weights of few bits, of one with weights of floats (float32, bfloat16,
    float16). Results are those of the rounded weights: compare them with what you need.

    Found by what is computed, whatever operator a file has for it: each product of a tensor and a matrix that
    is known, such as linear layers, also transposed, stacked or without a bias. Convolutions, products of two
    tensors, embeddings and norms stay as they are. ``result.quantized`` says what became of each product;
    print it. The given model does not change. Weights are rounded one at a time.

    - ``weights``: "int4" or "int8": groups of neighbours along the sum have a scale each, rounded as GGML
      rounds Q4_0 and Q8_0. "bfloat16" or "float16": floats of 16 bits, without scales. None: weights stay.
    - ``group``: numbers that share a scale; even for int4. A product with a sum that it does not divide stays
      as it is.
    - ``activations``: "int8": what is multiplied with weights of integers is rounded in each call, with a
      scale for each row and group, so that instructions of processors sum integers. That holds for such
      weights of the model's file too, as MatMulNBits of ONNX has them. None: activations stay floats, which
      takes longer and is more exact.
    - ``scales``: the dtype of scales: "float16", "bfloat16" or "float32".
    - ``keep``: names of weights or of nodes that stay as they are, or patterns of them: "lm_head*". A dot is
      the same as an underscore, as in "layers.0.mlp.down_proj.weight".
    - ``least``: weights with fewer numbers than this stay as they are.

    Raises `ModelError` for other options, for a name of ``keep`` that fits nothing, and for a model in which
    nothing is rounded; it says why.

    Example, with the last layer as it is:

        small = at.quantize(model, weights="int4", keep="lm_head*")
        print(small.quantized)
        at.tune_model(small, threads=1)
    """
    _check(model, weights, group, activations, scales, least)
    kept = _Kept((keep,) if isinstance(keep, str) else tuple(keep), model.graph)
    graph = scale_sums_of_groups(integer_products(model.graph))
    treated: tuple[Treated, ...] = ()
    if weights is not None:
        how = Rounding(FORMATS[weights], group, scales)
        graph, treated = round_weights(graph, how, lambda p: kept.why(p) or _too_small(p, least))
    rounded: tuple[str, ...] = ()
    if activations is not None:
        graph, rounded = _with_activations(graph, kept)
    kept.check_used()
    report = QuantizedModel(weights, group, bool(rounded), treated, rounded)
    if not rounded and all(t.why for t in treated):
        raise ModelError(f"{model.source}: {_nothing(report)}")
    return replace(model, graph=graph, quantized=report)


def _check(
    model: object, weights: str | None, group: object, activations: str | None, scales: str, least: object
) -> None:
    if not isinstance(model, Model):
        raise ModelError(
            f"quantize takes a model, not {type(model).__name__}: give what at.import_torch, at.import_onnx "
            "or at.import_gguf returns, before it is compiled"
        )
    for what, value, known in (
        ("weights", weights, (*FORMATS, None)),
        ("activations", activations, ("int8", None)),
        ("scales", scales, SCALES),
    ):
        if value not in known:
            words = [x for x in known if x is not None]
            every = ", ".join(map(repr, known))
            raise ModelError(f"quantize: {what}={value!r} is not one of {every}{suggest(value, words)}")
    if weights is None and activations is None:
        raise ModelError("quantize: weights=None and activations=None change nothing; give one of them")
    step = 2 if weights == "int4" else 1
    if type(group) is not int or not 1 <= group <= MOST_GROUP or group % step:
        even = " even" if step == 2 else ""
        raise ModelError(f"quantize: group={group!r} is no{even} number from {step} to {MOST_GROUP}; give 32")
    if type(least) is not int or least < 0:
        raise ModelError(f"quantize: least={least!r} is no number of weights; give 0 to round all")


def _too_small(p: ConstantProduct, least: int) -> str:
    return f"its {p.weights} weights are fewer than {least}" if p.weights < least else ""


def _with_activations(graph: Graph, kept: _Kept) -> tuple[Graph, tuple[str, ...]]:
    """The graph with rounded activations, and the nodes of the products of which they are."""
    found: list[CodeSum] = []

    def refuse(c: CodeSum) -> str:
        weights = [n.removesuffix("_codes") for n in c.constants]
        why = kept.named((*weights, graph.origins.get(c.stage.name, "")))
        if not why:
            found.append(c)
        return why

    made = round_activations(graph, refuse)
    return made, tuple(graph.origins.get(c.stage.name, c.stage.name) for c in found)


def _nothing(report: QuantizedModel) -> str:
    """Why nothing is rounded."""
    if not report.products:
        what = "a matrix that is known" if report.weights is not None else "weights of integers"
        return f"it has no product with {what}, so that there is nothing to quantize"
    shown = [f"{t.node or t.stage}: {t.why}" for t in report.products[:SHOWN]]
    more = len(report.products) - len(shown)
    return "no product is quantized: " + "; ".join([*shown, *([f"and {more} more"] if more else [])])


@dataclass(frozen=True)
class _Kept:
    """Names and patterns of what stays. ``used``: those that fitted something."""

    patterns: tuple[str, ...]
    graph: Graph

    def why(self, p: ConstantProduct) -> str:
        """The reason why a product stays; "" for none."""
        return self.named((*p.constants, self.graph.origins.get(p.stage.name, "")))

    def named(self, names: Sequence[str]) -> str:
        """`why`, by the names of its weights and of its node."""
        for pattern in self.patterns:
            if any(fnmatchcase(_plain(n), _plain(pattern)) for n in names if n):
                return f"keep={pattern!r} names it"
        return ""

    def check_used(self) -> None:
        """Raise `ModelError` for a pattern that fits no weight and no node of the model."""
        names = sorted({*self.graph.values, *self.graph.origins.values()} - {""})
        plain = [_plain(n) for n in names]
        for pattern in self.patterns:
            if not any(fnmatchcase(n, _plain(pattern)) for n in plain):
                raise ModelError(
                    f"quantize: keep={pattern!r} names no weight and no node of the model, which has "
                    f"{', '.join(names[-SHOWN:])}{suggest(_plain(pattern), names)}"
                )


def _plain(name: str) -> str:
    """A name with one sign for all that part it."""
    return re.sub(r"[./:]", "_", name)
