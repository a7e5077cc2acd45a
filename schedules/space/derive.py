"""The space of schedules of a compute DAG on a target."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from schedules.constants import split_constants
from schedules.ir import Nest
from schedules.model import Target, Trace
from schedules.schedule import fill
from schedules.space import gpu
from schedules.space import holes as H
from schedules.space.base import Rows
from schedules.space.facts import BlockFacts, analyse
from schedules.space.features import FEATURE_NAMES, Features
from schedules.space.garbage import collected_later
from schedules.space.limits import within
from schedules.space.quantities import Machine, Number
from schedules.space.recording import Compiler, Program
from schedules.space.rules import apply_rules, schedule_plainly
from schedules.space.rules.gpu import apply_gpu_rules, schedule_each_plainly
from schedules.space.sketching import Draft, enumerate_drafts
from schedules.te.compute_dag import ComputeDAG


@dataclass(frozen=True)
class Sketch:
    """A trace with holes, and what fills them; ``compiler`` as of `Program`."""

    name: str
    trace: Trace
    holes: tuple[H.HoleSpec, ...]
    nest: Nest
    target: Target
    constants: tuple[str, ...] = ()
    compiler: Compiler | None = None

    @cached_property
    def facts(self) -> tuple[BlockFacts, ...]:
        """Of what a call does: constants are packed before."""
        return analyse(split_constants(self.nest, self.constants)[0])

    @cached_property
    def kernels(self) -> tuple[gpu.KernelFacts, ...]:
        """The same for a GPU."""
        return gpu.analyse(self.nest)

    @cached_property
    @collected_later()
    def features(self) -> Features | gpu.Features:
        names = [h.name for h in self.holes]
        if self.target.kind != "cpu":
            return gpu.Features(self.kernels, names, gpu.Machine.of(self.target), self.compiler)
        return Features(self.facts, names, Machine.of(self.target), self.compiler)

    @cached_property
    @collected_later()
    def valid(self) -> Program:
        """Whether a row lies in the space and keeps the limits."""

        def both(env: H.Columns) -> list[list[Number]]:
            inside = H.allowed(self.holes, env)
            if self.target.kind != "cpu":
                return [[inside & gpu.within(self.kernels, env, gpu.Machine.of(self.target))]]
            return [[inside & within(self.facts, env, Machine.of(self.target))]]

        return Program([h.name for h in self.holes], both, self.compiler)


class DerivedSpace:
    """A `Space` whose sketches were derived from the DAG by the rules."""

    def __init__(
        self, dag: ComputeDAG, target: Target, drafts: list[Draft], compiler: Compiler | None = None
    ) -> None:
        self.dag, self.target = dag, target
        self.on_gpu = target.kind != "cpu"
        self._sketches = tuple(
            Sketch(d.name, d.s.trace, tuple(d.holes), d.s.nest, target, dag.constants, compiler)
            for d in drafts
        )

    @property
    def sketches(self) -> tuple[str, ...]:
        return tuple(s.name for s in self._sketches)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return gpu.FEATURE_NAMES if self.on_gpu else FEATURE_NAMES

    def sketch(self, sketch: int) -> Sketch:
        return self._sketches[sketch]

    def holes(self, sketch: int) -> tuple[str, ...]:
        return tuple(h.name for h in self._sketches[sketch].holes)

    def sample(self, sketch: int, n: int, rng: np.random.Generator) -> Rows:
        return H.sample(self._sketches[sketch].holes, n, rng)

    def mutate(self, sketch: int, rows: Rows, rng: np.random.Generator) -> Rows:
        return H.mutate(self._sketches[sketch].holes, rows, rng)

    def crossover(self, sketch: int, a: Rows, b: Rows, rng: np.random.Generator) -> Rows:
        return H.crossover(self._sketches[sketch].holes, a, b, rng)

    def every(self, sketch: int, most: int, values: int | None = None) -> Rows | None:
        return H.every(self._sketches[sketch].holes, most, values)

    def valid(self, sketch: int, rows: Rows) -> np.ndarray:
        ok = np.empty(len(rows), dtype=bool)
        for part, (found,), _ in self._sketches[sketch].valid.run(rows):
            ok[part] = found
        return ok

    def features(self, sketch: int, rows: Rows) -> np.ndarray:
        return self._sketches[sketch].features(rows)

    def trace(self, sketch: int, row: Rows) -> Trace:
        s = self._sketches[sketch]
        decisions = {h.name: int(x) for h, x in zip(s.holes, row, strict=True)}
        return Trace(tuple(fill(step, decisions) for step in s.trace.steps))


@collected_later()
def derive(dag: ComputeDAG, target: Target, compiler: Compiler | None = None) -> DerivedSpace:
    """Run the sketch rules; what none of them can schedule is scheduled plainly. ``compiler``: of limits and
    features, for those who ask about many rows (`schedules.space.recording`)."""
    on_gpu = target.kind != "cpu"
    rules, last_resort = (
        (apply_gpu_rules, schedule_each_plainly) if on_gpu else (apply_rules, schedule_plainly)
    )
    drafts = enumerate_drafts(dag, target, rules) or enumerate_drafts(dag, target, last_resort)
    return DerivedSpace(dag, target, drafts, compiler)
