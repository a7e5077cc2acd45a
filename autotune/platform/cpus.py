"""Which CPUs this process may use: its affinity, and the quota of its cgroups. Only files of the operating
system are read, so that loading a kernel need not import llvmlite."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autotune.platform.files import CGROUPS, CPU_FOLDERS, MEMBERSHIP, read


def usable_cpu_set() -> frozenset[int]:
    """The CPUs that the calling thread may use; empty where the system does not tell."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


@contextmanager
def on_cpus(cpus: frozenset[int]) -> Iterator[None]:
    """The calling thread, and threads that it creates meanwhile, may use these CPUs (none: as they are).
    Nothing changes where the system does not tell which it may use."""
    before = usable_cpu_set()
    cpus = cpus if before else frozenset()  # a system without affinity takes none
    if cpus and cpus != before:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        if cpus and cpus != before:
            os.sched_setaffinity(0, before)


def cores_first(cpus: frozenset[int], root: Path = CPU_FOLDERS) -> list[int]:
    """CPUs in an order in which the first are of different cores."""

    def number(cpu: int) -> tuple[int, int]:
        siblings = cpu_list(read(root / f"cpu{cpu}" / "topology" / "thread_siblings_list"))
        return sum(x in cpus for x in siblings if x < cpu), cpu

    return sorted(cpus, key=number)


def usable_cpus() -> int:
    """How many CPUs this process may keep busy: its affinity, cut by the cgroup's CPU quota (at least 1)."""
    count = len(usable_cpu_set()) or os.cpu_count() or 1
    limit = quota()
    return max(1, count if limit is None else min(count, int(limit + 0.5)))


def quota(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> float | None:
    """The tightest CPU quota of this process's cgroups, in CPUs; None where there is none."""
    quotas: list[float] = []
    for folder in cgroups("cpu", root, membership):
        fields = read(folder / "cpu.max").split()
        if len(fields) != 2:
            fields = [read(folder / "cpu.cfs_quota_us"), read(folder / "cpu.cfs_period_us")]
        if all(f.isdigit() for f in fields) and int(fields[1]) > 0:
            quotas.append(int(fields[0]) / int(fields[1]))
    return min(quotas, default=None)


def memory_left(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int | None:
    """The fewest bytes that a cgroup of this process may still take; None where none has a limit. Files that
    the system read ahead and may forget are not counted as taken."""
    left: list[int] = []
    for folder in cgroups("memory", root, membership):
        for limit, used, forgettable in _MEMORY:
            most, now = read(folder / limit), read(folder / used)
            if most.isdigit() and now.isdigit():
                stat = dict(line.split(maxsplit=1) for line in read(folder / "memory.stat").splitlines())
                files = stat.get(forgettable, "0")
                taken = max(0, int(now) - int(files if files.isdigit() else 0))
                left.append(max(0, int(most) - taken))
    return min(left, default=None)


# What a cgroup tells of memory: its limit, what is taken, and what of that are files. Of versions 2 and 1.
_MEMORY = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.high", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def cgroups(controller: str, root: Path, membership: Path) -> Iterator[Path]:
    """Folders of the cgroups of this process that may limit it, of either version: a limit may stand at any
    level above the process."""
    for line in read(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            bases = [root, root / "unified"]
        elif controller in controllers.split(","):
            bases = [root / controller, root / controllers]
        else:
            continue
        parts = [p for p in path.split("/") if p and p != ".."]
        for base in dict.fromkeys(bases):
            for depth in range(len(parts) + 1):
                yield base.joinpath(*parts[:depth])


def cpu_list(text: str) -> list[int]:
    """The CPUs of a kernel list such as "0-3,8"; empty if it is not one."""
    out: list[int] = []
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        if not low.isdigit() or (high and not high.isdigit()):
            return []
        out.extend(range(int(low), int(high or low) + 1))
    return out
