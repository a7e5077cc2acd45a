"""Instructions of machines, one kind a file. A new kind is a file here and a line in `INSTRUCTIONS`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from schedules.instructions.arm import (
    BFDOT,
    BFMMLA,
    SDOT,
    SMMLA,
    SUDOT,
    UDOT,
    UMMLA,
    USDOT,
    USMMLA,
)
from schedules.instructions.dot_products import VDPBF16PS, VPDPBUSD
from schedules.instructions.interleave import INTERLEAVE2_BFLOAT16, INTERLEAVE4_INT8
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
            SDOT, UDOT, USDOT, SUDOT, BFDOT, SMMLA, UMMLA, USMMLA, BFMMLA,
        )
    }
)
