"""Measures candidates: several builder processes ahead, one worker process behind."""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from select import select

import numpy as np

from autotune import backends
from autotune.measure import sampled
from autotune.measure.control import WITNESSES, ControlKeeper
from autotune.measure.inputs import MOST_BYTES, Draw, Judge, Tolerance, draws, judged, random_inputs
from autotune.measure.lateness import Lateness
from autotune.measure.open_checks import sizes_to_check, sizes_to_rank
from autotune.measure.process import Death, Zygote
from autotune.measure.results import Control, Measurement, Nominal, Options
from autotune.measure.runner import Builder, Runner, building_died, running_died
from autotune.measure.timing import finals_s
from autotune.targets import usable_cpus
from schedules.errors import WorkloadError
from schedules.model import Target, Trace, Workload
from schedules.te.compute_dag import ComputeDAG
from schedules.te.open_sizes import at

KEEP_OBJECTS = 64  # compiled objects of the fastest candidates, for `Measurer.finalists`
AHEAD = 8  # objects per builder that may wait for the worker
PHASE_S = 0.5  # of building, where building and running take turns: then what is built runs
LATE_S = 1.0  # after the deadline a candidate that runs may still end
WAITING_S = 0.2  # between two calls of `Measurer.waiting`
FINAL_TIMEOUT_S, FINAL_SLACK = 120.0, 3.0  # for finalists, or times what they should take, the longer


class _Judge:
    """Gives inputs their right outputs. ``late``: whether that took more than ``whole_s`` seconds once, as
    others have the CPUs, or the estimate was wrong. ``most_s``, ``waiting``: as of `Measurer`."""

    def __init__(self, right: Judge, whole_s: float, most_s: float, waiting: Callable[[], None]) -> None:
        self._right, self._whole_s, self._most_s, self._waiting = right, whole_s, most_s, waiting
        self.late = False

    def __call__(self, dag: ComputeDAG, inputs: Sequence[np.ndarray], **kind: bool) -> Draw:
        begin, begun = time.monotonic(), time.thread_time()

        def waiting() -> None:
            self._waiting()
            if time.thread_time() - begun > self._most_s:
                raise WorkloadError(
                    f"computing the right result of {', '.join(dag.outputs)}, with which kernels are "
                    f"compared, takes more than the {self._most_s:g} s there are; give more time, or use "
                    "smaller sizes"
                )

        waiting()
        draw = self._right(dag, inputs, waiting=waiting, **kind)
        self.late |= time.monotonic() - begin > self._whole_s
        return draw


