"""The least time that this machine needs for a workload, measured while something else is timed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from autotune.devices import cpu
from schedules.model import Target, Workload
from schedules.ops import compulsory_bytes

SAMPLE_S = 2e-3


def limit_of(workload: Workload, target: Target) -> Callable[[], float]:
    """A function that measures the roofline of a workload in seconds.

    It is the slower of its FLOPs over the FMA rate, measured afresh by each call on ``target.threads``
    threads at once, and of its compulsory bytes over the copy bandwidth of the memory level that holds
    them, measured here once. Integer work counts bytes only.
    """
    moved = compulsory_bytes(workload.dag)
    dtype = workload.dag.params[-1].dtype
    memory_s = moved / cpu.bandwidth(target, "copy", cpu.level_bytes(target, moved))
    if not workload.flops or dtype not in ("float32", "float64"):
        return lambda: memory_s
    loops = [cpu.FmaLoop(target, dtype) for _ in range(target.threads)]
    runs = max(1, round(SAMPLE_S / (loops[0].seconds(200) / 200)))
    flops_a_sample = sum(loop.flops for loop in loops) * runs
    if len(loops) == 1:
        return lambda: max(memory_s, workload.flops * loops[0].seconds(runs) / flops_a_sample)
    pool = ThreadPoolExecutor(len(loops))

    def measure() -> float:
        # The longest of them: a kernel is done when its last thread is.
        return max(
            memory_s, workload.flops * max(pool.map(lambda x: x.seconds(runs), loops)) / flops_a_sample
        )

    return measure
