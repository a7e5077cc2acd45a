"""Instructions of machines, one a file. A new one is a file here and a line in `INSTRUCTIONS`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from schedules.instructions.interleave import INTERLEAVE2_BFLOAT16, INTERLEAVE4_INT8
from schedules.instructions.vdpbf16ps import VDPBF16PS
from schedules.instructions.vpdpbusd import VPDPBUSD
from schedules.ir.instruction import Instruction

__all__ = ["INSTRUCTIONS", "Instruction"]

INSTRUCTIONS: Mapping[str, Instruction] = MappingProxyType(
    {
        x.name: x
        for x in (
            INTERLEAVE2_BFLOAT16,
            INTERLEAVE4_INT8,
            VDPBF16PS,
            VPDPBUSD,
        )
    }
)
