"""How a kernel is timed so that a gap of 3 % is ranked rightly on a machine that drifts.

Screen: a few repeats, each lasting at least `min_repeat_s`, each between two runs of a reference loop. A
repeat's time is multiplied by (the loop's nominal time / the smaller of the two beside it): a slower clock
slows both and divides out. The smaller, because a disturbed reference would make a candidate look fast, and a
disturbed candidate only costs it a repeat. Of the repeats the 25th percentile counts, since noise only adds.
With one thread all clocks are thread CPU time, which a neighbour on the same core does not lengthen.

Once a few candidates are known to be good, one of them, the control, takes the loop's place: a neighbour on
the other thread of a core takes caches and half of the reorder buffer, which slows kernels of one task alike
(by half) and the loop hardly (by 5 %). Over 737 samples of 512^3 the logarithm of a time spread by 0.152, by
the loop 0.162, by another kernel 0.106; what remains has no memory, so repeats average it out (ADR 22).

What waits for memory is timed as it is, or beside a control: the loop stays in the core, and its speed had no
part in that of a layer_norm whose arrays lay in the third cache (correlation 0.05; times spread by 8 %,
normalised by 14 %). It is run a few times first: the checks before have evicted its arrays, and it took 2.8,
2.7 and 1.6 ms before the 1.2 that its next calls took, while one with streaming stores took 2.4, 2.3 and then
1.8. So does either after the other: both are run a few times before each repeat.

Final: several candidates in turns over several rounds, so that whatever the machine does in between meets
all of them; twice the rounds where times spread by more than 5 %. A neighbour on the same physical core slows
some code by half and the reference loop not at all, so a low percentile counts, not the median: with four
busy processes on two cores the 10th ranked 92 % of the pairs 3 % apart rightly, the median 75 %.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from autotune.measure.results import Options
from autotune.measure.roofline import WARM_S

Run = Callable[[int], float]  # seconds that so many runs take together
# A candidate slower than this times the best after so many repeats needs no more: it will not win. The more
# of them there are, the less a neighbour can have slowed all.
ENOUGH = {1: 1.5, 2: 1.2}
MAX_SCREEN_S = 1.0  # no further repeat begins after this much timing
PRECISION, FINAL_PRECISION = 0.03, 0.01  # of quotients: what more repeats are for, where noise needs them,
MOST_REPEATS, MAX_PRECISE_S = 5, 0.03  # up to so many, and so much timing
SPREAD = 1.48 / 2**0.5  # standard deviation of one over the median distance of two, of a normal distribution
UNKNOWN_NOISE = 0.05
SLOWEST = 0.65  # rate of a control: where one of its threads stands still, it says nothing of others


@dataclass(frozen=True)
class Timing:
    """``times_s`` normalised, and what they come to; ``rate``: speed of the reference over its nominal speed;
    ``slow``: given up."""

    times_s: tuple[float, ...]
    time_s: float
    rate: float
    slow: bool = False


class Clock:
    """Times runs between two runs of the reference (``reference()`` -> seconds)."""

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
        """What a candidate's times come to: noise only adds."""
        return float(np.percentile(times, 10 if final else 25))

    def steady(self, times: Sequence[float]) -> bool:
        """Whether a finalist's times say enough."""
        return float(np.median(times)) < 1.05 * self.settled(times, final=True)


class ControlClock(Clock):
    """The reference is another candidate, ``number`` runs of it, each of which normally takes ``seconds``.
    ``changes``: by which factors, as logarithms, one repeat of it took longer or shorter than the one before;
    it gets those of this series. ``noise``: the standard deviation of the logarithm of one that they show.
    ``touch`` brings its arrays back into the caches; where that is not enough, it and what it is compared
    with make ``options.warm_runs`` before each repeat instead."""

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
        """The first repeat has a reference after it only: one costs as much as a repeat."""
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
        """Noise slows the one or the other: the median quotient; of a few in a row not less than that of the
        fastest runs, for a control that was disturbed all the time makes a record."""
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
    """Of a control that has not run yet: as on a machine that others use now and then."""
    return deque([UNKNOWN_NOISE / SPREAD] * 8, maxlen=100)


def repeats_of(seconds: float, options: Options) -> int:
    """Runs in a repeat for a kernel that takes this long."""
    return max(1, round(options.min_repeat_s / max(seconds, 1e-9)))


def estimate(run: Run, first_s: float, options: Options) -> float:
    """Seconds of a warm run: ``first_s`` for kernels that fill a repeat, otherwise by growing batches."""
    seconds, number = first_s, 1
    while seconds * number < 0.5 * options.min_repeat_s:
        number = min(10 * number, 2 * repeats_of(seconds, options))
        seconds = run(number) / number
    return seconds


def warm(run: Run, options: Options, least: int = 0) -> None:
    """Run a candidate until its arrays are where they are when it is called again and again."""
    spent = 0.0
    for _ in range(max(least, options.warm_runs or 0)):
        spent += run(1)
        if spent > WARM_S:
            break


def screen(run: Run, clock: Clock, first_s: float, best_s: float | None, options: Options) -> Timing:
    """Time one candidate. ``first_s``: seconds of a run that was already made, to size the repeats by."""
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
    """Normalised times of several candidates, interleaved: ``rounds`` × ``repeats`` each, or up to twice
    as many rounds on an unsteady machine. ``seconds``: how long each takes, about."""
    times: list[list[float]] = [[] for _ in runs]
    order = list(range(len(runs)))
    for number in range(2 * rounds):
        if number >= rounds and all(clock.steady(t) for t in times):
            break
        for i in order if number % 2 == 0 else reversed(order):  # no one always follows the same neighbour
            warm(runs[i], options, least=1)  # the caches hold the neighbour's data
            clock.fresh()
            times[i].extend(clock.repeat(runs[i], repeats_of(seconds[i], options)) for _ in range(repeats))
    return [tuple(t) for t in times]


def finals_s(time_s: float, k: int, rounds: int, repeats: int, warm_runs: int = 0) -> float:
    """Seconds that `final` takes at most for ``k`` candidates: on an unsteady machine twice the rounds, of a
    warm-up and repeats, which last a millisecond at least, with a reference between, which is as long. Each
    follows ``warm_runs`` that bring its arrays back."""
    each = max(time_s, 1e-3) + max(time_s, 1.5e-3)
    each += 2 * min(warm_runs * time_s, WARM_S + time_s)
    return 0.2 + 1.3 * k * 2 * rounds * (repeats + 1) * each
