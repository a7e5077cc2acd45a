"""What a module keeps of the model that it was compiled from, so that it can take other weights.

The weights that kernels read are not those of the model: rewrites transposed them, stacked them and
multiplied scales into them. So other weights go through the same rewrites. The model's large weights are not
kept, as memory would hold them twice. Hence they are given together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from autotune.errors import ModelError
from autotune.models import preparation
from autotune.models.model import identifier
from autotune.run.host_arrays import fitting
from schedules.errors import suggest
from schedules.expr import wrap
from schedules.graph.graph import Graph, GraphState, Island
from schedules.graph.rewrite import USUAL, Choices
from schedules.ir import Buffer
from schedules.model import canonical, digest
from schedules.te.compute_dag import ComputeDAG, Tensor

Array = NDArray[Any]
SMALL = 1 << 16  # bytes up to which a weight is kept as the model has it


@dataclass(frozen=True)
class ModelOrigin:
    """The graph of a model before rewrites, with the values of small weights only. ``rewritten``: the digest
    of its expression after rewrites, those that may lose by ``choices``."""

    name: str
    dag: ComputeDAG
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    islands: tuple[Island, ...]
    small: Mapping[str, Array]
    rewritten: str
    states: Mapping[str, GraphState]
    choices: Choices = USUAL

    @staticmethod
    def of(name: str, graph: Graph, rewritten: Graph, choices: Choices = USUAL) -> ModelOrigin:
        """What is kept of a graph. ``rewritten``: what the rewrites made of it, by ``choices``."""
        small = {n: v.copy() for n, v in graph.values.items() if v.nbytes <= SMALL}
        parts = (graph.dag, graph.inputs, graph.outputs, graph.islands)
        states = {n: GraphState(s.tensor, s.new) for n, s in graph.states.items()}
        return ModelOrigin(name, *parts, small, _identity(rewritten), states, choices)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The model's weights by name."""
        return {n: self.dag.tensors[n] for n in self.dag.constants}

    def with_weights(self, given: Mapping[str, Any]) -> tuple[ModelOrigin, Mapping[str, Array]]:
        """(This with other weights, {name: the value that kernels read}). Names of a file, such as
        ``fc.weight``, may be given as they are. Raises `ModelError` for names that are none, for large
        weights that are missing, and for values with which the rewrites make another graph; `ArgumentError`
        for shapes and dtypes that do not fit."""
        found = self._checked(given)
        missing = [n for n in self.dag.constants if n not in found and n not in self.small]
        if missing:
            shown = ", ".join(missing[:8]) + (" ..." if len(missing) > 8 else "")
            raise ModelError(
                f"{self.name} keeps its large weights in packed form only: give all of them together; "
                f"{shown} not given"
            )
        values = {**self.small, **found}
        graph = Graph(self.dag, values, self.inputs, self.outputs, islands=self.islands, states=self.states)
        rewritten = preparation.cut(graph, self.choices)[0].graph
        if _identity(rewritten) != self.rewritten:
            raise ModelError(
                f"with these weights {self.name} is rewritten to another graph: compile it again"
            )
        small = {n: found[n].copy() if n in found else v for n, v in self.small.items()}
        return replace(self, small=small), rewritten.values

    def _checked(self, given: Mapping[str, Any]) -> dict[str, Array]:
        found: dict[str, Array] = {}
        known = self.weights
        for name, value in given.items():
            own = name if name in known else identifier(name)
            if own not in known:
                hint = suggest(name, known)
                raise ModelError(f"{self.name} has no weight {name!r}{hint}; module.weights has them all")
            t = known[own]
            buffer = Buffer(name, tuple(map(wrap, t.shape)), t.dtype)
            found[own] = fitting(value, buffer, False, "model")[0]
        return found


def _identity(graph: Graph) -> str:
    return digest(canonical(graph.dag.to_json()))
