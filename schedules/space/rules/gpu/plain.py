"""The rule for all other stages: a thread for each element, with its reduction in a loop."""

from __future__ import annotations

from schedules.ir.nest import vars_bound
from schedules.space.sketch_builder import SketchBuilder

# Threads of a block that are offered.
THREADS = (32, 64, 128, 256)


def schedule_plainly(d: SketchBuilder, name: str) -> None:
    """Spatial loops as one, over blocks of threads; reductions stay serial."""
    b = d.block(name)
    spatial = [x.var for x in d.loops(name) if x.var in vars_bound(b, "spatial")]
    reduce = [x.var for x in d.loops(name) if x.var not in spatial]
    if not spatial:
        return
    if reduce:
        d.s.reorder(*spatial, *reduce)
    flat = d.fused(spatial)
    block, thread = d.s.split(flat, (None, d.choice(f"{name}.threads", THREADS)))
    d.s.bind(block, "blockIdx.x")
    d.s.bind(thread, "threadIdx.x")


def schedule_each_plainly(d: SketchBuilder) -> None:
    """Schedule every stage as a kernel of its own."""
    d.words.append("separate")
    for name in d.s.blocks():
        schedule_plainly(d, name)
