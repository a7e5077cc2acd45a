"""Static limits for CPUs: candidates beyond them cannot be good or take seconds to compile, and are not
built."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schedules.expr import Const
from schedules.primitives.unroll import MAX_UNROLL
from schedules.primitives.vectorize import MAX_LANES
from schedules.space.estimate.counting import Number, number
from schedules.space.estimate.cpu.facts import BlockFacts
from schedules.space.estimate.cpu.quantities import register_tile
from schedules.space.estimate.cpu.rates import CpuRates
from schedules.space.holes import Columns


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest values of one candidate."""

    spilled_registers: int = 6
    unrolled_vectors: int = 640  # vector operations in one unrolled body
    peeled_vectors: int = 2560  # vector operations in all copies of that body
    operations: int = 1 << 13  # arithmetic of all bodies and their copies, in vectors
    code: int = 320_000  # the same with that of indices and guards: about three seconds of compiling
    guarded_lanes: int = 3584  # lanes in one unrolled body that are read one by one behind a guard
    scratch_bytes: int = 1 << 30


def within(facts: tuple[BlockFacts, ...], env: Columns, m: CpuRates, limits: Limits | None = None) -> Number:
    """Whether a candidate keeps the limits, or a column of such truths."""
    limits = limits or Limits()
    ok: Number = np.True_
    operations: Number = np.zeros(())
    code: Number = np.zeros(())
    for b in facts:
        unit = m.of_instruction(b.instruction)
        tile = register_tile(b, env, unit)
        ok = ok & (tile.lanes <= MAX_LANES) & (tile.unrolled <= MAX_UNROLL)
        ok = ok & (tile.vectors <= limits.unrolled_vectors)
        vectors = tile.vectors * number(b.copies, env)
        ok = ok & (vectors <= limits.peeled_vectors)
        operations = operations + vectors * max(b.flops, 1)
        code = code + vectors * b.code
        if b.selects or b.copies != Const(1):  # guarded, or with ends that are peeled as they are guarded
            ok = ok & ((tile.gathers == 0) | (tile.unrolled * tile.lanes <= limits.guarded_lanes))
        if b.reduces:  # a tile of a single register cannot be made smaller
            single = tile.lanes * tile.unrolled * b.item <= unit.vector
            large = b.instruction is not None and b.instruction.registers is not None  # storing costs much
            ok = ok & (single | (tile.spills <= (0 if large else limits.spilled_registers)))
        scratch = sum(number(a.scratch, env) * a.item for a in b.accesses)
        ok = ok & (scratch <= limits.scratch_bytes)
    return ok & (operations <= limits.operations) & (code <= limits.code)
