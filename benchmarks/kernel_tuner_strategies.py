"""Strategies of Kernel Tuner (1.5) on recorded tables, for `replay.py`. Kernel Tuner is no dependency:
install `kernel_tuner` beside autotune to use this.

Two traps, which this module avoids. A `Searchspace` keeps in its caches of neighbours what a run has visited,
so that a second run on it starts from there: every run has its own. And bayes_opt takes the largest float,
with which Kernel Tuner marks a failed run, for a valid time: ``bayes_opt`` gets times of `FAILED_MS`.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from autotune.search.simulate import SimulatedRun
from autotune.search.table import Table, TableSpace
from schedules.space.base import Candidate

# What bayes_opt takes for a failure.
FAILED_MS = 1e20
# Configurations that a strategy may ask for, over the evaluations that it has: known ones cost it nothing.
PATIENCE = 60


class Parameters:
    """The parameters of a table that differ, as Kernel Tuner knows them: names, values, configurations."""

    def __init__(self, space: TableSpace) -> None:
        rows = space.every(0, 1 << 30)
        assert rows is not None and len(space.sketches) == 1, "a table of Kernel Tuner has one sketch"
        names, features = space.holes(0), space.features(0, rows)
        columns = [space.feature_names.index(h) for h in names]
        vary = [k for k in range(len(names)) if len(np.unique(rows[:, k])) > 1]
        values = features[:, [columns[k] for k in vary]].astype(float)
        self.names = [names[k] for k in vary]
        self.values = {n: np.unique(values[:, i]).tolist() for i, n in enumerate(self.names)}
        self.candidates = {
            tuple(v): Candidate(0, tuple(row)) for v, row in zip(values.tolist(), rows.tolist(), strict=True)
        }

    def searchspace(self) -> Any:
        """A fresh `Searchspace`, without what other runs left in its caches."""
        from kernel_tuner.searchspace import Searchspace

        cache = {",".join(map(str, c)): dict(zip(self.names, c, strict=True)) for c in self.candidates}
        return Searchspace(None, None, None, from_cache={"tune_params": dict(self.values), "cache": cache})


class TableRunner:
    """A runner of Kernel Tuner that looks times up. ``best_s``: the best after each evaluation; each
    configuration counts once."""

    def __init__(self, table: Table, parameters: Parameters, trials: int, marked: bool) -> None:
        self._table, self._parameters, self._trials = table, parameters, trials
        self._marked = marked  # whether a failure is an error, or a time of `FAILED_MS`
        self._asked, self._known = 0, set[Candidate]()
        self.best_s: list[float | None] = []
        self.dev = self

    # What strategies ask of a device.
    max_threads = 1 << 30
    name = "simulated"

    def get_device_info(self) -> TableRunner:
        return self

    def add_strategy_time(self, seconds: float) -> None: ...

    def available_parallelism(self) -> int:
        return 1

    def run(self, configurations: Sequence[Sequence[Any]], options: Any) -> list[dict[str, Any] | None]:
        return [self._one(tuple(float(x) for x in c), options) for c in configurations]

    def _one(self, configuration: tuple[float, ...], options: Any) -> dict[str, Any] | None:
        from kernel_tuner import util

        self._asked += 1
        if self._asked > PATIENCE * self._trials:
            raise util.StopCriterionReached("it asks for what it knows")
        if options.budget.is_done():
            return None
        out: dict[str, Any] = dict(zip(self._parameters.names, configuration, strict=True))
        candidate = self._parameters.candidates.get(configuration)
        if candidate is None:
            return out | {"__error__": util.InvalidConfig()}
        t = self._table.space.time_s(candidate)
        if candidate not in self._known:
            self._known.add(candidate)
            options.budget.add_evaluations(1)
            last = self.best_s[-1] if self.best_s else None
            self.best_s.append(t if last is None else last if t is None else min(last, t))
        if t is not None:
            return out | {"time": 1e3 * t}
        if self._marked:
            return out | {"__error__": util.RuntimeFailedConfig(), "time": util.RuntimeFailedConfig()}
        return out | {"time": FAILED_MS}


_parameters: dict[str, Parameters] = {}  # of the tables of this process, by name


def play(strategy: str, table: Table, trials: int, seed: int) -> SimulatedRun:
    """One run of a strategy, by its name in `kernel_tuner.strategies`, until the evaluations are used up or
    the strategy ends."""
    from kernel_tuner import util
    from kernel_tuner.interface import Options

    parameters = _parameters.setdefault(table.name, Parameters(table.space))
    searchspace = parameters.searchspace()
    runner = TableRunner(table, parameters, trials, marked=strategy != "bayes_opt")
    options = Options(
        {
            "tune_params": dict(searchspace.tune_params), "objective": ["time"],
            "objective_higher_is_better": [False], "verbose": False, "quiet": True, "metrics": None,
            "cache": {}, "restrictions": None, "max_fevals": trials, "simulated_time": 0,
            "strategy_options": Options({"max_fevals": trials}),
            "budget": util.TuningBudget(None, trials),
        }
    )  # fmt: skip
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002, strategies draw from it
    try:
        importlib.import_module(f"kernel_tuner.strategies.{strategy}").tune(searchspace, runner, options)
    except util.StopCriterionReached:
        pass
    return SimulatedRun(seed, tuple(runner.best_s))
