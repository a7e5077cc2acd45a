"""The search policies by name. A new policy is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from autotune.search.base import SearchPolicy
from autotune.search.evolutionary import EvolutionarySearch, model_features, model_matrix
from autotune.search.grid import GridSearch
from autotune.search.improvement import ExpectedImprovement
from autotune.search.llm import LlmOptions, Proposing
from autotune.search.llm_client import OpenAiClient
from autotune.search.local import LocalSearch
from autotune.search.random import RandomSearch
from autotune.settings import LlmSettings
from autotune.targets import usable_cpus
from cost_model import pretrained
from cost_model.analytic import ESTIMATE, AnalyticModel
from cost_model.base import CostModel, CostModelError
from cost_model.dataset import Dataset
from cost_model.models import LEARNED, PRIORED, Model
from cost_model.models import create as create_model
from cost_model.register_model import NAMES as COMPILED
from cost_model.register_model import RegisterModel
from cost_model.saved import SavedModel
from schedules.errors import AutotuneError
from schedules.model import Target
from schedules.space.base import Space
from schedules.space.estimate.gpu.rates import GpuRates
from schedules.space.gc_paused import gc_paused

# Rows of each sketch from which a shipped model learns what is usual for a task.
SAMPLE = 128


def _evolutionary(
    space: Space, model: Model, seed: int, near: Dataset | None, target: Target | None
) -> SearchPolicy:
    names, compiled = model_features(space), None
    if target is not None and target.grid:
        compiled = RegisterModel(names, GpuRates.of(target))
        names = (*names, *COMPILED)
    prior: CostModel | None = None
    if isinstance(model, SavedModel):
        prior, model = _fitted(space, names, model), "xgb"
    elif model in PRIORED and compiled is None:
        prior = _prior(space, names, target)
    judges: dict[str, CostModel] = {}
    if ESTIMATE in names:
        judges["analytic"] = AnalyticModel(names)
    if prior is not None:
        judges["prior"] = prior
    made = create_model(model, names, seed, usable_cpus(), prior)
    explorer = ExpectedImprovement(names, seed) if model in LEARNED and prior is None else None
    return EvolutionarySearch(
        space, made, seed, near=near, judges=judges, compiled=compiled, explorer=explorer
    )


def _llm(space: Space, model: Model, seed: int, near: Dataset | None, target: Target | None) -> SearchPolicy:
    return proposing(space, model, seed, near, target)


def proposing(
    space: Space,
    model: Model,
    seed: int,
    near: Dataset | None = None,
    target: Target | None = None,
    expression: str | None = None,
) -> Proposing:
    """A search beside which a language model proposes. ``expression``: the computation, as text; None: a
    recorded table, whose trials take no time, so that answers are waited for. Raises `SettingsError` where no
    endpoint is set, and `MissingExtraError`."""
    settings = LlmSettings.from_environment()
    policy = _evolutionary(space, model, seed, near, target)  # it may fail, and a client must be closed
    return Proposing(
        policy,
        space,
        OpenAiClient(settings),
        expression=expression or "",
        target=target,
        seed=seed,
        patient=expression is None,
        options=LlmOptions(calls=settings.prompts),
    )


# {name: (space, model, seed, near, target) -> a fresh policy}.
POLICIES: dict[str, Callable[[Space, Model, int, Dataset | None, Target | None], SearchPolicy]] = {
    "evolutionary": _evolutionary,
    "local": lambda space, model, seed, near, target: LocalSearch(space, seed),
    "random": lambda space, model, seed, near, target: RandomSearch(space, seed),
    "grid": lambda space, model, seed, near, target: GridSearch(space),
    "llm": _llm,
}


# Those that ask a cost model.
GUIDED = ("evolutionary", "llm")


def create(
    name: str,
    space: Space,
    model: Model = "xgb",
    seed: int = 0,
    near: Dataset | None = None,
    target: Target | None = None,
) -> SearchPolicy:
    """A fresh policy. ``near``: measured candidates of similar tasks, with the columns of `model_features`.
    ``model``: a name, or a trained model that a search begins with in place of the shipped one. ``target``:
    the target whose shipped model it begins with. Raises AutotuneError for an unknown policy or model, and
    for a trained one of other features.
    """
    if name not in POLICIES:
        raise AutotuneError(f"unknown search {name!r}; choose from {', '.join(POLICIES)}")
    return POLICIES[name](space, model, seed, near, target)


def _prior(space: Space, names: tuple[str, ...], target: Target | None) -> CostModel | None:
    """The shipped model, fitted to what is usual in this space; None if the model lacks some of its
    features."""
    document = pretrained.shipped(target)
    if not pretrained.knows(names, document):
        return None
    return _fitted(space, names, document)


@gc_paused()
def _fitted(space: Space, names: tuple[str, ...], model: Mapping[str, Any] | SavedModel) -> CostModel:
    """A model of other tasks, with what is usual in this space. A trained one must have its features."""
    if isinstance(model, SavedModel) and model.feature_names != space.feature_names:
        raise CostModelError(
            f"the cost model {model.origin} was trained on other features than this space has; train one of "
            "a log of such tasks with: autotune train"
        )
    rng = np.random.default_rng(0)
    parts = []
    for s in range(len(space.sketches)):
        rows = space.sample(s, SAMPLE, rng)
        rows = rows[space.valid(s, rows)]
        parts.append(model_matrix(space, s, rows))
    reference = np.concatenate(parts)
    added = len(names) - reference.shape[1]  # columns of reports of a compiler, which no sample has
    reference = np.pad(reference, ((0, 0), (0, added)), constant_values=np.nan)
    return pretrained.Prior(names, reference, model)
