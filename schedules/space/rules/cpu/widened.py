"""Operands of floating-point products that are widened while they are copied.

Numbers of storage are converted where they are used. An operand of a product is used many times, and
conversions in the innermost loop take as long as multiplying. A copy converts each element once (`widen`).
"""

from __future__ import annotations

import math
from collections.abc import Collection

from schedules import expr as E
from schedules.dtypes import is_float, is_storage
from schedules.expr import Cast, Load
from schedules.instructions.match import Fit
from schedules.ir import Block
from schedules.space.rules.cpu.copies import schedule_copy
from schedules.space.rules.parts import copy_read
from schedules.space.rules.patterns import depends, extents, is_gathered, operands, spatial
from schedules.space.sketch_builder import SketchBuilder

# Fewest uses of an operand that is widened: a copy has more bytes, which have to be written and read.
WIDENED_USES = 16


def stored_operands(p: Block) -> dict[Load, str]:
    """{operand that is of storage: the floating-point dtype that it is converted to}."""
    casts = (e for v in p.values for e in E.walk(v) if isinstance(e, Cast) and isinstance(e.a, Load))
    own = operands(p)
    return {
        e.a: e.dtype
        for e in casts
        if isinstance(e.a, Load) and e.a in own and is_storage(e.a.dtype) and is_float(e.dtype)
    }


def may_widen(d: SketchBuilder, p: Block, fits: Collection[Fit]) -> bool:
    """Whether operands of storage are used so often that widened copies may pay, and none of ``fits`` is
    faster than vectors."""
    n, found = extents(p), stored_operands(p)
    usual = 0.5 / d.lanes_of(d.dtype(p))
    if not found or any(x.instruction.cost / x.instruction.operations < usual for x in fits):
        return False
    uses = [math.prod(n[a] for a in spatial(p) if not depends(x, a)) for x in found]
    return min(uses) >= WIDENED_USES and not any(is_gathered(x) for x in found)


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
