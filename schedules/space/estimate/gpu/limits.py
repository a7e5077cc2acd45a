"""Static limits of a GPU, so that no infeasible candidate reaches a compiler, and the occupancy of
processors.

Limited are the threads of a block, shared memory, registers and the size of unrolled code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schedules.primitives.unroll import MAX_UNROLL
from schedules.space.estimate.counting import Number, number
from schedules.space.estimate.gpu.facts import KernelFacts
from schedules.space.estimate.gpu.rates import WARP, GpuRates
from schedules.space.holes import Columns

# Registers of a thread for indices, pointers and operands in flight, at least.
SPARE_REGISTERS = 28
# Registers that compilers take: so many for each that arrays need, and so many more. Source: ADR 33.
USED, TAKEN_REGISTERS = 1.2, 36
# Registers for each copy in the background of a thread: an address and whether there is something. Of 36
# candidates for two convolutions that were compiled for an H100, this tells which spill, but for one.
PLACE_REGISTERS = 3
# Most statements of one unrolled body.
MOST_UNROLLED = 4096
# Most code of a kernel, as expression nodes of what is unrolled: 1.8 times or more what is left of them when
# numbers stand for holes, of which 2^18 are compiled at most.
MOST_CODE = 560_000


@dataclass(frozen=True, slots=True)
class Shape:
    """The resources of a kernel's blocks. ``shared``: bytes of a block; ``registers``: of a thread."""

    threads: Number
    shared: Number
    registers: Number
    blocks: Number
    resident: Number  # blocks of an SM at a time
    fits: Number  # whether the wanted number of blocks is resident


def shape(k: KernelFacts, env: Columns, m: GpuRates) -> Shape:
    """The resources of a kernel's blocks on a GPU, numbers or columns."""
    threads = np.ones(())
    for x in k.threads:
        threads = threads * number(x, env)
    shared = number(k.shared_bytes, env)
    held, fragments = number(k.local_bytes, env) / 4, number(k.fragment_bytes, env) / 4
    together = number(k.min_blocks, env)
    # Registers that leave room for the wanted number of blocks: the compiler keeps to that.
    most = np.floor(m.registers / (np.ceil(threads / WARP) * WARP * together))
    resident = _resident(threads, shared, np.minimum(most, held * USED + fragments + TAKEN_REGISTERS), m)
    registers = np.ceil(held + fragments) + SPARE_REGISTERS + _places(k, env)
    fits = (registers <= most) & (resident >= together)
    return Shape(threads, shared, registers, number(k.blocks, env), resident, fits)


def _places(k: KernelFacts, env: Columns) -> Number:
    """Registers for where a thread's copies in the background come from. By matrix units, they lie evenly."""
    copies: Number = np.zeros(())
    if any(w.by_warp for w in k.work):
        return copies
    for w in k.work:
        each = number(w.unrolled, env) / np.clip(number(w.lanes, env), 1.0, 4.0)
        copies = copies + np.where(number(w.stages, env) > 0, each, 0.0)
    return PLACE_REGISTERS * copies


def _resident(threads: Number, shared: Number, registers: Number, m: GpuRates) -> Number:
    """Blocks that a processor holds at a time."""
    warps = np.ceil(threads / WARP)
    resident = np.minimum(m.sm_blocks, np.floor(m.sm_threads / (warps * WARP)))
    resident = np.minimum(resident, np.floor(m.sm_shared / np.maximum(shared + m.taken_shared, 1.0)))
    return np.minimum(resident, np.floor(m.registers / (np.minimum(registers, 255.0) * warps * WARP)))


def occupancy(threads: Number, shared: Number, registers: Number, m: GpuRates) -> Number:
    """Share of a processor's threads that resident blocks fill, or a column of it. ``threads`` and ``shared``
    (bytes) are of a block, ``registers`` of a thread."""
    return filled(threads, _resident(threads, shared, registers, m), m)


def filled(threads: Number, resident: Number, m: GpuRates) -> Number:
    """Share of a processor's threads that ``resident`` blocks fill."""
    return np.minimum(1.0, resident * np.ceil(threads / WARP) * WARP / m.sm_threads)


def within(facts: tuple[KernelFacts, ...], env: Columns, m: GpuRates) -> Number:
    """Whether a candidate keeps the limits of the target, or a column of such truths."""
    ok: Number = np.True_
    for k in facts:
        x = shape(k, env, m)
        ok = ok & (x.threads <= m.threads) & (x.shared <= m.shared) & (x.resident >= 1)
        ok = ok & (x.registers <= m.thread_registers) & (x.blocks < 2**31) & x.fits
        code: Number = np.zeros(())
        for w in k.work:
            code = code + number(w.unrolled, env) * w.code_size
            ok = ok & (number(w.unrolled, env) <= MOST_UNROLLED) & (number(w.longest, env) <= MAX_UNROLL)
        ok = ok & (code <= MOST_CODE)
    return ok
