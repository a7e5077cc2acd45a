"""Schedule primitives, one for each file. Each takes a nest to a nest that computes the same.

`PRIMITIVES` lists them by their names in a trace.
"""

from __future__ import annotations

from schedules.primitives.annotate import Annotate
from schedules.primitives.base import Primitive
from schedules.primitives.bind import Bind
from schedules.primitives.cache_read import CacheRead
from schedules.primitives.cache_write import CacheWrite
from schedules.primitives.compute_at import ComputeAt
from schedules.primitives.decompose_reduction import DecomposeReduction
from schedules.primitives.fuse import Fuse
from schedules.primitives.inline import Inline
from schedules.primitives.online import Online
from schedules.primitives.pack import Pack
from schedules.primitives.parallel import Parallel
from schedules.primitives.partition import Partition
from schedules.primitives.reorder import Reorder
from schedules.primitives.reorder_storage import ReorderStorage
from schedules.primitives.reverse_compute_at import ReverseComputeAt
from schedules.primitives.rfactor import Rfactor
from schedules.primitives.set_scope import SetScope
from schedules.primitives.split import Split
from schedules.primitives.tile import Tile
from schedules.primitives.unroll import Unroll
from schedules.primitives.vectorize import Vectorize

# {name in a trace: primitive}.
PRIMITIVES: dict[str, type[Primitive]] = {
    p.name: p
    for p in (
        Annotate,
        Bind,
        CacheRead,
        CacheWrite,
        ComputeAt,
        DecomposeReduction,
        Fuse,
        Inline,
        Online,
        Pack,
        Parallel,
        Partition,
        Reorder,
        ReorderStorage,
        ReverseComputeAt,
        Rfactor,
        SetScope,
        Split,
        Tile,
        Unroll,
        Vectorize,
    )
}
