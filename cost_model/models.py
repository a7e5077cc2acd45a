"""The models by name. A new model is one file and one line here."""

from __future__ import annotations

import os
from collections.abc import Callable

from cost_model.analytic import AnalyticModel
from cost_model.base import CostModel, CostModelError
from cost_model.blend import BlendModel
from cost_model.random import RandomModel
from cost_model.saved import SavedModel, read
from cost_model.xgb import XGBModel
from schedules.errors import suggest

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


# What a search can be given: a name of `MODELS`, or a model that a user trained.
Model = str | SavedModel


def chosen(model: str | os.PathLike[str] | SavedModel) -> Model:
    """The model that a user names. A name of `MODELS`, else a file that ``autotune train``
    made. Raises CostModelError for another name, and as `cost_model.saved.read`."""
    if isinstance(model, SavedModel) or (isinstance(model, str) and model in MODELS):
        return model
    if isinstance(model, os.PathLike) or (isinstance(model, str) and names_file(model)):
        return read(model)
    known = ", ".join(MODELS)
    hint = suggest(model, MODELS) if isinstance(model, str) else ""
    raise CostModelError(
        f"unknown model {model!r}{hint}; choose from {known}, or give a file that autotune train made"
    )


def names_file(model: str) -> bool:
    """Whether it is the path of a file rather than a name: it has a dot or a slash, or the file exists."""
    return any(sign in model for sign in f"./{os.sep}") or os.path.isfile(model)


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
