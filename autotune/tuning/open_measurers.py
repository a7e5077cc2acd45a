"""Measurers that stay open between the turns of their tasks, or between requests for them."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from autotune.measure import memory
from autotune.tuning.site import Measuring
from schedules.model import Workload
from schedules.te.compute_dag import ComputeDAG

# Most tasks whose worker processes are kept.
OPEN = 6

K = TypeVar("K", bound=Hashable)


class OpenMeasurers(Generic[K]):
    """Measurers by task. Above `OPEN`, or more than fit in memory, the one used longest ago is closed.
    ``make``: makes one of a workload. ``closing``: called with a task and its measurer before that is
    closed."""

    def __init__(
        self,
        make: Callable[..., Measuring],
        closing: Callable[[K, Measuring], None] | None = None,
    ) -> None:
        self._make, self._closing = make, closing
        self._open: OrderedDict[K, tuple[Measuring, contextlib.ExitStack, ComputeDAG]] = OrderedDict()
        self.free = memory.free_bytes()  # before measurers take any

    def get(self, key: K, workload: Workload, *more: Any) -> Measuring:
        """That of a task. ``more``: what ``make`` is given beside the workload where it is not open."""
        if key not in self._open:
            while self._open and not self._room(workload.dag):
                self.drop(next(iter(self._open)))
            made, stack = self._make(workload, *more), contextlib.ExitStack()
            if hasattr(made, "__enter__"):  # those that are given may stay open
                stack.enter_context(made)
            self._open[key] = (made, stack, workload.dag)
        self._open.move_to_end(key)
        return self._open[key][0]

    def drop(self, key: K) -> None:
        if key in self._open:
            measurer, stack, _ = self._open.pop(key)
            if self._closing is not None:
                self._closing(key, measurer)
            stack.close()

    def close(self) -> None:
        for key in list(self._open):
            self.drop(key)

    def _room(self, dag: ComputeDAG) -> bool:
        dags = [d for _, _, d in self._open.values()]
        return len(dags) < OPEN and memory.fit([*dags, dag], self.free)
