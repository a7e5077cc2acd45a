"""The search policies by name. A new one is a file, and a row here that imports it where it is made: names
are read where nothing else is needed, such as for help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from schedules.errors import AutotuneError

if TYPE_CHECKING:
    from autotune.search.base import SearchPolicy
    from cost_model.dataset import Dataset
    from cost_model.models import Model
    from schedules.model import Target
    from schedules.space.base import Space


@dataclass(frozen=True, slots=True)
class PolicyKind:
    """One row. ``make``: of the keywords of `create`, a fresh policy. ``guided``: it asks a cost model.
    ``proposed_to``: something proposes beside it (`llm.Proposing`), which is told the expression too.
    ``check``: raises where it cannot run here."""

    name: str
    make: Callable[..., SearchPolicy]
    guided: bool = False
    proposed_to: bool = False
    check: Callable[[], object] = lambda: None


def _made_by(name: str, *takes: str) -> Callable[..., SearchPolicy]:
    """Makes a policy by "module:function" with these keywords of `create`; all where none is named."""

    def make(**asked: Any) -> SearchPolicy:
        module, _, function = name.partition(":")
        made: Callable[..., SearchPolicy] = getattr(import_module(f"autotune.search.{module}"), function)
        return made(**{k: asked[k] for k in takes or asked})

    return make


def _check_llm() -> None:
    from autotune.search import llm_client
    from autotune.settings import LlmSettings

    LlmSettings.from_environment()
    llm_client.library()


POLICIES = {
    row.name: row
    for row in (
        PolicyKind("evolutionary", _made_by("guided:evolutionary"), guided=True),
        PolicyKind("local", _made_by("local:LocalSearch", "space", "seed")),
        PolicyKind("random", _made_by("random:RandomSearch", "space", "seed")),
        PolicyKind("grid", _made_by("grid:GridSearch", "space")),
        PolicyKind("llm", _made_by("guided:proposing"), guided=True, proposed_to=True, check=_check_llm),
    )
}


def create(
    name: str,
    space: Space,
    model: Model = "xgb",
    seed: int = 0,
    near: Dataset | None = None,
    target: Target | None = None,
    expression: str | None = None,
) -> SearchPolicy:
    """A fresh policy. ``near``: measured candidates of similar tasks, with the columns of `model_features`.
    ``model``: a name, or a trained model that a search begins with in place of the shipped one. ``target``:
    the target whose shipped model it begins with. ``expression``: the computation as text, for what proposes
    beside it. Raises AutotuneError for an unknown policy or model, and for a trained one of other features.
    """
    if name not in POLICIES:
        raise AutotuneError(f"unknown search {name!r}; choose from {', '.join(POLICIES)}")
    row = POLICIES[name]
    more = {"expression": expression} if row.proposed_to else {}
    return row.make(space=space, model=model, seed=seed, near=near, target=target, **more)
