"""Instructions of machines, one kind a file, with a table of them. A new kind is a file here and its name in
`INSTRUCTIONS`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from schedules.instructions import (
    arm,
    dot_products,
    interleave,
    tile_products,
    warp_loads,
    warp_products,
    widened_products,
)
from schedules.ir.instruction import Instruction

__all__ = ["INSTRUCTIONS", "Instruction"]

KINDS = (interleave, dot_products, tile_products, widened_products, arm, warp_products, warp_loads)
INSTRUCTIONS: Mapping[str, Instruction] = MappingProxyType(
    {
        x.name: x
        for kind in KINDS
        for x in kind.TABLE
    }
)
