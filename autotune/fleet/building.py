"""Compiles here what a machine of a fleet measures: for slow boards, and where a compiler is missing.

Candidates are compiled in processes of their own, several at a time. One that takes too long, or ends its
process, is a failed build of that candidate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from autotune.fleet.messages import Task
from autotune.measure.results import Measurement, Options
from autotune.targets import usable_cpus
from schedules.model import Trace

LONGEST_S = Options().build_timeout_s

Built = tuple[str, str, bytes]  # status, reason, object


class Builders:
    """Processes that compile; a context manager. ``count``: how many; default: as many as CPUs."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count or usable_cpus()
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Builders:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def begin(self, task: Task, traces: Sequence[Trace]) -> Batch:
        """Begin to compile candidates."""
        return Batch(self, task, traces)

    def submit(self, task: Task, trace: Trace) -> Future[Built]:
        """Compile one."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self._count, get_context("spawn"))
        workload = task.workload
        return self._pool.submit(_build, workload.json, trace.to_json(), task.target.json)

    def drop(self) -> None:
        """End all processes, whatever they do."""
        pool, self._pool = self._pool, None
        if pool is not None:
            for process in list((pool._processes or {}).values()):
                process.kill()
            pool.shutdown(wait=True, cancel_futures=True)


class Batch:
    """Candidates of one round."""

    def __init__(self, owner: Builders, task: Task, traces: Sequence[Trace]) -> None:
        self._owner, self._task, self._traces = owner, task, traces
        self._futures = {i: owner.submit(task, t) for i, t in enumerate(traces)}
        self._built: dict[int, Built] = {}

    def object(self, index: int) -> bytes:
        """What `refusal` found no fault with."""
        return self._built[index][2]

    def refusal(self, index: int, waiting: Callable[[float], None]) -> Measurement | None:
        """Wait for a candidate. Its measurement if it could not be built, else None. ``waiting`` lets so many
        seconds pass."""
        if index not in self._built:
            began = time.monotonic()
            while not self._futures[index].done():
                if time.monotonic() - began > LONGEST_S:
                    self._again(index)
                    self._built[index] = ("timeout", f"building took longer than {LONGEST_S:.1f} s", b"")
                    break
                waiting(0.01)
            else:
                self._built[index] = self._result(index)
        status, reason, _ = self._built[index]
        return None if status == "ok" else Measurement(status, reason)

    def close(self) -> None:
        """Give up what is not built yet."""
        for future in self._futures.values():
            future.cancel()

    def _result(self, index: int) -> Built:
        try:
            return self._futures[index].result()
        except BrokenProcessPool:
            return self._alone(index)

    def _alone(self, index: int) -> Built:
        """A process died. This candidate is compiled alone, so that the right one is blamed."""
        self._owner.drop()
        future = self._owner.submit(self._task, self._traces[index])
        try:
            found = future.result(LONGEST_S)
        except (BrokenProcessPool, TimeoutError):
            found = ("crash", "the builder died", b"")
            self._owner.drop()
        self._again(index)
        return found

    def _again(self, but: int) -> None:
        """Begin anew with what is not built, in new processes."""
        self._owner.drop()
        for i, trace in enumerate(self._traces):
            if i > but and i not in self._built:
                self._futures[i] = self._owner.submit(self._task, trace)


def _build(workload: str, trace: str, target: str) -> Built:
    """Runs in a process of its own."""
    from autotune.building.from_trace import build_object
    from autotune.measure.builder import attempt
    from schedules.model import Target, Workload

    return attempt(build_object, Workload.from_json(workload).canonical, trace, Target.from_json(target))
