"""Weights of linear layers become numbers of few bits, or floats of fewer.

``sum over k of x[i, k] * w[j, k]`` is, with codes and scales in the place of ``w``, what
`schedules.ops.few_bits` states. The result is another one: that of the rounded weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from schedules import expr as E
from schedules.dtypes import DTYPES, is_float
from schedules.expr import Binary, Load, Var
from schedules.graph.coded_products import Coded, CodedProducts, as_matrix, matrix_of
from schedules.graph.constant_products import ConstantProduct, OtherProduct, constant_products
from schedules.graph.graph import Array, Graph
from schedules.ops.few_bits import FORMATS
from schedules.ops.rounded_weights import PIECE, q4_0, q8_0


@dataclass(frozen=True)
class Rounding:
    """How weights are rounded. ``format``: int4_halves or int8, in groups of ``group`` along the sum with
    scales of the dtype ``scales``; or a float of storage, which has neither."""

    format: str
    group: int = 32
    scales: str = "float16"


@dataclass(frozen=True)
class Treated:
    """What became of one product. ``stage``: its name in the graph. ``node``: the model's node, "" for none.
    ``constants``: names of its weights. ``shape``: outputs, then the length of the sum; of what is no plain
    product (). ``nbytes``: of the weights, before and after. ``why``: the reason it stayed as it was; ""
    where it was rounded."""

    stage: str
    node: str
    constants: tuple[str, ...]
    shape: tuple[int, ...] = ()
    nbytes: tuple[int, int] = (0, 0)
    why: str = ""


def round_weights(
    graph: Graph, how: Rounding, refuse: Callable[[ConstantProduct], str]
) -> tuple[Graph, tuple[Treated, ...]]:
    """The graph with rounded weights, and what became of each product with something known. ``refuse`` gives
    the reason why a product stays, "" for none. One matrix at a time is widened."""
    made = _Rounded(graph, how)
    treated: list[Treated] = []
    for p in constant_products(graph, made.products.known):
        node = graph.origins.get(p.stage.name, "")
        if isinstance(p, OtherProduct):
            treated.append(Treated(p.stage.name, node, p.constants, why=p.why))
            continue
        shape = tuple(int(p.stage.axes[n].extent) for n in p.outputs) + (int(p.depth.extent),)
        before = p.weights * DTYPES[p.weight.dtype].itemsize
        why = refuse(p) or made.product(p)
        after = before if why else made.nbytes(p)
        treated.append(Treated(p.stage.name, node, p.constants, shape, (before, after), why))
    return made.products.made(), tuple(treated)


class _Rounded:
    """Products with rounded weights."""

    def __init__(self, graph: Graph, how: Rounding) -> None:
        self.how, self.products = how, CodedProducts(graph)
        self._floats: dict[object, str] = {}  # by matrix: the constant that stands for it

    def product(self, p: ConstantProduct) -> str:
        """Change a product; the reason why it stays, "" for none."""
        group, k = self.how.group, int(p.depth.extent)
        if is_float(self.how.format):
            return self._of_floats(p)
        if k % group:
            return f"groups of {group} do not divide the {k} numbers of its sum"
        return self.products.code(p, self._coded)

    def nbytes(self, p: ConstantProduct) -> int:
        """Bytes of what stands for the weights of a product."""
        if is_float(self.how.format):
            return self.products.values[self._floats[matrix_of(p)]].nbytes
        return self.products.nbytes(p)

    def _coded(self, p: ConstantProduct) -> Coded | str:
        h, value = self.how, as_matrix(self.products.known.value(p.weight.buffer), p)
        if FORMATS[h.format].each > 1:
            codes, scales = q4_0(value, h.group, h.scales, h.format)
        else:
            codes, scales = q8_0(value, h.group, h.scales)
        why = _unfit(value, scales)
        return why or Coded(h.format, h.group, {"codes": codes, "scales": scales})

    def _of_floats(self, p: ConstantProduct) -> str:
        if matrix_of(p) not in self._floats:
            value = as_matrix(self.products.known.value(p.weight.buffer), p)
            with np.errstate(over="ignore"):
                rounded = np.ascontiguousarray(value.astype(DTYPES[self.how.format].numpy))
            if why := _unfit(value, rounded):
                return why
            name = f"{p.constants[0]}_{self.how.format}"
            self._floats[matrix_of(p)] = self.products.add(name, rounded)
        indices = (*(Var(p.stage.axes[n].var) for n in p.outputs), Var(p.depth.var))
        new = E.widen(Load(self._floats[matrix_of(p)], indices, self.how.format))
        both = p.stage.values[0]
        assert isinstance(both, Binary)
        a, b = (e if e == p.x else new for e in (both.a, both.b))
        self.products.replace(p.stage, [replace(p.stage, values=(Binary("*", a, b),))])
        return ""


def _unfit(value: Array, rounded: Array) -> str:
    """Why weights cannot be rounded so; "" where they can."""
    if _finite(rounded):
        return ""
    if not _finite(value):
        return "its weights are not all finite"
    return f"its weights are beyond what {rounded.dtype} has"


def _finite(a: Array) -> bool:
    """Whether all floats of a matrix are finite. Some rows at a time are looked at."""
    rows = a.reshape(-1, a.shape[-1]) if a.flags.c_contiguous else a
    step = max(1, PIECE * len(rows) // max(1, rows.size))
    every = (rows[at : at + step].astype(np.float32) for at in range(0, len(rows), step))
    return all(bool(np.isfinite(x).all()) for x in every)
