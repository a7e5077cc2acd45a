"""The search policies by name. A new policy is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable

from autotune.search.base import SearchPolicy
from autotune.search.evolutionary import EvolutionarySearch, model_features
from autotune.search.local import LocalSearch
from autotune.search.random import RandomSearch
from autotune.targets import usable_cpus
from cost_model.models import create as create_model
from schedules.errors import AutotuneError
from schedules.space.base import Space

POLICIES: dict[str, Callable[[Space, str, int], SearchPolicy]] = {
    "evolutionary": lambda space, model, seed: EvolutionarySearch(
        space, create_model(model, model_features(space), seed, usable_cpus()), seed
    ),
    "local": lambda space, model, seed: LocalSearch(space, seed),
    "random": lambda space, model, seed: RandomSearch(space, seed),
}


def create(name: str, space: Space, model: str = "xgb", seed: int = 0) -> SearchPolicy:
    """A fresh policy. Raises AutotuneError for an unknown name of a policy or of a model."""
    if name not in POLICIES:
        raise AutotuneError(f"unknown search {name!r}; choose from {', '.join(POLICIES)}")
    return POLICIES[name](space, model, seed)
