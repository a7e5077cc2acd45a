"""What a control takes in the process that it runs in: its witnesses tell."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, cast

import measure_fakes as fakes
import pytest

from autotune import targets
from autotune.backends.peaks import cpu_peaks
from autotune.measure import Control, Measurement, Measurer, Options, control
from autotune.measure.control import ControlKeeper
from autotune.measure.timing import SLOWEST

PATIENT = Options(give_up=1000.0)  # a moment of a busy machine ends no candidate
SECONDS = {b"control": 1e-3, b"a": 1.1e-3, b"b": 1.2e-3, b"c": 1.3e-3, b"d": 1.4e-3, b"far": 4e-3}


@dataclass
class Place:
    """A process: by which factor each object is slower in its pages."""

    slower: dict[bytes, float] = field(default_factory=dict)
    dies: frozenset[bytes] = frozenset()


class Machine:
    """A runner whose processes are places. Times are taken beside its control, by the loop if it has none."""

    def __init__(self, control: Control | None = None) -> None:
        self.control = control
        self.child: Place | None = Place()
        self.places: list[Place] = []  # of processes to come
        self.timed = 0

    def ready(self) -> Place:
        if self.child is None:
            self.child = self.places.pop(0)
        return self.child

    def drop(self) -> None:
        self.child = None

    def took(self, obj: bytes) -> float:
        return SECONDS[obj] * self.ready().slower.get(obj, 1.0)

    def in_turns(self, objects: list[bytes], rounds: int, repeats: int) -> list[Measurement]:
        self.timed += 1
        rate = 1.0
        if self.control is not None:
            rate = max(self.control.seconds / self.took(self.control.object), SLOWEST)
        times = [(x, rate * self.took(x)) for x in objects]
        return [
            Measurement("crash")
            if x in self.ready().dies
            else Measurement("ok", times_s=(t,) * rounds * repeats, time_s=t)
            for x, t in times
        ]


def keeper(machine: Machine) -> ControlKeeper:
    return ControlKeeper(cast(Any, machine), machine.in_turns)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> tuple[Machine, ControlKeeper]:
    monkeypatch.setattr(control, "CHOICE", 2)
    monkeypatch.setattr(cpu_peaks, "PAUSE_S", 0.0)
    machine = Machine()
    kept = keeper(machine)
    assert kept.choose({x.decode(): (s, x) for x, s in SECONDS.items()}) == SECONDS[b"control"]
    return machine, kept


def test_the_next_best_are_witnesses_with_the_times_that_they_have_beside_the_control(
    chosen: tuple[Machine, ControlKeeper],
) -> None:
    machine, kept = chosen
    expected = Control(b"control", 1e-3, tuple((x, SECONDS[x]) for x in (b"a", b"b", b"c")))
    assert kept.control == machine.control == expected
    before = machine.timed
    kept.settle()
    assert machine.timed == before, "the process in which it was chosen needs no comparing"


@pytest.mark.parametrize("slower", [0.85, 1.15, 1.5, 1.9])
def test_a_control_that_is_slower_or_faster_in_a_new_process_shifts_no_times(
    chosen: tuple[Machine, ControlKeeper], slower: float
) -> None:
    machine, kept = chosen
    first = kept.control
    here = machine.child = Place({b"control": slower, b"b": 1.1})
    kept.settle()
    assert machine.child is here
    [d] = machine.in_turns([b"d"], 1, 1)
    assert d.time_s == pytest.approx(SECONDS[b"d"], rel=0.01)
    before = machine.timed
    kept.settle()
    assert machine.timed == before and kept.control == first, "once in a process"
    machine.child = Place()
    kept.settle()
    assert machine.control == first, "elsewhere it takes what it took"


def test_what_slows_all_alike_or_one_witness_or_the_control_a_little_is_no_change_of_it(
    chosen: tuple[Machine, ControlKeeper],
) -> None:
    machine, kept = chosen
    first = kept.control
    for slower in (dict.fromkeys(SECONDS, 1.4), {b"a": 1.12}, {b"control": 1.03}):
        here = machine.child = Place(slower)
        kept.settle()
        assert machine.control == first and machine.child is here


def test_a_process_in_which_witnesses_disagree_is_left(chosen: tuple[Machine, ControlKeeper]) -> None:
    """Some have their arrays in memory that is farther away."""
    machine, kept = chosen
    first = kept.control
    bad = [Place({b"a": 2.5, b"b": 1.5}), Place({b"control": 1.5, b"c": 2.5}), Place({b"b": 1.5})]
    machine.child, machine.places = bad[0], [*bad[1:], Place()]
    kept.settle()
    assert machine.control == first and machine.child not in bad
    before = machine.timed
    kept.settle()
    assert machine.timed == before
    # not for ever, though
    machine.child, machine.places = bad[0], [bad[0]] * control.ATTEMPTS
    kept.settle()
    assert machine.timed == before + control.ATTEMPTS and machine.child is bad[0]


def test_witnesses_that_die_are_not_heard(chosen: tuple[Machine, ControlKeeper]) -> None:
    machine, kept = chosen
    machine.child = Place({b"control": 1.2}, dies=frozenset([b"a"]))
    kept.settle()
    assert machine.control is not None and machine.control.seconds == pytest.approx(1.2e-3)
    machine.child = Place({b"control": 1.2}, dies=frozenset([b"a", b"b", b"c"]))
    kept.settle()
    assert machine.control == kept.control


@pytest.mark.slow
def test_what_no_cache_holds_has_a_control_without_witnesses() -> None:
    dag, target = fakes.addition((64, 64)), targets.detect(1)
    # more than it chooses from: beside other work some are stopped early
    traces = [fakes.trace("steady", n) for n in range(40, 40 + 2 * control.CHOICE)]
    with Measurer(dag, target, build=fakes.NAME, options=replace(PATIENT, warm_runs=1)) as m:
        list(m.measure(traces))
        list(m.measure(traces[:1]))  # it is chosen before the next one is timed
        assert m.control is not None and not m.control.witnesses


def test_room_for_comparing_is_left_only_where_there_is_a_control_with_witnesses() -> None:
    assert control.comparing_s(0.01, 0) == pytest.approx(0.36)
    assert control.comparing_s(0.01, 1) == 0.0
    assert control.comparing_s(1.01 * control.LONGEST_CONTROL_S, 0) == 0.0


def test_a_control_without_witnesses_is_believed() -> None:
    machine = Machine(Control(b"control", 1e-3))
    machine.child = Place({b"control": 1.2})
    keeper(machine).settle()
    assert machine.timed == 0 and machine.control == Control(b"control", 1e-3)


def test_what_it_normally_takes_is_the_median_of_spells_without_their_beginnings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A core that was idle clocks higher for some milliseconds; one spell is of a quiet moment, one of a busy
    one."""
    monkeypatch.setattr(cpu_peaks, "PAUSE_S", 0.0)
    spells = iter([1.0, 0.8, 1.01, 1.7, 1.02])

    def in_turns(objects: list[bytes], rounds: int, repeats: int) -> list[Measurement]:
        assert objects == [b"control"] and rounds == 1
        slower = next(spells)
        times, spent = [], 0.0
        for _ in range(repeats):
            times.append(1e-3 * slower * (1.0 if spent > 0.99 * cpu_peaks.HEAT_S else 0.9))
            spent += 1e-3
        return [Measurement("ok", times_s=tuple(times), time_s=min(times))]

    kept = ControlKeeper(cast(Any, Machine()), in_turns)
    assert kept.choose({str(n): (1e-3, b"control") for n in range(control.CHOICE)}) == pytest.approx(1.01e-3)


