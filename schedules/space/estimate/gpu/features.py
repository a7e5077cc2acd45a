"""Features of candidates for GPUs: the quantities of the slowest kernels one by one, and sums over all
kernels.

The estimated time is the longer of memory's time, and of the cycles in which blocks compute and wait.
Constants were fitted on one H100: ADR 33, docs/measurements/estimates.md.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from schedules.space.estimate.base import Formulas
from schedules.space.estimate.counting import Number, number
from schedules.space.estimate.gpu.coalescing import is_aligned, sectors
from schedules.space.estimate.gpu.facts import AT_A_TIME, KernelFacts, analyse
from schedules.space.estimate.gpu.limits import Shape, filled, shape, within
from schedules.space.estimate.gpu.rates import WARP, GpuRates
from schedules.space.holes import Columns

# Time of a launch (seconds).
LAUNCH_S = 3e-6
# Time in which a processor begins one block (cycles).
BEGIN = 200.0
# Time until data from global memory has come, with a barrier (cycles).
LATENCY = 1500.0
# Part of that wait which no other block hides (cycles).
TURN = 60.0
# Share of `LATENCY` that is left, at least, of copies that run in the background during other iterations.
STAGED = 0.02
# Share of `TURN` that is left with one barrier a turn; half of that where copies were begun two turns before.
HALF = 0.5
# Share of `LATENCY` that is left: if data was loaded an iteration ahead; if no barrier holds threads up.
AHEAD = 0.1
FLOWING = 0.05
# Sectors that a request touches over those that would do: below this, caches keep the rest for others.
APART = 1.5
# Size of the first cache (bytes).
FIRST_CACHE = 128 << 10
# Bandwidth of the second cache over that of memory.
CACHED = 1.5

# Bytes a cycle and processor: of its shared memory, and of the second cache to kernels that ask for so much
# that the processors' requests bound it.
SHARED_BYTES, SECOND_CACHE = 128.0, 24.0
# Part of the times of all else that the longest does not hide, where products are by matrix units.
NOT_HIDDEN = 0.15

# Quantities of a kernel, by the names that `measure` gives them.
FEATURES_PER_KERNEL = (
    "blocks", "threads", "waves", "occupancy", "shared_bytes", "registers", "flops", "special", "far_bytes",
    "scattered_bytes", "near_loads", "unrolled", "waits", "cycles", "lanes", "intensity", "warp_use", "est_s",
)  # fmt: skip
# Kernels with features of their own, slowest first.
HOT_KERNELS = 2


def measure(k: KernelFacts, env: Columns, m: GpuRates) -> dict[str, Number]:
    """The quantities of one kernel, by the names in `FEATURES_PER_KERNEL`."""
    x = shape(k, env, m)
    flops = special = far = scattered = cost = least = near = loads = unrolled = np.zeros(())
    products = moved = summed = np.zeros(())  # multiply-adds of matrix units; bytes that warps load together
    lanes = np.ones(())
    for w in k.work:
        n = number(w.instances, env)
        flops, special = flops + n * w.flops, special + n * w.special
        unrolled = np.maximum(unrolled, number(w.unrolled, env))
        if w.by_warp:
            summed, products = summed + n * w.flops, products + n * w.products
            moved = moved + sum((n * a.item for a in w.accesses if a.scope == "shared"), np.zeros(()))
            continue
        lanes = np.maximum(lanes, number(w.lanes, env))
        for a in w.accesses:
            times = n / number(a.reuse, env)
            if a.scope == "shared":
                wide = np.clip(number(a.adjacent, env), 1.0, 4.0)
                near = near + times * np.where(wide >= 4, 0.4, np.where(wide >= 2, 0.6, 1.0))
                loads = loads + np.where(number(w.stages, env) > 0, 0.0, times / wide)  # copies: one
            elif a.scope == "global":
                assert a.request is not None, "global memory"
                wide = np.clip(number(w.lanes, env), 1.0, 4.0)
                single = times / np.where(is_aligned(a.request, wide, env), wide, 1.0)
                near, loads = near + single, loads + single
                touched, filled_ = sectors(a.request, a.item, env)
                requests = times / number(a.request.together, env)
                cost, least = cost + requests * touched, least + requests * filled_
                far = far + times * a.item
                wasted = np.where(touched >= APART * filled_, 1.0 - filled_ / touched, 0.0)
                scattered = scattered + times * a.item * wasted
    waves = np.ceil(x.blocks / (m.sms * np.maximum(x.resident, 1.0)))
    share = filled(x.threads, x.resident, m)
    busy = np.minimum(1.0, x.blocks / (m.sms * np.maximum(x.resident, 1.0)) / waves)
    warp_use = x.threads / (np.ceil(x.threads / WARP) * WARP)
    hidden = np.clip(share * 8.0, 1e-3, 1.0)  # an eighth of the threads hides most of arithmetic's latency
    # Cycles of a block alone on a processor. Others beside it compute while it waits.
    issue = np.maximum(((flops - summed) / 2 + loads) / m.fma, np.maximum(near / 32.0, special / 16.0))
    if any(w.by_warp for w in k.work):
        issue = _longest(issue, products / max(m.products, 1.0), moved / SHARED_BYTES)
    cycles = issue / x.blocks / warp_use
    together = np.minimum(np.maximum(x.resident, 1.0), np.ceil(x.blocks / m.sms))
    waits, barriers = _waiting(k, env, together * cycles)
    wave = np.maximum(together * cycles / hidden, cycles + LATENCY * waits) + TURN * barriers
    wave = np.maximum(wave, together * BEGIN)
    by_units = any(w.products for w in k.work)
    memory = _in_waves(k, env, m, x, far) if by_units else _in_caches(k, env, x, far, scattered)
    times = waves * wave / m.clock, memory / (m.bandwidth * busy * hidden)
    seconds = (_longest(*times) if by_units else np.maximum(*times)) + LAUNCH_S
    return {
        "blocks": x.blocks, "threads": x.threads, "waves": waves, "occupancy": share,
        "shared_bytes": x.shared, "registers": x.registers, "flops": flops, "special": special,
        "far_bytes": far, "scattered_bytes": scattered, "near_loads": near, "unrolled": unrolled,
        "waits": waits, "cycles": wave, "lanes": lanes, "intensity": flops / np.maximum(far, 1.0),
        "warp_use": warp_use, "est_s": seconds, "sectors": cost, "least_sectors": least,
    }  # fmt: skip


def _waiting(k: KernelFacts, env: Columns, computed: Number) -> tuple[Number, Number]:
    """(times that a thread waits for all of `LATENCY`, times that all wait at barriers). ``computed``: cycles
    in which the blocks of a processor compute, during which copies in the background come."""
    waits = barriers = np.zeros(())
    for w in k.work:
        if w.by_warp:
            continue
        n, stages = number(w.waits, env), number(w.stages, env)
        left = np.where(number(w.ahead, env) == 1, AHEAD, 1.0 if w.fetches else FLOWING)
        hidden = (stages - 1.0) * computed / (np.maximum(n, 1.0) * LATENCY)
        waits = waits + n * np.where(stages > 0, np.clip(1.0 - hidden, STAGED, 1.0), left)
        turns = np.where(stages > 2, HALF / 2, np.where(stages > 1, HALF, 1.0))
        barriers = barriers + n * np.where(stages > 0, turns, left)
    return waits, barriers


def _longest(*times: Number) -> Number:
    """The longest of times that pass together, and what it leaves of the others."""
    longest = functools.reduce(np.maximum, times)
    return longest + NOT_HIDDEN * (sum(times) - longest)


def _in_caches(k: KernelFacts, env: Columns, x: Shape, far: Number, scattered: Number) -> Number:
    """As `_in_waves`, by the bytes of the arrays, and by those of a block that the first cache holds."""
    part = number(k.block_bytes, env)  # if the first cache holds it, a block reads it again from there
    anew = np.where(part <= FIRST_CACHE, np.minimum(1.0, x.blocks * part / np.maximum(far, 1.0)), 1.0)
    return np.maximum(number(k.array_bytes, env), anew * (far + 3.0 * scattered) / CACHED)


def _in_waves(k: KernelFacts, env: Columns, m: GpuRates, x: Shape, far: Number) -> Number:
    """Bytes that take as long from memory as a kernel's ``far`` bytes do, whose blocks run some at a time:
    what these need comes from memory once, and what each needs from the second cache."""
    at_a_time = np.minimum(x.blocks, m.sms * np.maximum(x.resident, 1.0))
    once = number(k.wave_bytes, Columns({**env, AT_A_TIME: at_a_time})) * (x.blocks / at_a_time)
    least = number(k.array_bytes, env)
    cached = far * m.bandwidth / (SECOND_CACHE * m.sms * m.clock)
    return _longest(np.clip(once, least, np.maximum(far, least)), cached)


def _totals(facts: tuple[KernelFacts, ...], sums: Mapping[str, Number]) -> dict[str, Number]:
    return {"kernels": len(facts), "est_time_s": sums["est_s"]}


GPU_FORMULAS = Formulas(
    lambda nest, constants: analyse(nest),  # inputs known ahead are read as others are
    GpuRates.of,
    measure,
    within,
    "kernel",
    FEATURES_PER_KERNEL,
    HOT_KERNELS,
    ("est_s",),
    _totals,
)
FEATURE_NAMES = GPU_FORMULAS.feature_names
