"""The passes in order: those of every target, then those for CPUs or for grids of threads.

`partial_sums` and `expand_blocks` come before them.
"""

from __future__ import annotations

from collections.abc import Callable

from schedules.ir import Block, Nest, Stmt, blocks, size_ranges
from schedules.ir.carried import carried_buffers
from schedules.ir.nest import reads
from schedules.passes.align_streamed_tiles import align_streamed_tiles
from schedules.passes.background import in_background
from schedules.passes.by_sizes import by_sizes
from schedules.passes.compact import compact
from schedules.passes.drop_harmless_guards import drop_harmless_guards
from schedules.passes.follow_domains import follow_domains, has_domains, mark_domains
from schedules.passes.narrow_lanes import LANES, narrow_lanes
from schedules.passes.open_sizes import largest, whole_lanes
from schedules.passes.partition import partition
from schedules.passes.prefetch import prefetch
from schedules.passes.promote import promote
from schedules.passes.results_in_place import results_in_place
from schedules.passes.share_storage import share_storage
from schedules.passes.simplify import simplify
from schedules.passes.software_pipeline import software_pipeline
from schedules.passes.storage_align import storage_align
from schedules.passes.tensorize import tensorize
from schedules.passes.tighten_bounds import tighten_bounds
from schedules.passes.unswitch import unswitch

Pass = Callable[[Stmt], Stmt]
# (name, pass) in order.
Passes = list[tuple[str, Pass]]


def shared(nest: Nest) -> Passes:
    """The passes of every target, from expanded blocks to final loops."""
    params = tuple(nest.buffer(n) for n in nest.params)
    intermediate = tuple(b for b in nest.buffers if b.name not in nest.params)
    ranges = size_ranges(nest.sizes)
    scans = bool(carried_buffers(nest))
    # Only where a call tells a size: code of other programs needs neither.
    lanes: Passes = [("whole_lanes", lambda s: whole_lanes(s, ranges))] if ranges else []
    room: Passes = [("largest", lambda s: largest(s, ranges))] if ranges else []
    wide = LANES if ranges else 0
    few: Passes = [
        ("narrow_lanes", narrow_lanes),
        ("drop_harmless_guards", lambda s: drop_harmless_guards(s, params, ranges)),
        ("by_sizes", lambda s: by_sizes(s, ranges)),
    ]
    # Only where blocks have domains that are no boxes: code of others needs neither.
    domains = has_domains(nest)
    marked: Passes = [("mark_domains", mark_domains)] if domains else []
    followed: Passes = [("follow_domains", lambda s: follow_domains(s, ranges))] if domains else []
    return [
        *lanes,
        # Sizes and guards are read from simplified indices.
        ("simplify", lambda s: simplify(s, ranges)),
        ("compact", lambda s: compact(s, intermediate, scans)),
        *room,
        # Indices are now relative to their region, so they are folded again.
        ("simplify", lambda s: simplify(s, ranges)),
        # Before partition, so that only guards that matter cost a copy of the loop.
        ("drop_harmless_guards", lambda s: drop_harmless_guards(s, params, ranges, wide)),
        *marked,
        ("partition", lambda s: partition(s, ranges)),
        # Only the rest of whole tiles has guards on lanes now.
        *(few if ranges else []),
        # Selects that partition could not decide.
        ("unswitch", lambda s: unswitch(s, in_background(nest))),
        *followed,
        # Last, because it makes extents depend on outer loops.
        ("tighten_bounds", tighten_bounds),
        ("simplify", lambda s: simplify(s, ranges)),
    ]


def for_cpus(nest: Nest, tails: bool = False) -> Passes:
    """The passes for CPUs. ``tails``: as of `tensorize`."""
    params = tuple(nest.buffer(n) for n in nest.params)
    dtypes = {b.name: b.dtype for b in nest.buffers}
    stay = tuple(n for n in nest.outputs if n not in streamed(nest))
    by_lines = streamed(nest, (2,))
    return [
        *shared(nest),
        # Tails are decided; the remaining ones show where loops overlap.
        ("share_storage", lambda s: share_storage(s, params, stay)),
        # Needs the final loops, without guards in its way.
        ("promote", lambda s: promote(s, dtypes)),
        # Whatever is not in registers now is in memory.
        ("storage_align", storage_align),
        # Stages are final.
        ("software_pipeline", software_pipeline),
        # Tiles are final.
        ("align_streamed_tiles", lambda s: align_streamed_tiles(s, params, by_lines)),
        # The places that read are final.
        ("prefetch", lambda s: prefetch(s, tuple(b for b in params if b.name not in nest.outputs))),
        # Before marked loops are instructions, as their places move.
        ("results_in_place", lambda s: results_in_place(s, tuple(b for b in params if b.name in stay))),
        # last: no other pass has to know instructions
        ("tensorize", lambda s: tensorize(s, params, tails)),
    ]


def for_grids(nest: Nest) -> Passes:
    """The passes for all kernels together. `schedules.passes.simt` goes on with each kernel."""
    # These become registers anyway.
    dtypes = {b.name: b.dtype for b in nest.buffers if b.scope not in ("local", "fragment")}
    return [*shared(nest), ("storage_align", storage_align), ("promote", lambda s: promote(s, dtypes))]


def streamed(nest: Nest, hints: tuple[int, ...] = (1, 2)) -> tuple[str, ...]:
    """Outputs that are never read and are written only by blocks with one of these values of the hint."""
    every = blocks(nest.body)
    read = {x.buffer for b in every for x in reads(b)}

    def hinted(b: Block) -> bool:
        return b.reducer is None and dict(b.annotations).get("nontemporal") in hints

    return tuple(
        n
        for n in nest.outputs
        if n not in read and all(hinted(b) for b in every if any(w.buffer == n for w in b.writes))
    )
