"""What the estimates know of a CPU."""

from __future__ import annotations

from dataclasses import dataclass

from schedules import microarchitecture
from schedules.model import Target


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
        )
