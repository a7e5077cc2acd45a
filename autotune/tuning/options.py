"""The options of a tune."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.measure.inputs import Tolerance
from autotune.results.aim import Aim
from autotune.search import policies
from autotune.settings import SettingsError
from cost_model.base import CostModelError
from cost_model.models import chosen, kind
from cost_model.saved import SavedModel
from schedules.errors import instead
from schedules.model import Target

# Budgets below this load no model (seconds): loading takes two seconds of a CPU, on a busy machine more by
# far.
SHORT_S = 8.0
# A task's share of the budget below which time may end before much is known (seconds): then the machine's
# limit is measured after the first pick, and a number of trials begins with one too.
AT_ONCE_S = 10.0


@dataclass(frozen=True)
class TuneOptions:
    """What the user chooses.

    ``trials``: most new trials (None: no limit; 0: no search, only the few candidates of a first pick, where
    nothing is known). ``budget_s``: seconds from ``started`` (`time.monotonic`; None: from the call of what
    tunes): loading and reading before it is time that a user waits too. ``search``, ``model``, ``seed``: the
    policy, its cost model, and the seed of all its choices; a model is a name, or what ``autotune train``
    made, as a path or read. ``batch``: trials a round (None: chosen by their
    duration). ``rtol``, ``atol``: an output is right within ``atol + rtol * |reference|`` (both None: within
    rounding; one None: 0). ``share_s``: of the budget, where several tasks share it (seconds): the task's
    part if all had the same (None: all of it). ``until``: what ends a run early once it is reached: a time of
    a call ("200us") or a share of the limit (0.9), as text, a number or read (None: nothing does).
    ``in_place``: outputs that are inputs, by name, which schedules then allow. Raises `SettingsError` for a
    value out of range."""

    trials: int | None = None
    budget_s: float = 60.0
    search: str = "evolutionary"
    model: str | os.PathLike[str] | SavedModel = "xgb"
    seed: int = 0
    batch: int | None = None
    rtol: float | None = None
    atol: float | None = None
    share_s: float | None = None
    until: Aim | str | float | None = None
    in_place: Mapping[str, str] = field(default_factory=dict)
    started: float | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, value in (("trials", self.trials), ("batch", self.batch)):
            least = int(name == "batch")
            if value is not None and (not _is(int, value) or value < least):
                raise SettingsError(f"{name} is {value!r}; it must be an integer from {least} on, or None")
        budget = self.budget_s
        if not _is((int, float), budget) or not (budget > 0 and math.isfinite(budget)):
            raise SettingsError(f"the budget is {budget!r}; it must be a positive, finite number of seconds")
        for name, part in (("rtol", self.rtol), ("atol", self.atol)):
            if part is not None and not (_is((int, float), part) and 0 <= part < math.inf):
                raise SettingsError(f"{name} is {part!r}; it must be a finite number of at least 0, or None")
        if not _is(int, self.seed) or not 0 <= self.seed < 2**63:
            raise SettingsError(f"the seed is {self.seed!r}; it must be an integer from 0 to 2^63 - 1")
        object.__setattr__(self, "in_place", pairs(self.in_place))
        if self.until is not None:
            object.__setattr__(self, "until", Aim.read(self.until))
        known, name = policies.POLICIES, self.search
        if name not in known:
            raise SettingsError(f"unknown search {name!r}{instead(name, known, 'choose from')}")
        known[name].check()  # before any work is done
        try:
            object.__setattr__(self, "model", chosen(self.model))  # a file is read once
        except CostModelError as err:
            raise SettingsError(str(err)) from None
        if isinstance(self.model, SavedModel) and not known[name].guided:
            named = self.model.origin or "the one given"
            raise SettingsError(
                f"search {self.search} asks no cost model, so that {named} would do nothing; leave it out, "
                f"or choose search {next(p.name for p in known.values() if p.guided)}"
            )

    def check(self, target: Target) -> None:
        """Raises `SettingsError` for a trained model of other targets."""
        if isinstance(self.model, SavedModel) and self.model.serves != ("gpus" if target.grid else "cpus"):
            raise SettingsError(
                f"the cost model {self.model.origin} is for {self.model.serves}, and {target.kind} is none "
                "of them; train one of a log of that kind with autotune train, or leave it out"
            )

    def begin(self) -> float:
        """When the budget began to count (`time.monotonic`)."""
        return time.monotonic() if self.started is None else self.started

    @property
    def aim(self) -> Aim | None:
        """What ends a run early once it is reached."""
        return None if self.until is None else Aim.read(self.until)

    @property
    def tolerance(self) -> Tolerance | None:
        """The user's bounds on errors, None for those of rounding."""
        if self.rtol is None and self.atol is None:
            return None
        return Tolerance(self.rtol or 0.0, self.atol or 0.0)

    @property
    def guide(self) -> str | SavedModel:
        """The model of the search. A short budget gets one that loads fast."""
        model = chosen(self.model)
        return "analytic" if kind(model).learns and self.budget_s < SHORT_S else model

    @property
    def short(self) -> bool:
        """Whether the task's share of the budget is short."""
        return (self.budget_s if self.share_s is None else self.share_s) < AT_ONCE_S

    @property
    def begins_at_once(self) -> bool:
        """Whether the candidates of a first pick come before the search. Not so where the user gave a number
        of trials, for which there is time: they are the search's."""
        return not self.trials or self.short

    @property
    def needs_xgboost(self) -> bool:
        """Whether the search uses a model that needs xgboost."""
        return self.trials != 0 and policies.POLICIES[self.search].guided and kind(self.guide).learns


def pairs(in_place: Mapping[str, str] | None) -> dict[str, str]:
    """Outputs that are inputs, by name. Raises `SettingsError`."""
    if in_place is None:
        return {}
    if not isinstance(in_place, Mapping) or not all(
        isinstance(n, str) for n in (*in_place, *in_place.values())
    ):
        raise SettingsError(f"in_place is {in_place!r}; it must be {{output: input}}, of names")
    return dict(in_place)


def _is(kind: type | tuple[type, ...], value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
