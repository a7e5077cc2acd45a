"""Puts codes and scales in the place of matrices: products with weights of few bits in a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from schedules import te
from schedules.expr import Const, Var
from schedules.graph.constant_products import ConstantProduct, KnownTensors, bare
from schedules.graph.edit import remade, renamed
from schedules.graph.graph import Array, Graph
from schedules.ops.few_bits import FORMATS, FewBits, product
from schedules.te.compute_dag import Stage, Tensor
from schedules.te.tensors import marked_dag
from schedules.te.unique import Taken


@dataclass(frozen=True)
class Coded:
    """What stands for a matrix (outputs…, k), in a format of `FORMATS`: ``parts`` are its "codes", the
    "scales" of groups of ``group`` numbers, and perhaps the "offsets" of groups."""

    format: str
    group: int
    parts: Mapping[str, Array]


class CodedProducts:
    """New constants of a graph, ``values``, and new stages in the place of others."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.known = graph, KnownTensors(graph)
        self.taken = Taken(graph.dag.tensors)
        self.values: dict[str, Array] = {}
        self._changed: dict[str, list[Stage]] = {}
        self._inputs: dict[str, Tensor] = {}
        self._coded: dict[object, tuple[str, int, dict[str, str]]] = {}  # by matrix: format, group, constants

    def code(self, p: ConstantProduct, make: Callable[[ConstantProduct], Coded | str]) -> str:
        """Put codes in the place of the weights of a product. ``make`` gives those of a matrix once, or the
        reason why the product stays; that is returned, else ""."""
        form = matrix_of(p)
        if form not in self._coded:
            made = make(p)
            if isinstance(made, str):
                return made
            names = {what: self.add(f"{p.constants[0]}_{what}", array) for what, array in made.parts.items()}
            self._coded[form] = made.format, made.group, names
        format, group, names = self._coded[form]
        moved, x = self._rows(p)
        given = {what: self._placeholder(self._inputs[n]) for what, n in names.items()}
        w = FewBits(FORMATS[format], given["codes"], given["scales"], group, given.get("offsets"))
        y = product(x, w, p.rows, p.outputs)
        self.replace(p.stage, [*moved, *self._spliced(y, [x, *given.values()], p.stage)])
        return ""

    def nbytes(self, p: ConstantProduct) -> int:
        """Bytes of the codes and scales that stand for the weights of a product."""
        return sum(self.values[n].nbytes for n in self._coded[matrix_of(p)][2].values())

    def add(self, name: str, array: Array) -> str:
        """A new constant. Returns its name."""
        name = self.taken.add(name)
        self.values[name], self._inputs[name] = array, Tensor(name, array.shape, array.dtype.name)
        return name

    def replace(self, s: Stage, by: list[Stage]) -> None:
        """Put stages in the place of one; the last of them has its name."""
        self._changed[s.name] = by

    def made(self) -> Graph:
        """The graph with all changes; itself where there are none."""
        if not self._changed:
            return self.graph
        stages = [x for s in self.graph.dag.stages for x in self._changed.get(s.name, [s])]
        origins = dict(self.graph.origins)
        for name, by in self._changed.items():
            origins |= {s.name: origins[name] for s in by if name in origins}
        inputs = (*self.graph.dag.inputs, *self._inputs.values())
        graph = replace(self.graph, origins=origins)
        return remade(graph, stages, inputs, {**self.graph.values, **self.values})

    def _rows(self, p: ConstantProduct) -> tuple[list[Stage], te.Tensor]:
        """What is multiplied, as rows along the sum; with a stage that makes them where they do not lie
        so."""
        load = bare(p.x)
        assert load is not None
        axes = (*(p.stage.axes[n] for n in p.rows), p.depth)
        t = self.graph.dag.tensors[load.buffer]
        if load.indices == tuple(Var(a.var) for a in axes) and t.shape[-1] == p.depth.extent:
            return [], self._placeholder(t)
        out = Tensor(self.taken.add(f"{load.buffer}_rows"), tuple(a.extent for a in axes), load.dtype)
        return [Stage((out,), axes, (), (load,))], self._placeholder(out)

    def _placeholder(self, t: Tensor) -> te.Tensor:
        return te.placeholder(t.shape, t.dtype, t.name)

    def _spliced(self, y: te.Tensor, given: Sequence[te.Tensor], instead: Stage) -> list[Stage]:
        """The stages of an expression of tensors of the graph. The last one has the name of the stage that
        they replace."""
        dag = marked_dag([*given, y])
        (last,) = dag.outputs
        new = {s.name: self.taken.add(f"{instead.name}_{s.name}") for s in dag.stages if s.name != last}
        return renamed(dag.stages, {**new, last: instead.name})


def matrix_of(p: ConstantProduct) -> object:
    """What identifies the matrix of a product: the tensor, and in which order it is read."""
    return p.weight.buffer, tuple(
        i if isinstance(i, Const) else i == Var(p.depth.var) for i in p.weight.indices
    )


def as_matrix(value: Array, p: ConstantProduct) -> Array:
    """The value of the tensor of a product's weights as (outputs…, k). No copy is made."""
    index = tuple(int(i.value) if isinstance(i, Const) else slice(None) for i in p.weight.indices)
    axes = [i.name for i in p.weight.indices if isinstance(i, Var)]
    order = [n for n, v in enumerate(axes) if v != p.depth.var]
    made: Array = value[index].transpose(*order, axes.index(p.depth.var))
    return made
