"""The record of the nearest target that this machine can run, where it has none of its own: tried here
beside the default schedule before it is used, since a schedule that suits other caches may be worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from autotune import backends, targets
from autotune.errors import CompileError, KernelNotFound
from autotune.run.asked import Asked
from autotune.run.kernel import Kernel
from autotune.run.kernels import default_kernel, kernel_of
from kernels_db import lookup
from kernels_db.records import Hit
from schedules.errors import ScheduleError
from schedules.model import Target, TraceError, Workload

MOST = 8  # targets to try, nearest first
ROUNDS = 3  # of timing the two in turns


@dataclass(frozen=True)
class Nearest:
    """What was tried, with seconds of a run here. ``kernel`` is the faster of the two."""

    hit: Hit
    kernel: Kernel
    time_s: float
    default_s: float

    @property
    def better(self) -> bool:
        """Whether the record is used, not the default schedule."""
        return self.time_s < self.default_s

    def __str__(self) -> str:
        took = f"it takes {self.time_s:.3g} s here, the default schedule {self.default_s:.3g} s"
        used = "it is used" if self.better else "the default schedule is used"
        whose = targets.brief(self.hit.target)
        return f"the nearest is record {self.hit.record.uid} for {whose}: {took}; {used}"


def nearest(workload: Workload, asked: Asked) -> Nearest | None:
    """The nearest record that this machine can run, tried here; None if there is none. This machine is asked
    for. Raises `LogError`.

    Runs the default schedule, which for a large workload takes its time.
    """
    cpus, wanted, where = targets.usable_cpus(), asked.target, asked.where
    found: dict[str, Target] = {}

    def fits(t: Target) -> bool:
        fitting = t.kind == wanted.kind and t.threads <= cpus and asked.threads in (None, t.threads)
        if fitting and backends.runnable(t):
            found[t.digest] = t
        return False

    lookup.best(where, workload.digest, fits)
    for target in sorted(found.values(), key=lambda t: distance(wanted, t))[:MOST]:
        hit = lookup.best(where, workload.digest, _is(target))
        if hit is None or hit.doubted:
            continue
        try:
            kernel = kernel_of(workload, target, hit.record.trace, hit.record)
        except (TraceError, ScheduleError, CompileError):  # the next may be good
            continue
        default = default_kernel(workload, backends.parse(wanted, target.threads))
        kernel.chosen_by = "similar_machine"
        pairs = [(kernel.time(repeat=1), default.time(repeat=1)) for _ in range(ROUNDS)]
        time_s, default_s = min(t for t, _ in pairs), min(t for _, t in pairs)
        return Nearest(hit, kernel if time_s < default_s else default, time_s, default_s)
    return None


def refused(workload: Workload, tried: Nearest) -> KernelNotFound:
    """The error where only a record will do."""
    return KernelNotFound(f"no kernel of {workload.op} that beats the default schedule here: {tried}")


def distance(a: Target, b: Target) -> tuple[int, int, float, int, str]:
    """How far a target is: another processor, extensions that only one of them has, the ratio of their
    caches and vector registers in doublings, threads."""
    limits = dict(a.limits), dict(b.limits)
    ratios = [
        abs(math.log2(limits[0][name] / limits[1][name]))
        for name in limits[0].keys() & limits[1].keys()
        if limits[0][name] > 0 and limits[1][name] > 0
    ]
    features = len(set(a.features) ^ set(b.features))
    return int(a.arch != b.arch), features, sum(ratios), abs(a.threads - b.threads), b.digest


def _is(target: Target) -> Callable[[Target], bool]:
    return lambda t: t == target