def test_what_it_normally_takes_is_the_median_of_what_it_took(chosen: tuple[Machine, ControlKeeper]) -> None:
    """The spells in which it was chosen may all have been of one moment."""
    machine, kept = chosen
    machine.child = Place({b"control": 1.2})
    kept.settle()
    for _ in range(cpu_peaks.SPELLS - 1):
        kept.heard(0.8)
    assert kept.control is not None and kept.control.seconds == 1e-3
    kept.heard(None)
    kept.heard(0.8)
    kept.heard(0.8)
    assert kept.control.seconds == pytest.approx(1.25e-3)
    assert dict(kept.control.witnesses)[b"b"] == pytest.approx(1.25 * SECONDS[b"b"])
    assert machine.control is not None and machine.control.seconds == pytest.approx(1.2 * 1.25e-3)
    machine.child = Place()
    kept.settle()
    assert machine.control.seconds == pytest.approx(1.25e-3)


def test_the_time_of_one_that_another_measurer_chose_counts_for_more() -> None:
    given = Control(b"control", 1e-3, ((b"a", 1.1e-3),))
    kept = keeper(Machine(given))
    for _ in range(control.INHERITED - 1):
        kept.heard(0.8)
    assert kept.control == given
    kept.heard(0.8)
    kept.heard(0.8)
    assert kept.control is not None and kept.control.seconds == pytest.approx(1.25e-3)


@pytest.mark.slow
def test_a_new_process_has_the_witnesses_tell_what_the_control_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "RENEWAL", 0.0)
    dag, target = fakes.addition((64, 64)), targets.detect(1)
    # more than it chooses from: beside other work some are stopped early
    traces = [fakes.trace("steady", n) for n in range(40, 40 + 2 * control.CHOICE)]
    with Measurer(dag, target, build=fakes.NAME, options=PATIENT) as m:
        list(m.measure([*traces, traces[0]]))
        held = m.control
    assert held is not None and len(held.witnesses) == control.WITNESSES
    # as if it took half as long in the next process as it did where its time was measured
    twice = held._replace(seconds=2 * held.seconds)
    heard: list[float | None] = []
    monkeypatch.setattr(ControlKeeper, "heard", lambda self, rate: heard.append(rate))
    with Measurer(dag, target, build=fakes.NAME, options=PATIENT, control=twice) as m:
        (found,) = m.measure(traces[:1])
        assert heard == [found.reference_rate]
        m.move()
        m.keeper._corrected(0.0)  # what was found out of the last process
        (final,) = m.finalists(traces[:1])
        assert m.control == twice
    for x in (found, final):
        assert x.time_s is not None and abs(math.log(x.time_s / held.seconds)) < math.log(1.5)


def test_the_nominal_speed_of_the_reference_is_that_of_most_spells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_peaks, "PAUSE_S", 0.0)
    reference = cpu_peaks.Reference(targets.detect(1), nominal_s=1.0, runs=100)
    spells = iter([3.0, 2.0, 3.1, 5.0, 2.9])
    now = [0.0]

    def heat(runs: int) -> float:
        assert runs * cpu_peaks.LOOP_S == pytest.approx(100 * cpu_peaks.HEAT_S)
        now[0] = next(spells)
        return 0.0

    monkeypatch.setattr(reference._loop, "seconds", heat)
    monkeypatch.setattr(reference, "seconds", lambda: now[0])
    assert reference._nominal() == 3.0
