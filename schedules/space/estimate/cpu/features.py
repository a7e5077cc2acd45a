"""Features of candidates for CPUs: the quantities of the hottest blocks one by one, and sums over all
blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from schedules.constants import split_constants
from schedules.ir import Nest
from schedules.space.estimate.base import Formulas
from schedules.space.estimate.counting import Number
from schedules.space.estimate.cpu.facts import BlockFacts, analyse
from schedules.space.estimate.cpu.limits import within
from schedules.space.estimate.cpu.quantities import FEATURES_PER_BLOCK, measure
from schedules.space.estimate.cpu.rates import CpuRates

# Clock that turns cycles into seconds in estimates (GHz). Estimates only rank.
GIGAHERTZ = 3.0
# Blocks with features of their own, hottest first. The rest are summed.
HOT_BLOCKS = 3


def _of_a_call(nest: Nest, constants: Sequence[str]) -> tuple[BlockFacts, ...]:
    """The facts of one call. Packing of constants is not part of it."""
    return analyse(split_constants(nest, constants)[0])


def _totals(facts: tuple[BlockFacts, ...], sums: Mapping[str, Number]) -> dict[str, Number]:
    return {
        "blocks": len(facts),
        "total.cycles": sums["cycles"],
        "total.memory_bytes": sums["memory_bytes"],
        "total.special": sum(b.special for b in facts),
        "est_time_s": sums["cycles"] / (GIGAHERTZ * 1e9),
    }


CPU_FORMULAS = Formulas(
    _of_a_call,
    CpuRates.of,
    measure,
    within,
    "block",
    FEATURES_PER_BLOCK,
    HOT_BLOCKS,
    ("cycles", "memory_bytes"),
    _totals,
)
FEATURE_NAMES = CPU_FORMULAS.feature_names
