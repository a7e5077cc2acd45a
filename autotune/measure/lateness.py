"""How late work is, because others have the CPUs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from autotune.platform.cpus import usable_cpus
from autotune.platform.processes import folder_of, own_threads, scheduled


class Lateness:
    """The seconds that the work of this process and of others has lost since this was made, because CPUs were
    taken. ``processes``: gives the numbers of the others.

    At each look it asks what share they got of the CPU time that they were ready to use since the last look.
    The other share of that time was lost. They are never ready to use more CPUs than there are. Nothing is
    lost where the system does not tell."""

    processes: Callable[[], Iterable[int]] = staticmethod(tuple)

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}
        self._at, self._lost = time.monotonic(), 0.0
        self._since_last_look()  # what this process did before is not asked

    @property
    def seconds(self) -> float:
        now = time.monotonic()
        took, self._at = now - self._at, now
        ran, waited = self._since_last_look()
        wanted = min(ran + waited, usable_cpus() * took)
        if ran < wanted:
            self._lost += took * (1.0 - ran / wanted)
        return self._lost

    def _since_last_look(self) -> tuple[float, float]:
        """Seconds that all threads had a CPU since the last look, and that they waited for one."""
        tasks = [*own_threads(), *map(folder_of, self.processes())]
        now = {task: scheduled(task) for task in tasks}
        before = [self._seen.get(task, (0.0, 0.0)) for task in tasks]
        self._seen = now
        both = [*zip(now.values(), before, strict=True)]
        ran, waited = (sum(max(new[i] - old[i], 0.0) for new, old in both) for i in (0, 1))
        return ran, waited
