"""Derives the space of schedules of a compute DAG on a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from schedules.ir import Nest
from schedules.ir.printer import outline
from schedules.model import Target, Trace
from schedules.schedule import fill
from schedules.space import holes as H
from schedules.space.base import Rows
from schedules.space.estimate.base import Estimate, Formulas
from schedules.space.estimate.counting import Number
from schedules.space.estimate.cpu.features import CPU_FORMULAS
from schedules.space.estimate.gpu.features import GPU_FORMULAS
from schedules.space.estimate.recording import Compiler, RecordedProgram
from schedules.space.gc_paused import gc_paused
from schedules.space.rules.cpu import apply_rules, schedule_plainly
from schedules.space.rules.gpu import apply_gpu_rules, schedule_each_plainly
from schedules.space.sketch_builder import SketchBuilder, enumerate_drafts
from schedules.te.compute_dag import ComputeDAG
from schedules.te.scans import check_grid_scans


@dataclass(frozen=True)
class Kind:
    """What differs between kinds of target: the rules, the rule of last resort if no combination of them is
    legal, and what estimates are made of."""

    rules: Callable[[SketchBuilder], None]
    last_resort: Callable[[SketchBuilder], None]
    formulas: Formulas


# The two kinds of target.
CPU = Kind(apply_rules, schedule_plainly, CPU_FORMULAS)
GPU = Kind(apply_gpu_rules, schedule_each_plainly, GPU_FORMULAS)


def _kind(target: Target) -> Kind:
    return GPU if target.grid else CPU


@dataclass(frozen=True)
class Sketch:
    """A trace with holes, the nest that it makes, and the specification of each hole. ``compiler``: as of
    `RecordedProgram`."""

    name: str
    trace: Trace
    holes: tuple[H.HoleSpec, ...]
    nest: Nest
    target: Target
    constants: tuple[str, ...] = ()
    compiler: Compiler | None = None

    @cached_property
    @gc_paused()
    def estimate(self) -> Estimate:
        """The estimate of the sketch's candidates."""
        names = [h.name for h in self.holes]
        return _kind(self.target).formulas.of(self.nest, self.target, names, self.constants, self.compiler)

    @cached_property
    @gc_paused()
    def valid(self) -> RecordedProgram:
        """The program that says whether a row lies in the space and keeps the limits."""

        def both(env: H.Columns) -> list[list[Number]]:
            return [[H.allowed(self.holes, env) & self.estimate.within(env)]]

        return RecordedProgram([h.name for h in self.holes], both, self.compiler)


class DerivedSpace:
    """A `Space` whose sketches were derived from the DAG by the rules."""

    def __init__(
        self, dag: ComputeDAG, target: Target, drafts: list[SketchBuilder], compiler: Compiler | None = None
    ) -> None:
        self.dag, self.target = dag, target
        self._sketches = tuple(
            Sketch(d.name, d.s.trace, tuple(d.holes), d.s.nest, target, dag.constants, compiler)
            for d in drafts
        )

    @property
    def sketches(self) -> tuple[str, ...]:
        return tuple(s.name for s in self._sketches)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return _kind(self.target).formulas.feature_names

    def sketch(self, sketch: int) -> Sketch:
        """A sketch by its index."""
        return self._sketches[sketch]

    def holes(self, sketch: int) -> tuple[str, ...]:
        return tuple(h.name for h in self._sketches[sketch].holes)

    def describe(self, sketch: int) -> str:
        s = self._sketches[sketch]
        return "\n".join([*(f"{h.name}: {H.words(h)}" for h in s.holes), outline(s.nest)])

    def sample(self, sketch: int, n: int, rng: np.random.Generator) -> Rows:
        return H.sample(self._sketches[sketch].holes, n, rng)

    def mutate(self, sketch: int, rows: Rows, rng: np.random.Generator) -> Rows:
        return H.mutate(self._sketches[sketch].holes, rows, rng)

    def crossover(self, sketch: int, a: Rows, b: Rows, rng: np.random.Generator) -> Rows:
        return H.crossover(self._sketches[sketch].holes, a, b, rng)

    def nearest(self, sketch: int, rows: Rows) -> Rows:
        return H.nearest(self._sketches[sketch].holes, rows)

    def every(self, sketch: int, most: int, values: int | None = None) -> Rows | None:
        return H.every(self._sketches[sketch].holes, most, values)

    def valid(self, sketch: int, rows: Rows) -> np.ndarray:
        ok = np.empty(len(rows), dtype=bool)
        for part, (found,), _ in self._sketches[sketch].valid.run(rows):
            ok[part] = found
        return ok

    def features(self, sketch: int, rows: Rows) -> np.ndarray:
        return self._sketches[sketch].estimate.features(rows)

    def trace(self, sketch: int, row: Rows) -> Trace:
        s = self._sketches[sketch]
        decisions = {h.name: int(x) for h, x in zip(s.holes, row, strict=True)}
        return Trace(tuple(fill(step, decisions) for step in s.trace.steps))


@gc_paused()
def derive(
    dag: ComputeDAG,
    target: Target,
    compiler: Compiler | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> DerivedSpace:
    """Run the sketch rules; what none of them can schedule is scheduled plainly. ``compiler``: compiles
    limits and features for callers who ask about many rows (`schedules.space.estimate.recording`).
    ``enough``: whether the space must do with the sketches that there are, asked after the first and while
    others are drawn: programs of hundreds of stages take seconds for each one. Raises ScheduleError for scans
    that a GPU does not run."""
    kind = _kind(target)
    if target.grid:
        check_grid_scans(dag)
    drafts = enumerate_drafts(dag, target, kind.rules, enough=enough)
    drafts = drafts or enumerate_drafts(dag, target, kind.last_resort)
    return DerivedSpace(dag.largest, target, drafts, compiler)
