"""The task scheduler on simulated tasks: no machine, no clock."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from autotune.tuning.task_scheduler import GradientScheduler, ScheduledTask

TURN_S = 5.0


class Simulated:
    """A task whose best time falls towards ``floor`` as seconds are spent, in jumps as searches do."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.floor = float(10 ** rng.uniform(-4.5, -1.5))
        self.excess = float(rng.uniform(0.2, 3.0))
        self.tau = float(10 ** rng.uniform(0.5, 2.0))
        self.weight = float(rng.integers(1, 10))
        self.flops = self.floor * 5e10 * float(rng.uniform(0.5, 1.0))
        self.seconds = 0.0

    def spend(self, seconds: float) -> float:
        self.seconds += seconds
        return self.best()

    def best(self) -> float:
        progress = math.floor(4 * math.log2(1 + self.seconds)) / 4  # gains come in steps
        return self.floor * (1 + self.excess * math.exp(-(2**progress - 1) / self.tau))


def suite(seed: int) -> list[Simulated]:
    rng = np.random.default_rng(seed)
    return [Simulated(rng) for _ in range(20)]


def weighted(tasks: list[Simulated]) -> float:
    return sum(t.weight * t.best() for t in tasks)


def schedule(tasks: list[Simulated], budget: float, limits: Sequence[float] | None = None) -> list[int]:
    """The tasks of the turns; ``limits``: what a machine seems to need for each, of its least time."""
    scheduler = GradientScheduler([ScheduledTask(t.weight, t.flops, i % 4) for i, t in enumerate(tasks)])
    turns = []
    for _ in range(int(budget / TURN_S)):
        number = scheduler.next()
        assert number is not None
        best = tasks[number].spend(TURN_S)
        scheduler.add(number, TURN_S, best, limits and limits[number] * tasks[number].floor)
        turns.append(number)
    return turns


def turns_of(scheduler: GradientScheduler, count: int) -> list[int]:
    """The tasks of so many turns, none of which finds anything faster than a millisecond."""
    turns = []
    for _ in range(count):
        number = scheduler.next()
        assert number is not None
        scheduler.add(number, TURN_S, 1e-3)
        turns.append(number)
    return turns


@pytest.mark.fast("False")
@pytest.mark.parametrize("limits", [False, True])
def test_weighted_latency_beats_an_equal_split(limits: bool) -> None:
    excess = []
    for seed in range(20):
        ours, equal = suite(seed), suite(seed)
        schedule(ours, 600.0, [1.0] * 20 if limits else None)
        for t in equal:
            t.spend(600.0 / len(equal))
        least = sum(t.weight * t.floor for t in ours)
        assert weighted(ours) < weighted(equal) * 1.001
        excess.append((weighted(ours) - least) / (weighted(equal) - least))
    assert np.exp(np.mean(np.log(excess))) < 0.75  # of what an equal split leaves above the limit


@pytest.mark.slow
def test_what_is_left_above_a_limit_that_none_reaches_draws_no_turns_for_ever() -> None:
    """Tasks that are done after some turns, half of them far above what the machine seems to need."""
    ours_s = equal_s = 0.0
    for seed in range(20):
        ours, equal = suite(seed), suite(seed)
        for t in (*ours, *equal):
            t.tau /= 5
        schedule(ours, 1500.0, np.random.default_rng(seed).uniform(0.5, 1.0, 20).tolist())
        for t in equal:
            t.spend(1500.0 / len(equal))
        least = sum(t.weight * t.floor for t in ours)
        ours_s, equal_s = ours_s + weighted(ours) / least - 1, equal_s + weighted(equal) / least - 1
    assert ours_s < 0.2 * equal_s


def test_hope_fades_where_nothing_is_found() -> None:
    scheduler = GradientScheduler([ScheduledTask(1.0, 1e9), ScheduledTask(1.0, 1e9)])
    times = [1e-3, 1e-3]
    for number in (0, 1):
        scheduler.add(number, TURN_S, times[number], limit_s=(0.5e-3, 0.9e-3)[number])
    turns = []
    for _ in range(12):
        number = scheduler.next()
        assert number is not None
        times[number] *= (1.0, 0.99)[number]
        scheduler.add(number, TURN_S, times[number])
        turns.append(number)
    assert turns[0] == 0 and turns.count(1) >= 8


def test_every_task_gets_a_first_turn_and_the_heaviest_goes_first() -> None:
    tasks = suite(1)
    turns = schedule(tasks, 20 * TURN_S)
    assert sorted(turns) == list(range(20))
    assert turns[0] == max(range(20), key=lambda i: tasks[i].weight * tasks[i].flops)


