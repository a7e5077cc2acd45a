"""Rule for streaming stores: large outputs that nothing reads again are written around the caches.

An ordinary store first fetches its line, so that a copy moves three bytes for two. An output that fits the
third cache is written there sooner, and read sooner by the next operator: docs/measurements/memory-access.md.
"""

from __future__ import annotations

from schedules.dtypes import DTYPES
from schedules.ir import Block, Nest, blocks, nbytes, rows_are_lines
from schedules.ir.nest import reads, writers
from schedules.microarchitecture import third_cache_bytes
from schedules.model import LINE
from schedules.space.rules.patterns import depends, extents, unit_stride_vars, vector_axis
from schedules.space.sketch_builder import SketchBuilder


def stream_outputs(d: SketchBuilder) -> None:
    """Offer streaming stores for every output that does not fit the third cache beside the inputs, is written
    once and not read. A transposition writes pieces of rows, which leave the write buffers as whole lines
    only if they begin with one: `align_streamed_tiles` must be able to move it."""
    nest = d.s.nest
    held = bytes_of_arguments(nest)
    if held <= third_cache_bytes(d.target) * d.threads:
        return
    read = {x.buffer for b in blocks(nest.body) for x in reads(b)}
    for name in nest.outputs:
        made = writers(nest, name)
        in_order = all(_in_order(nest, b) for b in made)
        final = all(b.reducer is None and len(b.writes) == 1 for b in made) and name not in read
        given = all(x.buffer in nest.params for b in made for x in reads(b))
        lines = rows_are_lines(nest.buffer(name))
        if final and (in_order or (given and lines)) and 8 * nbytes(nest.buffer(name)) >= held:
            stream = d.choice(f"{name}.stream", (0, 2 if lines else 1))
            for b in made:
                d.s.annotate(b.name, "nontemporal", stream)


def bytes_of_arguments(nest: Nest) -> int:
    """Bytes of all inputs and outputs."""
    return sum(nbytes(nest.buffer(name)) for name in nest.params)


def beyond_caches(d: SketchBuilder) -> bool:
    """Whether a call finds little of its arguments in the cores' own caches."""
    return bytes_of_arguments(d.s.nest) > d.target.limit("l2_bytes", 512 << 10) * d.threads


def _in_order(nest: Nest, b: Block) -> bool:
    """Whether a block writes in the order in which it reads. Rows that are shorter than a line count only if
    they are walked as one: alone, each leaves as pieces of lines."""
    v = vector_axis(b)
    if v is None:
        return True
    short = extents(b)[v] * DTYPES[nest.buffer(b.writes[0].buffer).dtype].itemsize < LINE
    if short and not all(x.indices == w.indices for x in reads(b) for w in b.writes):
        return False
    if short and any(nest.buffer(w.buffer).strides is not None for w in b.writes):
        return False
    return all(not depends(x, v) or v in unit_stride_vars(nest, x) for x in reads(b))
