"""Timing beside a control: what slows all candidates divides out, and noise is averaged where it matters."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import measure_fakes as fakes
import numpy as np
import pytest
from helpers import checker

from autotune import backends, targets
from autotune.backends.peaks.cpu_peaks import Reference
from autotune.measure import Control, Measurer, Options, timing, worker
from autotune.measure.arena import Arena, KernelParam
from autotune.measure.control import CHOICE, ControlKeeper
from autotune.measure.native import Native
from autotune.run.workloads import as_workload
from schedules.model import Target, Trace
from schedules.space import derive

OPTIONS = Options()
PATIENT = Options(give_up=1000.0)  # a moment of a busy machine ends no candidate


def beside(control: timing.Run, noise: float, options: Options = OPTIONS) -> timing.ControlClock:
    """The clock of a control of 2 ms."""
    return timing.ControlClock(control, 1, 2e-3, deque([noise / timing.SPREAD] * 100), options)


class Neighbour:
    """Slows whatever reads caches by up to 0.6, anew after 50 runs, and the reference loop not at all."""

    def __init__(self, noise: float, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        spells = np.repeat(rng.uniform(1.0, 1.6, 2000), 50)
        self.factor = spells * np.exp(rng.normal(0.0, noise, len(spells)))
        self.now = 0

    def takes(self, seconds: float) -> float:
        self.now += 1
        return float(seconds * self.factor[self.now])

    def kernel(self, seconds: float) -> timing.Run:
        return lambda number: self.takes(seconds * number)

    def clock(self, noise: float) -> timing.Clock:
        return beside(self.kernel(2e-3), noise)


def test_a_control_ranks_what_a_neighbour_slows() -> None:
    """Candidates a tenth apart, timed in spells of their own."""
    wrong, spread = {}, {}
    for control in (True, False):
        machine = Neighbour(0.02)
        clock = machine.clock(0.02) if control else timing.Clock(lambda: 3e-4, 3e-4)
        fast, slow = (
            np.array([timing.screen(machine.kernel(s), clock, s, None, OPTIONS).time_s for _ in range(100)])
            for s in (2e-3, 2.2e-3)
        )
        wrong[control] = int(np.sum(fast >= slow))
        spread[control] = float(np.std(np.log(fast)))
    assert wrong[True] <= 5 < 12 < wrong[False]
    assert spread[True] < 0.05 < 0.1 < spread[False]


def test_beside_a_control_repeats_are_as_many_as_noise_asks_for() -> None:
    def repeats(noise: float, seconds: float) -> int:
        clock = beside(lambda n: n * 2e-3, noise)
        return len(timing.screen(lambda n: n * seconds, clock, seconds, 2e-3, OPTIONS).times_s)

    assert [repeats(noise, 2e-3) for noise in (0.005, 0.05, 0.2)] == [2, 3, timing.MOST_REPEATS]
    assert [repeats(0.005, factor * 2e-3) for factor in (1.1, 1.18, 1.3)] == [2, 2, 1]
    assert repeats(0.2, 1.3 * 2e-3) == 2  # that much may be noise once, not twice
    assert repeats(0.2, 0.016) == 1


def test_a_control_that_stands_still_makes_no_record() -> None:
    for still, least in (((0, 1, 2, 3, 4, 5), 0.65), ((0,), 1.0), ((2,), 1.0), ((0, 1), 0.65)):
        calls = [0]

        def control(_: int, still: tuple[int, ...] = still, calls: list[int] = calls) -> float:
            calls[0] += 1
            return 6e-3 if calls[0] - 1 in still else 2e-3

        for noise in (0.005, 0.1):  # two repeats, and five
            calls[0] = 0
            clock = beside(control, noise)
            found = timing.screen(lambda n: n * 2e-3, clock, 2e-3, None, OPTIONS)
            assert found.time_s >= least * 2e-3 * 0.999


def test_finalists_beside_a_control_come_to_their_median() -> None:
    machine = Neighbour(0.03)
    clock = machine.clock(0.03)
    runs = [machine.kernel(s) for s in (2.06e-3, 2e-3)]
    times = timing.final(runs, clock, [2e-3] * 2, 3, 5, OPTIONS)
    assert [len(t) for t in times] == [15, 15]
    slower, faster = (clock.settled(t, final=True) for t in times)
    assert faster == float(np.median(times[1])) == pytest.approx(2e-3, rel=0.04)
    assert faster < slower
    loud = timing.final(runs, machine.clock(0.1), [2e-3] * 2, 3, 5, OPTIONS)
    assert [len(t) for t in loud] == [30, 30]  # until the median is known to a hundredth


def turns(*numbers: int) -> list[Trace]:
    return [fakes.trace("steady", n) for n in numbers]


@pytest.mark.slow
def test_nothing_is_chosen_as_the_control_after_the_last_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than the candidates of a first pick."""
    chosen: list[int] = []
    monkeypatch.setattr(ControlKeeper, "choose", lambda self, objects: chosen.append(len(objects)))
    with Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=PATIENT) as m:
        assert all(x.ok for x in m.measure(turns(40, 41, 42)))
        assert chosen == [1, 2]
        m.finalists(turns(40))
        assert chosen == [1, 2, 3]


