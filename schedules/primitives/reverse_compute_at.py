"""reverse_compute_at: compute a consumer inside a loop of its producer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Var
from schedules.ir import Block, Loop, Nest, blocks, const, walk
from schedules.ir.nest import (
    accesses,
    find_block,
    find_loop,
    insert,
    loop_path,
    loop_vars,
    reads,
    replace_stmt,
    subtree_of,
    vars_bound,
    writers,
    written,
)
from schedules.ir.regions import ONE, covers, dense, footprint, may_be_negative
from schedules.model import Target
from schedules.primitives.base import Primitive, extent_of
from schedules.primitives.compute_at import check_available, region_loops, require_loops_allowed


@dataclass(frozen=True)
class ReverseComputeAt(Primitive[None]):
    """Move a consumer to the end of the body of ``loop``, over just the elements which one iteration
    produced.

    Before: ``for i: for j: C[i, j] = f(i, j)``, ``for x: for y: D[x, y] = C[x, y] + 1``. After
    ``reverse_compute_at(D, i)``: ``for i: (for j: C[i, j] = f(i, j)); for ax0: D[i, ax0] = C[i, ax0] + 1``.

    Legal if the consumer reads the producer at its own iteration variables; the produced values are final
    there (no reduction of the producer runs outside ``loop``); and its other operands are complete before, or
    computed by the same iteration of the common loops. Cost: none. The intermediate buffer shrinks to a tile:
    a fused epilogue.

    >>> s.reverse_compute_at("z", "y_i")
    >>> s.loops("z")
    ['y_i', 'z_ax0', 'z_ax1']
    """

    name: ClassVar[str] = "reverse_compute_at"
    block: str
    loop: str

    def _producer(self, nest: Nest, b: Block) -> Block:
        """The writer inside ``loop`` of a buffer that ``b`` reads. Raises ScheduleError if there is none."""
        inside = blocks(find_loop(nest, self.loop).body)
        for x in reads(b):
            for p in writers(nest, x.buffer):
                if any(p is q for q in inside):
                    return p
        raise self.refused(f"nothing inside {self.loop} produces what it reads")

    def _spans(self, nest: Nest, b: Block) -> list[tuple[Expr, Expr]]:
        """The region of each iteration of ``b``."""
        loop = find_loop(nest, self.loop)
        p = self._producer(nest, b)
        inner = {s.var: s.extent for s in walk(loop.body) if isinstance(s, Loop)}
        region: dict[str, tuple[Expr, Expr]] = {}
        for w in p.writes:
            shape = nest.buffer(w.buffer).shape
            # Only what is produced here: other elements may not be computed yet.
            touched = footprint(written(p, w.buffer), inner, shape, clip=False)
            spans = [
                (at, n if may_be_negative(at) else E.minimum(n, size))
                for (at, n), size in zip(touched, shape, strict=True)
            ]
            if any(x.buffer == w.buffer for x in reads(b)) and not all(
                dense(ix, inner) for ix in written(p, w.buffer)
            ):
                raise self.refused(
                    f"one iteration of {self.loop} produces a part of {w.buffer} with gaps; choose a loop "
                    "further out, or reorder the loops of a split back into their order"
                )
            for x in reads(b):
                if x.buffer != w.buffer:
                    continue
                for ix, s in zip(x.indices, spans, strict=True):
                    if isinstance(ix, Var):
                        if region.get(ix.name, s) != s:
                            raise self.refused(f"it reads {w.buffer} at two places along {ix.name}")
                        region[ix.name] = s
                    elif E.variables(ix) or E.loads(ix) or (s[1] != ONE and not covers(s, (ix, ONE))):
                        raise self.refused(
                            f"it reads {w.buffer} at {E.show(ix)}, not at one of its own iterations"
                        )
        out = []
        for it in b.iters:
            s = region.get(it.var, (Const(0), it.extent))
            if it.kind == "reduce" and s != (Const(0), it.extent):
                raise self.refused(
                    f"it reduces over {it.var}, and an iteration of {self.loop} has only a part of it; "
                    "choose a loop further out"
                )
            out.append(s)
        return out

    def sentence(self) -> str:
        return (
            f"Compute `{self.block}` at the end of each iteration of loop `{self.loop}`, from what it made."
        )

    def check(self, nest: Nest, target: Target | None = None) -> None:
        b = find_block(nest, self.block)
        loop = find_loop(nest, self.loop)
        if any(x is b for x in blocks(loop.body)):
            raise self.refused(f"it is inside {self.loop} already")
        require_loops_allowed(nest, self.loop, f"reverse_compute_at {self.block}")
        around = loop_vars(loop_path(nest, self.loop))
        for q in (w for x in reads(b) for w in writers(nest, x.buffer)):
            late = [v for v in around if v in vars_bound(q, "reduce")]
            if late:
                raise self.refused(
                    f"{q.name} still reduces over {late[0]} there; choose a loop outside {late[0]}"
                )
        for x in reads(b):
            ws = writers(nest, x.buffer)
            apart = [q.name for q in ws if not any(q is y for y in blocks(loop.body))]
            if apart and len(apart) < len(ws):
                raise self.refused(
                    f"{apart[0]} writes {x.buffer} too, outside {self.loop}; choose a loop around both"
                )
        for w in b.writes:
            if w.indices != tuple(Var(i.var) for i in b.iters if i.kind == "spatial"):
                raise self.refused("its writes are not one element per spatial iteration in order")
            if [x.name for x in writers(nest, w.buffer) if x is not b]:
                raise self.refused("use it before decompose_reduction")
        self._spans(nest, b)
        self._check_domain(nest, b)
        check_available(nest, b, around, blocks(loop.body)[-1], "reverse_compute_at")
        for buffer in dict.fromkeys(x.buffer for x in reads(b)):
            for q in writers(nest, buffer):
                self._check_computed(nest, b, q, buffer)

    def _check_domain(self, nest: Nest, b: Block) -> None:
        """Check that all iterations of ``b`` lie within what the producer computes, because the loops run
        over that. The border of a padded copy does not."""
        p = self._producer(nest, b)
        extents = {i.var: const(i.extent) for i in b.iters}
        for x in reads(b):
            if not any(x.buffer == w.buffer for w in p.writes):
                continue
            for ix, size in zip(x.indices, map(const, nest.buffer(x.buffer).shape), strict=True):
                n = extents[ix.name] if isinstance(ix, Var) else None
                if n is not None and size is not None and n > size:
                    raise self.refused(
                        f"its iterations {E.show(ix)} from {size} on lie outside {x.buffer} and would not "
                        f"run; use compute_at {p.name} instead"
                    )

    def _check_computed(self, nest: Nest, b: Block, q: Block, buffer: str) -> None:
        """Check that of ``q``'s writes ``b`` reads only what one iteration of the common loops computes.
        Earlier or later iterations may compute the rest. What depends on holes is checked when they are
        filled."""
        path = [s for s in loop_path(nest, self.loop) if isinstance(s, Loop)]
        shared = [s for s in path if any(q is x for x in blocks(s))]
        if not shared or q is b:
            return  # complete before
        at_size = [i for x in reads(b) if x.buffer == buffer for i in x.indices if _has_size(i)]
        if at_size:
            raise self.refused(
                f"it reads {buffer} at {E.show(at_size[0])}, a place that a call tells, and one iteration of "
                f"{shared[-1].var} may not compute it; choose a loop further out"
            )
        moved = region_loops(nest, b, self._spatial(nest, b))
        reading = {s.var: s.extent for s in (*path[len(shared) :], *walk(moved)) if isinstance(s, Loop)}
        computing = {s.var: s.extent for s in walk(shared[-1].body) if isinstance(s, Loop)}
        shape = nest.buffer(buffer).shape
        have = footprint(written(q, buffer), computing, shape, clip=False)  # no more than is computed
        need = footprint(accesses(blocks(moved)[0], buffer), reading, shape, clip=True)
        if any(E.holes(e) for s in (*have, *need) for e in s):
            return
        ranges = {s.var: (0, n - 1) for s in path if (n := extent_of(s)) is not None}
        have, need = ([(affine.simplify(at, ranges), n) for at, n in spans] for spans in (have, need))
        if not all(dense(ix, computing) for ix in written(q, buffer)) or not all(map(covers, have, need)):
            raise self.refused(
                f"it reads more of {buffer} than one iteration of {shared[-1].var} computes, in {q.name}; "
                "choose a loop further out"
            )

    def _spatial(self, nest: Nest, b: Block) -> list[tuple[Expr, Expr]]:
        """The region of the spatial iterations alone."""
        return [s for s, it in zip(self._spans(nest, b), b.iters, strict=True) if it.kind == "spatial"]

    def apply(self, nest: Nest) -> Nest:
        b = find_block(nest, self.block)
        spatial = self._spatial(nest, b)
        nest = replace_stmt(nest, subtree_of(nest, self.block), None)
        return insert(nest, self.loop, region_loops(nest, b, spatial))


def _has_size(e: Expr) -> bool:
    return any(map(affine.is_size, E.holes(e)))
