"""Which of many tasks to tune next, so that their weighted latency falls fastest (Ansor, OSDI'20, app. A).

The objective is Σ weight · best time. The gain that the next second of a task brings is estimated from what
its last seconds brought, from the hope that a task tuned for t seconds will come nearer to the machine's
limit by 1/t of what is left a second, and from how fast similar tasks became; the task with the largest gain
is next. Most tasks end above the limit, wherever that is, so hope fades while nothing is found: else the task
with the most above it is served for ever. Ansor counts rounds of trials; here the budget is wall-clock time,
and trials of one task may take a hundred times those of another, so everything is per second. No clock, no
machine: what happened is told.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from autotune.search.stopping import Stopping

ALPHA = 0.2  # weight of what the last turns brought
BETA = 2.0  # times the time that the best of the similar tasks' speed would give, within reach
WINDOW = 3  # turns that are looked back at
UNSURE = 0.1  # of a time: a lucky one may seem to be at the limit, and its task would never have a turn again
FADING = 2.0  # power of the share of its time after which a task last gained, by which hope fades


@dataclass(frozen=True)
class ScheduledTask:
    """``weight``: how often the kernel is run; ``flops``: of one run; ``similar``: equal for tasks that may
    be expected to run equally fast; ``limit_s``: the least seconds that the machine needs, if known."""

    weight: float = 1.0
    flops: float = 0.0
    similar: Hashable = None
    limit_s: float | None = None


@dataclass
class _State:
    spent_s: list[float] = field(default_factory=lambda: [0.0])  # after each turn
    best_s: list[float | None] = field(default_factory=lambda: [None])
    gains: Stopping = field(default_factory=Stopping)  # by seconds
    ended: bool = False
    settled: bool = False


class GradientScheduler:
    """Gives each task a first turn, the one with most to lose first; then turns by gradient."""

    def __init__(self, tasks: Sequence[ScheduledTask]) -> None:
        self._tasks = list(tasks)
        self._states = [_State() for _ in tasks]

    def next(self) -> int | None:
        """The task whose turn it is; None when all have ended, or all that have not are settled."""
        open_ = [i for i, s in enumerate(self._states) if not s.ended]
        if all(self._states[i].settled for i in open_):
            return None
        new = [i for i in open_ if len(self._states[i].best_s) == 1]
        if new:
            return max(new, key=lambda i: (self._tasks[i].weight * max(self._tasks[i].flops, 1.0), -i))
        blind = [i for i in open_ if self._states[i].best_s[-1] is None]  # nothing ran yet
        if blind and len(blind) < len(open_):
            # a task without any kernel is worth more than gains of others, until it has had twice their share
            others = [s.spent_s[-1] for i, s in enumerate(self._states) if i not in blind]
            hopeful = [i for i in blind if self._states[i].spent_s[-1] <= 2 * sum(others) / len(others)]
            if hopeful:
                return min(hopeful, key=lambda i: (self._states[i].spent_s[-1], i))
        return max(open_, key=lambda i: (self.gain(i), -self._states[i].spent_s[-1], -i))

    def add(self, task: int, seconds: float, best_s: float | None, limit_s: float | None = None) -> None:
        """A turn of ``seconds`` ended with this best time (None: nothing ran yet)."""
        state = self._states[task]
        seconds = max(seconds, 1e-9)
        state.spent_s.append(state.spent_s[-1] + seconds)
        state.best_s.append(best_s)
        state.gains.add(1.0 / best_s if best_s else 0.0, seconds)
        if limit_s is not None:
            old = self._tasks[task]
            self._tasks[task] = ScheduledTask(old.weight, old.flops, old.similar, limit_s)

    def settle(self, task: int, settled: bool = True) -> None:
        """Little more is to be expected of a task. It keeps its turns while others go on: the little that a
        heavy one may gain can be more than what a light one will."""
        self._states[task].settled = settled

    def end(self, task: int) -> None:
        """A task can have no more turns."""
        self._states[task].ended = True

    def weighted_s(self) -> float | None:
        """The objective, Σ weight · best time; None while a task has none."""
        total = 0.0
        for task, state in zip(self._tasks, self._states, strict=True):
            if state.best_s[-1] is None:
                return None
            total += task.weight * state.best_s[-1]
        return total

    def gain(self, task: int) -> float:
        """Weighted seconds of latency that the next second of tuning is expected to save."""
        state, about = self._states[task], self._tasks[task]
        best, spent = state.best_s[-1], state.spent_s[-1]
        if best is None:
            return 0.0
        turn = spent - state.spent_s[-2]  # what the next turn may take
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

    def _within_reach(self, task: int) -> float | None:
        """A time that similar tasks make credible: `BETA` times that at the best FLOP rate of them."""
        about = self._tasks[task]
        rates = [
            t.flops / s.best_s[-1]
            for i, (t, s) in enumerate(zip(self._tasks, self._states, strict=True))
            if i != task and t.similar == about.similar and t.flops and s.best_s[-1]
        ]
        if about.similar is None or not rates or not about.flops:
            return None
        return BETA * about.flops / max(rates)
