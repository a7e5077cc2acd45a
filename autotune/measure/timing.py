"""Times kernels so that a gap of 3 % between two is ranked rightly on a machine whose speed drifts.

`screen` times one candidate with few repeats. Each repeat runs between two runs of a reference, and its time
is multiplied by the reference's nominal time over its time now, so that a slower clock divides out. The
reference is a fixed loop (`cpu_peaks.Reference`), later a good candidate of the same task, the control.
Kernels that wait for memory are not normalised by the loop. On one thread all clocks are thread CPU time.
`final` times several candidates in turns over several rounds. Reasons: ADR 21, 22, 30, 31. Figures:
docs/measurements/timing-spread.md.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from autotune.backends.peaks.roofline import WARM_S
from autotune.measure.results import Options

# (runs) -> seconds that so many runs of a kernel take together.
Run = Callable[[int], float]
# {repeats made: ratio of its best time to the best time known} above which a candidate gets no more repeats.
ENOUGH = {1: 1.5, 2: 1.2}
# Longest screen (seconds): no repeat begins after it.
MAX_SCREEN_S = 1.0
# Standard error (relative) of a quotient with the control at which repeats end: in a screen, in a final.
PRECISION, FINAL_PRECISION = 0.03, 0.01
# Most repeats of a screen for the sake of precision, and the most timing that they may take (seconds).
MOST_REPEATS, MAX_PRECISE_S = 5, 0.03
# Standard deviation of a normal variable over the median distance between two draws of it.
SPREAD = 1.48 / 2**0.5
# Standard deviation (of the logarithm of a repeat) assumed for a control that has not run yet.
UNKNOWN_NOISE = 0.05
# Least rate taken of a control (share of normal): at a lower one, one of its threads was stopped.
SLOWEST = 0.65


@dataclass(frozen=True)
class Timing:
    """What a screen found. ``times_s``: normalised seconds, one a repeat. ``time_s``: their summary
    (seconds). ``rate``: speed of the reference over its nominal speed. ``slow``: whether the candidate was
    given up."""

    times_s: tuple[float, ...]
    time_s: float
    rate: float
    slow: bool = False


class Clock:
    """Times runs between two runs of the reference. ``reference()`` returns seconds."""

    def __init__(self, reference: Callable[[], float], nominal_s: float) -> None:
        self._reference = reference
        self._nominal = nominal_s
        self._last = float("inf")  # until `fresh`
        self.rates: list[float] = []

    def repeat(self, run: Run, number: int) -> float:
        """Normalised seconds of one run, over ``number`` runs."""
        before = self._last
        seconds = run(number) / number
        self._last = self._reference()
        rate = self._nominal / min(before, self._last)
        self.rates.append(rate)
        return seconds * rate

    def fresh(self) -> float:
        """Take the reference anew, if other work has happened since the last repeat; its rate."""
        self._last = self._reference()
        return self._nominal / self._last

    def rate(self) -> float:
        """Median rate of the repeats since `rates` was cleared."""
        return float(np.median(self.rates))

    def screened(self, times: Sequence[float], best_s: float | None, repeats: int) -> bool:
        """Whether a candidate needs no more repeats."""
        slow = best_s is not None and min(times) > ENOUGH[min(len(times), 2)] * best_s
        return slow or len(times) >= repeats

    def settled(self, times: Sequence[float], *, final: bool = False) -> float:
        """The summary of a candidate's times (seconds): a low percentile, because noise only adds."""
        return float(np.percentile(times, 10 if final else 25))

    def steady(self, times: Sequence[float]) -> bool:
        """Whether a finalist's times say enough."""
        return float(np.median(times)) < 1.05 * self.settled(times, final=True)


