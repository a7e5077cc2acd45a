"""merge_dims: neighbouring dimensions of a buffer into one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from schedules import expr as E
from schedules.expr import Binary, Const, Expr, Var
from schedules.ir import Block, Nest, size_hole
from schedules.ir.nest import map_blocks, redirect, set_buffer, writers
from schedules.ir.strides import goes_on, known_extents, known_strides
from schedules.model import Target
from schedules.primitives.base import Primitive, require_buffer
from schedules.primitives.merge_axes import rejoined


@dataclass(frozen=True)
class MergeDims(Primitive[None]):
    """See ``count`` dimensions of ``buffer``, from ``first`` on, as one, where they lie one after another in
    memory.

    Before: ``C[i_j // m, i_j % m] = A[i_j // m, i_j % m]``. After ``merge_dims("A", 0, 2)``::

        C[i_j // m, i_j % m] = A[i_j]

    Callers give arguments in their own shape, as before. Legal for dimensions without gaps between them, as
    all of a row-major buffer are; one that the nest writes is written at the parts of one axis, as
    `merge_axes` makes it. Cost: where other axes read the buffer, all that is told of the region they touch
    is where it begins and ends.

    >>> s.merge_axes("z_i", "z_j")
    'z_i_z_j'
    >>> s.merge_dims("z", 0, 2)
    """

    name: ClassVar[str] = "merge_dims"
    buffer: str
    first: int
    count: int

    def sentence(self) -> str:
        last = self.first + self.count - 1
        return f"See dimensions {self.first} to {last} of `{self.buffer}` as one."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        b = require_buffer(nest, self.buffer, self.name)
        if self.first < 0 or self.count < 2 or self.first + self.count > len(b.shape):
            raise self.refused(
                f"it has {len(b.shape)} dimensions, and {self.count} from {self.first} on are asked for; "
                "name two or more that it has"
            )
        some = slice(self.first, self.first + self.count)
        told = {size_hole(s.name).name for s in nest.sizes}
        outer, *inner = b.shape[some]
        if not all(isinstance(n, Const) for n in inner) or not E.holes(outer) <= told:
            raise self.refused(
                "its extents are not decided yet; merge dimensions before other steps, and one whose extent "
                "a call tells only as the first"
            )
        for d in range(self.first, self.first + self.count - 1):
            if not goes_on(b, d):
                raise self.refused(
                    f"a step of dimension {d} is {known_strides(b)[d]} elements of memory, and all "
                    f"{known_extents(b)[d + 1]} of dimension {d + 1} are {known_strides(b)[d + 1]} apart; "
                    "merge dimensions without gaps between them"
                )
        for w in writers(nest, self.buffer):
            for place in (x.indices for x in w.writes if x.buffer == self.buffer):
                if not isinstance(self._merged(nest, place)[self.first], Var):
                    raise self.refused(
                        f"block {w.name} writes it along several axes; use merge_axes on them first"
                    )

    def _merged(self, nest: Nest, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """An access as one of the merged buffer."""
        shape = nest.buffer(self.buffer).shape
        last = self.first + self.count
        at = indices[self.first]
        for i, n in zip(indices[self.first + 1 : last], shape[self.first + 1 : last], strict=True):
            at = Binary("+", Binary("*", at, n), i)
        return (*indices[: self.first], rejoined(at), *indices[last:])

    def apply(self, nest: Nest) -> Nest:
        old = nest.buffer(self.buffer)

        def block(b: Block) -> Block:
            return redirect(b, self.buffer, self.buffer, lambda at: self._merged(nest, at))

        last = self.first + self.count
        total: Expr = Const(1)
        for n in old.shape[self.first : last]:
            total = total * n
        shape = (*old.shape[: self.first], total, *old.shape[last:])
        given = (old.given or old.shape) if self.buffer in nest.params else None
        strides = old.strides and (*old.strides[: self.first], *old.strides[last - 1 :])
        return set_buffer(map_blocks(nest, block), replace(old, shape=shape, given=given, strides=strides))
