"""Tries the plain loops, the schedule without a step, in every run, so that no result is slower (ADR 39).

`load(fallback=True)` builds them too. They are in no space, so no search proposes them, and their record has
no decisions. A run begins with a first pick, and they come after it (ADR 65): with it if one run of them is
quick, else last. In either case only if they may be the fastest: plain loops of a matmul of 4096^3 take a
minute.
"""

from __future__ import annotations

from autotune import backends
from schedules.model import Target, Trace, Workload
from schedules.ops import compulsory_bytes

# Name in a record, in place of a sketch of the space.
SKETCH = "plain loops"
# The schedule without a step.
TRACE = Trace()
QUICK_S = 0.5  # that one run may take for them to be tried with a first pick
FAR = 20.0  # times as slow as the best as foretold: not tried


class PlainLoops:
    """Decides whether to try them. ``known``: the log has their record."""

    def __init__(self, workload: Workload, target: Target, known: bool) -> None:
        rate = backends.of(target).measuring.plain_rate
        self.foretold_s = max(workload.flops, compulsory_bytes(workload.dag)) / rate
        self.pending = not known

    @property
    def quick(self) -> bool:
        """Whether to try them in any budget, if nothing else was found."""
        return self.foretold_s <= QUICK_S

    def worth(self, best_s: float | None) -> bool:
        """Whether a first pick tries them: they may be faster than the best so far, and do not take long."""
        return self.in_reach(best_s) and (self.quick or best_s is None)

    def in_reach(self, best_s: float | None) -> bool:
        """Whether they may be faster than the best so far."""
        return self.pending and (best_s is None or self.foretold_s < FAR * best_s)