def test_a_small_budget_serves_those_with_most_to_lose() -> None:
    tasks = suite(2)
    turns = schedule(tasks, 5 * TURN_S)
    heaviest = sorted(range(20), key=lambda i: -tasks[i].weight * tasks[i].flops)
    assert turns == heaviest[:5]


def test_a_weight_draws_turns() -> None:
    scheduler = GradientScheduler([ScheduledTask(1.0, 1e9), ScheduledTask(50.0, 1e9)])
    for number in (0, 1):
        scheduler.add(number, TURN_S, 1e-3)
    assert turns_of(scheduler, 10).count(1) >= 8


def test_a_task_at_the_limit_gets_little_and_an_ended_one_nothing() -> None:
    scheduler = GradientScheduler([ScheduledTask(1.0, 1e9), ScheduledTask(1.0, 1e9), ScheduledTask(1.0, 1e9)])
    scheduler.add(0, TURN_S, 1.00e-3, limit_s=0.999e-3)
    scheduler.add(1, TURN_S, 1.00e-3, limit_s=0.2e-3)
    scheduler.add(2, TURN_S, 1.00e-3, limit_s=0.2e-3)
    scheduler.end(2)
    assert scheduler.gain(0) < 0.13 * scheduler.gain(1)
    assert {scheduler.next() for _ in range(3)} == {1}
    scheduler.end(1)
    assert scheduler.next() == 0
    scheduler.end(0)
    assert scheduler.next() is None


def test_a_settled_task_has_turns_by_its_gain_until_all_are_settled() -> None:
    scheduler = GradientScheduler([ScheduledTask(5.0, 1e9), ScheduledTask(1.0, 1e9)])
    for number in (0, 1):
        scheduler.add(number, TURN_S, 1.00e-3, limit_s=0.2e-3)
    scheduler.settle(0)
    turns = turns_of(scheduler, 12)
    assert turns[0] == 0 and 7 <= turns.count(0) <= 10  # by the third root of its weight about, at last
    scheduler.settle(1)
    assert scheduler.next() is None
    scheduler.settle(1, False)  # it has gained since
    assert scheduler.next() is not None


def test_a_time_that_seems_beyond_the_limit_does_not_starve_a_task() -> None:
    # the best of many noisy times is a lucky one, and the limit is measured too
    scheduler = GradientScheduler([ScheduledTask(1.0, 1e9), ScheduledTask(1.0, 1e9)])
    scheduler.add(0, TURN_S, 1.00e-3, limit_s=1.05e-3)
    scheduler.add(1, TURN_S, 1.00e-3, limit_s=0.2e-3)
    turns = turns_of(scheduler, 30)
    assert turns[0] == 1 and 3 <= turns.count(0) < turns.count(1)


def test_tasks_near_their_limits_share_turns_by_what_is_left_of_their_weighted_times() -> None:
    scheduler = GradientScheduler([ScheduledTask(3.0, 1e9), ScheduledTask(1.0, 1e9)])
    for number in (0, 1):
        scheduler.add(number, TURN_S, 1.00e-3, limit_s=0.95e-3)
    assert 3 <= turns_of(scheduler, 12).count(1) <= 5


def test_similar_tasks_say_what_is_within_reach() -> None:
    slow, fast = ScheduledTask(1.0, 1e9, "conv"), ScheduledTask(1.0, 1e9, "conv")
    alone = GradientScheduler([slow, ScheduledTask(1.0, 1e9, "matmul")])
    beside = GradientScheduler([slow, fast])
    for scheduler in (alone, beside):
        for _ in range(8):  # long tuned without success
            scheduler.add(0, TURN_S, 1e-2)
        scheduler.add(1, TURN_S, 1e-3)
    assert beside.gain(0) > 3 * alone.gain(0)


def test_what_runs_nowhere_is_tried_again_but_not_forever() -> None:
    scheduler = GradientScheduler([ScheduledTask(1.0, 1e9), ScheduledTask(1.0, 1e9)])
    scheduler.add(0, TURN_S, None)
    scheduler.add(1, TURN_S, 1e-3)
    turns = []
    for _ in range(12):
        number = scheduler.next()
        assert number is not None
        scheduler.add(number, TURN_S, None if number == 0 else 1e-3)
        turns.append(number)
    assert turns[:3] == [0, 0, 1] and turns.count(0) in (7, 8, 9)  # twice the others' share, no more
