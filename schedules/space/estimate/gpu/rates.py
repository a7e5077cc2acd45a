"""Limits and rates of a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from schedules.gpu_architectures import matrix_rate, shared_room, taken_shared
from schedules.model import Target

# Threads of a warp.
WARP = 32


@dataclass(frozen=True, slots=True)
class GpuRates:
    """Limits and rates of a GPU, from `Target.limits`."""

    sms: float
    threads: float  # of a block at most
    sm_threads: float
    sm_blocks: float
    shared: float  # bytes, of a block at most
    sm_shared: float
    taken_shared: float  # bytes that each block takes of it besides its own
    registers: float  # 32 bits each, of a block and of an SM
    thread_registers: float
    fma: float  # a cycle and SM, float32
    clock: float  # Hz
    bandwidth: float  # bytes a second
    products: float  # multiply-adds of 16-bit floats of matrix units, a cycle and SM; 0: there are none

    @staticmethod
    def of(target: Target) -> GpuRates:
        """The limits and rates of a target, with defaults where it states none."""

        def limit(name: str, default: int) -> float:
            return float(target.limit(name, default))

        shared, taken = float(shared_room(target)), float(taken_shared(target))
        return GpuRates(
            limit("sms", 108), limit("block_threads", 1024), limit("sm_threads", 2048),
            limit("sm_blocks", 32), shared, max(shared + taken, limit("sm_shared_bytes", 164 << 10)), taken,
            limit("registers", 65536), limit("thread_registers", 255), limit("fma", 64),
            1e6 * limit("clock_mhz", 1400), 1e9 * limit("bandwidth_gbs", 1500),
            float(matrix_rate(target)),
        )  # fmt: skip
