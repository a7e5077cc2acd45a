"""cache_read_view: read a buffer through a copy in the order in which a block reads it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from schedules import affine
from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Binary, Const, Expr, Load, Var
from schedules.ir import Access, Block, Buffer, Iter, Nest
from schedules.ir.nest import add_buffer, find_block, fresh_each, insert, map_blocks, wrap_loops
from schedules.model import Target
from schedules.primitives.base import Primitive, scope_in_words
from schedules.primitives.cache_read import check_copied, in_reads
from schedules.primitives.cache_read_part import places_read
from schedules.primitives.split_axis import axis_ranges


@dataclass(frozen=True)
class CacheReadView(Primitive[str]):
    """Copy what one of the reads of ``buffer`` in ``block`` touches into ``<buffer>_view_<block><place>``
    before the block, in the order in which the block reads it. ``place`` counts the block's different reads
    of the buffer from 0, in the order in which its value has them.

    Before: ``C[i, j] += A[i, k % 3 * 5 + k // 3] * B[k, j]``. After ``cache_read_view("C", "A", 0)``::

        A_view_C0[x0, x1] = A[x0, x1 % 3 * 5 + x1 // 3]
        C[i, j] += A_view_C0[i, k] * B[k, j]

    So the divisions of a shuffle, a reshape or a window partition are done once an element, and not at each
    step of a sum. A sum that is divided is one dimension of the copy, and so is what is added to it. An axis
    of the output that is only divided by one number, as by the channels of a group, stays as it is. The copy
    stands at the root. Legal as `CacheRead` is, for a read with a division, in no index of another read,
    whose copy stays inside the buffer. Cost: one more pass over what is read.

    >>> a, k = te.placeholder((4, 15), name="a"), te.reduce_axis(15, "k")
    >>> v = te.compute((4,), lambda i: te.sum(a[i, k % 3 * 5 + k // 3], axis=k), "v")
    >>> t = at.Schedule([a, v])
    >>> t.cache_read_view("v", "a", 0)
    'a_view_v0'
    """

    name: ClassVar[str] = "cache_read_view"
    block: str
    buffer: str
    place: int
    scope: str = "global"

    def result(self) -> str:
        return f"{self.buffer}_view_{self.block}{self.place}"

    def sentence(self) -> str:
        return (
            f"Copy what read {self.place} of `{self.buffer}` in `{self.block}` touches, in the order of the "
            f"reads, into `{self.result()}`, in {scope_in_words(self.scope)}; that read takes the copy."
        )

    def check(self, nest: Nest, target: Target | None = None) -> None:
        check_copied(nest, self.name, self.block, self.buffer, self.scope, self.result())
        b = find_block(nest, self.block)
        places = places_read(b, self.buffer)
        if not 0 <= self.place < len(places):
            raise ScheduleError(
                f"cache_read_view {self.buffer}: block {self.block} reads it at {len(places)} places, and "
                f"place {self.place} is asked for; give one of 0..{len(places) - 1}"
            )
        if view_of(nest, b, places[self.place]) is None:
            raise ScheduleError(
                f"cache_read_view {self.buffer}: place {self.place} of block {self.block} divides no axes, "
                "or its copy would leave the buffer; use cache_read_part"
            )

    def apply(self, nest: Nest) -> Nest:
        b = find_block(nest, self.block)
        read, new = places_read(b, self.buffer)[self.place], self.result()
        view = view_of(nest, b, read)
        assert view is not None
        iters = tuple(Iter(f"x{d}", Const(n), "spatial") for d, n in enumerate(view.extents))
        at = tuple(Var(i.var) for i in iters)
        copied: Expr = Load(self.buffer, view.source, read.dtype)
        copy = Block(new, iters, tuple(Const(0) for _ in iters), (Access(new, at),), (copied,))
        taken = Load(new, view.place, read.dtype)

        def swapped(e: Expr) -> Expr | None:
            return taken if e == read else None

        nest = map_blocks(nest, lambda x: in_reads(x, swapped) if x.name == self.block else x)
        nest = add_buffer(nest, Buffer(new, tuple(i.extent for i in iters), read.dtype, self.scope))
        stmt = wrap_loops(copy, fresh_each(nest, (f"{new}_{i.var}" for i in iters)))
        return insert(nest, None, stmt, before=find_block(nest, self.block))


@dataclass(frozen=True)
class StagedRead:
    """A read in two steps. ``extents``: of the dimensions of a copy. ``source``: what the copy reads, by
    ``x0``, ``x1`` and so on. ``place``: what the block reads of the copy."""

    extents: tuple[int, ...]
    source: tuple[Expr, ...]
    place: tuple[Expr, ...]


def view_of(nest: Nest, b: Block, read: Load) -> StagedRead | None:
    """A read of a block in two steps: a copy that divides, and a read that does not. None where nothing is to
    be divided, or where no copy can be proved to stay inside the buffer."""
    groups, ranges = _groups(b, read), axis_ranges(b.iters)
    extents: dict[Expr, int] = {}  # {dimension of the copy: its length}

    def dimension(e: Expr) -> Expr:
        """An index of the copy, of whose values ``e`` is."""
        ends = affine.bounds(e, ranges)
        if ends is None:
            raise ValueError(f"no bounds of {e} are known")
        lo, hi = ends
        at = affine.simplify(e - lo, ranges)
        extents.setdefault(at, hi - lo + 1)
        return Var(f"x{list(extents).index(at)}") + lo

    def copied(e: Expr) -> Expr:
        """What the copy reads for an index: its divisions, of dimensions, and the rest of the sum, which is
        one."""
        terms, const = affine.linear(e)
        rest = {a: c for a, c in terms.items() if isinstance(a, Var) or a in groups}
        whole = const
        for a, c in terms.items():
            if a in rest:
                continue
            if not (isinstance(a, Binary) and a.op in ("//", "%") and isinstance(a.b, Const)):
                raise ValueError(f"{a} is no division by a number")
            whole = whole + Binary(a.op, copied(a.a), a.b) * c
        return whole + dimension(affine.from_linear(rest, Const(0))) if rest else whole

    if all(isinstance(a, Var) or a in groups for i in read.indices for a in affine.linear(i)[0]):
        return None
    try:
        source = tuple(map(copied, read.indices))
    except ValueError:
        return None
    inside = {f"x{d}": (0, n - 1) for d, n in enumerate(extents.values())}
    source = tuple(affine.simplify(i, inside) for i in source)
    for i, n in zip(source, nest.buffer(read.buffer).shape, strict=True):
        ends = affine.bounds(i, inside)
        if ends is None or not isinstance(n, Const) or ends[0] < 0 or ends[1] >= n.value:
            return None
    return StagedRead(tuple(extents.values()), source, tuple(extents))


def _groups(b: Block, read: Load) -> set[Expr]:
    """Divisions that stay: of an axis of the output that the read has nowhere else."""
    spatial = {i.var for i in b.iters if i.kind == "spatial"}
    every = [x for i in read.indices for x in E.walk(i)]
    uses = Counter(x.name for x in every if isinstance(x, Var))
    divided = Counter(x for x in every if isinstance(x, Binary) and x.op == "//" and isinstance(x.b, Const))
    return {
        x for x, n in divided.items() if isinstance(x.a, Var) and x.a.name in spatial and uses[x.a.name] == n
    }
