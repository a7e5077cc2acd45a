"""Rule for scans on GPUs: a thread for each point of the other axes, which runs all steps.

Neighbouring threads take neighbouring points. What is returned alone is stored in the step that makes it,
from registers, which keep the last steps. What other stages read lies in memory.
"""

from __future__ import annotations

from schedules.ir.nest import readers
from schedules.space.rules.cpu.scan_tiles import scan_groups
from schedules.space.sketch_builder import SketchBuilder, extent
from schedules.te.compute_dag import Stage

# Threads of a block that are offered.
THREADS = (32, 64, 128, 256)


def schedule_scans(d: SketchBuilder) -> None:
    """Schedule every scan: groups of one stage, as `check_grid_scans` says."""
    for (s,) in scan_groups(d):
        with d.scheduling(s.name):
            _schedule(d, s)
            d.done.add(s.name)


def _schedule(d: SketchBuilder, s: Stage) -> None:
    steps, others = d.loops(s.name)[: len(s.scan)], d.loops(s.name)[len(s.scan) :]
    points = [x.var for x in others if extent(x) != 1]
    if not points:
        return  # one thread
    made = [w.buffer for w in d.block(s.name).writes]
    alone = all(b.name == s.name for x in made for b in readers(d.s.nest, x))
    copy = d.s.cache_write(s.name, "local") if alone else ""
    d.s.reorder(*points, *(x.var for x in others if extent(x) == 1), *(x.var for x in steps))
    block, thread = d.s.split(d.fused(points), (None, d.choice(f"{s.name}.threads", THREADS)))
    d.s.bind(block, "blockIdx.x")
    d.s.bind(thread, "threadIdx.x")
    if copy:
        d.s.reverse_compute_at(copy, steps[-1].var)
        d.done.add(copy)
    d.s.partition(steps[-1].var)  # the first step reads what was given, the others do not ask