class Measurer:
    """Builds, checks and times candidates of one workload on one target. Their traces name the loops of
    the `Workload` by its canonical names, as a log does, or those of a DAG by its own.

    ``build``: function (ComputeDAG, Trace, Target) -> object bytes, as "module:function".
    ``in_part``: compute the right outputs of the `draws` at a few places only (`measure.sampled`).
    ``whole_s``: if those of a draw took more seconds than this, there are no other draws. ``most_s``: seconds
    of this thread that those of a draw may take, else `WorkloadError` is raised.
    ``tolerance``: largest error of outputs; default: what rounding explains.
    ``nominal``: that of another measurer of the same target, so that times compare; default: measured first.
    ``control``: that of another measurer of the workload; default: chosen among the first candidates.

    ``waiting``: called many times while right outputs are computed; what it raises ends that.

    Use it as a context manager, from one thread. Its processes end with it. A candidate's failure is a
    `Measurement`; `MeasureError` means that measuring itself does not work.

    ``waiting``: where it is set, it is called some times a second while processes work. What it raises ends
    what is done. ``begins``: where it is set, it is called with the number of a trace when it begins to run.
    """

    waiting: Callable[[], None] | None = None
    begins: Callable[[int], None] | None = None

    def __init__(
        self,
        workload: Workload | ComputeDAG,
        target: Target,
        *,
        build: str = "autotune.backends.building.from_trace:build_object",
        tolerance: Tolerance | None = None,
        options: Options | None = None,
        in_part: bool = False,
        whole_s: float = math.inf,
        most_s: float = math.inf,
        nominal: Nominal | None = None,
        control: Control | None = None,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self.lateness = Lateness()
        dag = workload.dag if isinstance(workload, Workload) else workload
        named = workload.canonical if isinstance(workload, Workload) else workload
        right, most_bytes = (sampled.judged_in_part, sampled.MOST_BYTES) if in_part else (judged, MOST_BYTES)

        judge = _Judge(right, whole_s, most_s, waiting)
        plain = random_inputs(dag.largest)
        chosen = [
            x.within(tolerance) for x in draws(dag.largest, 0, judge, most_bytes, plain, lambda: judge.late)
        ]

        def at_sizes(one: ComputeDAG) -> Draw:
            return draws(one, 0, judge, 0, random_inputs(one, known=plain))[0].within(tolerance)

        others = [(sizes, at_sizes(at(dag, sizes))) for sizes in sizes_to_check(dag)]
        # A trace may be in canonical names, and sizes have them then.
        of = dict(zip(dag.open.ranges, named.open.ranges, strict=True)) if dag.open and named.open else {}
        others = [({of[k]: n for k, n in sizes.items()}, draw) for sizes, draw in others]
        backend = backends.of(target)
        self.options = options or Options()
        if self.options.from_memory is None:
            self.options = replace(self.options, from_memory=backend.waits_for_memory(dag, target))
        if self.options.warm_runs is None:
            self.options = replace(self.options, warm_runs=backend.warm_runs(dag, target))
        spare = usable_cpus() - target.threads
        self.overlap = spare > 0 if self.options.overlap is None else self.options.overlap
        # One more than CPUs are left over: builders give way, and the worker's CPU is idle half of the time.
        most = backend.measuring.builders or usable_cpus()
        n_builders = self.options.builders or (
            min(max(spare, 0) + 1, most) if self.overlap else usable_cpus()
        )
        names = [t.name for t in dag.params]
        self.zygote = Zygote(named, names, target, build, chosen, self.options, nominal, others)
        self.runner = Runner(self.zygote, control)
        self.keeper = ControlKeeper(self.runner, self._in_turns, 0 if self.options.warm_runs else WITNESSES)
        self.builders = [Builder(self.zygote) for _ in range(n_builders)]
        self.lateness.processes = self._processes
        self._objects: dict[str, tuple[float, bytes]] = {}
        self._undecided = False  # whether there are objects of which none was chosen as the control
        self._ranking = len(sizes_to_rank(dag))  # sizes at which finalists are timed beside the largest
        self._finalists: set[str] = set()  # digests of what `finalists` timed last; their objects are kept

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def nominal(self) -> Nominal | None:
        """The speed that times are normalised to; None before the first start, if none was given."""
        return self.zygote.nominal

    @property
    def control(self) -> Control | None:
        """The candidate beside which others are timed. None before one is chosen, for devices, and for
        kernels that take long."""
        return self.keeper.control

    def start(self) -> None:
        """Start the processes now rather than with the first candidate. Raises `MeasureError`."""
        self.zygote.start()

    def close(self) -> None:
        """End every process. The measurer must not be used afterwards; closing again does nothing."""
        self.move()
        self.zygote.close()

    def move(self) -> None:
        """Put all arrays into other pages of memory, by new processes. Compiled objects are kept."""
        for slot in (self.runner, *self.builders):
            slot.drop()
        self.zygote.end()

    def measure(
        self,
        traces: Sequence[Trace],
        best_s: float | None = None,
        deadline: float | None = None,
        objects: Mapping[int, bytes] | None = None,
    ) -> Iterator[Measurement]:
        """The measurements of `arrivals` in the order of ``traces``, up to the first that has none."""
        early: dict[int, Measurement] = {}
        due = 0
        with contextlib.closing(self.arrivals(traces, best_s, deadline, objects)) as arrivals:
            for index, m in arrivals:
                early[index] = m
                while due in early:
                    yield early.pop(due)
                    due += 1

    def arrivals(
        self,
        traces: Sequence[Trace],
        best_s: float | None = None,
        deadline: float | None = None,
        objects: Mapping[int, bytes] | None = None,
        *,
        latest: float | None = None,
    ) -> Generator[tuple[int, Measurement], None, None]:
        """(index of the trace, measurement) of each trace, as soon as it is known. A slow build delays no
        other.

        ``best_s``: best time known (seconds), against which slow candidates are given up; better times found
        here replace it. ``deadline``: `time.monotonic` time after which no candidate begins; what has no
        result by then gives none. ``objects``: those that were compiled elsewhere, by the number of their
        trace. ``latest``: where it is given, the deadline is put off until then at most, by the seconds that
        were lost since the measurer was made as others had the CPUs. Raises `MeasureError`.
        """
        batch = _Batch(self, traces, best_s, deadline, objects or {}, latest)
        try:
            for _ in traces:
                while not batch.done:
                    if not batch.step():
                        return
                yield batch.done.popleft()
        finally:
            for slot in (self.runner, *self.builders):
                if slot.busy:  # the caller left early, or Ctrl-C
                    slot.drop()

    def finalists(
        self,
        traces: Sequence[Trace],
        rounds: int = 3,
        repeats: int = 5,
        objects: Mapping[int, bytes] | None = None,
    ) -> list[Measurement]:
        """Time checked candidates again, in turns: ``rounds`` × ``repeats`` each, and up to twice the rounds
        on an unsteady machine. ``time_s`` is their summary (`protocol.Clock.settled`). A candidate whose
        object is not kept is built, unless it is among ``objects`` (as of `arrivals`), and checked first.
        With open sizes it is that of the largest ones; the fact `SIZES_S` has smaller ones. Raises
        `MeasureError`."""
        self._finalists = {t.digest for t in traces}
        missing = [i for i, t in enumerate(traces) if t.digest not in self._objects]
        given = {k: objects[i] for k, i in enumerate(missing) if objects and i in objects}
        found = dict(zip(missing, self.measure([traces[i] for i in missing], objects=given)))
        rest = [i for i in range(len(traces)) if i not in found or found[i].ok]
        if rest:
            self.settle()
            times, kept = zip(*(self._objects[traces[i].digest] for i in rest))
            final = self._in_turns(list(kept), rounds, repeats, max(times), at_sizes=True)
            found.update(zip(rest, final))
        return [found[i] for i in range(len(traces))]

    def object(self, trace: Trace) -> bytes | None:
        """The compiled object of a candidate that was measured "ok", if it is still kept."""
        kept = self._objects.get(trace.digest)
        return kept[1] if kept else None

    def _in_turns(
        self,
        objects: list[bytes],
        rounds: int,
        repeats: int,
        time_s: float = 0.0,
        *,
        at_sizes: bool = False,
    ) -> list[Measurement]:
        """Time objects in turns. ``time_s``: seconds that the slowest takes. ``at_sizes``: also at smaller
        sizes, where sizes are open."""
        start = time.monotonic()
        planned_s = finals_s(time_s, len(objects), rounds, repeats, self.options.warm_runs or 0)
        planned_s *= 1 + (self._ranking if at_sizes else 0)
        timeout_s = max(FINAL_TIMEOUT_S, FINAL_SLACK * planned_s)
        self.runner.remeasure(objects, rounds, repeats, timeout_s, at_sizes=at_sizes)
        child = self.runner.child
        assert child is not None
        try:
            ready = self._readable(child.sock, timeout_s)
        except BaseException:
            self.runner.drop()
            raise
        answer = self.runner.finish() if ready else self.runner.expire()
        if isinstance(answer, Death):
            if len(objects) == 1:
                died = running_died(answer, self.zygote.spans)
                # It was checked before: a timeout of its timing does not make it wrong.
                return [replace(died, status="error") if answer.timeout_s is not None else died]
            # A worker dies now and then. Each is timed alone, so that a death costs one candidate only.
            alone = [self._in_turns([x], rounds, repeats, time_s, at_sizes=at_sizes) for x in objects]
            return [m for found in alone for m in found]
        took = (time.monotonic() - start) / len(objects)
        told = answer[0]
        return [
            Measurement("ok", "", tuple(t), time_s, None, told["rate"], run_s=took, facts=facts)
            for t, time_s, facts in zip(told["times_s"], told["time_s"], told["facts"], strict=True)
        ]

    def _processes(self) -> list[int]:
        """The numbers of the processes that work for it."""
        children = (s.child for s in (self.runner, *self.builders))
        return [p for p in (self.zygote.pid, *(c.pid for c in children if c is not None)) if p is not None]

    def _readable(self, sock: socket.socket, timeout_s: float) -> bool:
        """Whether a process answers in time."""
        until = time.monotonic() + timeout_s
        while True:
            left = max(0.0, until - time.monotonic())
            wait = left if self.waiting is None else min(left, WAITING_S)
            if select([sock], [], [], wait)[0]:
                return True
            if left <= wait:
                return False
            if self.waiting is not None:
                self.waiting()

    def keep(self, trace: Trace, time_s: float, obj: bytes) -> None:
        """Keep what was built of a candidate, and of others the fastest `KEEP_OBJECTS`."""
        self._objects[trace.digest] = (time_s, obj)
        others = self._objects.keys() - self._finalists
        while len(others) > KEEP_OBJECTS:
            slowest = max(others, key=lambda k: self._objects[k][0])
            others.remove(slowest)
            del self._objects[slowest]
        self._undecided = not backends.of_code(obj).measuring.on_device

    def settle(self) -> None:
        """Before something is timed: choose the control among what was measured since the last time, and
        compare it in a new process. Both take longer than most candidates, and none may follow the last."""
        normal = self.keeper.choose(self._objects) if self._undecided else None
        self._undecided = False
        if normal is not None:
            best = min(self._objects, key=lambda k: self._objects[k][0])
            self._objects[best] = normal, self._objects[best][1]
        self.keeper.settle()


class _Batch:
    """The state of one `Measurer.arrivals`: what is built, what waits, what is done."""

    def __init__(
        self,
        owner: Measurer,
        traces: Sequence[Trace],
        best_s: float | None,
        deadline: float | None,
        objects: Mapping[int, bytes],
        latest: float | None,
    ) -> None:
        self.owner, self.traces, self.best_s = owner, traces, best_s
        self.deadline, self.latest = deadline, latest
        self.done: deque[tuple[int, Measurement]] = deque()  # not yet handed to the caller
        # object, seconds it took to build
        self.built: dict[int, tuple[bytes, float]] = {i: (obj, 0.0) for i, obj in objects.items()}
        self.to_build = deque(i for i in range(len(traces)) if i not in objects)
        self.building = True  # the present phase, where building and running take turns
        self.turn = time.monotonic()  # when the phase began

    def step(self) -> bool:
        """Hand out work, wait for an event, take it in. False when nothing runs and nothing may begin."""
        self._hand_out()
        owner = self.owner
        now = time.monotonic()
        until = self._until()
        if now >= until:  # what is being built would not run before the deadline
            for b in owner.builders:
                b.drop()
            until += LATE_S
        busy = [s for s in (owner.runner, *owner.builders) if s.busy]
        if not busy or now >= until:
            return False
        wait = max(0.0, min(until, *(s.deadline for s in busy)) - now)
        sockets = {s.child.sock: s for s in busy if s.child is not None}
        if owner.waiting is not None:
            owner.waiting()
            wait = min(wait, WAITING_S)
        readable = select(list(sockets), [], [], wait)[0]
        now = time.monotonic()  # taking in may take long: an answer that comes meanwhile is no timeout
        for sock in readable:
            slot = sockets[sock]
            if isinstance(slot, Builder):
                self._built(slot)
            else:
                self._ran()
        for slot in busy:
            if (job := slot.job) is not None and slot.overdue(now):
                if isinstance(slot, Builder):
                    self.done.append((job, building_died(slot.expire())))
                else:
                    died = running_died(slot.expire(), owner.zygote.spans)
                    self.done.append((job, replace(died, build_s=self.built.pop(job)[1])))
        return True

    def _hand_out(self) -> None:
        owner = self.owner
        runner, builders = owner.runner, owner.builders
        over = time.monotonic() >= self._until()
        under_way = [b for b in builders if b.busy]
        room = AHEAD * len(builders) - len(self.built) - len(under_way)
        more = bool(self.to_build) and not over
        if not owner.overlap:  # the worker has the machine to itself
            enough = room <= 0 or (bool(self.built) and time.monotonic() >= self.turn + PHASE_S)
            if self.building and not under_way and (enough or not more):
                self.building = False
            elif not self.building and not runner.busy and not self.built:
                self.building, self.turn = True, time.monotonic()
            if enough:
                room = 0
        for b in builders:
            if more and room > 0 and not b.busy and (owner.overlap or self.building):
                index = self.to_build.popleft()
                b.submit(index, self.traces[index].to_json(), owner.options)
                room -= 1
                more = bool(self.to_build)
        if not runner.busy and self.built and not over and (owner.overlap or not self.building):
            job = min(self.built)
            owner.settle()
            if owner.begins is not None:
                owner.begins(job)
            runner.submit(job, self.built[job][0], self.best_s, owner.options)

    def _until(self) -> float:
        """When no candidate may begin any more, as far as is known now."""
        if self.deadline is None:
            return float("inf")
        if self.latest is None or time.monotonic() < self.deadline:
            return self.deadline
        return max(self.deadline, min(self.deadline + self.owner.lateness.seconds, self.latest))

    def _built(self, slot: Builder) -> None:
        job, answer = slot.job, slot.finish()
        assert job is not None
        if isinstance(answer, Death):
            self.done.append((job, building_died(answer)))
            return
        header, obj = answer
        if header["status"] == "ok":
            self.built[job] = (obj, header["build_s"])
        else:
            self.done.append((job, Measurement(**header)))

    def _ran(self) -> None:
        job = self.owner.runner.job
        assert job is not None
        obj, build_s = self.built.pop(job)
        result = replace(self.owner.runner.result(), build_s=build_s)
        self.done.append((job, result))
        if result.ok and result.time_s is not None:
            self.owner.keeper.heard(result.reference_rate)
            self.owner.keep(self.traces[job], result.time_s, obj)
            self.best_s = result.time_s if self.best_s is None else min(self.best_s, result.time_s)
