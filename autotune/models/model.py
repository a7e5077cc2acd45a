"""`Model`: a graph of tensor expressions, and what the model's file calls its inputs and outputs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from keyword import iskeyword
from operator import index
from typing import SupportsIndex

from autotune.errors import ModelError
from autotune.models.quantized import QuantizedModel
from autotune.models.signature import Signature
from schedules.errors import suggest
from schedules.graph.graph import Graph
from schedules.strides import flaw
from schedules.te.marks import unmarked
from schedules.te.open_sizes import at as at_sizes
from schedules.te.strided import Strides, with_strides


def identifier(name: str) -> str:
    """A name made of ASCII letters, digits and _."""
    text = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "x"
    text = f"_{text}" if text[0].isdigit() else text
    return f"{text}_" if iskeyword(text) else text


# Sizes of a model that have programs of their own.
MOST_OWN = 64


def shown_sizes(sizes: Mapping[str, int]) -> str:
    """Sizes in a message: ``rows=1, batch=4``."""
    return ", ".join(f"{name}={n}" for name, n in sizes.items())


@dataclass(frozen=True)
class Port:
    """An input or an output of a model. ``name``: as in the file. ``tensor``: its name in the graph, an
    identifier. ``shape``, ``strides``: in elements; None: row-major."""

    name: str
    tensor: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None

    def __str__(self) -> str:
        lies = "" if self.strides is None else f" with strides {list(self.strides)}"
        return f"{self.name} {self.dtype}{list(self.shape)}{lies}"


@dataclass(frozen=True, repr=False)
class Model:
    """A model as it was imported.

    ``graph``: what it computes (`schedules.graph.graph.Graph`). ``inputs``, ``outputs``: in the order of the
    file, which is also that of ``graph.inputs`` and ``graph.outputs``. ``name``: that the file gives it.
    ``source``: where it is from, for messages. ``signature``: how it is called; None where that is with its
    inputs, one after the other. ``own_sizes``: sizes that have programs of their own (`with_own_sizes`).
    ``quantized``: what `quantize` did to it; None: nothing.

    Inputs lie in memory as `with_strides` has them. A torch program's lie as the example inputs of its export
    did. Example: ``at.import_onnx("net.onnx").inputs[0].shape``.
    """

    graph: Graph
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    name: str
    source: str
    signature: Signature | None = field(default=None, repr=False)
    own_sizes: tuple[Mapping[str, int], ...] = ()
    quantized: QuantizedModel | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        sizes = f"{len(self.graph.dag.stages)} stages, {len(self.graph.values)} constants"
        islands = f", {len(self.graph.islands)} islands" if self.graph.islands else ""
        few = f"; {self.quantized.summary}" if self.quantized else ""
        ports = f"{', '.join(map(str, self.inputs))} → {', '.join(map(str, self.outputs))}"
        ranges = ", ".join(f"{name}={least}..{most}" for name, (least, most) in self.sizes.items())
        ranges += "".join(f", {shown_sizes(own)} on its own" for own in self.own_sizes)
        return f"<Model {self.name}: {ports}{ranges and ' with '}{ranges}; {sizes}{islands}{few}>"

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """{open size: its least and its largest value}. Extents are those of the largest."""
        opened = self.graph.dag.open
        return {} if opened is None else {s.name: (s.least, s.most) for s in opened.sizes}

    def at(self, **sizes: int) -> Model:
        """The model with numbers for these open sizes. Others stay open. States stay as they are.

        Raises `ModelError` for a size that is none of the model, or out of its range.

        Example: ``model.at(rows=1)``.
        """
        graph = replace(self.graph, dag=at_sizes(unmarked(self.graph.dag), self._numbers(sizes)))
        inputs, outputs = (
            tuple(
                replace(x, shape=(t := graph.dag.tensors[x.tensor]).shape, strides=t.strides) for x in ports
            )
            for ports in (self.inputs, self.outputs)
        )
        return replace(self, graph=graph, inputs=inputs, outputs=outputs, own_sizes=())

    def with_own_sizes(self, **sizes: int | Iterable[int]) -> Model:
        """The model, of which calls of these sizes run a program of their own: `tune_model` tunes it beside
        the one of all sizes, and a module of `compile_model` has both. They share states and weights. What is
        not named stays open.

        ``sizes``: a number for an open size, or several. With several sizes, each combination has a program.
        A second call adds more. Raises `ModelError` for a size that is none of the model, or out of its
        range.

        Example, a decoder that makes one token after the other: ``model.with_own_sizes(rows=1)``.
        """
        each = {n: [*v] if isinstance(v, Iterable) else [v] for n, v in sizes.items()}
        own = [*self.own_sizes]
        for numbers in product(*each.values()):
            one = self._numbers(dict(zip(each, numbers, strict=True)))
            if one and one not in own:
                own.append(one)
        if len(own) > MOST_OWN:
            raise ModelError(f"{len(own)} sizes have programs of their own; give {MOST_OWN} at most")
        return replace(self, own_sizes=tuple(own))

    def _numbers(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Sizes as plain integers. Raises ModelError for those that the model has not."""
        known, found = self.sizes, {}
        for name, n in sizes.items():
            if name not in known:
                has = f"the open sizes are {', '.join(known)}" if known else "it has no open size"
                raise ModelError(f"{self.source}: there is no size {name!r}; {has}{suggest(name, known)}")
            least, most = known[name]
            if isinstance(n, bool) or not isinstance(n, SupportsIndex) or not least <= index(n) <= most:
                raise ModelError(
                    f"{self.source}: the size {name} is {n!r}; give a number from {least} to {most}"
                )
            found[name] = index(n)
        return found

    def with_strides(self, strides: Strides) -> Model:
        """The model whose inputs lie in memory with these strides: by name, in elements; None: row-major.
        What is not named stays as it is. A compiled model reads an input that lies so in place, and copies
        others.

        Raises `ModelError` for names that are none, and for strides with which two elements lie in one place,
        as no other array can be copied there, or that are below 0; `WorkloadError` for such as are no
        integers, or too few.

        Example, images of 224 × 224 with channels last: ``model.with_strides({"x": (150528, 1, 672, 3)})``.
        """
        names = {x.name: x.tensor for x in self.inputs}
        for name in strides:
            if name not in names:
                known = ", ".join(names)
                raise ModelError(
                    f"strides: there is no input {name!r}; the inputs are {known}{suggest(name, names)}"
                )
        dag = with_strides(self.graph.dag, {names[n]: steps for n, steps in strides.items()})
        lies = {t.name: t.strides for t in dag.inputs}
        for x in self.inputs:
            steps = lies[x.tensor]
            if steps is not None and flaw(x.shape, steps, written=True):
                raise ModelError(
                    f"strides: input {x.name!r} of shape {list(x.shape)} has strides {list(steps)}, with "
                    "which two elements may lie in one place, or it walks backwards: give others, or None, "
                    "and it is copied"
                )
        inputs = tuple(replace(x, strides=lies[x.tensor]) for x in self.inputs)
        return replace(self, graph=replace(self.graph, dag=dag), inputs=inputs)
