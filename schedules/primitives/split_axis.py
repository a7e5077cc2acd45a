"""split_axis: one axis of a block into two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Var
from schedules.ir import Iter, Loop, Nest, blocks
from schedules.ir.nest import (
    axis_ranges,
    find_loop,
    numbered_each,
    only_block,
    over_axes,
    replace_stmt,
    whole_axis,
)
from schedules.model import Target
from schedules.primitives.base import Primitive, extent_of, require_new, require_serial


@dataclass(frozen=True)
class SplitAxis(Primitive[list[str]]):
    """Split a loop, and the axis of the block that it is, into two loops and two axes. The inner ones have
    ``inner`` iterations. It is the inverse of `MergeAxes`.

    Before: ``for n in range(h * d): y[i, n] = x[n // d, i, n % d]``. After ``split_axis("n", d)``::

        for n_0 in range(h):
          for n_1 in range(d):
            y[i, n_0 * d + n_1] = x[n_0, i, n_1]

    `Split` leaves the axis of the block as it is, and rules then see one. Legal if the loop is an axis of the
    only block inside, from beginning to end, and ``inner`` divides its extent and is neither 1 nor all of it.
    Cost: none in buffers of which `SplitDim` splits the dimension.

    >>> s.split_axis("z_j", 16)
    ['z_j_0', 'z_j_1']
    >>> s.loops("z")
    ['z_i', 'z_j_0', 'z_j_1']
    """

    name: ClassVar[str] = "split_axis"
    loop: str
    inner: int

    def result(self) -> list[str]:
        return [f"{self.loop}_0", f"{self.loop}_1"]

    def sentence(self) -> str:
        return (
            f"Split loop `{self.loop}`, and the axis that it is, into two; the inner one runs {self.inner} "
            "times."
        )

    def check(self, nest: Nest, target: Target | None = None) -> None:
        loop = find_loop(nest, self.loop)
        what = f"split_axis {self.loop}"
        require_serial(loop, "split_axis")
        n = extent_of(loop)
        if n is None:
            if any(map(affine.is_size, E.holes(loop.extent))):
                raise self.refused(
                    "a call tells its extent, which no number divides at every size; use split, whose tail "
                    "has a guard"
                )
            raise self.refused("its extent is not decided yet; split axes before other steps")
        if self.inner < 1 or n % self.inner:
            raise self.refused(f"{self.inner} does not divide its {n} iterations; give a divisor of {n}")
        require_new(nest, tuple(self.result()), what)
        inside = blocks(loop.body)
        only_block(loop, inside[0].name, "split_axis")
        if whole_axis(inside[0], loop) is None:
            raise self.refused(
                f"it is not a whole axis of block {inside[0].name}; split axes before other steps"
            )
        if self.inner in (1, n):
            raise self.refused(
                f"one of the axes would have a single iteration; give a divisor between 1 and {n}"
            )

    def apply(self, nest: Nest) -> Nest:
        loop = find_loop(nest, self.loop)
        b = blocks(loop.body)[0]
        at = whole_axis(b, loop)
        assert at is not None
        axis, (outer, inner) = b.iters[at], self.result()
        few, many = Const(self.inner), Const((extent_of(loop) or 0) // self.inner)
        first, second = numbered_each((f"{axis.var}_0", f"{axis.var}_1"), {i.var for i in b.iters})
        iters = (
            *b.iters[:at],
            Iter(first, many, axis.kind),
            Iter(second, few, axis.kind),
            *b.iters[at + 1 :],
        )
        env: dict[str, Expr] = {axis.var: Var(first) * few + Var(second)}
        ranges = axis_ranges(iters)

        def put(e: Expr) -> Expr:
            # What has not the axis stays: a place of an axis of one step is that axis, not 0.
            return affine.simplify(E.substitute(e, env), ranges) if axis.var in E.variables(e) else e

        binds = (*b.binds[:at], Var(outer), Var(inner), *b.binds[at + 1 :])
        body = replace(over_axes(b, put), iters=iters, binds=binds)
        both = Loop(outer, many, Loop(inner, few, loop.body), annotations=loop.annotations)
        return replace_stmt(replace_stmt(nest, loop, both), b, body)
