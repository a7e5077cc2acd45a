"""What a measurement is, and the knobs of measuring."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

STATUSES = (
    "ok",
    "illegal",
    "compile_error",
    "wrong_result",
    "crash",
    "timeout",
    "slow",
    "out_of_bounds",
    "error",
)


class Nominal(NamedTuple):
    """The reference loop as the machine normally runs it: ``seconds`` that ``runs`` of it take."""

    seconds: float
    runs: int


class Control(NamedTuple):
    """A checked candidate beside which the others are timed, the ``seconds`` that a run of it normally takes,
    and others with theirs, which tell whether it still does."""

    object: bytes
    seconds: float
    witnesses: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Measurement:
    """One trial. Only "ok" and "slow" carry a time; only "ok" was checked at every placement.

    ``times_s``: seconds a run, one entry a repeat, normalised to the nominal rate of what ran beside it: the
    reference loop (but those of what waits for memory), or a control once there is one;
    ``time_s``: what they come to (`protocol.Clock.settled`). ``error``: the largest |output - reference| over
    the RMS of the reference, None if nothing was compared.
    ``reference_rate``: rate of what ran beside the timings over its nominal rate (1.0: the machine runs as it
    did when measuring began). ``build_s``, ``check_s``, ``run_s``: wall seconds of each phase.
    ``facts``: what a device's compiler and the device say: registers, spills, clocks, throttling.
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
        return self.status == "ok"


@dataclass(frozen=True, slots=True)
class Options:
    """Knobs of measuring; seconds and bytes.

    ``timeout_s`` bounds the checks and the timing of one candidate; once a best time is known, the bound
    falls to ``patience_s`` plus 50 × the best. ``give_up``: a candidate slower than this times the best is
    "slow". ``repeats`` of at least ``min_repeat_s`` each make a screen. ``memory_bytes``: what a builder or a
    worker may map on top of what it starts with. ``builders``: processes that build, default: one more
    than the CPUs left over, or all of them where building and running must take turns. ``overlap``: build
    while a candidate runs; default: only if a CPU is left over. ``from_memory``: times are mostly those of
    memory, so the loop does not normalise them; default: what `limits.waits_for_memory` says. ``warm_runs``
    precede a repeat after something else has run; default: what `limits.warm_runs` says.
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
