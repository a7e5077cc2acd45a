"""Traffic of a buffer as a quotient: all iterations of its block over the tile of the axes that it has not.

A product of tiles v1 x v2 reads i·j·k / v2 elements of one operand and i·j·k / v1 of the other: n³/v1 +
n³/v2. Nothing here knows products: the divisor is what the loops inside cover of those axes, and the quotient
is told only where it is the traffic that follows from the footprints (`traffic`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Var
from schedules.ir import Block, Nest, blocks, const
from schedules.ir.nest import loops_of, reads
from schedules.space.estimate.traffic import BufferTraffic


@dataclass(frozen=True, slots=True)
class Quotient:
    """``axes``: (name, extent) of a block's axes; ``divisor``: what their product is divided by. The result
    is in elements."""

    axes: tuple[tuple[str, int], ...]
    divisor: int

    def __str__(self) -> str:
        product = "·".join(name for name, _ in self.axes)
        return product if self.divisor == 1 else f"{product} / {self.divisor:,}"

    @property
    def elements(self) -> int:
        """The value."""
        return math.prod(n for _, n in self.axes) // self.divisor


def quotient(nest: Nest, traffic: BufferTraffic) -> Quotient | None:
    """What the block that reads a buffer fetches of it, as a quotient. None where it is none, as for windows,
    tails and several readers."""
    users = [b for b in blocks(nest.body) if any(x.buffer == traffic.buffer for x in reads(b))]
    if len(users) != 1:
        return None
    (b,) = users
    loops = loops_of(nest, b.name)
    names = [x.var for x in loops]
    parts = [p for p in traffic.parts if p.loop in names]  # others are what writes it
    if len(parts) != 1:
        return None
    (part,) = parts
    own = _axes(b)
    inside = {x.var for x in loops[names.index(part.loop) :]}
    tile = dict.fromkeys((i.var for i in b.iters), 1)
    for x in loops:
        if len(of := own.get(x.var, [])) > 1:
            return None
        if of and x.var in inside:
            tile[of[0]] *= const(x.extent) or 1
    indices = [i for x in reads(b) if x.buffer == traffic.buffer for i in x.indices]
    if not all(isinstance(i, Var) for i in indices):
        return None
    used = {i.name for i in indices if isinstance(i, Var)}
    axes = tuple((i.var, const(i.extent) or 1) for i in b.iters if (const(i.extent) or 1) > 1)
    found = Quotient(axes, math.prod(n for v, n in tile.items() if v not in used))
    exact = math.prod(n for _, n in axes) == found.elements * found.divisor
    item = DTYPES[nest.buffer(traffic.buffer).dtype].itemsize
    return found if exact and found.elements * item == part.times * part.bytes else None


def _axes(b: Block) -> dict[str, list[str]]:
    """{loop: axes that it moves}."""
    out: dict[str, list[str]] = {}
    for i, e in zip(b.iters, b.binds, strict=True):
        for v in E.variables(e):
            out.setdefault(v, []).append(i.var)
    return out
