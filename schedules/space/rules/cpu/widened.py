"""Operands of floating-point products that are widened while they are copied.

Numbers of storage are converted where they are used. An operand of a product is used many times, and
conversions in the innermost loop take as long as multiplying. A copy converts each element once (`widen`).
"""

from __future__ import annotations

from collections.abc import Collection

from schedules import expr as E
from schedules.dtypes import holds, is_float, is_storage
from schedules.expr import Cast, Load
from schedules.instructions.match import Fit
from schedules.ir import Block
from schedules.space.rules.cpu.copies import schedule_copy
from schedules.space.rules.parts import copy_read
from schedules.space.rules.patterns import is_gathered, operands, uses
from schedules.space.sketch_builder import SketchBuilder

# Fewest uses of an operand that is widened: a copy has more bytes, which have to be written and read.
WIDENED_USES = 16


def stored_operands(p: Block) -> dict[Load, str]:
    """{operand that is of storage: the floating-point dtype that it is converted to}."""
    out, own = {}, operands(p)
    for e in (e for v in p.values for e in E.walk(v)):
        match e:
            case Cast(a=Load(dtype=old) as x, dtype=new) if x in own and is_storage(old) and is_float(new):
                if holds(new, old):
                    out[x] = new
    return out


def may_be_wide(d: SketchBuilder, p: Block, x: Load) -> bool:
    """Whether a widened copy of an operand may pay: what is made in every call is used many times."""
    return not is_gathered(x) and (x.buffer in d.s.dag.constants or uses(p, x) >= WIDENED_USES)


def may_widen(d: SketchBuilder, p: Block, fits: Collection[Fit]) -> bool:
    """Whether widened copies of operands of storage may pay: none of ``fits`` is faster than vectors, and all
    are used often, even what is known ahead, as memory else takes as long as converting."""
    found, usual = stored_operands(p), 0.5 / d.lanes_of(d.dtype(p))
    if not found or any(x.instruction.cost_each < usual for x in fits):
        return False
    return all(not is_gathered(x) and uses(p, x) >= WIDENED_USES for x in found)


def widen(d: SketchBuilder, producer: str, copy: str = "") -> None:
    """Widen an operand of ``producer`` in its ``copy``; without one all that are of storage still, those that
    are arguments by a copy made before."""
    while True:
        found = stored_operands(d.block(producer))
        x = next((x for x in found if copy in ("", x.buffer)), None)
        if x is None:
            return
        dtype = found[x]
        if x.buffer not in d.s.nest.params:
            d.s.widen(x.buffer, dtype)
            continue
        name = copy_read(d, producer, x)
        d.s.widen(name, dtype)
        schedule_copy(d, name, parallel=True)
        d.done.add(name)
