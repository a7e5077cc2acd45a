"""The search policies by name. A new policy is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autotune.search.base import SearchPolicy
from autotune.search.evolutionary import EvolutionarySearch, model_features, model_matrix
from autotune.search.grid import GridSearch
from autotune.search.local import LocalSearch
from autotune.search.random import RandomSearch
from autotune.targets import usable_cpus
from cost_model import pretrained
from cost_model.analytic import ESTIMATE, AnalyticModel
from cost_model.base import CostModel
from cost_model.dataset import Dataset
from cost_model.models import PRIORED
from cost_model.models import create as create_model
from cost_model.register_model import NAMES as COMPILED
from cost_model.register_model import RegisterModel
from schedules.errors import AutotuneError
from schedules.model import Target
from schedules.space.base import Space
from schedules.space.estimate.gpu.rates import GpuRates
from schedules.space.gc_paused import gc_paused

# Rows of each sketch from which a shipped model learns what is usual for a task.
SAMPLE = 128


def _evolutionary(
    space: Space, model: str, seed: int, near: Dataset | None, target: Target | None
) -> SearchPolicy:
    names, compiled = model_features(space), None
    if target is not None and target.grid:
        compiled = RegisterModel(names, GpuRates.of(target))
        names = (*names, *COMPILED)
    prior = _prior(space, names, target) if model in PRIORED and compiled is None else None
    judges: dict[str, CostModel] = {}
    if ESTIMATE in names:
        judges["analytic"] = AnalyticModel(names)
    if prior is not None:
        judges["prior"] = prior
    made = create_model(model, names, seed, usable_cpus(), prior)
    return EvolutionarySearch(space, made, seed, near=near, judges=judges, compiled=compiled)


# {name: (space, model, seed, near, target) -> a fresh policy}.
POLICIES: dict[str, Callable[[Space, str, int, Dataset | None, Target | None], SearchPolicy]] = {
    "evolutionary": _evolutionary,
    "local": lambda space, model, seed, near, target: LocalSearch(space, seed),
    "random": lambda space, model, seed, near, target: RandomSearch(space, seed),
    "grid": lambda space, model, seed, near, target: GridSearch(space),
}


def create(
    name: str,
    space: Space,
    model: str = "xgb",
    seed: int = 0,
    near: Dataset | None = None,
    target: Target | None = None,
) -> SearchPolicy:
    """A fresh policy. ``near``: measured candidates of similar tasks, with the columns of `model_features`.
    ``target``: the target whose shipped model it begins with. Raises AutotuneError for an unknown policy or
    model.
    """
    if name not in POLICIES:
        raise AutotuneError(f"unknown search {name!r}; choose from {', '.join(POLICIES)}")
    return POLICIES[name](space, model, seed, near, target)


@gc_paused()
def _prior(space: Space, names: tuple[str, ...], target: Target | None) -> CostModel | None:
    """The shipped model, fitted to what is usual in this space; None if the model lacks some of its
    features."""
    document = pretrained.shipped(target)
    if not pretrained.knows(names, document):
        return None
    rng = np.random.default_rng(0)
    parts = []
    for s in range(len(space.sketches)):
        rows = space.sample(s, SAMPLE, rng)
        rows = rows[space.valid(s, rows)]
        parts.append(model_matrix(space, s, rows))
    return pretrained.Prior(names, np.concatenate(parts), document)
