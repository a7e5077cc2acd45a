"""The least time that this CPU needs for a workload, measured while something else is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from autotune.backends.peaks import cpu_peaks, instruction_peaks, special
from schedules.dtypes import computed, is_float
from schedules.instructions import Instruction
from schedules.instructions.work import RATE, instructions_for, times_as_fast, work
from schedules.model import Target, Workload
from schedules.ops import compulsory_bytes
from schedules.te.compute_dag import ComputeDAG
from schedules.te.flops import count_flops

# An operator that reads more than this times what it writes (bytes) counts as one that only reads.
FEW = 8
# Share of the last cache that a kernel's arrays may count on: others use it too.
KEPT_SHARE = 0.5
# Runs after which the times of what waits for memory settle. Source: ADR 21.
WARM_RUNS = 3
# Length of warming (seconds) after which no run is added: what takes longer is in no cache.
WARM_S = 0.01
# FLOPs by multiply-adds that a core does while a byte comes from beyond its caches, about, on CPUs of today.
BALANCE = 8


def waits_for_memory(dag: ComputeDAG, target: Target) -> bool:
    """Whether a kernel's time is mostly that of moving its arrays from beyond the cores' own caches, however
    it is scheduled. The clock of the CPU says little of such a time."""
    moved = compulsory_bytes(dag)
    beyond = moved > target.limit("l2_bytes", 512 << 10) * target.threads
    return beyond and count_flops(dag) < BALANCE * times_as_fast(dag, target) * moved


def outgrows_caches(dag: ComputeDAG, target: Target) -> bool:
    """Whether the arrays, and scratch of their size, are out of the caches once something else has run."""
    return 2 * compulsory_bytes(dag) > KEPT_SHARE * target.limit("l3_bytes", 8 << 20)


def warm_runs(dag: ComputeDAG, target: Target) -> int:
    """Runs that bring a kernel's arrays to where they are in repeated calls, after something else has run.
    0: reading the arrays does it."""
    return WARM_RUNS if waits_for_memory(dag, target) else int(outgrows_caches(dag, target))


def warm(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> None:
    """Make calls that bring back into the caches what others evicted. A third cache needs more than one."""
    begin = clock()
    for _ in range(WARM_RUNS):
        call()
        if clock() - begin > WARM_S:
            return


@dataclass
class Roofline:
    """Measures the roofline of a workload, in seconds, whenever it is called. ``rates``: what the last call
    found: ``flops_a_second``, where FLOPs count; that of each instruction that does some of them, by its name
    (``vpdpbusd_a_second``); and ``bytes_a_second`` of the memory level that holds the arrays. ``afresh``:
    measures what ``seconds`` keeps for the life of the process too; None: it keeps nothing."""

    seconds: Callable[[dict[str, float]], float]
    rates: dict[str, float] = field(default_factory=dict)
    afresh: Callable[[dict[str, float]], float] | None = None

    def __call__(self) -> float:
        return self.seconds(self.rates)

    def again(self) -> float:
        """Measure all of it again: something was disturbed."""
        return (self.afresh or self.seconds)(self.rates)


def limit_of(workload: Workload, target: Target, *, memory_afresh: bool = False) -> Roofline:
    """A function that measures the roofline of a workload on a CPU, in seconds.

    The roofline is the largest of three times, on ``target.threads`` threads at once: FLOPs over the rate of
    what does them, compulsory bytes over the bandwidth of the memory level that holds them, and special
    functions over their rate. The fastest instruction of the target that a stage is does it, else
    multiply-adds of the dtype that it is computed with. Other arithmetic of integers takes no time in it. The
    bandwidth is that of reading where little is written, else that of a copy, with streaming stores where
    these are faster. Each call measures the rates of arithmetic. It measures
    the bandwidth too if ``memory_afresh`` (which keeps up to 256 MB); else that is the best of a few samples
    taken once.
    """
    moved = compulsory_bytes(workload.dag)
    working_set = cpu_peaks.level_bytes(target, moved)
    written = sum(workload.dag.tensors[n].own_bytes for n in workload.dag.outputs)
    modes = ("read",) if FEW * written < moved else ("copy", "stream")
    mode = max(modes, key=lambda m: cpu_peaks.bandwidth(target, m, working_set))
    loop = cpu_peaks.MemoryLoop(target, mode, working_set) if memory_afresh else None
    counted, loops = _arithmetic(workload, target)

    def seconds(rates: dict[str, float], again: bool = False) -> float:
        if loop is not None:
            warm(loop.bytes_a_second)  # as the kernels that are compared with it
            moving = loop.bytes_a_second()
        else:
            measure = cpu_peaks.measure_bandwidth if again else cpu_peaks.bandwidth
            moving = measure(target, mode, working_set)
        rates["bytes_a_second"] = moving
        least = max(special.seconds(workload.dag, target, again), moved / moving)
        if not loops:
            return least
        found = {what: x.flops_a_second() for what, x in loops.items()}
        rates.update({what + RATE: rate for what, rate in found.items() if not is_float(what)})
        arithmetic_s = sum(counted[what] / rate for what, rate in found.items())
        rates["flops_a_second"] = sum(counted.values()) / arithmetic_s
        return max(least, arithmetic_s)

    return Roofline(seconds, afresh=partial(seconds, again=True))


def _arithmetic(workload: Workload, target: Target) -> tuple[dict[str, float], dict[str, cpu_peaks.Rated]]:
    """({what does some of the operations: how many}, {the same: the loop that measures its rate})."""
    dag, flops = workload.dag, workload.flops
    fma = {dtype: cpu_peaks.FmaLoops(target, dtype) for dtype in work(dag, flops)}
    able = [i for i in instructions_for(dag, target.features) if "llvm" in i.spellings]
    timed = {i.name: instruction_peaks.InstructionLoops(target, i) for i in able}
    rates = {what: x.flops_a_second() for what, x in (*fma.items(), *timed.items())}
    fast = [i for i in able if rates[i.name] > rates.get(computed(i.result.dtype), 0.0)]
    counted = work(dag, flops, _fastest_first(fast, rates))
    return counted, {what: timed.get(what) or fma[what] for what in counted}


def _fastest_first(found: Sequence[Instruction], rates: Mapping[str, float]) -> list[Instruction]:
    """Instructions that differ in dtypes alone are as fast as each other, but for noise: the first comes
    first."""

    def rate(ins: Instruction) -> float:
        return max(rates[i.name] for i in found if _size(i) == _size(ins))

    return sorted(found, key=rate, reverse=True)


def _size(ins: Instruction) -> tuple[object, ...]:
    return ins.operations, ins.cost, ins.registers