class ControlClock(Clock):
    """A clock whose reference is another candidate of the task, the control.

    ``number``: runs of the control in a repeat. ``seconds``: what one run of it normally takes. ``changes``:
    logarithms of the ratio of each repeat of the control to the one before. This clock adds its own.
    ``noise``: standard deviation of the logarithm of one repeat, derived from ``changes``. ``touch``: reads
    the control's arrays into the caches. Where that is not enough, the control and the candidate each make
    ``options.warm_runs`` runs before each repeat instead.
    """

    def __init__(
        self,
        run: Run,
        number: int,
        seconds: float,
        changes: deque[float],
        options: Options,
        touch: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(partial(self._control, run, number), seconds * number)
        self._touch = touch
        self.noise = float(np.median(changes)) * SPREAD
        self._changes, self._options = changes, options
        self._runs: list[float] = []  # what the candidate and the reference took since `fresh`
        self._references: list[float] = []

    def repeat(self, run: Run, number: int) -> float:
        before = self._last
        if self._references:  # else it has run last
            warm(run, self._options)
        seconds = run(number) / number
        self._last = self._reference()
        if self._references:
            self._changes.append(abs(math.log(self._last / before)))
        rate = max(self._nominal / min(before, self._last), SLOWEST)
        self.rates.append(rate)
        self._runs.append(seconds)
        self._references.append(self._last)
        return seconds * rate

    def fresh(self) -> float:
        """The first repeat has a reference after it only, because a reference costs as much as a repeat."""
        self._last = float("inf")
        self._runs, self._references = [], []
        return 1.0

    def screened(self, times: Sequence[float], best_s: float | None, repeats: int) -> bool:
        n = len(times)
        if best_s is not None and self.settled(times) > (1 + max(2 * self.noise, 0.2) / n**0.5) * best_s:
            return True
        wanted = (self.noise / PRECISION) ** 2
        return n >= 2 and (n >= wanted or n >= MOST_REPEATS or sum(times) > MAX_PRECISE_S)

    def settled(self, times: Sequence[float], *, final: bool = False) -> float:
        """The median quotient, as noise may slow either side. In a screen it is not less than the fastest run
        over the control's fastest: a control that was disturbed all the time would make a record."""
        typical = float(np.median(times))
        if final:
            return typical
        rate = max(self._nominal / min(self._references), SLOWEST)
        return max(typical, min(self._runs) * rate)

    def steady(self, times: Sequence[float]) -> bool:
        return self.noise / len(times) ** 0.5 < FINAL_PRECISION

    def _control(self, run: Run, number: int) -> float:
        if self._options.warm_runs:
            warm(run, self._options)
        else:
            self._touch()
        return run(number)


def no_changes() -> deque[float]:
    """Changes assumed of a control that has not run yet (see `UNKNOWN_NOISE`)."""
    return deque([UNKNOWN_NOISE / SPREAD] * 8, maxlen=100)


def repeats_of(seconds: float, options: Options) -> int:
    """Runs in a repeat of a kernel that takes ``seconds`` a run."""
    return max(1, round(options.min_repeat_s / max(seconds, 1e-9)))


def estimate(run: Run, first_s: float, options: Options) -> float:
    """Seconds of a warm run: ``first_s`` if one run fills a repeat, else measured by growing batches."""
    seconds, number = first_s, 1
    while seconds * number < 0.5 * options.min_repeat_s:
        number = min(10 * number, 2 * repeats_of(seconds, options))
        seconds = run(number) / number
    return seconds


def warm(run: Run, options: Options, least: int = 0) -> None:
    """Run a candidate until its arrays lie where they lie when it is called again and again."""
    spent = 0.0
    for _ in range(max(least, options.warm_runs or 0)):
        spent += run(1)
        if spent > WARM_S:
            break


def screen(run: Run, clock: Clock, first_s: float, best_s: float | None, options: Options) -> Timing:
    """Time one candidate. ``first_s``: seconds of an earlier run, from which the size of repeats follows."""
    warm(run, options)
    seconds = estimate(run, first_s, options)
    number = repeats_of(seconds, options)
    # Short kernels need more repeats, as each is short, and long ones take few.
    repeats = options.repeats if seconds >= options.min_repeat_s else options.repeats + 2
    times: list[float] = []
    start = time.perf_counter()
    clock.fresh()
    while not times or not clock.screened(times, best_s, repeats):
        times.append(clock.repeat(run, number))
        if best_s is not None and len(times) == 1 and times[0] > options.give_up * best_s:
            return Timing(tuple(times), times[0], clock.rate(), slow=True)
        if time.perf_counter() - start > MAX_SCREEN_S:
            break
    return Timing(tuple(times), clock.settled(times), clock.rate())


def final(
    runs: Sequence[Run], clock: Clock, seconds: Sequence[float], rounds: int, repeats: int, options: Options
) -> list[tuple[float, ...]]:
    """Normalised seconds of several candidates in turns: ``rounds`` × ``repeats`` each, and up to twice the
    rounds where times spread. ``seconds``: about how long a run of each takes."""
    times: list[list[float]] = [[] for _ in runs]
    order = list(range(len(runs)))
    for number in range(2 * rounds):
        if number >= rounds and all(clock.steady(t) for t in times):
            break
        for i in order if number % 2 == 0 else reversed(order):  # so that neighbours in the order change
            warm(runs[i], options, least=1)  # the caches hold the neighbour's data
            clock.fresh()
            times[i].extend(clock.repeat(runs[i], repeats_of(seconds[i], options)) for _ in range(repeats))
    return [tuple(t) for t in times]


def finals_s(time_s: float, k: int, rounds: int, repeats: int, warm_runs: int = 0) -> float:
    """Seconds that `final` takes at most for ``k`` candidates that take ``time_s`` each.

    Counted are twice the rounds, each of a warm-up and ``repeats``. A repeat lasts 1 ms or longer, follows
    ``warm_runs`` runs, and has a reference as long as itself."""
    each = max(time_s, 1e-3) + max(time_s, 1.5e-3)
    each += 2 * min(warm_runs * time_s, WARM_S + time_s)
    return 0.2 + 1.3 * k * 2 * rounds * (repeats + 1) * each
