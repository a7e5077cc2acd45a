"""Where tensors lie that the steps of a model read and write, and which steps run in one go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from autotune.models.outline import KernelCall, Outline
from schedules.dtypes import DTYPES
from schedules.graph.graph import Argument, Island, PlaceMove
from schedules.graph.plan import Plan

WEIGHT, ARENA, INPUT, OUTPUT, STATE = range(5)
Segment = tuple[int, int] | Island  # (first call, number of calls)


@dataclass(frozen=True)
class ArgumentPlace:
    """Where an argument lies. ``base``: `WEIGHT`, in a ``weight`` as a memory keeps it; `ARENA`; `INPUT`,
    `OUTPUT` or `STATE` ``number``. ``offset``: in bytes. ``moves``: by what the call moves it, each with the
    bytes of a step."""

    base: int
    offset: int
    number: int = 0
    weight: Any = None
    moves: tuple[tuple[PlaceMove, int], ...] = ()


def place_of(outline: Outline, plan: Plan, name: str) -> ArgumentPlace:
    """The place of a tensor that is no weight. Outputs are numbered as `dict.fromkeys` leaves them."""
    if name in outline.views:
        return place_read(outline, plan, outline.views[name])
    outputs = list(dict.fromkeys(outline.outputs))
    if name in outputs:
        return ArgumentPlace(OUTPUT, 0, outputs.index(name))
    if name in outline.inputs:
        return ArgumentPlace(INPUT, 0, outline.inputs.index(name))
    states = [s.tensor for s in outline.states.values()]
    if name in states:
        return ArgumentPlace(STATE, 0, states.index(name))
    return ArgumentPlace(ARENA, plan.offsets[name])


def place_read(outline: Outline, plan: Plan, a: Argument) -> ArgumentPlace:
    """The place of what an argument reads, which is no weight."""
    found = place_of(outline, plan, a.tensor)
    itemsize = DTYPES[outline.tensors[a.tensor].dtype].itemsize
    moves = tuple((m, m.stride * itemsize) for m in a.moves)
    return replace(found, offset=found.offset + start_of(outline, a), moves=(*found.moves, *moves))


def start_of(outline: Outline, a: Argument) -> int:
    """The byte of its tensor at which an argument begins."""
    return a.start * DTYPES[outline.tensors[a.tensor].dtype].itemsize


def up(n: int, alignment: int) -> int:
    """The first multiple of ``alignment`` from ``n`` on."""
    return -(-n // alignment) * alignment


def segments(outline: Outline) -> list[Segment]:
    """The steps in order: islands, and between them calls that follow one another."""
    found: list[Segment] = []
    calls = 0
    for step in outline.steps:
        if isinstance(step, KernelCall):
            last = found[-1] if found else None
            if isinstance(last, tuple):
                found[-1] = (last[0], last[1] + 1)
            else:
                found.append((calls, 1))
            calls += 1
        else:
            found.append(step)
    return found
