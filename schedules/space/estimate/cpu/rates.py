"""What the estimates know of a CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from schedules import microarchitecture
from schedules.ir.instruction import Instruction
from schedules.model import Target

# Latency of an addition to an accumulator (cycles).
ADD_CYCLES = 4.5
# Bytes a cycle that rows of tiles come with from the second cache at most.
TILE_BYTES = 44.0


@dataclass(frozen=True, slots=True)
class CpuRates:
    """Sizes (bytes) and rates (per cycle of one core) of a target, as the estimates need them."""

    vector: float
    registers: float
    l1: float
    l2: float
    l3: float
    threads: float
    passes: float = 1.0  # cycles that a vector occupies a unit or a port
    rates: tuple[float, ...] = microarchitecture.RATES
    latency: float = ADD_CYCLES
    cost: float | None = None  # of a point, in multiply-adds of vectors; None: by its operations
    costs: tuple[tuple[str, float], ...] = ()  # of instructions, where it is not `Instruction.cost`

    @staticmethod
    def of(target: Target) -> CpuRates:
        """The sizes and rates of a target."""
        vector = float(target.limit("vector_bytes", 16))
        return CpuRates(
            vector,
            float(target.limit("vector_registers", 16)),
            float(target.limit("l1_bytes", 32 << 10)),
            float(target.limit("l2_bytes", 512 << 10)),
            float(microarchitecture.third_cache_bytes(target)),
            float(target.threads),
            max(vector / microarchitecture.unit_width(target, vector), 1.0),
            microarchitecture.rates(target),
            costs=microarchitecture.instruction_costs(target),
        )

    def of_instruction(self, ins: Instruction | None) -> CpuRates:
        """Those of the unit that runs an instruction: the vectors', where it has none of its own."""
        if ins is None:
            return self
        unit = replace(
            self,
            cost=dict(self.costs).get(ins.name, ins.cost),
            latency=ADD_CYCLES if ins.latency is None else ins.latency,
        )
        if (held := ins.registers) is None:
            return unit
        rates = min(self.rates[0], TILE_BYTES), *self.rates[1:]
        return replace(unit, vector=float(held.bytes), registers=float(held.count), rates=rates)

    def steps(self, flops: int, integer_steps: int) -> float:
        """Multiply-adds of vectors that take as long as a point of so many operations; ``integer_steps``: of
        integers, if it computes these."""
        return self.cost if self.cost is not None else integer_steps or (flops + 1) // 2
