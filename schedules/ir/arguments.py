"""What callers give a program: an array for each parameter, but one for all that are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schedules.dtypes import DTYPES
from schedules.expr import Const
from schedules.ir.nodes import Buffer
from schedules.ir.strides import nbytes
from schedules.model import LINE


@dataclass(frozen=True)
class GivenArgument:
    """``buffer``: what a caller gives. ``parts``: the parameters in it, each with the byte that it begins
    at."""

    buffer: Buffer
    parts: tuple[tuple[Buffer, int], ...]


def arguments(params: Sequence[Buffer], joined: Sequence[Sequence[str]]) -> tuple[GivenArgument, ...]:
    """The arguments of these parameters, whose shapes are numbers. ``joined``: names of neighbours that lie
    in one array of integers, each from a line of memory on, the first at its beginning."""
    first = {group[0]: group for group in joined}
    later = {n for group in joined for n in group[1:]}
    named = {b.name: b for b in params}
    found = []
    for b in params:
        if b.name in first:
            found.append(_joined([named[n] for n in first[b.name]]))
        elif b.name not in later:
            found.append(GivenArgument(b, ((b, 0),)))
    return tuple(found)


def _joined(buffers: Sequence[Buffer]) -> GivenArgument:
    """The array of several parameters. Its dtype is as wide as theirs, so that its elements are aligned for
    theirs; it ends with a line, so that it also begins with one where it ends at the end of a page."""
    at, parts = 0, []
    for b in buffers:
        parts.append((b, at))
        at += -(-nbytes(b) // LINE) * LINE
    wide = "int64" if max(DTYPES[b.dtype].itemsize for b in buffers) == 8 else "int32"
    return GivenArgument(Buffer(buffers[0].name, (Const(at // DTYPES[wide].itemsize),), wide), tuple(parts))
