"""Chooses the control of a measurer, the candidate beside which others are timed (ADR 22), and keeps its
time.

A candidate's time is its quotient with the control's, times what the control normally takes. That is the
median of all its times so far, because a machine's fast and slow spells last from milliseconds to seconds.

The speed of a kernel also depends on the pages of memory of its process. So up to three other candidates, the
witnesses, are timed beside the control in each new process. If they changed apart from one another, the
process is replaced. If all changed alike, the control has changed, and its time is corrected (ADR 31).
Figures: docs/measurements/timing-spread.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median

from autotune.backends.peaks.cpu_peaks import HEAT_S, spells
from autotune.measure.process import Child
from autotune.measure.results import Control, Measurement
from autotune.measure.runner import Runner

# Good candidates that must be known before one of them becomes the control.
CHOICE = 8
# Ratio of a candidate's time to the control's below which it becomes the new control.
RENEWAL = 0.8
# Longest control (seconds a run): longer ones average over most of a machine's spells by themselves.
LONGEST_CONTROL_S = 0.03
# Repeats in each spell in which the control's time is measured.
REPEATS = 5
# Most witnesses, and the largest ratio of a witness's time to the control's.
WITNESSES, NEAR = 3, 1.5
# Rounds of timing the witnesses (up to twice as many on an unsteady machine), and seconds they take (about).
ROUNDS, COMPARING_S = 2, 0.2
# Change of the control that is corrected (logarithm of a ratio).
MOVED = 0.05
# Distance between witnesses' changes above which a process is replaced (logarithm of a ratio).
APART = 0.15
# Times of the control that are kept for the median.
REMEMBERED = 2000
# Times that the known time of another measurer's control counts as.
INHERITED = 50
# Most processes tried. A later one also completes a correction, as each shows at most 1 / `protocol.SLOWEST`.
ATTEMPTS = 4

# (objects, rounds, repeats) -> a measurement of each object, timed in turns.
InTurns = Callable[[list[bytes], int, int], list[Measurement]]


def comparing_s(time_s: float, warm_runs: int) -> float:
    """Least seconds that comparing with the witnesses takes in a new process, for candidates of ``time_s``
    seconds; 0 where there is no control or it has no witnesses."""
    compared = not warm_runs and time_s <= LONGEST_CONTROL_S
    return 2 * ROUNDS * WITNESSES * 3 * time_s if compared else 0.0


class ControlKeeper:
    """Chooses and renews the control of a runner, keeps its time, and corrects it in each new process.

    ``in_turns``: times objects beside the runner's control. ``witnesses``: how many to have; 0 for what no
    cache holds, because pages matter little there and comparing takes long.
    """

    def __init__(self, runner: Runner, in_turns: InTurns, witnesses: int = WITNESSES) -> None:
        self.control = runner.control
        self._runner = runner
        self._in_turns = in_turns
        self._witnesses = witnesses
        self._settled: Child | None = None
        self._change = 0.0  # of the control in this process (logarithm of a ratio)
        inherited = [] if self.control is None else [self.control.seconds] * INHERITED
        self._took = deque(inherited, maxlen=REMEMBERED)

    def choose(self, objects: Mapping[str, tuple[float, bytes]]) -> float | None:
        """Make the best of ``objects`` (name: (seconds, object)) the control, if there are `CHOICE` of them,
        or if it beats the present control by `RENEWAL`. Returns its measured time (seconds), or None if none
        is chosen."""
        time_s, obj = min(objects.values(), key=lambda x: x[0])
        old = self.control
        due = len(objects) >= CHOICE if old is None else time_s < RENEWAL * old.seconds
        if not due or time_s > LONGEST_CONTROL_S:
            return None
        times = self._spells(time_s, obj)
        if not times:
            return None
        normal = median(times)
        self._runner.control = Control(obj, normal)
        near = sorted(x for x in objects.values() if x[1] != obj and x[0] <= NEAR * time_s)
        self.control = Control(obj, normal, tuple(self._timed([x for _, x in near[: self._witnesses]])))
        self._took = deque(times, maxlen=REMEMBERED)
        self._settled = self._runner.child
        self._corrected(0.0)
        return normal

    def heard(self, rate: float | None) -> None:
        """Take in the ``rate`` of the control beside a candidate: its time then was its normal time /
        rate."""
        control = self.control
        if control is None or not rate:
            return
        self._took.append(control.seconds / rate)
        seconds = median(self._took)
        scale = seconds / control.seconds
        self.control = Control(control.object, seconds, tuple((x, scale * s) for x, s in control.witnesses))
        self._corrected(self._change)

    def settle(self) -> None:
        """Compare the control with its witnesses, if the runner has a new process since the last call."""
        control = self.control
        if control is None or not control.witnesses or self._runner.ready() is self._settled:
            return
        self._corrected(0.0)
        for _ in range(ATTEMPTS):
            found = dict(self._timed([x for x, _ in control.witnesses]))
            changes = [math.log(known / found[x]) for x, known in control.witnesses if x in found]
            if changes and max(changes) - min(changes) > APART:
                self._runner.drop()
            elif changes and abs(median(changes)) > MOVED:
                self._corrected(self._change + median(changes))
            else:
                break
        self._settled = self._runner.ready()

    def _corrected(self, change: float) -> None:
        """Correct the control's time in this process by ``change`` (logarithm), if it is slower here."""
        self._change = change
        if self.control is not None:
            self._runner.control = self.control._replace(seconds=self.control.seconds * math.exp(change))

    def _spells(self, time_s: float, obj: bytes) -> list[float]:
        """Seconds a run in each of `cpu_peaks.SPELLS` spells; empty if it fails. Each spell begins with
        `HEAT_S` of runs that do not count, because the core may clock higher then."""
        heat = math.ceil(HEAT_S / max(time_s, 1e-3))
        times: list[float] = []
        for _ in spells():
            [found] = self._in_turns([obj], 1, heat + REPEATS)
            if not found.ok:
                return []
            times.append(median(found.times_s[-REPEATS:]))
        return times

    def _timed(self, objects: list[bytes]) -> list[tuple[bytes, float]]:
        """The objects that could be timed, each with its seconds."""
        if not objects or self._runner.control is None:
            return []
        turns = 2 * ROUNDS * len(objects)  # each of a run or more, with as many runs of the control
        runs = COMPARING_S / (turns * max(self._runner.control.seconds, 1e-3))
        repeats = max(1, min(REPEATS, round((runs - 1) / 2)))
        found = zip(objects, self._in_turns(objects, ROUNDS, repeats), strict=True)
        return [(x, m.time_s) for x, m in found if m.ok and m.time_s]
