"""What primitives may do where later iterations read what earlier ones wrote: the stages of scans.

Whatever a primitive does, every read must still come after the write of its element (`ir.carried`). That
says nothing of elements that no block computes any more, so primitives that compute a part of a block, or
something else in its place, are refused on blocks whose outputs are carried on.
"""

from __future__ import annotations

from typing import Any

from schedules.expr import Var
from schedules.ir import Block, Loop, Nest, blocks, walk
from schedules.ir.carried import carried_buffers, late_read
from schedules.ir.nest import reads, subtree_of, whole_axis
from schedules.primitives.base import Primitive
from schedules.te.compute_dag import ComputeDAG
from schedules.te.scans import groups

# Neither the order nor what is computed changes.
_KEEP_ORDER = frozenset(
    {"split", "unroll", "partition", "set_scope", "skip_zeros", "fuse", "reorder_storage"}
)
# What these compute in the place of a block was not made for values that are carried on.
_REPLACE = frozenset({"compute_at", "online", "online_rounded", "unfold", "stage_factor", "widen", "pack"})
# Hints that let iterations overlap.
_OVERLAP = frozenset({"software_pipeline"})


def scanned(dag: ComputeDAG) -> frozenset[str]:
    """The tensors that the stages of scans make."""
    return frozenset(o.name for a, b in groups(dag) for s in dag.stages[a : b + 1] for o in s.outputs)


def check_scans(p: Primitive[Any], before: Nest, after: Nest, tensors: frozenset[str]) -> None:
    """Raise ScheduleError if a primitive does not keep the order of what scans carry on. ``tensors``: those
    that stages of scans make."""
    if p.name in _KEEP_ORDER:
        return
    carried = carried_buffers(before)
    if p.name in _REPLACE:
        whole = {b.name: b for b in blocks(after.body)}
        for b in blocks(before.body):
            kept = (x := whole.get(b.name)) is not None and (x.writes, x.values, x.binds) == (
                b.writes, b.values, b.binds,
            )  # fmt: skip
            if not kept and any(w.buffer in carried for w in b.writes):
                if p.name == "compute_at" and x is not None and _makes_what_it_reads(after, x):
                    continue  # a part of the other axes, with all of its steps
                raise p.refused(
                    f"block {b.name} makes {b.writes[0].buffer}, which later steps of its scan read; "
                    "reorder, split, vectorize or parallelize loops of other axes instead"
                )
    if p.name == "annotate" and getattr(p, "key", "") in _OVERLAP:
        where = next((x for x in (getattr(p, "where", ""),)), "")
        raise p.refused(f"iterations of {where} would overlap, and those of a scan read what was made before")
    wrong = late_read(after, sorted(tensors | carried | carried_buffers(after)))
    if wrong:
        raise p.refused(
            f"{wrong}; keep the loops of the scan's own axes in order, and use loops of other axes"
        )


def _makes_what_it_reads(nest: Nest, b: Block) -> bool:
    """Whether a block makes, in the loops that it shares with no other, all that it reads of its own tensors:
    along each axis it reads at its own point, or a loop goes over all of the axis."""
    loops = [x for x in walk(subtree_of(nest, b.name)) if isinstance(x, Loop)]
    whole = {Var(b.iters[n].var) for x in loops if (n := whole_axis(b, x)) is not None}
    own = {w.buffer: w.indices for w in b.writes}
    for x in reads(b):
        for i, at in zip(x.indices, own.get(x.buffer, x.indices), strict=True):
            if i != at and at not in whole:
                return False
    return True
