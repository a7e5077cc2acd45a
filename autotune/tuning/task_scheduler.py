"""Decides which of many tasks to tune next, so that weighted latency falls fastest (Ansor, OSDI'20, app. A).

The objective is Σ weight · best time. The gain of a task's next second is estimated from its last seconds,
from the speed of similar tasks, and from a hope: a task tuned for t seconds comes nearer to the machine's
limit by 1/t of the rest a second. The hope fades while nothing is found, because most tasks end above the
limit. The task with the largest gain is next.

Ansor counts rounds of trials. Here everything is per second, because trials of one task may take a hundred
times those of another. The module uses no clock and no machine: it is told what happened.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from dataclasses import dataclass, field, replace

from autotune.search.stopping import Stopping

# Weight of what the last turns brought.
ALPHA = 0.2
# A task is expected to reach this multiple of its time at the FLOP rate of the best similar task.
BETA = 2.0
# Turns that are looked back at.
WINDOW = 3
# Uncertainty of a time (share). Without it a lucky time at the limit would end its task's turns.
UNSURE = 0.1
# Power of the share of a task's time at its last gain, by which the hope fades.
FADING = 2.0


@dataclass(frozen=True)
class ScheduledTask:
    """``weight``: how often the kernel runs. ``flops``: FLOPs of one run. ``similar``: equal for tasks
    expected to be equally fast. ``limit_s``: the machine's limit (seconds), None if not known. ``known_s``:
    seconds of its best kernel when the run begins, None without one. ``later``: of tasks without one, whether
    the others come first."""

    weight: float = 1.0
    flops: float = 0.0
    similar: Hashable = None
    limit_s: float | None = None
    known_s: float | None = None
    later: bool = False


@dataclass
class _State:
    spent_s: list[float] = field(default_factory=lambda: [0.0])  # after each turn
    best_s: list[float | None] = field(default_factory=lambda: [None])
    gains: Stopping = field(default_factory=Stopping)  # by seconds
    ended: bool = False
    settled: bool = False


class GradientScheduler:
    """Gives each task a first turn: those without a kernel first, and of these the one with most to lose.
    Then turns by gain."""

    def __init__(self, tasks: Sequence[ScheduledTask]) -> None:
        self._tasks = list(tasks)
        self._states = [_State() for _ in tasks]

    def next(self, among: Container[int] | None = None) -> int | None:
        """The task whose turn it is, of those ``among`` (None: all). None when each of these has ended or is
        settled."""
        open_ = [i for i, s in enumerate(self._states) if not s.ended and (among is None or i in among)]
        if not self.wanting(among):
            return None
        new = [i for i in open_ if len(self._states[i].best_s) == 1]
        if new:
            return max(new, key=self._weakness)
        blind = [i for i in open_ if self._states[i].best_s[-1] is None]  # nothing ran yet
        if blind and len(blind) < len(open_):
            # A task without a kernel comes first until it has had twice the share of the others.
            others = [s.spent_s[-1] for i, s in enumerate(self._states) if i not in blind]
            hopeful = [i for i in blind if self._states[i].spent_s[-1] <= 2 * sum(others) / len(others)]
            if hopeful:
                return min(hopeful, key=lambda i: (self._states[i].spent_s[-1], i))
        return max(open_, key=lambda i: (self.gain(i), -self._states[i].spent_s[-1], -i))

    def wanting(self, among: Container[int] | None = None) -> list[int]:
        """The tasks, of those ``among``, that have not ended and of which more is expected."""
        return [
            i
            for i, s in enumerate(self._states)
            if not (s.ended or s.settled) and (among is None or i in among)
        ]

    def add(self, task: int, seconds: float, best_s: float | None, limit_s: float | None = None) -> None:
        """A turn of ``seconds`` ended with the best time ``best_s`` (None: nothing ran yet)."""
        state = self._states[task]
        seconds = max(seconds, 1e-9)
        state.spent_s.append(state.spent_s[-1] + seconds)
        state.best_s.append(best_s)
        state.gains.add(1.0 / best_s if best_s else 0.0, seconds)
        if limit_s is not None:
            self._tasks[task] = replace(self._tasks[task], limit_s=limit_s)

    def known_s(self, task: int) -> float | None:
        """Seconds of a task's best kernel when the run began."""
        return self._tasks[task].known_s

    def settle(self, task: int, settled: bool = True) -> None:
        """Mark a task of which little more is expected. It keeps its turns while others go on, as a small
        gain of a heavy task may exceed that of a light one."""
        self._states[task].settled = settled

    def end(self, task: int) -> None:
        """A task can have no more turns."""
        self._states[task].ended = True

    def gain(self, task: int) -> float:
        """Weighted seconds of latency that the next second of tuning is expected to save."""
        state, about = self._states[task], self._tasks[task]
        best, spent = state.best_s[-1], state.spent_s[-1]
        if best is None:
            return 0.0
        turn = spent - state.spent_s[-2]  # about the length of the next turn
        before = max(0, len(state.best_s) - 1 - WINDOW)
        old = next((b for b in state.best_s[before:] if b is not None), best)
        backward = max(0.0, old - best) / (spent - state.spent_s[before])
        left = best if about.limit_s is None else max(best - about.limit_s, UNSURE * best)
        hoped = left / spent * state.gains.gained_share**FADING
        reach = self._within_reach(task)
        if reach is not None:
            hoped = max(hoped, (best - reach) / turn)
        hoped, backward = min(hoped, left / turn), min(backward, left / turn)
        return about.weight * (ALPHA * backward + (1 - ALPHA) * max(0.0, hoped))

    def _weakness(self, task: int) -> tuple[bool, bool, float, int]:
        """Orders tasks that had no turn: the largest is next."""
        about = self._tasks[task]
        time_s = about.known_s
        loss = about.weight * (max(about.flops, 1.0) if time_s is None else time_s)
        return time_s is None, not about.later, loss, -task

    def _within_reach(self, task: int) -> float | None:
        """The time (seconds) at the best FLOP rate of similar tasks, times `BETA`; None without one."""
        about = self._tasks[task]
        rates = [
            t.flops / s.best_s[-1]
            for i, (t, s) in enumerate(zip(self._tasks, self._states, strict=True))
            if i != task and t.similar == about.similar and t.flops and s.best_s[-1]
        ]
        if about.similar is None or not rates or not about.flops:
            return None
        return BETA * about.flops / max(rates)
