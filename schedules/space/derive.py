"""The space of schedules of a compute DAG on a target."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from schedules.dag import ComputeDAG
from schedules.ir import Nest
from schedules.model import Target, Trace
from schedules.schedule import fill
from schedules.space import holes as H
from schedules.space.base import Rows
from schedules.space.limits import within
from schedules.space.quantities import FEATURES_PER_BLOCK, BlockFacts, Machine, analyse, measure
from schedules.space.rules import apply_rules, schedule_plainly
from schedules.space.sketching import Draft, enumerate_drafts

GIGAHERTZ = 3.0  # cycles to seconds in estimates, which only rank
HOT_BLOCKS = 3  # blocks whose features stand one by one, hottest first; the rest are summed


@dataclass(frozen=True)
class Sketch:
    """A trace with holes, and what fills them."""

    name: str
    trace: Trace
    holes: tuple[H.HoleSpec, ...]
    nest: Nest

    @cached_property
    def facts(self) -> tuple[BlockFacts, ...]:
        return analyse(self.nest)


class DerivedSpace:
    """A `Space` whose sketches were derived from the DAG by the rules."""

    def __init__(self, dag: ComputeDAG, target: Target, drafts: list[Draft]) -> None:
        self.dag, self.target = dag, target
        self.machine = Machine.of(target)
        self._sketches = tuple(Sketch(d.name, d.s.trace, tuple(d.holes), d.s.nest) for d in drafts)

    @property
    def sketches(self) -> tuple[str, ...]:
        return tuple(s.name for s in self._sketches)

    @property
    def feature_names(self) -> tuple[str, ...]:
        hot = tuple(f"block{n}.{f}" for n in range(HOT_BLOCKS) for f in FEATURES_PER_BLOCK)
        return (*hot, "blocks", "total.cycles", "total.memory_bytes", "total.special", "est_time_s")

    def sketch(self, sketch: int) -> Sketch:
        return self._sketches[sketch]

    def holes(self, sketch: int) -> tuple[str, ...]:
        return tuple(h.name for h in self._sketches[sketch].holes)

    def size(self, sketch: int) -> float:
        return float(np.prod([h.size() for h in self._sketches[sketch].holes]))

    def sample(self, sketch: int, n: int, rng: np.random.Generator) -> Rows:
        return H.sample(self._sketches[sketch].holes, n, rng)

    def mutate(self, sketch: int, rows: Rows, rng: np.random.Generator) -> Rows:
        return H.mutate(self._sketches[sketch].holes, rows, rng)

    def crossover(self, sketch: int, a: Rows, b: Rows, rng: np.random.Generator) -> Rows:
        return H.crossover(self._sketches[sketch].holes, a, b, rng)

    def valid(self, sketch: int, rows: Rows) -> np.ndarray:
        s = self._sketches[sketch]
        ok = H.allowed(s.holes, rows)
        return ok & within(s.facts, H.columns(s.holes, rows), len(rows), self.machine)

    def features(self, sketch: int, rows: Rows) -> np.ndarray:
        s = self._sketches[sketch]
        env = H.columns(s.holes, rows)
        found = [measure(b, env, self.machine) for b in s.facts]
        n = len(rows)
        cycles = np.stack([np.broadcast_to(q["cycles"], (n,)) for q in found])
        # hottest first, by the mean over the rows: which block is hot hardly depends on the holes
        order = np.argsort(-cycles.mean(axis=1), kind="stable")
        out = np.zeros((n, len(self.feature_names)), dtype=np.float32)
        width = len(FEATURES_PER_BLOCK)
        for k, b in enumerate(order[:HOT_BLOCKS]):
            for j, name in enumerate(FEATURES_PER_BLOCK):
                out[:, k * width + j] = found[b][name]
        tail = HOT_BLOCKS * width
        out[:, tail] = len(found)
        out[:, tail + 1] = cycles.sum(axis=0)
        out[:, tail + 2] = sum(q["memory_bytes"] for q in found)
        out[:, tail + 3] = sum(b.special for b in s.facts)
        out[:, tail + 4] = cycles.sum(axis=0) / (GIGAHERTZ * 1e9)
        return out

    def trace(self, sketch: int, row: Rows) -> Trace:
        s = self._sketches[sketch]
        decisions = {h.name: int(x) for h, x in zip(s.holes, row, strict=True)}
        return Trace(tuple(fill(step, decisions) for step in s.trace.steps))


def derive(dag: ComputeDAG, target: Target) -> DerivedSpace:
    """Run the sketch rules; what none of them can schedule is scheduled plainly."""
    drafts = enumerate_drafts(dag, target, apply_rules) or enumerate_drafts(dag, target, schedule_plainly)
    return DerivedSpace(dag, target, drafts)
