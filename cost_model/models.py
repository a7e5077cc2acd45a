"""The cost models by name. A new one is a file, and a row here that imports it where it is made: names are
read where nothing else is needed, such as for help."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from schedules.errors import instead

if TYPE_CHECKING:
    from cost_model.base import CostModel
    from cost_model.saved import SavedModel

# What a search can be given: a name of `MODELS`, or a model that a user trained.
Model: TypeAlias = "str | SavedModel"


@dataclass(frozen=True, slots=True)
class ModelKind:
    """One row. ``make``: (feature names, seed, threads, prior) -> a fresh model. ``learns``: with xgboost.
    ``experienced``: it begins with what is known of other tasks, the shipped model and their trials."""

    name: str
    make: Callable[[tuple[str, ...], int, int, CostModel | None], CostModel]
    learns: bool = False
    experienced: bool = False


def _xgb(names: tuple[str, ...], seed: int, threads: int, prior: CostModel | None) -> CostModel:
    from cost_model.xgb import XGBModel

    return XGBModel(names, seed, threads, prior=prior)


def _blend(names: tuple[str, ...], seed: int, threads: int, prior: CostModel | None) -> CostModel:
    from cost_model.analytic import AnalyticModel
    from cost_model.blend import BlendModel
    from cost_model.xgb import XGBModel

    return BlendModel(AnalyticModel(names), XGBModel(names, seed, threads, prior=prior))


def _analytic(names: tuple[str, ...], seed: int, threads: int, prior: CostModel | None) -> CostModel:
    from cost_model.analytic import AnalyticModel

    return AnalyticModel(names)


def _scratch(names: tuple[str, ...], seed: int, threads: int, prior: CostModel | None) -> CostModel:
    return _xgb(names, seed, threads, None)


def _random(names: tuple[str, ...], seed: int, threads: int, prior: CostModel | None) -> CostModel:
    from cost_model.random import RandomModel

    return RandomModel(names, seed)


MODELS = {
    row.name: row
    for row in (
        ModelKind("xgb", _xgb, learns=True, experienced=True),
        ModelKind("blend", _blend, learns=True, experienced=True),
        ModelKind("analytic", _analytic),
        ModelKind("scratch", _scratch, learns=True),
        ModelKind("random", _random),
    )
}


def kind(model: Model) -> ModelKind:
    """The row of a model. A trained one is that with which "xgb" begins. Raises CostModelError for an unknown
    name."""
    name = model if isinstance(model, str) else "xgb"
    if name not in MODELS:
        from cost_model.base import CostModelError

        raise CostModelError(f"unknown cost model {name!r}; choose from {', '.join(MODELS)}")
    return MODELS[name]


def chosen(model: str | os.PathLike[str] | SavedModel) -> Model:
    """The model that a user names. A name of `MODELS`, else a file that ``autotune train``
    made. Raises CostModelError for another name, and as `cost_model.saved.read`."""
    from cost_model.base import CostModelError
    from cost_model.saved import SavedModel, read

    if isinstance(model, SavedModel) or (isinstance(model, str) and model in MODELS):
        return model
    if isinstance(model, os.PathLike) or (isinstance(model, str) and names_file(model)):
        return read(model)
    listed = instead(model, MODELS, "choose from")
    raise CostModelError(f"unknown model {model!r}{listed}, or give a file that autotune train made")


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
    return kind(name).make(feature_names, seed, threads, prior)
