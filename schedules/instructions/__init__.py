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
from schedules.instructions.dot_products import VDPBF16PS, VPDPBUSD, VPDPBUSD_SWAPPED
from schedules.instructions.interleave import (
    INTERLEAVE2_BFLOAT16,
    INTERLEAVE4_INT8,
    INTERLEAVE4_UINT8,
    TURN2_BFLOAT16,
    TURN4_INT8,
    TURN4_UINT8,
)
from schedules.instructions.tile_products import (
    TDPBF16PS,
    TDPBSSD,
    TDPBSUD,
    TDPBUSD,
    TDPBUUD,
    TILEZERO_FLOAT32,
    TILEZERO_INT32,
)
from schedules.ir.instruction import Instruction

__all__ = ["INSTRUCTIONS", "Instruction"]

INSTRUCTIONS: Mapping[str, Instruction] = MappingProxyType(
    {
        x.name: x
        for x in (
            INTERLEAVE2_BFLOAT16,
            INTERLEAVE4_INT8,
            TURN2_BFLOAT16,
            TURN4_INT8,
            TURN4_UINT8,
            INTERLEAVE4_UINT8,
            VDPBF16PS,
            VPDPBUSD,
            VPDPBUSD_SWAPPED,
            SDOT, UDOT, USDOT, SUDOT, BFDOT, SMMLA, UMMLA, USMMLA, BFMMLA,
            TILEZERO_FLOAT32,
            TILEZERO_INT32,
            TDPBF16PS,
            TDPBUSD,
            TDPBSSD,
            TDPBSUD,
            TDPBUUD,
        )
    }
)
