"""What is asked of a run, read and checked once. The Python interface and the command line both make a
`TuneRequest`, and whatever is tuned is tuned by it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from autotune import backends
from autotune.results.following import Tell, concluded, followed
from autotune.settings import database
from autotune.settings.hooks import hook
from autotune.tuning import tuner
from autotune.tuning.allowed import AllowedLog
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.makers import JobMaker
from autotune.tuning.options import TuneOptions
from autotune.tuning.tuner import OneMachine, Place
from kernels_db.store import Log
from schedules.model import Target

R = TypeVar("R")
# Tunes something: {target: result}, by the log, what is told of progress, and what Ctrl-C does.
Run = Callable[[Log, Tell | None, Interrupts | None], Mapping[Target, R]]


@dataclass(frozen=True)
class TuneRequest:
    """``options``: how to search. ``place``: what measures. ``goal``: the target of this machine; None: a
    fleet measures. ``where``: the log. ``grid``: whether a GPU is among the targets that were named."""

    options: TuneOptions
    place: Place
    goal: Target | None
    where: str
    grid: bool = False

    @classmethod
    def of(
        cls,
        options: TuneOptions,
        target: str | Target | Sequence[str | Target] | None,
        threads: int | None,
        db: str | os.PathLike[str] | None,
        fleet: str | None = None,
        **of_fleet: Any,
    ) -> TuneRequest:
        """From the options of `autotune.tune`. ``of_fleet``: more fields of `fleet.tuning.FleetPlace`. Raises
        `TargetError`, `SettingsError`."""
        if fleet is None:
            goal = backends.parse(backends.alone(target), threads)
            return cls(options, OneMachine(goal), goal, database(db), goal.grid)
        there: Place = hook("fleet")(str(fleet), target, threads, **of_fleet)
        return cls(options, there, None, database(db), backends.names_grid(target))

    def log(self, read_only: bool = False) -> Log:
        """The log as the run sees it."""
        pairs = self.options.in_place
        return AllowedLog(self.where, pairs, read_only) if pairs else Log(self.where, read_only)

    def tuning(self, maker: JobMaker[R]) -> Run[R]:
        """What tunes that of which a maker makes jobs. It raises as `tuner.tune_jobs`."""
        return lambda log, progress, interrupts: tuner.tune_jobs(
            maker, self.place, log, progress, interrupts=interrupts
        )


def tuned(
    asked: TuneRequest,
    run: Run[Any],
    one: Callable[[Any], R],
    progress: Tell | str | None,
    alone: bool = False,
) -> R:
    """The results of a run, of which ``one`` makes one. ``progress``, ``alone``: as of
    `progress.following.followed`."""
    with asked.log() as log, followed(progress, alone) as tell:
        result = one(run(log, tell, None))
    concluded(progress, str(result))
    return result
