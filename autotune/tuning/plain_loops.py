"""Tries the plain loops, the schedule without a step, in every run, so that no result is slower (ADR 39).

`load(fallback=True)` builds them too. They are in no space, so no search proposes them, and their record has
no decisions. They come first if they are predicted to be cheap, so that a short run has a kernel. Else they
come last, and only if they may be the fastest: plain loops of a matmul of 4096^3 take a minute.
"""

from __future__ import annotations

from schedules.model import Target, Trace, Workload
from schedules.ops import compulsory_bytes

# Name in a record, in place of a sketch of the space.
SKETCH = "plain loops"
# The schedule without a step.
TRACE = Trace()
# Rates assumed (FLOPs or bytes a second, about): a thread of a CPU without vectors, a thread of a device.
RATE = 1e9
DEVICE_RATE = 1e8
# Longest run for which they come first: share of a round, or seconds.
CHEAP_SHARE, CHEAP_S = 0.02, 0.02
# Longest run (seconds) for which they are tried in any budget if the search found nothing.
QUICK_S = 0.5
# Ratio of their predicted time to the best time above which they are not tried.
FAR = 20.0


class PlainLoops:
    """Decides whether to try them. ``known``: the log has their record."""

    def __init__(self, workload: Workload, target: Target, known: bool) -> None:
        rate = RATE if target.kind == "cpu" else DEVICE_RATE
        self.foretold_s = max(workload.flops, compulsory_bytes(workload.dag)) / rate
        self.pending = not known

    def cheap(self, round_s: float) -> bool:
        """Whether to try them first, in a run whose rounds take ``round_s`` seconds."""
        return self.pending and self.foretold_s <= max(CHEAP_SHARE * round_s, CHEAP_S)

    @property
    def quick(self) -> bool:
        """Whether to try them in any budget, if nothing else was found."""
        return self.foretold_s <= QUICK_S

    def in_reach(self, best_s: float | None) -> bool:
        """Whether they may be faster than the best so far."""
        return self.pending and (best_s is None or self.foretold_s < FAR * best_s)
