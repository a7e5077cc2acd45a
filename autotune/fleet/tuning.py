"""Tunes tasks on the machines of a fleet: a suite for each target, and a thread for each machine.

The search, the cost model and the log stay here. One thread works at a time, while the others wait for their
machines, so that nothing here is shared between two.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from autotune.fleet import local
from autotune.fleet.building import Builders
from autotune.fleet.client import Fleet
from autotune.fleet.errors import FleetError
from autotune.fleet.members import FleetMachine, targets_of
from autotune.fleet.site import FleetSite
from autotune.run.warned import warn
from autotune.tuning import preparation
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.jobs import Job
from autotune.tuning.options import TuneOptions
from autotune.tuning.site import SiteLost
from autotune.tuning.suite import Suite
from schedules.model import Target

# Time between two looks for machines that came or left, that the first may take to come, that a target may be
# without any machine, and that threads may take to end after Ctrl-C (seconds).
LOOK_S, JOIN_S, ALONE_S, END_S = 0.2, 10.0, 30.0, 20.0


@dataclass(frozen=True)
class FleetPlace:
    """A fleet to tune on (`tuner.Place`). ``address``: tcp://HOST:PORT, tls://HOST:PORT or local:N.
    ``wanted``: one target, several with commas between or in a list, None for all that workers offer.
    ``threads``: None for any. ``build_here``: compile on this machine. ``say``: as of `local.reached`."""

    address: str
    wanted: str | Target | Sequence[str | Target] | None = None
    threads: int | None = None
    build_here: bool = False
    say: Callable[[str], None] = warn

    @contextlib.contextmanager
    def reached(self) -> Iterator[FleetCrew]:
        """Its machines, when the first has come. Raises `FleetError`, `MissingExtraError`."""
        asked = listed(self.wanted)
        with local.reached(self.address, asked, self.threads, self.say) as fleet, Builders() as builders:
            until = time.monotonic() + JOIN_S
            while not any(not m.problem for m in fleet.members()) and time.monotonic() < until:
                time.sleep(LOOK_S)
            found = targets_of(fleet.members(), asked, self.threads)
            yield FleetCrew(fleet, found, builders, self.build_here, self.say)


def listed(wanted: str | Target | Sequence[str | Target] | None) -> list[str | Target]:
    """Targets as a user gives them: one, several with commas between, or a list."""
    if wanted is None:
        return []
    if isinstance(wanted, str):
        return [x.strip() for x in wanted.split(",") if x.strip()]
    return [wanted] if isinstance(wanted, Target) else list(wanted)


@dataclass
class FleetCrew:
    """The machines of a fleet, each in a thread of its own (`tuner.Crew`). A task has one machine at a time.
    Machines that come later get tasks that no other has begun, and those of machines that left.

    ``build_here``: compile here for all of them; else for those that do not compile. ``say``: as of
    `local.reached`."""

    fleet: Fleet
    targets: Sequence[Target]
    builders: Builders
    build_here: bool = False
    say: Callable[[str], None] = warn
    suites: Sequence[Suite] = ()
    broken: BaseException | None = None
    _threads: dict[tuple[str, str], threading.Thread] = field(default_factory=dict)  # by target and slot
    _alone: dict[str, float] = field(default_factory=dict)  # since when targets have no machine
    _started: float = field(default_factory=time.monotonic)

    @property
    def turn(self) -> AbstractContextManager[object]:
        return self.fleet.turn

    def started(self, options: TuneOptions) -> float:
        """When the machines were there."""
        return self._started

    def check(self, target: Target, job: Job) -> None:
        for task in job.tasks:
            preparation.check_feasible(task.workload, job.options.budget_s, memory=False)

    def interrupts(self, given: Interrupts) -> Interrupts:
        """Only the thread that follows is interrupted. It tells the others."""
        return Interrupts()

    def work(self, suites: Sequence[Suite], interrupts: Interrupts) -> None:
        """Raises `FleetError` where the scheduler is lost."""
        self.suites = suites
        interrupted = True
        try:
            self.follow()
            interrupted = False
        finally:
            with interrupts.hold():
                self.end(interrupted)
            if self.broken is not None:
                raise self.broken

    def follow(self) -> None:
        """Give machines to suites until all have ended."""
        while self.broken is None:
            self._notify()
            if self.fleet.lost is not None:
                self.broken = FleetError(self.fleet.lost)
                return
            waiting = [s for s in self.suites if self._hire(s)]
            if not waiting and not any(t.is_alive() for t in self._threads.values()):
                return
            time.sleep(LOOK_S)

    def _notify(self) -> None:
        """Say what the user should know of the fleet."""
        with contextlib.suppress(Warning):  # one that is an error ends no run
            for notice in self.fleet.news():
                self.say(notice)

    def _hire(self, suite: Suite) -> bool:
        """Start a thread for every machine that a suite may use. Returns whether it waits for one."""
        digest, now = suite.target.digest, time.monotonic()
        with self.fleet.turn:
            if not suite.waits():
                return False
            for slot, machine in self.fleet.machines(suite.target).items():
                thread = self._threads.get((digest, slot))
                if (thread is None or not thread.is_alive()) and suite.waits(slot):
                    self._threads[digest, slot] = self._start(suite, machine)
        if any(t.is_alive() for (d, _), t in self._threads.items() if d == digest):
            self._alone.pop(digest, None)
            return True
        if now - self._alone.setdefault(digest, now) < ALONE_S:
            return True
        suite.ended = "no machine"
        with self.fleet.turn:
            gone = FleetError(f"no worker of the fleet offers {suite.target.arch} any more")
            for number in suite.scheduler.wanting(suite.free()):
                suite.errors.setdefault(number, gone)
            for number in suite.free():
                suite.scheduler.end(number)
        return False

    def _site(self, machine: FleetMachine) -> FleetSite:
        here = self.build_here or not machine.builds
        return FleetSite(self.fleet, machine, self.builders if here else None)

    def _start(self, suite: Suite, machine: FleetMachine) -> threading.Thread:
        name = f"{machine.name} ({machine.target.arch})"
        lane = suite.lane(self._site(machine), name=name, key=machine.slot)

        def work() -> None:
            with self.fleet.turn:
                try:
                    suite.serve(lane)
                except SiteLost as err:  # its tasks are free for others
                    self.fleet.notices.put(
                        f"{err}; its task goes on at another machine that offers {machine.target.arch}, or "
                        "when it is back, while there is time"
                    )
                except KeyboardInterrupt:
                    suite.ended = "interrupted"
                except BaseException as err:
                    self.broken = self.broken or err
                finally:
                    with contextlib.suppress(Exception, KeyboardInterrupt):
                        lane.close()

        thread = threading.Thread(target=work, name=f"autotune-{machine.name}", daemon=True)
        thread.start()
        return thread

    def end(self, interrupted: bool) -> None:
        """Wait until all threads have ended; soon, if it was interrupted or is broken."""
        soon = interrupted or self.broken is not None
        if soon:
            self.fleet.stop()
        until = time.monotonic() + END_S
        for thread in self._threads.values():
            while thread.is_alive() and (not soon or time.monotonic() < until):
                with contextlib.suppress(KeyboardInterrupt):
                    thread.join(0.2)
        self._notify()

    def site_of(self, target: Target) -> FleetSite | None:
        """A machine that offers a target, if there is one."""
        self._notify()
        machines = self.fleet.machines(target).values()
        return next((self._site(m) for m in machines), None)
