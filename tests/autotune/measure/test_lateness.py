"""What work loses because others have the CPUs, on a machine that is made up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fake_clock import LOOK_S, Clock, install
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure import lateness, measurer
from autotune.measure.lateness import Lateness


class Machine:
    """Threads whose seconds at work and in the queue are told. ``own``: of this process, ``others``: numbers
    of processes."""

    def __init__(self, patch: pytest.MonkeyPatch, cpus: int, own: int = 1) -> None:
        self.clock = install(patch)
        self.seconds: dict[str, tuple[float, float]] = {}
        patch.setattr(lateness, "usable_cpus", lambda: cpus)
        patch.setattr(lateness, "own_threads", lambda: [f"/proc/self/task/{n}" for n in range(own)])
        patch.setattr(lateness, "scheduled", lambda task: self.seconds.get(task, (0.0, 0.0)))

    def passes(self, took_s: float, **each: tuple[float, float]) -> None:
        """Time goes by, in which tasks ran and waited."""
        self.clock.sleep(took_s)
        for name, (ran, waited) in each.items():
            task = f"/proc/self/task/{name[3:]}" if name.startswith("own") else f"/proc/{name[1:]}"
            before = self.seconds.get(task, (0.0, 0.0))
            self.seconds[task] = before[0] + ran, before[1] + waited


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as made:
        yield made


def test_what_this_process_did_before_does_not_count(patch: pytest.MonkeyPatch) -> None:
    machine = Machine(patch, cpus=2)
    machine.passes(9.0, own0=(1.0, 8.0))
    late = Lateness()
    machine.passes(1.0, own0=(1.0, 0.0))
    assert late.seconds == 0.0


def test_a_third_of_a_cpu_loses_two_thirds_of_the_time(patch: pytest.MonkeyPatch) -> None:
    machine = Machine(patch, cpus=2)
    late = Lateness()
    late.processes = lambda: [7, 8]
    machine.passes(3.0, own0=(0.5, 1.0), p7=(0.5, 1.0))
    assert late.seconds == pytest.approx(2.0, abs=10 * LOOK_S)
    machine.passes(5.0)  # it sleeps
    assert late.seconds == pytest.approx(2.0, abs=20 * LOOK_S)
    machine.passes(3.0, p8=(3.0, 0.0))
    assert late.seconds == pytest.approx(2.0, abs=30 * LOOK_S)


def test_work_that_is_in_its_own_way_loses_nothing(patch: pytest.MonkeyPatch) -> None:
    """Four processes that want two CPUs, on a quiet machine."""
    machine = Machine(patch, cpus=2)
    late = Lateness()
    late.processes = lambda: [1, 2, 3, 4]
    machine.passes(6.0, **{f"p{n}": (3.0, 3.0) for n in (1, 2, 3, 4)})
    assert late.seconds == pytest.approx(0.0, abs=10 * LOOK_S)


@given(st.data())
def test_it_is_the_time_that_was_lost(data: st.DataObject) -> None:
    """Of each moment a share was given: what is left of the time is the work, however often one looks."""
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(patch, cpus=data.draw(st.integers(1, 8)))
        late = Lateness()
        late.processes = lambda: [1]
        lost = 0.0
        for took, share, look in data.draw(
            st.lists(st.tuples(st.floats(0.1, 9.0), st.floats(0.05, 1.0), st.booleans()), max_size=8)
        ):
            machine.passes(took, p1=(took * share, took * (1 - share)))
            lost += took * (1 - share)
            if look:
                assert 0.0 <= late.seconds <= machine.clock.now
        assert late.seconds == pytest.approx(lost, abs=1e-3)


def batch(clock: Clock, lost: float, latest: float | None) -> Any:
    owner = type("Owner", (), {"lateness": type("Late", (), {"seconds": lost})})
    return measurer._Batch(owner, [], None, clock.now + 2.0, {}, latest)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lost", "latest", "off"),
    [(5.0, None, 0.0), (5.0, 60.0, 5.0), (0.0, 60.0, 0.0), (500.0, 60.0, 58.0), (5.0, 1.0, 0.0)],
)
def test_a_deadline_is_put_off_by_what_was_lost(
    patch: pytest.MonkeyPatch, lost: float, latest: float | None, off: float
) -> None:
    clock = install(patch)
    begin = clock.now
    made = batch(clock, lost, None if latest is None else begin + latest)
    assert made._until() == begin + 2.0  # nobody asks what was lost before it is due
    clock.sleep(3.0)
    assert made._until() == pytest.approx(begin + 2.0 + off)
