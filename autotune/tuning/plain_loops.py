"""The loops as the expression states them: a candidate of every run, so that no result is slower.

They are the schedule without a step, which `load(fallback=True)` builds. They are in no space, as a rule, so
that no search proposes them: a run tries them as a trial of its own, which no decisions are kept of. Where
they are foretold to be cheap they come first, and a short run has a kernel. Else they come last, and only
where they may be the fastest: plain loops of a product of 4096 take a minute.
"""

from __future__ import annotations

from autotune import backends
from schedules.model import Target, Trace, Workload
from schedules.ops import compulsory_bytes

SKETCH = "plain loops"  # in a record, in place of a sketch of the space
TRACE = Trace()
CHEAP_SHARE, CHEAP_S = 0.02, 0.02  # of a round, or seconds, that one run may take for them to come first
QUICK_S = 0.5  # that one run may take where a run of the search would else end with nothing
FAR = 20.0  # times as slow as the best as foretold: not tried


class PlainLoops:
    """Whether to try them; ``known``: the log has their record."""

    def __init__(self, workload: Workload, target: Target, known: bool) -> None:
        rate = backends.of(target).measuring.plain_rate
        self.foretold_s = max(workload.flops, compulsory_bytes(workload.dag)) / rate
        self.pending = not known

    def cheap(self, round_s: float) -> bool:
        """Whether to try them first, where a round takes so long."""
        return self.pending and self.foretold_s <= max(CHEAP_SHARE * round_s, CHEAP_S)

    @property
    def quick(self) -> bool:
        """Whether to try them however short the budget is, if nothing else was found."""
        return self.foretold_s <= QUICK_S

    def in_reach(self, best_s: float | None) -> bool:
        """Whether they may be faster than the best so far."""
        return self.pending and (best_s is None or self.foretold_s < FAR * best_s)
