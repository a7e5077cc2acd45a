"""merge_axes: neighbouring axes of a block, with their loops, into one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from schedules import affine
from schedules import expr as E
from schedules.expr import Binary, Expr, Var
from schedules.ir import Block, Iter, Loop, Nest, blocks
from schedules.ir.nest import find_loop, numbered, only_block, over_axes, replace_stmt, whole_axis
from schedules.model import Target
from schedules.primitives.base import OfLoops, listed
from schedules.primitives.fuse import require_nested


@dataclass(frozen=True)
class MergeAxes(OfLoops[str]):
    """Merge directly nested loops, outermost first, and the axes of the block that they are, into one loop
    and one axis named ``i_j``.

    Before: ``for i in range(n): for j in range(m): C[i, j] = A[i, j] + b[j]``. After::

        for i_j in range(n * m):
          C[i_j // m, i_j % m] = A[i_j // m, i_j % m] + b[i_j % m]

    `Fuse` leaves the axes of the block as they are, and rules then see two. Where ``m * i + j`` stands in an
    index, ``i_j`` stands there now. Legal if each loop is an axis of the only block inside, from beginning to
    end, and the axes are neighbours of one kind. Cost: a division where an index needs the parts; none in
    buffers of which `merge_dims` merges the dimensions.

    >>> s.merge_axes("z_i", "z_j")
    'z_i_z_j'
    """

    name: ClassVar[str] = "merge_axes"

    def result(self) -> str:
        return "_".join(self.loops)

    def sentence(self) -> str:
        return f"Merge loops {listed(self.loops)}, and the axes that they are, into one, `{self.result()}`."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        require_nested(nest, self.loops, self.name)
        inside = blocks(find_loop(nest, self.loops[0]).body)
        only_block(find_loop(nest, self.loops[0]), inside[0].name, "merge_axes")
        self._axes(nest, inside[0])

    def _axes(self, nest: Nest, b: Block) -> tuple[Iter, ...]:
        """The axes of the block that the loops are. Raises ScheduleError if they are none."""
        for v in self.loops:
            if whole_axis(b, find_loop(nest, v)) is None:
                raise self.refused(
                    f"loop {v} is not a whole axis of block {b.name}; merge axes before other steps"
                )
        first = b.binds.index(Var(self.loops[0]))
        some = slice(first, first + len(self.loops))
        kinds = {i.kind for i in b.iters[some]}
        if b.binds[some] != tuple(map(Var, self.loops)) or len(kinds) > 1:
            raise self.refused(
                f"{', '.join(self.loops)} are not neighbouring axes of one kind of block {b.name}; its axes "
                f"are {', '.join(i.var for i in b.iters)}"
            )
        return b.iters[some]

    def apply(self, nest: Nest) -> Nest:
        outer, inner = find_loop(nest, self.loops[0]), find_loop(nest, self.loops[-1])
        b = blocks(outer.body)[0]
        axes = self._axes(nest, b)
        at = b.iters.index(axes[0])
        var = numbered("_".join(i.var for i in axes), {i.var for i in b.iters})
        total: Expr = axes[0].extent
        for i in axes[1:]:
            total = total * i.extent
        env: dict[str, Expr] = {}
        rest: Expr = Var(var)
        for i in reversed(axes[1:]):
            env[i.var] = Binary("%", rest, i.extent)
            rest = Binary("//", rest, i.extent)
        env[axes[0].var] = rest

        def put(e: Expr) -> Expr:
            return rejoined(E.substitute(e, env))

        merged = Iter(var, total, axes[0].kind)
        body = replace(
            over_axes(b, put),
            iters=(*b.iters[:at], merged, *b.iters[at + len(axes) :]),
            binds=(*b.binds[:at], Var(self.result()), *b.binds[at + len(axes) :]),
        )
        loop = Loop(self.result(), total, inner.body)
        return replace_stmt(replace_stmt(nest, outer, loop), b, body)


def rejoined(e: Expr) -> Expr:
    """``e`` with the digits of numbers put together again in all its indices (`affine.rejoined`)."""

    def f(x: Expr) -> Expr | None:
        if not isinstance(x, Binary) or E.dtype_of(x) != E.INDEX or x.op not in ("+", "-", "*"):
            return None
        found = affine.from_linear(*affine.rejoined(x))
        return found if found != x else None

    return E.rewrite(e, f)
