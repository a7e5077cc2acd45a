"""Timing: what drifts divides out, what is slow is given up, close candidates are ranked."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby

import measure_fakes as fakes
import numpy as np
import pytest

from autotune import targets
from autotune.backends.peaks import cpu_peaks
from autotune.measure import Measurer, Options, timing
from autotune.measure.results import Nominal

OPTIONS = Options()


class Machine:
    """A simulated machine: its speed changes with every call, and everything slows down alike."""

    def __init__(self, speeds: Callable[[int], float]) -> None:
        self.speeds, self.calls = speeds, 0

    def takes(self, seconds: float) -> float:
        self.calls += 1
        return seconds / self.speeds(self.calls)

    def kernel(self, seconds: float) -> timing.Run:
        return lambda number: self.takes(seconds * number)

    def clock(self) -> timing.Clock:
        return timing.Clock(lambda: self.takes(3e-4), 3e-4)


def test_a_slow_clock_divides_out() -> None:
    for speed in (1.0, 0.7, 1.2):
        machine = Machine(lambda _, s=speed: s)
        found = timing.screen(machine.kernel(3e-3), machine.clock(), 3e-3 / speed, None, OPTIONS)
        assert found.time_s == pytest.approx(3e-3)
        assert found.rate == pytest.approx(speed)


def test_drift_does_not_change_a_ranking() -> None:
    rng = np.random.default_rng(0)
    walk = np.exp(np.cumsum(rng.normal(0, 0.002, 5000)))
    machine = Machine(lambda i: float(walk[i % 5000]))
    clock, wrong = machine.clock(), 0
    for _ in range(40):
        a, b = (
            timing.screen(machine.kernel(s), clock, s, None, OPTIONS).time_s for s in (1.00e-3, 1.03e-3)
        )
        wrong += a >= b
    assert wrong == 0


def test_a_disturbed_reference_does_not_make_a_candidate_fast() -> None:
    machine = Machine(
        lambda i: 0.1 if i == 4 else 1.0
    )  # one reference run of the screen takes ten times as long
    found = timing.screen(machine.kernel(3e-3), machine.clock(), 3e-3, None, OPTIONS)
    assert found.time_s >= 3e-3 * 0.999


def test_repeats_are_sized_by_the_kernel() -> None:
    for seconds in (1e-7, 1e-5, 4e-4, 5e-3):
        machine, sizes = Machine(lambda _: 1.0), []

        def run(number: int, s: float = seconds, sizes: list[int] = sizes, m: Machine = machine) -> float:
            sizes.append(number)
            return m.takes(s * number)

        found = timing.screen(run, machine.clock(), seconds, None, OPTIONS)
        assert found.time_s == pytest.approx(seconds)
        assert sizes[-1] * seconds >= 0.5 * OPTIONS.min_repeat_s
        assert sum(sizes) * seconds < 20 * max(seconds, OPTIONS.min_repeat_s)


def test_the_slower_a_candidate_the_fewer_repeats_it_costs() -> None:
    for factor, repeats, slow in ((5.0, 1, True), (2.0, 1, False), (1.3, 2, False), (1.1, 3, False)):
        machine = Machine(lambda _: 1.0)
        found = timing.screen(machine.kernel(factor * 3e-3), machine.clock(), factor * 3e-3, 3e-3, OPTIONS)
        assert (len(found.times_s), found.slow) == (repeats, slow)


def test_one_disturbed_repeat_does_not_end_a_screen() -> None:
    for disturbed in range(1, 10):  # whichever run it is, of the kernel or of the reference
        machine = Machine(lambda i, at=disturbed: 0.7 if i == at else 1.0)
        found = timing.screen(machine.kernel(3e-3), machine.clock(), 3e-3, 2.9e-3, OPTIONS)
        assert len(found.times_s) == 3
        assert found.time_s == pytest.approx(3e-3)


def cold(runs: int, seconds: float) -> Callable[[int], float]:
    """A kernel whose first so many runs take three times as long, as those after a check do."""
    done = [0]

    def run(number: int) -> float:
        slow = max(0, min(number, runs - done[0]))
        done[0] += number
        return seconds * (number + 2 * slow)

    return run


def test_what_waits_for_memory_is_warm_before_it_is_timed() -> None:
    clock, best_s = timing.Clock(lambda: 1.0, 1.0), 1.1e-3
    waits = Options(from_memory=True, warm_runs=3)
    found = timing.screen(cold(3, 1.2e-3), clock, 3.6e-3, best_s, waits)
    assert found.times_s == pytest.approx([1.2e-3] * 3)
    assert timing.screen(cold(3, 1.2e-3), clock, 3.6e-3, best_s, OPTIONS).time_s > 3e-3
    first, second = timing.final([cold(3, 1.2e-3), cold(3, 1.3e-3)], clock, [1.2e-3] * 2, 1, 5, waits)
    assert first == pytest.approx([1.2e-3] * 5) and second == pytest.approx([1.3e-3] * 5)


@pytest.mark.parametrize(("seconds", "runs"), [(1e-4, 3), (4e-3, 3), (6e-3, 2), (0.5, 1)])
def test_warming_ends_where_no_cache_holds_what_passes(seconds: float, runs: int) -> None:
    made: list[int] = []

    def run(number: int) -> float:
        made.append(number)
        return seconds * number

    timing.warm(run, Options(warm_runs=3))
    assert made == [1] * runs


@pytest.mark.slow
def test_times_of_what_waits_for_memory_are_as_measured() -> None:
    dag = fakes.addition((1024, 1024))
    rates = {}
    for waits in (True, False):
        options = Options(from_memory=waits)
        nominal = Nominal(1.0, 100)  # a thousand times slower than any CPU runs it
        with Measurer(dag, targets.detect(1), build=fakes.NAME, options=options, nominal=nominal) as m:
            found = next(m.measure([fakes.trace("right")]))
            final = m.finalists([fakes.trace("right")])[0]
        assert found.ok and final.ok
        rates[waits] = (found.reference_rate, final.reference_rate)
    assert rates[True] == (1.0, 1.0)
    assert all(rate is not None and rate > 10 for rate in rates[False])


def test_finalists_are_interleaved() -> None:
    order: list[int] = []
    machine = Machine(lambda i: 1 + 0.3 * np.sin(i / 40))

    def kernel(i: int, s: float) -> timing.Run:
        def run(number: int) -> float:
            order.append(i)
            return machine.takes(s * number)

        return run

    runs = [kernel(0, 1.03e-3), kernel(1, 1.0e-3)]
    times = timing.final(runs, machine.clock(), [1e-3, 1e-3], 3, 5, OPTIONS)
    assert [len(t) for t in times] == [15, 15]
    assert np.median(times[1]) < np.median(times[0])
    turns = [i for i, _ in groupby(order)]
    assert turns == [0, 1, 0, 1]  # rounds go back and forth


def test_an_unsteady_machine_gets_more_rounds_and_keeps_its_ranking() -> None:
    rng = np.random.default_rng(1)
    busy = rng.random(100_000) < 0.6  # a neighbour slows the kernels by half, and the reference not at all
    machine = Machine(lambda i: 1.0)

    def kernel(s: float) -> timing.Run:
        return lambda number: machine.takes(s * number * (1.8 if busy[machine.calls] else 1.0))

    clock = machine.clock()
    times = timing.final([kernel(1.03e-3), kernel(1e-3)], clock, [1e-3, 1e-3], 3, 5, OPTIONS)
    assert [len(t) for t in times] == [30, 30]
    assert clock.settled(times[1], final=True) < clock.settled(times[0], final=True)


def test_the_peaks_of_this_machine() -> None:
    target = targets.detect(1)
    loops = [cpu_peaks.FmaLoops(target, dtype) for dtype in ("float32", "float64")]
    single, double = (max(x.flops_a_second() for _ in range(3)) for x in loops)
    assert 1e9 < double < single < 1e12
    for mode in cpu_peaks.MODES:
        assert 1e8 < cpu_peaks.bandwidth(target, mode, 1 << 14, 2) < 1e13
    with pytest.raises(ValueError, match="read, copy, stream, triad"):
        cpu_peaks.bandwidth(target, "write")
    with pytest.raises(ValueError, match="float32 or float64"):
        cpu_peaks.FmaLoops(target, "int32")
    assert cpu_peaks.level_bytes(target, 1) < cpu_peaks.level_bytes(target, 1 << 40) == 1 << 28
    host = replace(target, limits=(("l1_bytes", 1 << 15), ("l2_bytes", 1 << 20), ("l3_bytes", 480 << 20)))
    assert [cpu_peaks.level_bytes(host, n) for n in (1 << 15, 1 << 19, 16 << 20)] == [
        1 << 14,
        1 << 19,
        16 << 20,
    ]


def test_the_loop_of_a_tile_computes_one() -> None:
    loop = cpu_peaks.TileLoop(targets.detect(1))
    assert loop.flops == 2 * cpu_peaks.STEPS * loop.arrays[-1].size
    assert loop.seconds(2) > 0  # products of ones, added to ones
    assert np.array_equal(loop.arrays[-1], np.full_like(loop.arrays[-1], 1 + 2 * cpu_peaks.STEPS))


def test_the_bandwidth_loops_compute_what_they_say() -> None:
    target = targets.detect(1)
    n = 4 * 8 * cpu_peaks.vector_lanes(target, "float32")
    rng = np.random.default_rng(0)
    for mode, shapes in (("read", (n, n // 4)), ("copy", (n, n)), ("stream", (n, n)), ("triad", (n, n, n))):
        params = [(f"P{i}", (s,), "float32") for i, s in enumerate(shapes)]
        loaded = cpu_peaks.load_loop(
            cpu_peaks._stream_text(mode, n, cpu_peaks.vector_lanes(target, "float32")), params, target
        )
        arrays = [cpu_peaks._aligned(s) for s in shapes]  # as streaming stores need
        for a in arrays:
            a[:] = rng.standard_normal(a.shape)
        loaded.bench([a.ctypes.data for a in arrays], 1)
        if mode == "read":
            np.testing.assert_allclose(arrays[1], arrays[0].reshape(4, -1).sum(0), rtol=1e-4, atol=1e-5)
        elif mode in ("copy", "stream"):
            np.testing.assert_array_equal(arrays[1], arrays[0])
        else:
            np.testing.assert_allclose(arrays[2], arrays[0] + 3 * arrays[1], rtol=1e-5, atol=1e-5)


@pytest.mark.soak
def test_candidates_three_percent_apart_are_ranked_rightly() -> None:
    """Kernels of 32 to 40 equal sweeps: neighbours are about 3 % apart."""
    dag = fakes.addition((64, 64))
    if os.getloadavg()[0] > 0.5 * targets.usable_cpus():
        pytest.skip("needs an idle machine")
    turns = [32, 34, 33, 36, 35, 38, 37, 40, 39]
    right = total = 0
    with Measurer(dag, targets.detect(1), build=fakes.NAME) as m:
        for _ in range(5):
            got = m.finalists([fakes.trace("steady", t - 1) for t in turns])
            times = dict(zip(turns, (x.time_s for x in got)))
            assert all(x.ok for x in got)
            pairs = [(t, t + 1) for t in range(32, 40)]
            right += sum(times[s] < times[f] for s, f in pairs)  # type: ignore[operator]
            total += len(pairs)
    assert right >= 0.9 * total, (right, total)