@pytest.mark.slow
def test_a_good_candidate_becomes_the_control_and_stays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.measure.control.RENEWAL", 0.4)  # noise may well look like a gain of a fifth
    dag = fakes.addition((64, 64))
    target = targets.detect(1)
    with Measurer(dag, target, build=fakes.NAME, options=PATIENT) as m:
        assert all(x.ok for x in m.measure(turns(*range(40, 40 + CHOICE - 1))))
        assert m.control is None
        assert all(x.ok for x in m.measure(turns(60, 61)))
        first = m.control
        assert first is not None and first.object in [m.object(t) for t in turns(*range(40, 47), 60)]
        (crash,) = m.measure([fakes.trace("null store")])  # the next process gets the control as well
        (same,) = m.measure(turns(40))
        assert crash.status == "crash" and same.ok and same.time_s is not None
        assert same.time_s == pytest.approx(first.seconds, rel=0.5)
        assert m.control is not None and m.control.object == first.object
        fast, _ = m.measure(turns(5, 5))
        assert fast.ok and m.control is not None and m.control.seconds < 0.5 * first.seconds
        held = m.control
        (again,) = m.measure(turns(5))
        assert again.time_s == pytest.approx(held.seconds, rel=0.5)
    # another measurer begins with it; were a run of it thought to take ten times as long, so would all
    slow = Control(held.object, 10 * held.seconds)
    with Measurer(dag, target, build=fakes.NAME, options=PATIENT, control=slow) as m:
        (found,) = m.measure(turns(5))
        (final,) = m.finalists(turns(5))
        assert found.time_s is not None and final.time_s is not None and m.control == slow
        assert found.time_s == pytest.approx(slow.seconds, rel=0.5)
        assert final.time_s == pytest.approx(slow.seconds, rel=0.5)


def test_what_waits_for_memory_runs_before_each_repeat_as_its_control_does() -> None:
    """Each evicts what the other needs: the first three runs after the other take half as long again."""
    last, since = [""], [0]

    def kernel(name: str, seconds: float) -> timing.Run:
        def run(number: int) -> float:
            took = 0.0
            for _ in range(number):
                since[0] = since[0] + 1 if last[0] == name else 1
                last[0] = name
                took += seconds * (1.5 if since[0] <= 3 else 1)
            return took

        return run

    waits = Options(from_memory=True, warm_runs=3)
    for seconds in (1.5e-3, 2e-3):
        clock = beside(kernel("control", 2e-3), 0.05, waits)
        found = timing.screen(kernel("other", seconds), clock, 1.5 * seconds, None, waits)
        assert found.times_s == pytest.approx([seconds] * 3)
    times = timing.final([kernel("a", 2e-3), kernel("b", 3e-3)], clock, [2e-3, 3e-3], 3, 5, waits)
    for seconds, found in zip((2e-3, 3e-3), times, strict=True):
        assert found == pytest.approx([seconds] * len(found))


