"""Inline: elementwise stages disappear into their readers (Ansor: AlwaysInline)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import prod

from schedules import expr as E
from schedules.functions import is_costly
from schedules.ir import Block, Nest, blocks
from schedules.ir.nest import find_block, readers, reads, writers
from schedules.primitives.inline import Inline, outgrown
from schedules.space.estimate.counting import arithmetic
from schedules.space.rules.patterns import (
    MAX_INLINED,
    computed_again,
    extents,
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

# Largest expression of a reader for whose neighbours a stage would be computed again: different nodes, and
# nodes as they are written, which take time to compile.
MAX_AGAIN, MAX_WRITTEN = 256, 2048
# Before a way: it is that of the one stage that is kept.
ONE = "one-"
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
    whose values would then be computed several times may stay, all of them or none, or the one that saves
    most: a structural choice. ``ways``: what then becomes of them. ``stay``: stages that are not inlined.
    Returns the way, "" if none stay."""
    again: str | None = None
    kept = ""
    for name in d.s.blocks():
        nest, b = d.s.nest, d.block(name)
        if name in stay or not is_map(b) or len(b.writes) != 1:
            continue
        if b.writes[0].buffer in nest.params or outgrows(nest, b):
            continue
        users = readers(nest, b.writes[0].buffer)
        if not users or len(writers(nest, b.writes[0].buffer)) > 1:
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
        if is_costly(b.values) and (wider or len(users) > 1 or tiled):
            continue
        if computed_again(nest, b):
            large = _grows_large(nest, b)
            if again is None:
                kept = saves_most(nest, stay)
                every = [*ways, *(f"{ONE}{way}" for way in ways)] if kept else ways
                again = d.choose("stages", (*every,) if large else ("", *every))
            if large or (name == kept if again.startswith(ONE) else again):
                continue
        d.s.inline(name)
    return (again or "").removeprefix(ONE)


def saves_most(nest: Nest, stay: Collection[str] = ()) -> str:
    """Of two stages or more that readers would compute again, the one that spares most operations if it is
    kept while the others are computed where they are read; "" where there are fewer, or the others would
    grow large. ``stay``: stages that are kept anyway."""
    saved: dict[str, int] = {}
    uses: dict[str, int] = {}  # how often a point of a root asks for a stage
    for b in reversed([x for x in blocks(nest.body) if is_map(x) and len(x.writes) == 1]):
        made = b.writes[0].buffer
        users = readers(nest, made)
        uses[b.name] = max(1, sum(uses.get(u.name, 1) * _places(u, made) for u in users))
        if b.name not in stay and made not in nest.params and computed_again(nest, b):
            saved[b.name] = (uses[b.name] - 1) * max(1, sum(arithmetic(b)))
    if len(saved) < 2:
        return ""
    kept = max(saved, key=lambda x: saved[x])
    for name in reversed(saved):
        if name == kept:
            continue
        if _grows_large(nest, find_block(nest, name)):
            return ""
        nest = Inline(name).apply(nest)
    return kept


def _places(user: Block, buffer: str) -> int:
    """At how many places a point of a block reads a buffer."""
    return len({x.indices for x in reads(user) if x.buffer == buffer})


def _grows_large(nest: Nest, b: Block) -> bool:
    """Whether a reader would do more than `MAX_AGAIN` different operations with a stage inlined. What stands
    in it several times is computed once."""
    if outgrown(nest, b, MAX_AGAIN, MAX_INLINED[1]) is None:
        return False
    if outgrown(nest, b, MAX_WRITTEN, MAX_INLINED[1]) is not None:
        return True
    inlined = Inline(b.name).apply(nest)
    users = {u.name for u in readers(nest, b.writes[0].buffer)}
    values = (v for u in blocks(inlined.body) if u.name in users for v in u.values)
    return any(E.different(v) > MAX_AGAIN for v in values)


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
