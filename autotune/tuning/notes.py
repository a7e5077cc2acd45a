"""The sentences after a run's figures: when more time would not help, and what would."""

from __future__ import annotations

from autotune.results.tuned import Best
from schedules.space.base import Space

# A result below this share of the limit is far from it.
FAR = 0.3
# Most configurations of a space that needs no search.
SMALL = 64
# A run that its budget ended before so many trials needs more time first.
FEW_TRIALS = 16


def small(space: Space) -> int | None:
    """Number of configurations of a small space; None for a larger one."""
    count = 0
    for sketch in range(len(space.sketches)):
        rows = space.every(sketch, SMALL)
        if rows is None:
            return None
        count += int(space.valid(sketch, rows).sum())
    return count if count <= SMALL else None


def notes(best: Best | None, few: int | None, tried: int, stopped: str) -> tuple[str, ...]:
    """Notes on a finished run: one if its best is far from the limit and little is left to try.

    ``few``: configurations of its space if it is small. ``tried``: trials, with those of earlier runs.
    ``stopped``: why it ended (`TuneResult`)."""
    if best is None or best.share_of_peak is None or best.share_of_peak >= FAR:
        return ()
    share = f"the best reaches {best.share_of_peak:.0%} of the limit"
    if stopped == "budget" and tried < FEW_TRIALS and (few is None or tried < few):
        plural = "s" if tried != 1 else ""
        return (f"{share} after {tried} trial{plural}; give it more time",)
    if stopped == "exhausted":
        told = f"all {tried} configurations of the space were tried, so more time will not help"
    elif few is not None:
        plural = "s" if few != 1 else ""
        told = f"the space has only {few} configuration{plural}, of which {tried} were tried"
    else:
        return ()
    return (f"{share}: {told}; compute the expression in other stages, or schedule it by hand",)