def test_a_control_is_no_slower_after_what_empties_caches() -> None:
    """A candidate that streams its results takes the control's arrays out of the caches; were its next run
    what times are normalised by, the candidate would look a tenth faster than it is."""
    cached = [True]

    def control(number: int) -> float:
        seconds = 2e-3 * (number if cached[0] else number + 0.1)
        cached[0] = True
        return seconds

    def streams(number: int) -> float:
        cached[0] = False
        return 2e-3 * number

    def touch() -> None:
        cached[0] = True

    for kernel, touched in ((control, touch), (streams, touch), (control, lambda: None)):
        clock = timing.ControlClock(control, 1, 2e-3, timing.no_changes(), OPTIONS, touched)
        assert timing.screen(kernel, clock, 2e-3, None, OPTIONS).time_s == pytest.approx(2e-3)
    clock = timing.ControlClock(control, 1, 2e-3, timing.no_changes(), OPTIONS, lambda: None)
    assert timing.screen(streams, clock, 2e-3, None, OPTIONS).rate == pytest.approx(1 / 1.1)


def test_where_caches_do_not_hold_both_each_runs_once_before_it_is_timed() -> None:
    """The first run after the other takes half as long again, that of the first repeat too."""
    last = [""]

    def kernel(name: str, seconds: float) -> timing.Run:
        def run(number: int) -> float:
            first, last[0] = last[0] != name, name
            return seconds * (number + 0.5 * first)

        return run

    control = kernel("control", 2e-3)
    once = replace(OPTIONS, warm_runs=1)
    clock = timing.ControlClock(control, 1, 2e-3, timing.no_changes(), once)
    found = timing.screen(kernel("other", 3e-3), clock, 4.5e-3, None, once)
    assert found.times_s == pytest.approx([3e-3] * len(found.times_s))
    assert found.rate == pytest.approx(1)


def bench(target: Target) -> tuple[worker.MeasuringBench, bytes]:
    """What a worker measures an addition of 1312 bytes an array with, and a right kernel for it."""
    dag, host = fakes.addition((8, 41)), targets.detect(1)
    ones = [np.ones((8, 41), "float32")] * 2
    arena = Arena([KernelParam(t.name, t.shape, t.dtype) for t in dag.params], ones)
    cpu = backends.of(host).clocked_by(host)
    made = worker.MeasuringBench(target, arena, (checker(dag, ones),), Native(cpu), Reference(cpu), OPTIONS)
    return made, fakes.build(dag, fakes.trace("right"), host)


def test_a_control_reads_all_of_its_arrays_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    made, kernel = bench(targets.detect(1))
    control = worker._Control(made, kernel)
    assert [x.ctypes.data for x in control._lines] == list(made.arena.timing.pointers)
    assert [(len(x), x.strides) for x in control._lines] == [(21, (64,))] * 3  # 1312 bytes of each array
    order: list[str] = []
    monkeypatch.setattr(worker._Control, "_touch", lambda self: order.append("touch"))
    clock = control.clock(1e-3, 0)
    made.native.time = lambda *args: order.append("run") or 1e6
    clock.repeat(lambda n: order.append("candidate") or 1e-3, 1)
    assert order == ["candidate", "touch", "run"]
    made.arena.close()


@pytest.mark.slow
def test_a_control_packs_constants_for_itself() -> None:
    """Into memory of its own: candidates pack theirs in other orders, and some read as much of them."""
    w = as_workload("matmul", {"m": 33, "n": 256, "k": 512}, constant_weights=True)
    target = targets.detect(1)
    space = derive(w.canonical, target)
    rng = np.random.default_rng(0)
    rows = [(s, r) for s in range(len(space.sketches)) for r in space.sample(s, 200, rng)]
    traces = [space.trace(s, r) for s, r in rows if space.valid(s, r[None])[0]][::8]
    with Measurer(w, target) as m:
        found = list(m.measure(traces))
        assert {x.status for x in found} <= {"ok", "slow"} and m.control is not None
        best = min((x for x in zip(found, traces) if x[0].ok), key=lambda x: x[0].time_s or 1.0)[1]
        (again,) = m.finalists([best])
    assert again.ok and again.time_s == pytest.approx(m.control.seconds, rel=0.6)
