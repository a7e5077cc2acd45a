"""The control of a measurer: the candidate beside which others are timed (ADR 22), chosen among the first,
and what it takes where it now runs.

A time is a quotient with the control's, times what that normally takes: the median of what it took so far, as
moments in which others use the machine, or nobody does, last from milliseconds to seconds.

How fast a kernel is depends on the pages of memory that its process has, by some percent, now and then by a
half or more. A control that is slower in a new process makes records of all that is timed there. So a few
other candidates are its witnesses: a process in which they seem to have changed each in its own way is left,
and where all have changed alike, it is the control that has, and its time is corrected (ADR 31).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median

from autotune.measure.cpu_peaks import HEAT_S, spells
from autotune.measure.process import Child
from autotune.measure.results import Control, Measurement
from autotune.measure.runner import Runner

CHOICE = 8  # good candidates before one of them becomes the control,
RENEWAL = 0.8  # which one that takes this much of its time replaces
LONGEST_CONTROL_S = 0.03  # what takes longer has most of a machine's spells in each of its runs
REPEATS = 5  # in each of the spells in which its time is measured
WITNESSES, NEAR = 3, 1.5  # so many at most, that take up to so many times as long
ROUNDS, COMPARING_S = 2, 0.2  # of timing them, or twice as many; seconds that these may take, about
MOVED = 0.05  # a change of the control that counts, as a logarithm,
APART = 0.15  # of witnesses, from one another
REMEMBERED = 2000  # times that the control took,
INHERITED = 50  # which the time of one that another measurer chose counts as
ATTEMPTS = 4  # to find a good process, and correct it: of a rate that is bounded one shows a part

InTurns = Callable[[list[bytes], int, int], list[Measurement]]  # of objects, by rounds and repeats


def comparing_s(time_s: float, warm_runs: int) -> float:
    """Seconds that comparing takes in a new process at least, where candidates take so long; 0 where there is
    no control, or none with witnesses."""
    compared = not warm_runs and time_s <= LONGEST_CONTROL_S
    return 2 * ROUNDS * WITNESSES * 3 * time_s if compared else 0.0


class ControlKeeper:
    """Chooses and renews the control of a runner, keeps its time, and corrects it in each new process.
    ``in_turns`` times objects beside the control that the runner has. ``witnesses``: how many it has; none
    for what no cache holds, where pages matter little and comparing takes long."""

    def __init__(self, runner: Runner, in_turns: InTurns, witnesses: int = WITNESSES) -> None:
        self.control = runner.control
        self._runner = runner
        self._in_turns = in_turns
        self._witnesses = witnesses
        self._settled: Child | None = None
        self._change = 0.0  # of the control in this process, as a logarithm
        inherited = [] if self.control is None else [self.control.seconds] * INHERITED
        self._took = deque(inherited, maxlen=REMEMBERED)

    def choose(self, objects: Mapping[str, tuple[float, bytes]]) -> float | None:
        """The best of these objects (with their seconds) becomes the control, where there is some choice and
        it is much faster than the last one; its time is measured well before. That time, if so."""
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
        """Of a candidate that was timed beside the control: from its rate follows what the control took."""
        control = self.control
        if control is None or not rate:
            return
        self._took.append(control.seconds / rate)
        seconds = median(self._took)
        scale = seconds / control.seconds
        self.control = Control(control.object, seconds, tuple((x, scale * s) for x, s in control.witnesses))
        self._corrected(self._change)

    def settle(self) -> None:
        """Compare the control with its witnesses, if the runner's process is another than last time."""
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
        """The runner's control, if it is slower in this process by so much."""
        self._change = change
        if self.control is not None:
            self._runner.control = self.control._replace(seconds=self.control.seconds * math.exp(change))

    def _spells(self, time_s: float, obj: bytes) -> list[float]:
        """What it takes in each of a few spells, which begin with some milliseconds that do not count, as the
        core may clock higher then. Nothing if it fails."""
        heat = math.ceil(HEAT_S / max(time_s, 1e-3))
        times: list[float] = []
        for _ in spells():
            [found] = self._in_turns([obj], 1, heat + REPEATS)
            if not found.ok:
                return []
            times.append(median(found.times_s[-REPEATS:]))
        return times

    def _timed(self, objects: list[bytes]) -> list[tuple[bytes, float]]:
        """Those that could be timed, with their seconds."""
        if not objects or self._runner.control is None:
            return []
        turns = 2 * ROUNDS * len(objects)  # each of a run more than repeats, beside as many of the control
        runs = COMPARING_S / (turns * max(self._runner.control.seconds, 1e-3))
        repeats = max(1, min(REPEATS, round((runs - 1) / 2)))
        found = zip(objects, self._in_turns(objects, ROUNDS, repeats), strict=True)
        return [(x, m.time_s) for x, m in found if m.ok and m.time_s]
