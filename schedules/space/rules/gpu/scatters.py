"""Rule for scatters on GPUs: a thread for each term, whose update is atomic (`schedules.ir.Atomic`).

Neighbouring threads take neighbouring elements of a term's row where it has one. Where many terms go to few
elements, threads would wait for each other: then the output has copies, which neighbouring threads add to in
turns, and another kernel joins them.
"""

from __future__ import annotations

from math import prod

from schedules.ir.nest import init_name, vars_bound
from schedules.space.rules.gpu.maps import schedule_map
from schedules.space.rules.gpu.plain import schedule_plainly
from schedules.space.rules.patterns import extents
from schedules.space.sketch_builder import SketchBuilder, extent

# Threads of a block that are offered.
THREADS = (64, 128, 256, 512)
# Copies of the output that are offered.
COPIES = (8, 32, 128)
# Fewest terms of an element of the output for which copies are offered, and most elements of all copies.
TERMS, MOST_COPIED = 64, 1 << 22


def schedule_scatter(d: SketchBuilder, name: str) -> None:
    """Schedule a block whose terms go to places of their own."""
    b = d.block(name)
    n = extents(b)
    size = prod(int(getattr(x, "value", 0)) for x in d.s.nest.buffer(b.writes[0].buffer).shape)
    terms = prod(n.values())
    few = terms >= TERMS * size and size * COPIES[-1] <= MOST_COPIED
    if not few or not d.choose(f"{name}.by", ("", "copies")):
        _of_threads(d, name)
        return
    reduce = [x for x in d.loops(name) if x.var in vars_bound(b, "reduce")]
    _, copy = d.s.split(max(reduce, key=extent).var, (None, d.choice(f"{name}.copies", COPIES)))
    part = d.s.rfactor(name, copy)
    _of_threads(d, part)
    schedule_map(d, init_name(part))
    schedule_plainly(d, name)


def _of_threads(d: SketchBuilder, name: str) -> None:
    """A thread for each update."""
    flat = d.fused([x.var for x in d.loops(name)])
    block, thread = d.s.split(flat, (None, d.choice(f"{name}.threads", THREADS)))
    d.s.bind(block, "blockIdx.x")
    d.s.bind(thread, "threadIdx.x")
