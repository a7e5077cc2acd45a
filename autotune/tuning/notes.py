"""What the result of a run says beside its figures: where more time would not help, and what would."""

from __future__ import annotations

from autotune.tuning.options import Best
from schedules.space.base import Space

FAR = 0.3  # of the limit: a result below it is far from it
SMALL = 64  # configurations, of which no search is needed


def small(space: Space) -> int | None:
    """How many configurations a small space has; None for a larger one."""
    count = 0
    for sketch in range(len(space.sketches)):
        rows = space.every(sketch, SMALL)
        if rows is None:
            return None
        count += int(space.valid(sketch, rows).sum())
    return count if count <= SMALL else None


def notes(best: Best | None, few: int | None, tried: int, stopped: str) -> tuple[str, ...]:
    """Of a run that ended so; ``few``: configurations of its space, if these are few; ``tried``: with the
    trials of earlier runs. There is one where the best is far from the limit and little is left to try."""
    if best is None or best.share_of_peak is None or best.share_of_peak >= FAR:
        return ()
    if stopped == "exhausted":
        told = f"all {tried} configurations of the space were tried, so more time will not help"
    elif few is not None:
        plural = "s" if few != 1 else ""
        told = f"the space has only {few} configuration{plural}, of which {tried} were tried"
    else:
        return ()
    share = f"the best reaches {best.share_of_peak:.0%} of the limit"
    return (f"{share}: {told}; compute the expression in other stages, or schedule it by hand",)
