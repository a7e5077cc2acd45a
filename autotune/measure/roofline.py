"""The least time that this CPU needs for a workload, measured while something else is timed."""

from __future__ import annotations

import time
from collections.abc import Callable

from autotune.measure import cpu_peaks, special
from schedules.dtypes import computed
from schedules.model import Target, Workload
from schedules.ops import compulsory_bytes
from schedules.te.compute_dag import ComputeDAG
from schedules.te.flops import count_flops

FEW = 8  # times what is written, at which an operator only reads
KEPT_SHARE = 0.5  # of the last cache, which others use too
WARM_RUNS = 3  # until times settle (ADR 21)
WARM_S = 0.01  # after which no more are made: what takes longer to pass is in no cache
BALANCE = 8  # FLOPs that a core does while a byte comes from beyond its caches, about, on any CPU of today


def waits_for_memory(dag: ComputeDAG, target: Target) -> bool:
    """Whether a kernel's time is mostly that of its arrays' way from beyond the caches of the cores, however
    it is scheduled: what a CPU's clock does says little of it then."""
    moved = compulsory_bytes(dag)
    beyond = moved > target.limit("l2_bytes", 512 << 10) * target.threads
    return beyond and count_flops(dag) < BALANCE * moved


def outgrows_caches(dag: ComputeDAG, target: Target) -> bool:
    """Whether the arrays, and scratch of their size, are out of the caches once something else has run."""
    return 2 * compulsory_bytes(dag) > KEPT_SHARE * target.limit("l3_bytes", 8 << 20)


def warm_runs(dag: ComputeDAG, target: Target) -> int:
    """Runs after which a kernel's arrays are where they are when it is called again and again, if others ran
    before; 0 where reading them does."""
    return WARM_RUNS if waits_for_memory(dag, target) else int(outgrows_caches(dag, target))


def warm(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> None:
    """Make calls that bring back into the caches what others evicted meanwhile: a third cache is filled by
    more than one."""
    begin = clock()
    for _ in range(WARM_RUNS):
        call()
        if clock() - begin > WARM_S:
            return


def limit_of(
    workload: Workload, target: Target, *, memory_afresh: bool = False
) -> Callable[[], float]:
    """A function that measures the roofline of a workload on a CPU, in seconds.

    It is the slowest of its FLOPs over the FMA rate and its compulsory bytes over the bandwidth of the memory
    level that holds them, on ``target.threads`` threads at once, and of its special functions over their
    rate. Integer work counts bytes only. The bandwidth is that of reading where little is written, else of a
    copy, with streaming stores where these are faster. Each call measures the FMA rate; the bandwidth too if
    ``memory_afresh``, which keeps up to 256 MB for it, else that is the best of a few samples taken once.
    """
    moved = compulsory_bytes(workload.dag)
    dtype = computed(workload.dag.params[-1].dtype)
    working_set = cpu_peaks.level_bytes(target, moved)
    written = sum(workload.dag.tensors[n].nbytes for n in workload.dag.outputs)
    modes = ("read",) if FEW * written < moved else ("copy", "stream")
    mode = max(modes, key=lambda m: cpu_peaks.bandwidth(target, m, working_set))
    special_s = special.seconds(workload.dag, target)
    loop = cpu_peaks.MemoryLoop(target, mode, working_set) if memory_afresh else None

    def fixed_s() -> float:
        if loop is None:
            return max(special_s, moved / cpu_peaks.bandwidth(target, mode, working_set))
        warm(loop.bytes_a_second)  # as the kernels are that are held to it
        return max(special_s, moved / loop.bytes_a_second())

    if not workload.flops or dtype not in ("float32", "float64"):
        return fixed_s
    loops = cpu_peaks.FmaLoops(target, dtype)
    return lambda: max(fixed_s(), workload.flops / loops.flops_a_second())
