"""`Model`: a graph of tensor expressions, and what the model's file calls its inputs and outputs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from keyword import iskeyword

from autotune.models.signature import Signature
from schedules.graph.graph import Graph


def identifier(name: str) -> str:
    """A name made of ASCII letters, digits and _."""
    text = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "x"
    text = f"_{text}" if text[0].isdigit() else text
    return f"{text}_" if iskeyword(text) else text


@dataclass(frozen=True)
class Port:
    """An input or an output of a model. ``name``: as in the file. ``tensor``: its name in the graph, an
    identifier. ``shape``: in elements."""

    name: str
    tensor: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True, repr=False)
class Model:
    """A model as it was imported.

    ``graph``: what it computes (`schedules.graph.graph.Graph`). ``inputs``, ``outputs``: in the order of the
    file, which is also that of ``graph.inputs`` and ``graph.outputs``. ``name``: that the file gives it.
    ``source``: where it is from, for messages. ``signature``: how it is called; None where that is with its
    inputs, one after the other.

    Example: ``at.import_onnx("net.onnx").inputs[0].shape``.
    """

    graph: Graph
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    name: str
    source: str
    signature: Signature | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        sizes = f"{len(self.graph.dag.stages)} stages, {len(self.graph.values)} constants"
        islands = f", {len(self.graph.islands)} islands" if self.graph.islands else ""
        ports = f"{', '.join(map(str, self.inputs))} → {', '.join(map(str, self.outputs))}"
        return f"<Model {self.name}: {ports}; {sizes}{islands}>"
