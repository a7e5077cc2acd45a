"""A space without hardware: throughput is a formula of the decisions, so search is testable."""

from __future__ import annotations

import numpy as np

from schedules.model import Step, Trace
from schedules.space.base import Rows


class FormulaSpace:
    """``choices[s]`` gives the number of choices of each hole of sketch ``s``. A row is invalid
    where its decisions are too large in sum; schedules of twin sketches are the same."""

    def __init__(
        self,
        choices: tuple[tuple[int, ...], ...] = ((8, 8, 8, 6, 4), (8, 8, 6), (10, 4, 4, 4)),
        peaks: tuple[float, ...] = (1.0, 0.7, 0.9),
        estimate: bool = True,
        seed: int = 0,
        twins: bool = False,
    ) -> None:
        self.choices, self.peaks, self.twins = choices, peaks, twins
        self.sketches = tuple(f"sketch{s}" for s in range(len(choices)))
        self.feature_names = (
            "sum",
            "largest",
            "peak",
            *(f"x{i}" for i in range(6)),
            *(("est_time_s",) if estimate else ()),
        )
        rng = np.random.default_rng(seed)
        self._centre = [rng.random(len(c)) for c in choices]
        self._noise = int(rng.integers(1 << 30))
        self.scored = 0  # rows whose features were asked for

    def holes(self, sketch: int) -> tuple[str, ...]:
        return tuple(f"h{i}" for i in range(len(self.choices[sketch])))

    def describe(self, sketch: int) -> str:
        return f"h0: one of {self.choices[sketch][0]}"

    def sample(self, sketch: int, n: int, rng: np.random.Generator) -> Rows:
        return rng.integers(0, self.choices[sketch], (n, len(self.choices[sketch])), dtype=np.int64)

    def mutate(self, sketch: int, rows: Rows, rng: np.random.Generator) -> Rows:
        hole = rng.integers(0, rows.shape[1], len(rows))
        out = rows.copy()
        out[np.arange(len(rows)), hole] = rng.integers(0, np.array(self.choices[sketch])[hole])
        return out

    def crossover(self, sketch: int, a: Rows, b: Rows, rng: np.random.Generator) -> Rows:
        return np.where(rng.random(a.shape) < 0.5, a, b)

    def nearest(self, sketch: int, rows: Rows) -> Rows:
        return np.clip(rows, 0, np.array(self.choices[sketch]) - 1)

    def every(self, sketch: int, most: int, values: int | None = None) -> Rows | None:
        ranges = [np.unique(np.linspace(0, n - 1, min(n, values or n)).round()) for n in self.choices[sketch]]
        if np.prod([len(r) for r in ranges]) > most:
            return None
        return np.stack(np.meshgrid(*ranges, indexing="ij"), -1).reshape(-1, len(ranges)).astype(np.int64)

    def valid(self, sketch: int, rows: Rows) -> np.ndarray:
        return self._unit(sketch, rows).mean(axis=1) < 0.85

    def _unit(self, sketch: int, rows: Rows) -> np.ndarray:
        return rows / np.maximum(np.array(self.choices[sketch]) - 1, 1)

    def throughput(self, sketch: int, rows: Rows) -> np.ndarray:
        """The truth, in runs a second."""
        u = self._unit(sketch, rows)
        distance = ((u - self._centre[sketch]) ** 2).sum(axis=1)
        ridge = 0.3 * np.abs(u[:, 0] - u[:, -1])
        return 1000 * self.peaks[sketch] * np.exp(-1.5 * distance - ridge)

    def features(self, sketch: int, rows: Rows) -> np.ndarray:
        self.scored += len(rows)
        u = self._unit(sketch, rows)
        padded = np.zeros((len(rows), 6))
        padded[:, : u.shape[1]] = u
        columns = [u.sum(axis=1), u.max(axis=1), np.full(len(rows), self.peaks[sketch]), *padded.T]
        if "est_time_s" in self.feature_names:
            wrong = np.random.default_rng(self._noise + sketch).random(u.shape[1])
            columns.append(np.exp(0.8 * (u @ wrong)) / self.throughput(sketch, rows))
        return np.column_stack(columns).astype(np.float32)

    def trace(self, sketch: int, row: Rows) -> Trace:
        name = "twin" if self.twins else self.sketches[sketch]
        return Trace((Step(name, tuple((f"h{i}", int(x)) for i, x in enumerate(row))),))

    def optimum(self) -> float:
        """Best throughput of any valid row, by brute force."""
        best = 0.0
        for s, c in enumerate(self.choices):
            rows = np.stack(np.meshgrid(*map(np.arange, c), indexing="ij"), -1).reshape(-1, len(c))
            best = max(best, float(self.throughput(s, rows[self.valid(s, rows)]).max()))
        return best
