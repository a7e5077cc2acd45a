"""The models by name. A new model is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable

from cost_model.analytic import AnalyticModel
from cost_model.base import CostModel, CostModelError
from cost_model.random import RandomModel
from cost_model.xgb import XGBModel

MODELS: dict[str, Callable[[tuple[str, ...], int, int], CostModel]] = {
    "xgb": lambda names, seed, threads: XGBModel(names, seed, threads),
    "analytic": lambda names, seed, threads: AnalyticModel(names),
    "random": lambda names, seed, threads: RandomModel(names, seed),
}


def create(name: str, feature_names: tuple[str, ...], seed: int = 0, threads: int = 1) -> CostModel:
    """A fresh model. Raises CostModelError for an unknown name."""
    if name not in MODELS:
        raise CostModelError(f"unknown cost model {name!r}; choose from {', '.join(MODELS)}")
    return MODELS[name](feature_names, seed, threads)
