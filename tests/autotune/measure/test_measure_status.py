"""Every way for a candidate to fail gets its status and a reason that tells, and costs only itself."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from select import select
from typing import Any

import measure_fakes as fakes
import numpy as np
import pytest

from autotune import targets
from autotune.measure import MeasureError, Measurement, Measurer, Nominal, Options, inputs
from autotune.measure.runner import Runner
from schedules import te

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="faults are told apart on Linux only")
X86 = platform.machine() == "x86_64"
# Long enough to be no flake on a busy machine, short enough for a test.
QUICK = Options(timeout_s=4.0, build_timeout_s=4.0, patience_s=2.0, memory_bytes=2 << 30)


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    with Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=QUICK) as m:
        yield m


def one(measurer: Measurer, kind: str, best_s: float | None = None) -> Measurement:
    """The measurement of a kind, after making sure that the next candidate is unaffected."""
    first, second = measurer.measure([fakes.trace(kind), fakes.trace("right")], best_s)
    assert second.status == "ok", (kind, second)
    return first


def test_a_right_kernel_is_ok_and_timed(measurer: Measurer) -> None:
    [m] = measurer.measure([fakes.trace("right")])  # alone: beside a luckier twin it would be given up early
    assert (m.status, m.reason) == ("ok", "")
    assert m.time_s is not None and 0 < m.time_s < 1
    assert len(m.times_s) >= 3 and min(m.times_s) <= m.time_s <= max(m.times_s)
    assert m.error is not None and m.error < 1e-6
    assert m.reference_rate is not None and m.build_s > 0 < m.check_s and m.run_s > 0


@pytest.mark.parametrize(
    ("kind", "status", "reason"),
    [
        ("illegal", "illegal", "split i_0 instead"),
        ("refused", "compile_error", "LLVM refused"),
        ("not an object", "compile_error", "could not be loaded"),
        ("builder bug", "error", "KeyError: 'lost' (measure_fakes.py"),
        ("builder dies", "crash", "SIGABRT: LLVM ERROR: cannot select"),
        ("builder eats memory", "error", "memory"),
        ("wrong", "wrong_result", "C: 1 of 1517 elements wrong, first at [36, 39]"),
        ("leaves one", "wrong_result", "C: 1 of 1517 elements never written, first at [36, 40]"),
        ("accumulates", "wrong_result", "1517 of 1517"),
        ("writes input", "wrong_result", "writes to its input A, at element 5"),
        ("reads past", "out_of_bounds", "reads A 1 element past the end"),
        ("reads before", "out_of_bounds", "reads B 1 element before the beginning"),
        ("writes past", "out_of_bounds", "writes C 1 element past the end"),
        ("writes before", "out_of_bounds", "writes C 1 element before the beginning"),
        ("scratch past", "out_of_bounds", "past the end of its 200 bytes of scratch"),
        ("scratch far", "out_of_bounds", "past the end of its scratch"),
        ("scratch before", "out_of_bounds", "before the beginning of its scratch"),
        ("null store", "crash", "null pointer"),
        ("wild store", "crash", "SIGSEGV"),
        ("overflows the stack", "crash", "SIGSEGV"),
        ("illegal instruction", "crash", "SIGILL"),
        ("exits", "crash", "exit status 7"),
        ("eats memory", "crash", "null pointer"),
    ],
)
def test_each_failure_has_its_status_and_reason(
    measurer: Measurer, kind: str, status: str, reason: str
) -> None:
    m = one(measurer, kind)
    if not X86:
        reason = reason.replace("reads", "accesses").replace("writes C", "accesses C")
    assert m.status == status, m
    assert reason in m.reason
    assert m.time_s is None and m.times_s == ()


@pytest.mark.skipif(not X86, reason="the kernel is in x86 assembly")
def test_division_by_zero(measurer: Measurer) -> None:
    m = one(measurer, "divides by zero")
    assert m.status == "crash" and "SIGFPE" in m.reason


@pytest.mark.slow
def test_a_hang_is_killed_on_time() -> None:
    options = replace(QUICK, timeout_s=1.0, build_timeout_s=1.0)
    with Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=options) as m:
        m.start()
        start = time.monotonic()
        kinds = ["hangs", "right", "builder hangs", "right"]
        got = list(m.measure([fakes.trace(k) for k in kinds]))
        assert [x.status for x in got] == ["timeout", "ok"] * 2
        assert "no result within" in got[0].reason and "building took longer than 1." in got[2].reason
        assert time.monotonic() - start < 300  # what hangs would do so for 1,000 s


@pytest.mark.slow
def test_a_slow_kernel_is_given_up_early_with_its_time() -> None:
    options = replace(QUICK, builders=1)  # with two, the slow one may come first
    with Measurer(fakes.addition((512, 512)), targets.detect(1), build=fakes.NAME, options=options) as m:
        right, slow, again = m.measure([fakes.trace(k) for k in ("right", "slow", "right")])
        assert (right.status, slow.status, again.status) == ("ok", "slow", "ok")
        assert slow.time_s is not None and right.time_s is not None
        assert slow.time_s > 4 * right.time_s and len(slow.times_s) == 1
        assert "times the best" in slow.reason
        assert m.object(fakes.trace("slow")) is None and m.object(fakes.trace("right")) is not None


@pytest.mark.slow
@pytest.mark.skipif(not X86, reason="other processors load unaligned vectors with the same instruction")
def test_code_that_assumes_alignment_is_found() -> None:
    """With arrays of whole pages, both guarded placements are aligned: the shifted one finds it."""
    for shape in ((1024,), (64, 16), (37, 41)):
        with Measurer(fakes.addition(shape), targets.detect(1), build=fakes.NAME, options=QUICK) as m:
            got = one(m, "assumes alignment")
            assert (got.status, "aligned access" in got.reason) == ("crash", True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("shape", [(1,), (1024,), (3, 5, 7)])
def test_dtypes_and_sizes(dtype: str, shape: tuple[int, ...]) -> None:
    options = replace(QUICK, repeats=1)
    kinds = (
        ["right", "leaves one", "reads past", "writes before"] if shape != (1,) else ["right", "reads past"]
    )
    with Measurer(fakes.addition(shape, dtype), targets.detect(1), build=fakes.NAME, options=options) as m:
        got = [x.status for x in m.measure([fakes.trace(k) for k in kinds])]
    expected = {"right": "ok", "leaves one": "wrong_result"}
    assert got == [expected.get(k, "out_of_bounds") for k in kinds]


@pytest.mark.slow
def test_nan_and_infinity_of_the_reference_are_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    dag = fakes.addition((4, 8))
    a, b = np.ones((4, 8), "float32"), np.ones((4, 8), "float32")
    a[1, 2], a[2, 3] = np.nan, np.inf
    draw = inputs.judged(dag, [a, b])
    monkeypatch.setattr("autotune.measure.measurer.draws", lambda *_: [draw])
    with Measurer(dag, targets.detect(1), build=fakes.NAME, options=QUICK) as m:
        assert [x.status for x in m.measure([fakes.trace("right"), fakes.trace("wrong")])] == [
            "ok",
            "wrong_result",
        ]
    draw = replace(draw, reference=(np.full((4, 8), 2, "float32"),))
    with Measurer(dag, targets.detect(1), build=fakes.NAME) as m:
        got = next(m.measure([fakes.trace("right")]))
        assert got.status == "wrong_result" and "2 of 32 elements wrong, first at [1, 2]: nan" in got.reason


@pytest.mark.slow
def test_taking_turns_gives_the_same_results_in_order() -> None:
    options = replace(QUICK, overlap=False, builders=2)
    kinds = ["right", "wrong", "illegal", "null store"] * 6
    with Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=options) as m:
        got = [x.status for x in m.measure([fakes.trace(k, i) for i, k in enumerate(kinds)])]
    assert got == ["ok", "wrong_result", "illegal", "crash"] * 6


@pytest.mark.slow
def test_one_that_takes_long_to_build_holds_up_no_other() -> None:
    options = replace(QUICK, overlap=True, builders=2, build_timeout_s=20.0)
    traces = [fakes.trace("builder hangs"), *(fakes.trace("right", n) for n in range(3))]
    with Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=options) as m:
        arrivals = m.arrivals(traces)
        assert {index for _, (index, _) in zip(range(3), arrivals)} == {1, 2, 3}
        arrivals.close()


@pytest.mark.slow
def test_what_is_built_while_a_control_is_chosen_is_no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(QUICK, overlap=True, builders=2)
    with Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=options) as m:

        def choose(objects: object) -> None:
            """Take until builders have answered and their time is up."""
            for builder in m.builders:
                if builder.busy and builder.child is not None:
                    assert select([builder.child.sock], [], [], 10)[0]
                    builder.deadline = time.monotonic()

        monkeypatch.setattr(m.keeper, "choose", choose)
        got = list(m.measure([fakes.trace("right", n) for n in range(20)]))
    assert {x.status for x in got} <= {"ok", "slow"}


@pytest.mark.slow
def test_finalists_keep_their_order_and_cost_only_themselves() -> None:
    traces = [fakes.trace("steady", 8), fakes.trace("null store"), fakes.trace("steady", 0)]
    options = replace(QUICK, give_up=1e3)  # whichever is built first, the slow one is no lost case
    with Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=options) as measurer:
        slow, dead, fast = measurer.finalists(traces, rounds=2, repeats=2)
    assert (slow.status, dead.status, fast.status) == ("ok", "crash", "ok")
    assert len(slow.times_s) == len(fast.times_s) in (4, 6, 8)
    assert slow.time_s is not None and fast.time_s is not None and slow.time_s > 2 * fast.time_s


@pytest.mark.slow
def test_a_finalist_that_is_slower_than_all_that_are_kept_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.measure.measurer.KEEP_OBJECTS", 2)
    fast, slow = [fakes.trace("steady", n) for n in (1, 2)], fakes.trace("steady", 40)
    options = replace(QUICK, give_up=1e3)
    with Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=options) as m:
        assert all(x.ok for x in m.measure(fast))
        assert [x.status for x in m.finalists([slow, fast[0]], rounds=1, repeats=2)] == ["ok", "ok"]
        assert all(x.ok for x in m.finalists(fast, rounds=1, repeats=2))
        list(m.measure([fakes.trace("steady", n) for n in (3, 4)]))
        assert m.object(slow) is None, "it is no finalist any more"


@pytest.mark.slow
def test_finalists_get_the_time_that_they_take_and_are_not_judged_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[float] = []
    remeasure = Runner.remeasure

    def noted(
        self: Runner, objects: Sequence[bytes], rounds: int, repeats: int, timeout_s: float, **more: Any
    ) -> None:
        given.append(timeout_s)
        remeasure(self, objects, rounds, repeats, timeout_s, **more)

    monkeypatch.setattr(Runner, "remeasure", noted)
    monkeypatch.setattr("autotune.measure.measurer.FINAL_TIMEOUT_S", 0.5)
    dag, target, traces = fakes.addition(), targets.detect(1), [fakes.trace("right", n) for n in range(2)]
    with Measurer(dag, target, build=fakes.NAME, options=replace(QUICK, give_up=1e3)) as m:
        assert all(x.ok for x in m.measure(traces))
        for t in traces:  # as if they took that long
            m._objects[t.digest] = 10.0, m._objects[t.digest][1]
        assert all(x.ok for x in m.finalists(traces, rounds=3, repeats=3))
        assert given.pop() > 2 * 3 * 3 * 10
        m._objects[traces[0].digest] = 0.0, fakes.build(dag, fakes.trace("hangs"), target)
        (hung,) = m.finalists(traces[:1], rounds=1, repeats=1)
        assert hung.status == "error" and "no result within" in hung.reason


def test_a_deadline_begins_nothing_more(measurer: Measurer) -> None:
    assert list(measurer.measure([fakes.trace("right")], deadline=time.monotonic() - 1)) == []


def test_a_builder_that_does_not_exist_is_said() -> None:
    with Measurer(fakes.addition(), targets.detect(1), build="autotune.nowhere:build") as m:
        with pytest.raises(MeasureError, match=r"autotune\.nowhere"):
            m.start()


@pytest.mark.slow
def test_a_second_measurer_counts_by_the_speed_that_is_normal_to_the_first() -> None:
    with Measurer(fakes.addition(), targets.detect(1), build=fakes.NAME, options=QUICK) as first:
        assert first.nominal is None
        first.start()
        assert first.nominal is not None
    with Measurer(
        fakes.addition(), targets.detect(1), build=fakes.NAME, options=QUICK, nominal=first.nominal
    ) as second:
        second.start()
        assert second.nominal == first.nominal
    # as if the machine had been a hundred times as slow: now it seems that much faster, and times longer
    slow = Nominal(100 * first.nominal.seconds, first.nominal.runs)
    dag = fakes.addition()
    with Measurer(dag, targets.detect(1), build=fakes.NAME, options=QUICK, nominal=slow) as third:
        (m,) = third.finalists([fakes.trace("good")])
    assert m.ok and m.reference_rate is not None and m.reference_rate > 20


def test_a_write_into_the_gaps_of_an_output_is_out_of_bounds() -> None:
    """Rows of 41 elements every 48. The next candidate is not blamed for it."""
    dag = te.with_strides(fakes.addition(), dict.fromkeys("ABC", (48, 1)))
    with Measurer(dag, targets.detect(1), build=fakes.NAME, options=QUICK) as m:
        first, second = m.measure([fakes.trace("right"), fakes.trace("leaves one")])
    assert first.status == "out_of_bounds"
    assert first.reason == "writes 252 elements into gaps of C, first 41 elements behind its beginning"
    assert second.status == "wrong_result" and "1 of 1517 elements never written" in second.reason
