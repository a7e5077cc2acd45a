"""cache_read_view: read a buffer through a copy in the order in which a block reads it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from schedules import affine
from schedules import expr as E
from schedules.expr import Binary, Const, Expr, Load, Var
from schedules.ir import Block, Nest
from schedules.ir.nest import axis_ranges, find_block
from schedules.model import Target
from schedules.primitives.base import scope_in_words
from schedules.primitives.cache_read_part import CopyOfRead


@dataclass(frozen=True)
class CacheReadView(CopyOfRead):
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

    def result(self) -> str:
        return f"{self.buffer}_view_{self.block}{self.place}"

    def sentence(self) -> str:
        return (
            f"Copy what read {self.place} of `{self.buffer}` in `{self.block}` touches, in the order of the "
            f"reads, into `{self.result()}`, in {scope_in_words(self.scope)}; that read takes the copy."
        )

    def check(self, nest: Nest, target: Target | None = None) -> None:
        super().check(nest, target)
        if self._view(nest) is None:
            raise self.refused(
                f"place {self.place} of block {self.block} divides no axes, or its copy would leave the "
                "buffer; use cache_read_part"
            )

    def _view(self, nest: Nest) -> StagedRead | None:
        return view_of(nest, find_block(nest, self.block), self.read(nest))

    def apply(self, nest: Nest) -> Nest:
        view = self._view(nest)
        assert view is not None
        return self.copied(nest, tuple(map(Const, view.extents)), lambda at: view.source, view.place)


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
