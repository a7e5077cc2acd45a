"""What the name of a CPU tells that its limits do not: for estimates and for the choice of a model."""

from __future__ import annotations

from schedules.model import Target

WIDTHS = {"znver1": 16.0, "znver4": 32.0}  # bytes of a unit, where a vector passes through one in parts
RATES = (64.0, 16.0, 6.0)  # bytes a cycle from the second cache, the third and memory
SERVER_RATES = (64.0, 16.0, 4.0)  # of Intel's servers
MOST_L3 = 48 << 20  # bytes that count for a core: a virtual machine may name all that its host has
WITH_AMX = ("sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d")  # of Intel's servers
BESIDE_AMX = (("vdpbf16ps", 4.0),)  # multiply-adds of vectors that take as long, on these
SERVERS = ("skylake-avx512", "cascadelake", "cooperlake", "icelake-server")  # of these, those without AMX


def is_intel_server(target: Target) -> bool:
    """Whether cores reach a large, slow third cache and memory over a mesh. All newer ones have AMX, and are
    known by it where a virtual machine says it is another CPU."""
    return target.arch in SERVERS or "amx-tile" in target.features


def unit_width(target: Target, vector: float) -> float:
    """Bytes of a unit that multiplies and adds vectors of so many."""
    return WIDTHS.get(target.arch, vector)


def third_cache_bytes(target: Target) -> int:
    """Bytes of the third cache that one core may count on."""
    return min(target.limit("l3_bytes", 8 << 20), MOST_L3)


def rates(target: Target) -> tuple[float, ...]:
    """Bytes a cycle that one core gets from its second cache, from the third and from memory."""
    return SERVER_RATES if is_intel_server(target) else RATES


def instruction_costs(target: Target) -> tuple[tuple[str, float], ...]:
    """(instruction, multiply-adds of vectors that take as long) of those that differ from `Instruction.cost`
    on this CPU. Measured: docs/measurements/instructions.md."""
    return BESIDE_AMX if target.arch in WITH_AMX or "amx-tile" in target.features else ()
