"""split_dim: one dimension of a buffer into two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Var
from schedules.ir import Block, Nest
from schedules.ir.nest import axis_ranges, map_blocks, redirect, set_buffer, writers
from schedules.model import Target
from schedules.primitives.base import Primitive, require_buffer


@dataclass(frozen=True)
class SplitDim(Primitive[None]):
    """See dimension ``dim`` of ``buffer`` as two, of which the inner one has ``inner`` elements. It is the
    inverse of `MergeDims`.

    Before: ``s[h, i, j] += x[i, h * d + k] * x[j, h * d + k]``. After ``split_dim("x", 1, d)``::

        s[h, i, j] += x[i, h, k] * x[j, h, k]

    Callers give arguments in their own shape, as before. Legal if ``inner`` divides the dimension; a buffer
    that the nest writes is written at one axis in each of the new dimensions, as `SplitAxis` makes it. Cost:
    a division where an index is not the sum of parts as above.

    >>> s.split_dim("x", 1, 16)
    """

    name: ClassVar[str] = "split_dim"
    buffer: str
    dim: int
    inner: int

    def sentence(self) -> str:
        return f"See dimension {self.dim} of `{self.buffer}` as two; the inner one has {self.inner} elements."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        b = require_buffer(nest, self.buffer, self.name)
        if not 0 <= self.dim < len(b.shape):
            raise self.refused(
                f"it has {len(b.shape)} dimensions, and dimension {self.dim} is asked for; give one that it "
                "has"
            )
        n = b.shape[self.dim]
        if not isinstance(n, Const):
            if any(map(affine.is_size, E.holes(n))):
                raise self.refused(
                    f"a call tells the extent of dimension {self.dim}, which no number divides at every "
                    "size; split another one"
                )
            raise self.refused("its extents are not decided yet; split dimensions before other steps")
        if self.inner < 1 or int(n.value) % self.inner:
            raise self.refused(
                f"{self.inner} does not divide the {n.value} elements of dimension {self.dim}; give a "
                f"divisor of {n.value}"
            )
        for w in writers(nest, self.buffer):
            ranges = axis_ranges(w.iters)
            for place in (x.indices[self.dim] for x in w.writes if x.buffer == self.buffer):
                if not all(isinstance(i, Var | Const) for i in self.parts(place, ranges)):
                    raise self.refused(
                        f"block {w.name} writes it along one axis; use split_axis on that first"
                    )

    def parts(self, index: Expr, ranges: affine.Ranges) -> tuple[Expr, Expr]:
        """An index of the dimension as indices of the two new ones."""
        return affine.simplify(index // self.inner, ranges), affine.simplify(index % self.inner, ranges)

    def apply(self, nest: Nest) -> Nest:
        old = nest.buffer(self.buffer)
        n = old.shape[self.dim]
        assert isinstance(n, Const)

        def block(b: Block) -> Block:
            ranges = axis_ranges(b.iters)

            def place(at: tuple[Expr, ...]) -> tuple[Expr, ...]:
                return (*at[: self.dim], *self.parts(at[self.dim], ranges), *at[self.dim + 1 :])

            return redirect(b, self.buffer, self.buffer, place)

        shape = (
            *old.shape[: self.dim],
            Const(int(n.value) // self.inner),
            Const(self.inner),
            *old.shape[self.dim + 1 :],
        )
        given = (old.given or old.shape) if self.buffer in nest.params else None
        strides = old.strides
        if strides is not None:
            step = strides[self.dim]
            strides = (*strides[: self.dim], step * self.inner, *strides[self.dim :])
        return set_buffer(map_blocks(nest, block), replace(old, shape=shape, given=given, strides=strides))
