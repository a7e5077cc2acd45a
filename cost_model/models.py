"""The models by name. A new model is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable

from cost_model.analytic import AnalyticModel
from cost_model.base import CostModel, CostModelError
from cost_model.blend import BlendModel
from cost_model.random import RandomModel
from cost_model.xgb import XGBModel

# {name: (feature names, seed, threads, prior) -> a fresh model}.
MODELS: dict[str, Callable[[tuple[str, ...], int, int, CostModel | None], CostModel]] = {
    "xgb": lambda names, seed, threads, prior: XGBModel(names, seed, threads, prior=prior),
    "blend": lambda names, seed, threads, prior: BlendModel(
        AnalyticModel(names), XGBModel(names, seed, threads, prior=prior)
    ),
    "scratch": lambda names, seed, threads, prior: XGBModel(names, seed, threads),
    "analytic": lambda names, seed, threads, prior: AnalyticModel(names),
    "random": lambda names, seed, threads, prior: RandomModel(names, seed),
}
# Models that need xgboost.
LEARNED = ("xgb", "blend", "scratch")
# Models that begin with the shipped model.
PRIORED = ("xgb", "blend")


def create(
    name: str,
    feature_names: tuple[str, ...],
    seed: int = 0,
    threads: int = 1,
    prior: CostModel | None = None,
) -> CostModel:
    """A fresh model. ``threads``: threads that train it. ``prior``: the model that a learning one begins
    with. Raises CostModelError for an unknown name."""
    if name not in MODELS:
        raise CostModelError(f"unknown cost model {name!r}; choose from {', '.join(MODELS)}")
    return MODELS[name](feature_names, seed, threads, prior)
