"""What a run says of its steps at the level debug (``--log-level debug``)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from autotune.tuning.notes import SMALL
from schedules.units import counts, seconds

if TYPE_CHECKING:
    from autotune.measure.results import Measurement
    from autotune.tuning.options import TuneOptions
    from autotune.tuning.resume import Earlier
    from schedules.model import Workload
    from schedules.space.base import Space

log = logging.getLogger(__name__)


class _Time:
    """A duration that becomes text only where a message is written."""

    def __init__(self, value: float | None) -> None:
        self._value = value

    def __str__(self) -> str:
        return "none yet" if self._value is None else seconds(self._value)


def prepared(
    workload: Workload,
    space: Space,
    few: int | None,
    derived_s: float,
    earlier: Earlier,
    best_s: float | None,
) -> None:
    """A space was derived, and earlier runs were read. ``few``: configurations of a small space."""
    many = f"more than {SMALL}" if few is None else few
    log.debug(
        "space of %s: %d sketches, %s configurations, derived in %.2f s",
        *(workload.op, len(space.sketches), many, derived_s),
    )
    log.debug(
        "earlier runs of %s: %d trials, %d to learn from, best %s",
        *(workload.op, earlier.trials, len(earlier.results), _Time(best_s)),
    )


def searching(workload: Workload, options: TuneOptions, similar: int, peak_s: float | None) -> None:
    """A search begins. ``similar``: candidates that similar tasks gave."""
    log.debug(
        "search of %s: %s with the model %s, %d candidates of similar tasks, limit of the machine %s",
        *(workload.op, options.search, options.model, similar, _Time(peak_s)),
    )


def round_done(
    workload: Workload, number: int, asked: int, measured: int, best_s: float | None, took_s: float
) -> None:
    """A round of trials ended."""
    log.debug(
        "round %d of %s: %d asked, %d measured, best %s, %.2f s",
        *(number, workload.op, asked, measured, _Time(best_s), took_s),
    )


def trial(workload: Workload, number: int, sketch: str, m: Measurement) -> None:
    """A trial that gave no time, or was stopped early."""
    if m.status != "ok":
        log.debug("trial %d of %s, sketch %s: %s: %s", number, workload.op, sketch, m.status, m.reason)


def finalists(workload: Workload, number: int, timed: Sequence[object], best_s: float | None) -> None:
    """Finalists were timed in turns. ``number``: of the pass."""
    log.debug("finalists of %s, pass %d: %d timed, best %s", workload.op, number, len(timed), _Time(best_s))


def ended(
    workload: Workload, stopped: str, measured: int, failed: Mapping[str, int], spent: Mapping[str, float]
) -> None:
    """A run ended. ``spent``: seconds by phase."""
    if log.isEnabledFor(logging.DEBUG):
        phases = ", ".join(f"{phase} {s:.2f} s" for phase, s in spent.items())
        failures = counts(failed) or "none"
        log.debug(
            "run of %s ended (%s): %d trials, failed: %s; %s",
            *(workload.op, stopped, measured, failures, phases),
        )
