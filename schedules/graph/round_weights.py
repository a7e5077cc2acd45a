"""Weights of linear layers become numbers of few bits, or floats of fewer.

``sum over k of x[i, k] * w[j, k]`` is, with codes and scales in the place of ``w``, what
`schedules.ops.few_bits` states. The result is another one: that of the rounded weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from schedules import expr as E
from schedules import te
from schedules.dtypes import DTYPES, is_float
from schedules.expr import Const, Load, Var
from schedules.graph.constant_products import (
    ConstantProduct,
    KnownTensors,
    OtherProduct,
    bare,
    constant_products,
)
from schedules.graph.edit import remade, renamed
from schedules.graph.graph import Array, Graph
from schedules.ops.few_bits import FORMATS, FewBits, product
from schedules.ops.rounded_weights import q4_0, q8_0
from schedules.te.compute_dag import Stage, Tensor
from schedules.te.tensors import marked_dag
from schedules.te.unique import Taken


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


Refuse = Callable[[ConstantProduct], str]


def round_weights(graph: Graph, how: Rounding, refuse: Refuse) -> tuple[Graph, tuple[Treated, ...]]:
    """The graph with rounded weights, and what became of each product with something known. ``refuse`` gives
    the reason why a product stays, "" for none. One matrix at a time is widened."""
    made = _Rounded(graph, how)
    changed: dict[str, list[Stage]] = {}
    treated: list[Treated] = []
    for p in constant_products(graph, made.known):
        node = graph.origins.get(p.stage.name, "")
        if isinstance(p, OtherProduct):
            treated.append(Treated(p.stage.name, node, p.constants, why=p.why))
            continue
        shape = tuple(int(p.stage.axes[n].extent) for n in p.outputs) + (int(p.depth.extent),)
        before = p.weights * DTYPES[p.weight.dtype].itemsize
        stages = refuse(p) or made.product(p)
        if isinstance(stages, str):
            treated.append(Treated(p.stage.name, node, p.constants, shape, (before, before), stages))
            continue
        changed[p.stage.name] = stages
        treated.append(Treated(p.stage.name, node, p.constants, shape, (before, made.nbytes(p))))
    if not changed:
        return graph, tuple(treated)
    every = [x for s in graph.dag.stages for x in changed.get(s.name, [s])]
    origins = dict(graph.origins)
    for name, stages in changed.items():
        origins |= {s.name: origins[name] for s in stages if name in origins}
    inputs = (*graph.dag.inputs, *made.inputs)
    return remade(replace(graph, origins=origins), every, inputs, {**graph.values, **made.values}), tuple(
        treated
    )


class _Rounded:
    """Products with rounded weights, and the constants that these read: ``inputs`` with their ``values``."""

    def __init__(self, graph: Graph, how: Rounding) -> None:
        self.graph, self.how, self.known = graph, how, KnownTensors(graph)
        self.taken = Taken(graph.dag.tensors)
        self.values: dict[str, Array] = {}
        self.inputs: list[Tensor] = []
        self._done: dict[object, tuple[str, ...] | str] = {}  # by what is read: constants, or why not

    def nbytes(self, p: ConstantProduct) -> int:
        """Bytes of what stands for a weight."""
        names = self._done[_form(p)]
        return sum(self.values[n].nbytes for n in names) if isinstance(names, tuple) else 0

    def product(self, p: ConstantProduct) -> list[Stage] | str:
        """The stages of a product, the last of which makes what it made; or why it stays."""
        group, k = self.how.group, int(p.depth.extent)
        if not is_float(self.how.format) and k % group:
            return f"groups of {group} do not divide the {k} numbers of its sum"
        names = self._done.get(_form(p))
        if names is None:
            names = self._done[_form(p)] = self._constants(p)
        if isinstance(names, str):
            return names
        if is_float(self.how.format):
            return [self._of_floats(p, *names)]
        return self._of_codes(p, *names)

    def _constants(self, p: ConstantProduct) -> tuple[str, ...] | str:
        """Names of new constants for a weight; or why it stays."""
        at = [
            slice(None) if isinstance(i, Var) else int(i.value)
            for i in p.weight.indices
            if isinstance(i, (Var, Const))
        ]
        value = self.known.value(p.weight.buffer)[tuple(at)]
        axes = [i.name for i in p.weight.indices if isinstance(i, Var)]
        order = [n for n, v in enumerate(axes) if v != p.depth.var]
        value = value.transpose(*order, axes.index(p.depth.var))
        base = p.constants[0] if len(p.constants) == 1 else p.weight.buffer
        if is_float(self.how.format):
            with np.errstate(over="ignore"):
                made = {base: np.ascontiguousarray(value.astype(DTYPES[self.how.format].numpy))}
        else:
            rounded = q4_0 if self.how.format.startswith("int4") else q8_0
            more = {"format": self.how.format} if self.how.format.startswith("int4") else {}
            codes, scales = rounded(value, self.how.group, self.how.scales, **more)
            made = {f"{base}_codes": codes, f"{base}_scales": scales}
        if not _finite(*made.values()):
            return (
                "its weights are not all finite" if not _finite(value)
                else f"its weights are beyond what {self.how.scales if len(made) > 1 else self.how.format} has"
            )  # fmt: skip
        names = []
        for name, array in made.items():
            names.append(self.taken.add(name))
            self.values[names[-1]] = array
            dtype = next(d for d, row in DTYPES.items() if np.dtype(row.numpy) == array.dtype)
            self.inputs.append(Tensor(names[-1], array.shape, dtype))
        return tuple(names)

    def _of_floats(self, p: ConstantProduct, name: str) -> Stage:
        indices = (*(Var(p.stage.axes[n].var) for n in p.outputs), Var(p.depth.var))
        new = E.widen(Load(name, indices, self.how.format))
        value = p.stage.values[0]
        assert isinstance(value, E.Binary)
        a, b = (new if bare(e) is not None and e != p.x else e for e in (value.a, value.b))
        return replace(p.stage, values=(E.Binary("*", a, b),))

    def _of_codes(self, p: ConstantProduct, codes: str, scales: str) -> list[Stage]:
        moved, x = self._rows(p)
        given = [te.placeholder(self.values[n].shape, t.dtype, n) for n, t in self._tensors(codes, scales)]
        weights = FewBits(FORMATS[self.how.format], given[0], given[1], self.how.group)
        y = product(x, weights, p.rows, p.outputs)
        return [*moved, *spliced(y, [x, *given], p.stage, self.taken)]

    def _tensors(self, *names: str) -> list[tuple[str, Tensor]]:
        of = {t.name: t for t in self.inputs}
        return [(n, of[n]) for n in names]

    def _rows(self, p: ConstantProduct) -> tuple[list[Stage], te.Tensor]:
        """What is multiplied, as rows along the sum; and the stage that makes them where they do not lie so."""
        load = bare(p.x)
        assert load is not None
        axes = [*(p.stage.axes[n] for n in p.rows), p.depth]
        if load.indices == tuple(Var(a.var) for a in axes):
            return [], te.placeholder(self.graph.dag.tensors[load.buffer].shape, load.dtype, load.buffer)
        name = self.taken.add(f"{load.buffer}_rows")
        out = Tensor(name, tuple(a.extent for a in axes), load.dtype)
        return [Stage((out,), tuple(axes), (), (load,))], te.placeholder(out.shape, load.dtype, name)


def spliced(y: te.Tensor, given: Sequence[te.Tensor], instead: Stage, taken: Taken) -> list[Stage]:
    """The stages of an expression of tensors of a graph, with names that are ``taken``, the last one with
    the name of the stage that they replace."""
    dag = marked_dag([*given, y])
    last = dag.outputs[0]
    names = {
        s.name: instead.name if s.name == last else taken.add(f"{instead.name}_{s.name}") for s in dag.stages
    }

    return renamed(dag.stages, names)


def _form(p: ConstantProduct) -> object:
    """What identifies a matrix: the tensor, and in which order it is read."""
    return p.weight.buffer, tuple(
        i if isinstance(i, Const) else i == Var(p.depth.var) for i in p.weight.indices
    )


def _finite(*arrays: Array) -> bool:
    """Whether all floats are finite. Some at a time are widened."""
    for a in arrays:
        if a.dtype.kind in "iu":
            continue
        flat = a.reshape(-1) if a.flags.c_contiguous else a.reshape(len(a), -1) if a.ndim else a.reshape(-1)
        step = max(1, (1 << 20) // max(1, prod(flat.shape[1:])))
        for at in range(0, len(flat), step):
            if not np.isfinite(flat[at : at + step].astype(np.float32)).all():
                return False
    return True
