"""`Graph`: a model as one compute DAG with the values of its constants. `Group`: the part that one kernel
runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules.dtypes import DTYPES
from schedules.te.compute_dag import ComputeDAG, Tensor
from schedules.te.marks import marked

Array = NDArray[Any]


@dataclass(frozen=True)
class Island:
    """An operator that is not an expression: whoever runs the graph calls it between kernels.

    ``reads``: names of tensors, outputs of the graph's DAG or inputs of it. ``writes``: tensors, which are
    inputs of the DAG. ``op`` names it to users; ``payload`` is data that says what to run (for ONNX: the
    serialized node)."""

    name: str
    op: str
    reads: tuple[str, ...]
    writes: tuple[Tensor, ...]
    payload: bytes = b""


@dataclass(frozen=True)
class Argument:
    """A place in a tensor of the graph: from ``start`` on, in elements of its memory. What lies there has
    strides of its own."""

    tensor: str
    start: int = 0


@dataclass(frozen=True)
class Graph:
    """A model. Its meaning is that of ``dag``, with ``values`` for ``dag.constants``. Extents of ``dag`` that
    depend on an open size know it (`schedules.te.marks`).

    ``inputs`` and ``outputs``: names of the DAG's tensors that a caller gives and gets, in order. Other
    inputs of the DAG are constants, or written by an island. Other outputs are read by an island.
    ``origins``: {name of a stage: name of the model's node that it comes from}, for what is shown to users.
    ``views``: {tensor: where in another one it lies}, with the strides that it has in the DAG. ``joins``:
    {tensor that no kernel makes: the tensors of which it is made up}, which lie where it does.
    Raises ValueError for values that are missing, or have another shape or dtype than their constant.
    """

    dag: ComputeDAG
    values: Mapping[str, Array]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    islands: tuple[Island, ...] = ()
    views: Mapping[str, Argument] = field(default_factory=lambda: MappingProxyType({}))
    joins: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        object.__setattr__(self, "dag", marked(self.dag))
        if set(self.values) != set(self.dag.constants):
            odd = sorted(set(self.values) ^ set(self.dag.constants))
            raise ValueError(f"values and constants of the graph differ: {', '.join(odd)}")
        for name, value in self.values.items():
            t = self.dag.tensors[name]
            if value.shape != t.shape or value.dtype != np.dtype(DTYPES[t.dtype].numpy):
                raise ValueError(
                    f"constant {name}: {value.dtype}{list(value.shape)} is no {t.dtype}{list(t.shape)}"
                )
        written = [t.name for i in self.islands for t in i.writes]
        known = {*self.inputs, *written, *self.dag.constants}
        if missing := [t.name for t in self.dag.inputs if t.name not in known]:
            raise ValueError(f"nothing gives the graph's {', '.join(missing)}")
        computed = {*self.dag.outputs, *written}
        for name in self.outputs:
            if name not in computed:
                raise ValueError(f"output {name!r} of the graph is not computed")

    def __reduce__(self) -> tuple[type[Graph], tuple[Any, ...]]:
        """A copy or a pickle is made again of its parts, with every check."""
        parts = (self.dag, dict(self.values), self.inputs, self.outputs, dict(self.origins), self.islands)
        return Graph, (*parts, dict(self.views), dict(self.joins))


@dataclass(frozen=True)
class Group:
    """Stages that one kernel runs. ``dag``: their expression; its inputs are ``inputs`` in order, those that
    are weights its constants. ``outputs``: names of the graph's tensors that it writes, in the order of
    ``dag.outputs``. ``origins``: names of the model's nodes. ``parts``: groups that do the same in several
    kernels, in their order, where measuring must tell which is faster; else empty."""

    dag: ComputeDAG
    inputs: tuple[Argument, ...]
    outputs: tuple[str, ...]
    origins: tuple[str, ...] = ()
    parts: tuple[Group, ...] = ()
