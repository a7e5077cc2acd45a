"""split: one loop into several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Hole, Var
from schedules.ir import Block, Loop, Nest, Stmt, blocks, size_ranges, walk
from schedules.ir.nest import bind_loops, find_loop, loops_of, readers, replace_stmt, subtree_of, writers
from schedules.model import Target
from schedules.primitives.base import (
    Factor,
    Primitive,
    as_expr,
    as_tuple,
    extent_of,
    require_extent,
    require_new,
    require_serial,
)
from schedules.te.infeasible import interval
from schedules.te.sizes_in_values import without_holes

# Treatments of the last, partial tile: see `Split`.
TAILS = ("guard", "shift")


@dataclass(frozen=True)
class Split(Primitive[list[str]]):
    """Split a loop into ``len(factors)`` nested loops ``i_0, i_1, ...``, outermost first.

    Before: ``for i in range(n): S(i)``. After ``split(i, [None, 4])``::

        for i_0 in range(ceildiv(n, 4)):
          for i_1 in range(4):
            S(i_0 * 4 + i_1)

    One factor may be None: it covers the rest. ``split(i, 4)`` means ``split(i, [None, 4])``. If the factors
    do not divide the extent, the last iterations (the tail) fall outside the blocks' domain and do not run.
    With ``tail="shift"`` the last tile is moved inwards instead (Halide: ShiftInwards). No tile is partial
    then, and some elements are computed twice::

        for i_0 in range(ceildiv(n, 4)):
          for i_1 in range(4):
            S(min(i_0 * 4, n - 4) + i_1)

    Legal for any serial loop, with three conditions. Factors that do not divide the extent: the loop must end
    with its axis (an earlier split's inner loop does not), or be around the copy of a region into a buffer of
    its own. ``shift``: no block inside reduces, and the innermost factor is at most ``n``. The new loops must
    count within 64 bits. Cost: a comparison for ``guard`` tails that are neither partitioned nor provably
    absent; for ``shift`` the elements computed twice.

    >>> s.split("y_k", [None, 4])
    ['y_k_0', 'y_k_1']
    >>> s.loops("y")
    ['y_i', 'y_j', 'y_k_0', 'y_k_1']
    """

    name: ClassVar[str] = "split"
    loop: str
    factors: tuple[int | Hole | None, ...]
    tail: str = "guard"

    @classmethod
    def of(cls, loop: str, factors: Factor | Sequence[Factor | None], tail: str = "guard") -> Split:
        """As `Schedule` has it. One number is the innermost factor: ``4`` means ``[None, 4]``."""
        return cls(loop, as_tuple(factors if hasattr(factors, "__len__") else (None, factors)), tail)

    def result(self) -> list[str]:
        return [f"{self.loop}_{n}" for n in range(len(self.factors))]

    def sentence(self) -> str:
        known = [f for f in self.factors if f is not None]
        tails = {
            "guard": "iterations beyond the end are guarded off",
            "shift": "a last tile that would not be full is moved back, and computes some elements twice",
        }
        tail = tails.get(self.tail, f"tail {self.tail}")
        if len(self.factors) == 2 and self.factors[0] is None:
            return f"Split loop `{self.loop}` into tiles of {known[0]}; {tail}."
        counts = " × ".join("the rest" if f is None else str(f) for f in self.factors)
        return (
            f"Split loop `{self.loop}` into {len(self.factors)} nested loops of {counts} iterations; {tail}."
        )

    def check(self, nest: Nest, target: Target | None = None) -> None:
        loop = find_loop(nest, self.loop)
        require_serial(loop, "split")
        if len(self.factors) < 2:
            raise self.refused(f"needs at least two factors, got {list(self.factors)}")
        if self.factors.count(None) > 1:
            raise self.refused("only one factor may be None (inferred)")
        product = 1
        for f in self.factors:
            if isinstance(f, int):
                if f < 1:
                    raise self.refused(f"factor {f} is below 1; every factor must be >= 1")
                product *= f
        n = extent_of(loop)
        require_extent(product + (n or 0 if None in self.factors else 0), f"split {self.loop}")
        whole = not any(f is None or isinstance(f, Hole) for f in self.factors)
        sizes = size_ranges(nest.sizes)
        if n is None and E.holes(loop.extent) <= sizes.keys():  # a call tells it
            n = interval(without_holes(loop.extent), sizes)[1]
        if whole and n is not None and product < n:
            raise self.refused(
                f"the factors {list(self.factors)} cover {product} of {n} iterations; make one of them None "
                "to infer it"
            )
        if self.tail not in TAILS:
            raise self.refused(f"tail {self.tail!r} is not one of {', '.join(TAILS)}")
        if self.tail == "shift":
            self._check_shift(loop)
        elif whole or not any(isinstance(f, Hole) for f in self.factors):
            self._check_tail(nest, loop, product)
        require_new(nest, tuple(self.result()), f"split {self.loop}")

    def _check_shift(self, loop: Loop) -> None:
        reducing = [b.name for b in blocks(loop.body) if b.reducer is not None]
        if reducing:
            raise self.refused(
                f'block {reducing[0]} reduces inside it and would add elements twice; use tail="guard"'
            )
        last, n = self.factors[-1], extent_of(loop)
        if last is None:
            raise self.refused("a shifted tail needs a known innermost factor; infer an outer one")
        if isinstance(last, int) and n is not None and last > n:
            raise self.refused(f"the innermost factor {last} exceeds the extent {n}; a shifted tile must fit")

    def _check_tail(self, nest: Nest, loop: Loop, product: int) -> None:
        """Check that a tail can be cut off: only where an axis of the block ends. A loop over a part of an
        axis has more of the axis behind its end, so its factors must divide the extent."""
        n = extent_of(loop)
        if n is None or (product == n if None not in self.factors else n % product == 0):
            return
        loops = [s for s in walk(nest.body) if isinstance(s, Loop)]
        ranges = {s.var: (0, m - 1) for s in loops if (m := extent_of(s)) is not None} | {
            loop.var: (n, n + product)
        }
        for b in blocks(loop.body):
            ends = (affine.bounds(e, ranges) for e in b.binds)
            if not any(
                at is not None and isinstance(i.extent, Const) and (at[0] >= int(i.extent.value) or at[1] < 0)
                for at, i in zip(ends, b.iters, strict=True)
            ) and not _private(nest, loop, b):
                raise self.refused(
                    f"the factors {list(self.factors)} do not divide its {n} iterations, and the last tile "
                    f"would do other work of block {b.name}; choose factors that divide {n}, or split the "
                    "original loop in one step"
                )

    def extents(self, n: Expr) -> list[Expr]:
        """Extents of the new loops, the inferred one filled in."""
        known: Expr = Const(1)
        for f in self.factors:
            if f is not None:
                known = known * as_expr(f)
        return [as_expr(f) if f is not None else E.ceildiv(n, known) for f in self.factors]

    def apply(self, nest: Nest) -> Nest:
        loop = find_loop(nest, self.loop)
        names, extents = self.result(), self.extents(loop.extent)
        index: Expr = Const(0)
        for var, n in zip(names[:-1], extents[:-1], strict=True):
            index = index * n + Var(var)
        index = index * extents[-1]
        if self.tail == "shift":
            index = E.minimum(index, loop.extent - extents[-1])
        index = index + Var(names[-1])
        body: Stmt = bind_loops(loop.body, {loop.var: index})
        for var, n in zip(reversed(names[1:]), reversed(extents[1:]), strict=True):
            body = Loop(var, n, body)
        return replace_stmt(nest, loop, Loop(names[0], extents[0], body, annotations=loop.annotations))


def _private(nest: Nest, loop: Loop, b: Block) -> bool:
    """Whether running ``b`` outside its region is harmless: it reduces nothing, and each iteration of the
    loop around its buffer computes it anew and reads it only within the region."""
    own = subtree_of(nest, b.name)
    around = [s for s in loops_of(nest, b.name) if not any(s is x for x in walk(own))]
    if b.reducer is not None or not around or not any(loop is x for x in walk(own)):
        return False
    inside = blocks(around[-1].body)
    return all(
        w.buffer not in nest.params
        and all(any(u is x for x in inside) for u in readers(nest, w.buffer))
        and writers(nest, w.buffer) == [b]
        for w in b.writes
    )
