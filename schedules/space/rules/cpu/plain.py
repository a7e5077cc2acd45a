"""The last resort: every stage on loops of its own, so that every expression has a space."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from schedules.errors import ScheduleError
from schedules.ir.nest import vars_bound
from schedules.space.sketch_builder import SketchBuilder, extent


def schedule_plainly(d: SketchBuilder) -> None:
    """Schedule each stage if no combination of the other rules is legal: its outermost loop parallel, its
    last spatial loop in vectors, each only if that is legal. Raises nothing."""
    d.words.append("separate")
    for name in d.s.blocks():
        _vectorize(d, name)
        if d.threads > 1 and d.loops(name):
            _try(partial(d.s.parallel, d.loops(name)[0].var))


def _vectorize(d: SketchBuilder, name: str) -> None:
    b = d.block(name)
    loops = d.loops(name)
    if not loops or loops[-1].var not in vars_bound(b, "spatial") or extent(loops[-1]) == 1:
        return
    last = loops[-1]
    lanes = d.lanes_of(d.dtype(b))
    if extent(last) <= lanes:
        _try(partial(d.s.vectorize, last.var))
    elif _try(partial(d.s.split, last.var, (None, lanes))):
        _try(partial(d.s.vectorize, d.loops(name)[-1].var))


def _try(step: Callable[[], object]) -> bool:
    try:
        step()
    except ScheduleError:
        return False
    return True
