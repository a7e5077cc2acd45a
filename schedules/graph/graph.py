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
from schedules.expr import Expr
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
class PlaceMove:
    """How far a place moves with a number that each call tells: by ``index * stride`` elements.

    ``index``: an integer expression of elements of inputs and states of the model, as they are before the
    call. ``rows`` indices from there on are taken of an axis of ``extent``: a call in which they are not
    inside is refused before it writes anything (`most`). Where their number depends on an open size,
    ``rows`` is the largest, in a graph an extent that knows its size; ``counted``: the number by variables
    of sizes."""

    index: Expr
    stride: int
    rows: int
    extent: int
    counted: Expr | None = None

    @property
    def most(self) -> int:
        """The largest index that leaves the rows inside."""
        return self.extent - self.rows


@dataclass(frozen=True)
class Argument:
    """A place in a tensor of the graph: from ``start`` on, in elements of its memory, and further by what the
    call tells (``moves``). What lies there has strides of its own."""

    tensor: str
    start: int = 0
    moves: tuple[PlaceMove, ...] = ()


@dataclass(frozen=True)
class GraphState:
    """What calls keep: an input of the DAG, ``tensor``, that no caller gives, and the output ``new`` that
    takes its place after a call. Both have one shape and one dtype. ``initial``: its value before the first
    call; None: zeros."""

    tensor: str
    new: str
    initial: Array | None = field(default=None, compare=False)


@dataclass(frozen=True)
class ShortLoops:
    """Loops over rows that end where a call tells: after ``end`` rows, an integer expression of elements of
    inputs and states of the model, as they are before the call. It is from ``least`` to ``most``. ``axes``:
    (name of a stage, one of its axes). In the DAG they have the extent ``most``, and elements from ``end`` on
    are read by none but such loops. ``name``: of the size."""

    name: str
    end: Expr
    least: int
    most: int
    axes: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Graph:
    """A model. Its meaning is that of ``dag``, with ``values`` for ``dag.constants``. Extents of ``dag`` that
    depend on an open size know it (`schedules.te.marks`).

    ``inputs`` and ``outputs``: names of the DAG's tensors that a caller gives and gets, in order. Other
    inputs of the DAG are constants, or written by an island. Other outputs are read by an island.
    ``origins``: {name of a stage: name of the model's node that it comes from}, for what is shown to users.
    ``views``: {tensor: where in another one it lies}, with the strides that it has in the DAG. ``joins``:
    {tensor that no kernel makes: the tensors of which it is made up, or the one that it is a part of}, which
    lie where it does.
    ``states``: {name for users: what calls keep}. The DAG is pure with them too: it makes the new value of
    the old one. `schedules.graph.states` has the new value lie where the old one does. ``short``: loops that
    end earlier than the DAG says (`schedules.graph.valid_rows`).
    ``recut``: names of stages that are cut from their readers otherwise than usual: maps with a kernel of
    their own (`schedules.graph.store`), windows that the kernel of a product computes
    (`schedules.graph.fuse_windows`), and parts of a sum (`schedules.graph.split_sums`).
    Raises ValueError for values that are missing, or have another shape or dtype than their constant, and for
    states that are none.
    """

    dag: ComputeDAG
    values: Mapping[str, Array]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    islands: tuple[Island, ...] = ()
    views: Mapping[str, Argument] = field(default_factory=lambda: MappingProxyType({}))
    joins: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    states: Mapping[str, GraphState] = field(default_factory=lambda: MappingProxyType({}))
    short: tuple[ShortLoops, ...] = ()
    recut: frozenset[str] = frozenset()

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
        kept = [s.tensor for s in self.states.values()]
        known = {*self.inputs, *written, *self.dag.constants, *kept}
        if missing := [t.name for t in self.dag.inputs if t.name not in known]:
            raise ValueError(f"nothing gives the graph's {', '.join(missing)}")
        computed = {*self.dag.outputs, *written}
        for name in self.outputs:
            if name not in computed:
                raise ValueError(f"output {name!r} of the graph is not computed")
        self._check_states({*self.inputs, *written, *self.dag.constants})

    def _check_states(self, given: set[str]) -> None:
        """Raise ValueError for states that are none. ``given``: inputs that have their values otherwise."""
        tensors = {t.name: t for t in self.dag.inputs}
        for name, s in self.states.items():
            old = tensors.get(s.tensor)
            if old is None or s.tensor in given:
                raise ValueError(f"state {name!r}: {s.tensor!r} is no input of the graph that calls keep")
            if s.new not in self.dag.outputs or s.new in self.outputs:
                raise ValueError(f"state {name!r}: its new value {s.new!r} is no output of its own")
            new = self.dag.tensors[s.new]
            if (new.shape, new.dtype) != (old.shape, old.dtype):
                raise ValueError(
                    f"state {name!r} is {old.dtype}{list(old.shape)}, and its new value "
                    f"{new.dtype}{list(new.shape)}"
                )
        every = [x for s in self.states.values() for x in (s.tensor, s.new)]
        if len(set(every)) != len(every):
            raise ValueError("two states share a tensor")

    def __reduce__(self) -> tuple[type[Graph], tuple[Any, ...]]:
        """A copy or a pickle is made again of its parts, with every check."""
        parts = (self.dag, dict(self.values), self.inputs, self.outputs, dict(self.origins), self.islands)
        return Graph, (*parts, dict(self.views), dict(self.joins), dict(self.states), self.short, self.recut)


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
