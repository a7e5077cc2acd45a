"""The result of a measurement, and the options of measuring."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

# The fact that says what a candidate with open sizes takes at smaller ones: {the sizes, as text: seconds}.
SIZES_S = "sizes_s"


class Nominal(NamedTuple):
    """What the reference loop normally takes: ``runs`` runs of it take ``seconds``."""

    seconds: float
    runs: int


class Control(NamedTuple):
    """A checked candidate beside which others are timed. ``seconds``: what a run of it normally takes.
    ``witnesses``: other candidates with their seconds, which show whether the control's time still holds."""

    object: bytes
    seconds: float
    witnesses: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Measurement:
    """One trial. Only "ok" and "slow" carry a time; only "ok" was checked at every placement.

    ``times_s``: seconds a run, one entry a repeat, normalised by what ran beside it: the reference loop (not
    for what waits for memory), or a control once there is one. ``time_s``: their summary
    (`protocol.Clock.settled`). ``error``: the largest |output - reference| over the RMS of the reference,
    None if nothing was compared. ``reference_rate``: speed of what ran beside the timings over its nominal
    speed (1.0: as when measuring began). ``build_s``, ``check_s``, ``run_s``: wall seconds of each phase.
    ``facts``: what a device and its compiler report: registers, spills, clocks, throttling. Where
    sizes are open, `SIZES_S`.
    """

    status: str
    reason: str = ""
    times_s: tuple[float, ...] = ()
    time_s: float | None = None
    error: float | None = None
    reference_rate: float | None = None
    build_s: float = 0.0
    check_s: float = 0.0
    run_s: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the candidate was right and has a time."""
        return self.status == "ok"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of measuring, in seconds and bytes.

    ``timeout_s``: longest checks and timing of one candidate. Once a best time is known the bound falls to
    ``patience_s`` + 50 × the best. ``build_timeout_s``: longest build. ``give_up``: a candidate slower than
    this times the best is "slow". ``repeats``, ``min_repeat_s``: number of repeats in a screen, least length
    of one. ``memory_bytes``: memory that a builder or worker may map beyond what it starts with.
    ``builders``: processes that build; default: one more than the CPUs left over, or all CPUs without
    overlap. ``overlap``: build while a candidate runs; default: if a CPU is left over. ``from_memory``: times
    depend mostly on memory and are not normalised by the loop; default: `roofline.waits_for_memory`.
    ``warm_runs``: runs before a repeat after something else ran; default: `roofline.warm_runs`.
    """

    timeout_s: float = 10.0
    build_timeout_s: float = 20.0
    patience_s: float = 1.5
    give_up: float = 4.0
    repeats: int = 3
    min_repeat_s: float = 1e-3
    memory_bytes: int = 4 << 30
    builders: int | None = None
    overlap: bool | None = None
    from_memory: bool | None = None
    warm_runs: int | None = None
