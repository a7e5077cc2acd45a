"""Schedule primitives, one for each file. Each takes a nest to a nest that computes the same.

A new one is a file here and a line in `Methods`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from schedules.errors import ScheduleError
from schedules.primitives.annotate import Annotate
from schedules.primitives.base import Primitive, typed
from schedules.primitives.bind import Bind
from schedules.primitives.cache_read import CacheRead
from schedules.primitives.cache_read_offset import CacheReadOffset
from schedules.primitives.cache_read_part import CacheReadPart
from schedules.primitives.cache_read_view import CacheReadView
from schedules.primitives.cache_write import CacheWrite
from schedules.primitives.compute_ahead import ComputeAhead
from schedules.primitives.compute_at import ComputeAt
from schedules.primitives.decompose_reduction import DecomposeReduction
from schedules.primitives.fuse import Fuse
from schedules.primitives.inline import Inline
from schedules.primitives.merge_axes import MergeAxes
from schedules.primitives.merge_dims import MergeDims
from schedules.primitives.online import Online, OnlineRounded
from schedules.primitives.pack import Pack
from schedules.primitives.parallel import Parallel
from schedules.primitives.partition import Partition
from schedules.primitives.reduce_ahead import ReduceAhead
from schedules.primitives.reorder import Reorder
from schedules.primitives.reorder_axes import ReorderAxes
from schedules.primitives.reorder_storage import ReorderStorage
from schedules.primitives.reverse_compute_at import ReverseComputeAt
from schedules.primitives.rfactor import Rfactor
from schedules.primitives.set_scope import SetScope
from schedules.primitives.skip_unread import SkipUnread
from schedules.primitives.skip_zeros import SkipZeros
from schedules.primitives.split import Split
from schedules.primitives.split_axis import SplitAxis
from schedules.primitives.split_dim import SplitDim
from schedules.primitives.stage_factor import StageFactor
from schedules.primitives.tensorize import Tensorize
from schedules.primitives.tile import Tile
from schedules.primitives.unfold import Unfold
from schedules.primitives.unroll import Unroll
from schedules.primitives.vectorize import Vectorize
from schedules.primitives.widen import Widen

P = ParamSpec("P")
R = TypeVar("R")


def _method(
    primitive: type[Primitive[Any]], make: Callable[P, Primitive[R]]
) -> Callable[Concatenate[Methods, P], R]:
    """A primitive as a method. ``make`` makes one of the method's arguments."""

    def call(self: Methods, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            p = make(*args, **kwargs)
        except TypeError as err:  # wrong in number or in name
            raise ScheduleError(_misused(primitive.name, make, args, kwargs, err)) from None
        return self.apply(typed(p))

    call.__name__, call.__doc__ = primitive.name, primitive.__doc__
    call.__wrapped__ = make  # type: ignore[attr-defined]  # its signature is shown
    call.primitive = primitive  # type: ignore[attr-defined]
    return call


def _misused(
    name: str, make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], err: TypeError
) -> str:
    """How a method is called, and what was wrong."""
    from inspect import signature  # takes a while, and only mistakes need it

    takes = signature(make)
    try:
        takes.bind(*args, **kwargs)
    except TypeError as told:
        err = told
    plain = (str(x.replace(annotation=x.empty)) for x in takes.parameters.values())
    return f"{name}({', '.join(plain)}): {err}"


class Methods(ABC):
    """What a schedule offers: every primitive, typed as its constructor or as its ``of``."""

    @abstractmethod
    def apply(self, p: Primitive[R]) -> R:
        """Check, apply and record one primitive; returns the names it makes."""

    annotate = _method(Annotate, Annotate)
    bind = _method(Bind, Bind)
    cache_read = _method(CacheRead, CacheRead)
    cache_read_offset = _method(CacheReadOffset, CacheReadOffset)
    cache_read_part = _method(CacheReadPart, CacheReadPart)
    cache_read_view = _method(CacheReadView, CacheReadView)
    cache_write = _method(CacheWrite, CacheWrite)
    compute_ahead = _method(ComputeAhead, ComputeAhead)
    compute_at = _method(ComputeAt, ComputeAt)
    decompose_reduction = _method(DecomposeReduction, DecomposeReduction)
    fuse = _method(Fuse, Fuse.of)
    inline = _method(Inline, Inline)
    merge_axes = _method(MergeAxes, MergeAxes.of)
    merge_dims = _method(MergeDims, MergeDims)
    online = _method(Online, Online.of)
    online_rounded = _method(OnlineRounded, OnlineRounded.of)
    pack = _method(Pack, Pack.of)
    parallel = _method(Parallel, Parallel)
    partition = _method(Partition, Partition)
    reduce_ahead = _method(ReduceAhead, ReduceAhead)
    reorder = _method(Reorder, Reorder.of)
    reorder_axes = _method(ReorderAxes, ReorderAxes.of)
    reorder_storage = _method(ReorderStorage, ReorderStorage.of)
    reverse_compute_at = _method(ReverseComputeAt, ReverseComputeAt)
    rfactor = _method(Rfactor, Rfactor)
    set_scope = _method(SetScope, SetScope)
    skip_unread = _method(SkipUnread, SkipUnread.of)
    skip_zeros = _method(SkipZeros, SkipZeros)
    split = _method(Split, Split.of)
    split_axis = _method(SplitAxis, SplitAxis)
    split_dim = _method(SplitDim, SplitDim)
    stage_factor = _method(StageFactor, StageFactor)
    tensorize = _method(Tensorize, Tensorize.of)
    tile = _method(Tile, Tile.of)
    unfold = _method(Unfold, Unfold.of)
    unroll = _method(Unroll, Unroll)
    vectorize = _method(Vectorize, Vectorize)
    widen = _method(Widen, Widen)


# by the name that they have in a trace
PRIMITIVES: dict[str, type[Primitive[Any]]] = {
    name: m.primitive for name, m in vars(Methods).items() if hasattr(m, "primitive")
}
