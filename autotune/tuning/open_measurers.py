"""Measurers that stay open between the turns of their tasks."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable

from autotune.measure import memory
from autotune.tuning.site import Measuring
from schedules.model import Workload
from schedules.te.compute_dag import ComputeDAG

# Most tasks whose worker processes are kept between turns.
OPEN = 6


class OpenMeasurers:
    """Measurers by task. Above `OPEN`, or more than fit in memory, the one used longest ago is closed."""

    def __init__(self, make: Callable[[Workload], Measuring]) -> None:
        self._make = make
        self._open: OrderedDict[int, tuple[Measuring, contextlib.ExitStack, ComputeDAG]] = OrderedDict()
        self._free = memory.free_bytes()  # before measurers take any

    def get(self, number: int, workload: Workload) -> Measuring:
        if number not in self._open:
            while self._open and not self._room(workload.dag):
                self.drop(next(iter(self._open)))
            made, stack = self._make(workload), contextlib.ExitStack()
            if hasattr(made, "__enter__"):  # those that are given may stay open
                stack.enter_context(made)
            self._open[number] = (made, stack, workload.dag)
        self._open.move_to_end(number)
        return self._open[number][0]

    def drop(self, number: int) -> None:
        if number in self._open:
            self._open.pop(number)[1].close()

    def close(self) -> None:
        for number in list(self._open):
            self.drop(number)

    def _room(self, dag: ComputeDAG) -> bool:
        dags = [d for _, _, d in self._open.values()]
        return len(dags) < OPEN and memory.fit([*dags, dag], self._free)
