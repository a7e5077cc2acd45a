"""Searches that ask a cost model: the evolutionary one, and that beside which a language model proposes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from autotune.search.base import SearchPolicy
from autotune.search.evolutionary import EvolutionarySearch, model_features, model_matrix
from autotune.search.improvement import ExpectedImprovement
from autotune.search.llm import LlmOptions, Proposing
from autotune.search.llm_client import OpenAiClient
from autotune.settings import LlmSettings
from autotune.targets import usable_cpus
from cost_model import pretrained
from cost_model.analytic import ESTIMATE, AnalyticModel
from cost_model.base import CostModel, CostModelError
from cost_model.dataset import Dataset
from cost_model.models import Model, kind
from cost_model.models import create as create_model
from cost_model.register_model import NAMES as COMPILED
from cost_model.register_model import RegisterModel
from cost_model.saved import SavedModel
from schedules.model import Target
from schedules.space.base import Space
from schedules.space.estimate.gpu.rates import GpuRates
from schedules.space.gc_paused import gc_paused

# Rows of each sketch from which a shipped model learns what is usual for a task.
SAMPLE = 128


def evolutionary(
    space: Space, model: Model, seed: int, near: Dataset | None, target: Target | None
) -> SearchPolicy:
    """A search that a cost model guides. Parameters and errors as of `policies.create`."""
    names, compiled = model_features(space), None
    if target is not None and target.grid:
        compiled = RegisterModel(names, GpuRates.of(target))
        names = (*names, *COMPILED)
    prior: CostModel | None = None
    if isinstance(model, SavedModel):
        prior, model = _fitted(space, names, model), "xgb"
    elif kind(model).experienced and compiled is None:
        prior = _prior(space, names, target)
    judges: dict[str, CostModel] = {}
    if ESTIMATE in names:
        judges["analytic"] = AnalyticModel(names)
    if prior is not None:
        judges["prior"] = prior
    made = create_model(model, names, seed, usable_cpus(), prior)
    explorer = ExpectedImprovement(names, seed) if kind(model).learns and prior is None else None
    return EvolutionarySearch(
        space, made, seed, near=near, judges=judges, compiled=compiled, explorer=explorer
    )


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
    policy = evolutionary(space, model, seed, near, target)  # it may fail, and a client must be closed
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
