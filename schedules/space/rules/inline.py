"""Inline: elementwise stages disappear into their readers (Ansor: AlwaysInline)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import prod

from schedules.ir import Block, Nest
from schedules.ir.nest import readers
from schedules.primitives.inline import outgrown
from schedules.space.rules.patterns import (
    MAX_INLINED,
    computed_again,
    extents,
    is_costly,
    is_filled,
    is_guarded_copy,
    is_map,
    is_row_reduction,
    operands,
    outgrows,
    spatial,
    uses,
)
from schedules.space.sketch_builder import SketchBuilder

# Largest expression (nodes) of a reader for whose neighbours a stage would be computed again.
MAX_AGAIN = 256
# Fewest results that need a byte for it to be made ahead.
FEWEST_USES = 3

Padding = Callable[[SketchBuilder, Block, list[Block]], bool | None]


def inline_stages(
    d: SketchBuilder,
    padding: Padding,
    costly_in_tiles: bool,
    ways: Sequence[str] = ("kept",),
    stay: Collection[str] = (),
) -> str:
    """Inline every elementwise stage that is cheap or read once.

    ``padding(d, stage, readers)``: whether to inline a guarded copy that reductions read; None: as any other
    stage. ``costly_in_tiles``: whether a tiled reduction may compute a costly stage as it reads it. Stages
    whose values would then be computed several times may stay, all of them or none: a structural choice.
    ``ways``: what then becomes of them. ``stay``: stages that are not inlined. Returns the way, "" if
    none stay."""
    again: str | None = None
    for name in d.s.blocks():
        nest, b = d.s.nest, d.block(name)
        if name in stay or not is_map(b) or len(b.writes) != 1:
            continue
        if b.writes[0].buffer in nest.params or outgrows(nest, b):
            continue
        users = readers(nest, b.writes[0].buffer)
        if not users:
            continue
        reducing = [u for u in users if u.reducer is not None]
        if reducing and (_is_filled_with_zero_point(nest, b) or _is_factor(nest, b, reducing)):
            continue
        if is_guarded_copy(b) and reducing:
            inlined = padding(d, b, reducing)
            if inlined:
                d.s.inline(name)
            if inlined is not None:
                continue
        wider = any(_computes_again(nest, b, u) for u in users)
        tiled = not costly_in_tiles and any(not is_row_reduction(nest, u) for u in reducing)
        if is_costly(b) and (wider or len(users) > 1 or tiled):
            continue
        if computed_again(nest, b):
            large = outgrown(nest, b, MAX_AGAIN, MAX_INLINED[1]) is not None
            if again is None:
                again = d.choose("stages", (*ways,) if large else ("", *ways))
            if again or large:
                continue
        d.s.inline(name)
    return again or ""


def _is_filled_with_zero_point(nest: Nest, b: Block) -> bool:
    """Whether a stage pads bytes by a number that is loaded. An instruction reads it as it lies; inlined, the
    choice would stand between them."""
    return is_filled(b) and _is_byte(nest, b.writes[0].buffer)


def _is_factor(nest: Nest, b: Block, reducing: Sequence[Block]) -> bool:
    """Whether a stage makes bytes of what is wider, which a sum multiplies several times each: an instruction
    reads them, and not what would be computed in their place. What is made of bytes, such as codes of four
    bits, may be computed as it is read."""
    made = b.writes[0].buffer
    if not _is_byte(nest, made) or all(_is_byte(nest, x.buffer) for x in operands(b)):
        return False
    factors = [(u, x) for u in reducing for x in operands(u) if x.buffer == made and len(operands(u)) == 2]
    return any(u.reducer is not None and uses(u, x) >= FEWEST_USES for u, x in factors)


def _is_byte(nest: Nest, buffer: str) -> bool:
    return nest.buffer(buffer).dtype in ("int8", "uint8")


def _computes_again(nest: Nest, b: Block, user: Block) -> bool:
    """Whether a reader would compute a stage at more points than the stage has. Of a reduction that is tiled
    only the axes of its output count: the rule of tiles decides."""
    if is_row_reduction(nest, user) and prod(extents(user).values()) > prod(extents(b).values()):
        return True
    return len(spatial(user)) > len(b.iters)
