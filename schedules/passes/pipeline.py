"""The passes in order: those that every target has, then those for CPUs, or for grids of threads.

Before them come `partial_sums` and `expand_blocks`.
"""

from __future__ import annotations

from collections.abc import Callable

from schedules.expr import loads
from schedules.ir import Block, Nest, Stmt, blocks
from schedules.passes.align_streamed_tiles import align_streamed_tiles
from schedules.passes.compact import compact
from schedules.passes.drop_harmless_guards import drop_harmless_guards
from schedules.passes.partition import partition
from schedules.passes.prefetch import prefetch
from schedules.passes.promote import promote
from schedules.passes.share_storage import share_storage
from schedules.passes.simplify import simplify
from schedules.passes.software_pipeline import software_pipeline
from schedules.passes.storage_align import storage_align
from schedules.passes.tensorize import tensorize
from schedules.passes.tighten_bounds import tighten_bounds
from schedules.passes.unswitch import unswitch

Pass = Callable[[Stmt], Stmt]
Passes = list[tuple[str, Pass]]  # by name


def shared(nest: Nest) -> Passes:
    """From blocks written out to final loops."""
    params = tuple(nest.buffer(n) for n in nest.params)
    intermediate = tuple(b for b in nest.buffers if b.name not in nest.params)
    return [
        # sizes and guards are read off simplified indices
        ("simplify", simplify),
        ("compact", lambda s: compact(s, intermediate)),
        # indices are now relative to their region: fold them again
        ("simplify", simplify),
        # before partition, so that only guards that matter cost a copy of the loop
        ("drop_harmless_guards", lambda s: drop_harmless_guards(s, params)),
        ("partition", partition),
        # what partition could not decide
        ("unswitch", unswitch),
        # last, because it makes extents depend on outer loops
        ("tighten_bounds", tighten_bounds),
        ("simplify", simplify),
    ]


def for_cpus(nest: Nest) -> Passes:
    params = tuple(nest.buffer(n) for n in nest.params)
    dtypes = {b.name: b.dtype for b in nest.buffers}
    stay = tuple(n for n in nest.outputs if n not in streamed(nest))
    by_lines = streamed(nest, (2,))
    return [
        *shared(nest),
        # tails are decided: what is left of them shows where loops overlap
        ("share_storage", lambda s: share_storage(s, params, stay)),
        # needs the final loops: guards would be in its way
        ("promote", lambda s: promote(s, dtypes)),
        # what is not in registers by now is in memory
        ("storage_align", storage_align),
        # stages are what they will be
        ("software_pipeline", software_pipeline),
        # tiles are what they will be
        ("align_streamed_tiles", lambda s: align_streamed_tiles(s, params, by_lines)),
        # where the code is that reads
        ("prefetch", lambda s: prefetch(s, tuple(n for n in nest.params if n not in nest.outputs))),
        # last: no other pass has to know instructions
        ("tensorize", lambda s: tensorize(s, params)),
    ]


def for_grids(nest: Nest) -> Passes:
    """Of all kernels together; `schedules.passes.simt` goes on with each."""
    # local buffers will be registers anyway
    dtypes = {b.name: b.dtype for b in nest.buffers if b.scope != "local"}
    return [*shared(nest), ("storage_align", storage_align), ("promote", lambda s: promote(s, dtypes))]


def streamed(nest: Nest, hints: tuple[int, ...] = (1, 2)) -> tuple[str, ...]:
    """Outputs that only blocks with one of these hints write, and none reads."""
    every = blocks(nest.body)
    read = {x.buffer for b in every for v in (*b.values, *b.where) for x in loads(v)}

    def hinted(b: Block) -> bool:
        return b.reducer is None and dict(b.annotations).get("nontemporal") in hints

    return tuple(
        n
        for n in nest.outputs
        if n not in read and all(hinted(b) for b in every if any(w.buffer == n for w in b.writes))
    )
