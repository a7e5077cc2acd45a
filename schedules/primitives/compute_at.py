"""compute_at: compute a producer inside a loop of its consumer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import ClassVar

from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Const, Expr, Var
from schedules.ir import Access, Block, Loop, Nest, Stmt, blocks, walk
from schedules.ir.carried import carried_buffers
from schedules.ir.nest import (
    accesses,
    block_path,
    find_block,
    find_loop,
    fresh_each,
    insert,
    loop_path,
    loop_vars,
    loops_of,
    readers,
    reads,
    replace_stmt,
    subtree_of,
    writers,
)
from schedules.ir.regions import covers, dense, footprint
from schedules.model import Target
from schedules.primitives.base import Primitive


@dataclass(frozen=True)
class ComputeAt(Primitive[None]):
    """Move a producer into the body of ``loop``, where it computes just what one iteration reads.

    Before: ``for x: B[x] = f(x)``, ``for i: for j: C[i, j] = B[i + j]``. After ``compute_at(B, i)``::

        for i:
          for ax0 in range(m): B[i + ax0] = f(i + ax0)
          for j: C[i, j] = B[i + j]

    Legal if every reader of the block's outputs is inside ``loop``, or comes after it and reads only what its
    iterations compute; the block is not an output; and what it reads is computed before. Cost: overlapping
    regions are computed again. The buffer shrinks to what one iteration reads. New loops are called
    ``<block>_ax0, ...`` and ``<block>_r0, ...``.

    >>> s.compute_at("y", "z_i")
    >>> s.loops("y")
    ['z_i', 'y_ax0', 'y_ax1', 'y_r0']
    """

    name: ClassVar[str] = "compute_at"
    block: str
    loop: str

    def sentence(self) -> str:
        return (
            f"Compute `{self.block}` in loop `{self.loop}`: each iteration computes the part that it reads."
        )

    def check(self, nest: Nest, target: Target | None = None) -> None:
        b = find_block(nest, self.block)
        loop = find_loop(nest, self.loop)
        if any(x.name == self.block for x in blocks(loop.body)):
            raise self.refused(f"it is inside {self.loop} already")
        require_loops_allowed(nest, self.loop, f"compute_at {self.block}")
        for w in b.writes:
            if w.buffer in nest.params:
                raise self.refused(
                    f"{w.buffer} is an output of the kernel; use reverse_compute_at or cache_write"
                )
            if w.indices != tuple(Var(i.var) for i in b.iters if i.kind == "spatial"):
                raise self.refused("its writes are not one element per spatial iteration in order")
            users = [u for u in readers(nest, w.buffer) if u is not b]
            inside = [u for u in users if any(u is x for x in blocks(loop.body))]
            outside = [u.name for u in users if u not in inside and not self._computed_before(nest, w, u)]
            if outside:
                raise self.refused(
                    f"{', '.join(outside)} reads {w.buffer} outside {self.loop}; choose a loop around all "
                    "readers"
                )
            if not inside:
                raise self.refused(f"nothing inside {self.loop} reads {w.buffer}")
            others = [x.name for x in writers(nest, w.buffer) if x is not b]
            if others:
                raise self.refused(
                    f"{others[0]} writes {w.buffer} too; use compute_at before decompose_reduction"
                )
        first = next(x for x in blocks(loop.body) if any(accesses(x, w.buffer) for w in b.writes))
        check_available(nest, b, loop_vars(loop_path(nest, self.loop)), first, "compute_at")

    def _places(self, nest: Nest, b: Block) -> list[tuple[Expr, ...]]:
        """Where the blocks inside the loop read what ``b`` writes."""
        inside = blocks(find_loop(nest, self.loop).body)
        return [place for w in b.writes for x in inside for place in accesses(x, w.buffer)]

    def _computed_before(self, nest: Nest, w: Access, reader: Block) -> bool:
        """Whether ``reader``, outside and after the loop, reads only what its iterations compute. Those need
        one place whose indices walk a box without gaps, not its diagonal. Checked as far as integers are
        known; what depends on holes is checked again when they are filled."""
        order = [x.name for x in blocks(nest.body)]
        inside = blocks(find_loop(nest, self.loop).body)
        if order.index(reader.name) < max(order.index(x.name) for x in inside):
            return False
        its = loops_of(nest, reader.name)
        common = {x.var for x in its}
        path = [x for x in loop_path(nest, self.loop) if isinstance(x, Loop) and x.var not in common]
        if any(x.kind not in ("serial", "unroll") for x in path):
            return False  # other iterations may compute the same elements meanwhile
        computing = {x.var: x.extent for x in loops_of(nest, inside[0].name) if x.var not in common}
        computing |= {x.var: x.extent for x in walk(find_loop(nest, self.loop).body) if isinstance(x, Loop)}
        around = set(loop_vars(loop_path(nest, self.loop)))
        reading = {x.var: x.extent for x in its if x.var not in around}
        shape = nest.buffer(w.buffer).shape
        places = list(set(self._places(nest, find_block(nest, self.block))))
        if len(places) != 1 or not dense(places[0], computing):
            return False
        moving = [v for i in places[0] for v in E.variables(i) & computing.keys()]
        if len(moving) > len(set(moving)):
            return False
        have = footprint(places, computing, shape, clip=False)  # no more than is computed
        need = footprint(accesses(reader, w.buffer), reading, shape, clip=True)
        return all(covers(a, b) for a, b in zip(have, need, strict=True))

    def apply(self, nest: Nest) -> Nest:
        b = find_block(nest, self.block)
        loop = find_loop(nest, self.loop)
        inside = blocks(loop.body)
        inner = {s.var: s.extent for s in walk(loop.body) if isinstance(s, Loop)}
        first = next(x for x in inside if any(accesses(x, w.buffer) for w in b.writes))
        spans = footprint(self._places(nest, b), inner, nest.buffer(b.writes[0].buffer).shape, clip=True)
        nest = replace_stmt(nest, subtree_of(nest, self.block), None)
        stmt = region_loops(nest, b, spans)
        return insert(nest, self.loop, stmt, before=first)


def require_loops_allowed(nest: Nest, loop: str, what: str) -> None:
    """Raise ScheduleError if ``loop`` is, or is inside, a vectorized loop, because lanes hold no loops."""
    for s in loop_path(nest, loop):
        if isinstance(s, Loop) and s.kind == "vectorize":
            raise ScheduleError(
                f"{what}: {s.var} is vectorized and can hold no loops; vectorize after moving blocks"
            )


def region_loops(nest: Nest, b: Block, spans: list[tuple[Expr, Expr]]) -> Stmt:
    """``b`` in new loops over a region of its spatial iterations and all of its reductions."""
    counts = {"spatial": count(), "reduce": count()}
    titles = {"spatial": "ax", "reduce": "r"}
    names = fresh_each(nest, (f"{b.name}_{titles[i.kind]}{next(counts[i.kind])}" for i in b.iters))
    spatial = iter(spans)
    regions = [next(spatial) if i.kind == "spatial" else (Const(0), i.extent) for i in b.iters]
    out: Stmt = replace(b, binds=tuple(at + Var(v) for (at, _), v in zip(regions, names, strict=True)))
    for var, (_, extent) in zip(reversed(names), reversed(regions), strict=True):
        out = Loop(var, extent, out)
    return out


def check_available(nest: Nest, b: Block, around: list[str], until: Block, what: str) -> None:
    """Raise ScheduleError unless everything that ``b`` reads is computed no later than block ``until``, at
    the root or inside the loops ``around``. ``what``: name of the primitive."""
    own = {w.buffer for w in b.writes}
    order = {x.name: n for n, x in enumerate(blocks(nest.body))}
    for x in reads(b):
        if x.buffer in own:
            continue
        ws = writers(nest, x.buffer)
        for p in ws:
            if p is b:
                continue
            late = order[p.name] > order[until.name]
            if late and x.buffer in carried_buffers(nest):
                continue  # it reads what earlier iterations made
            if late:
                raise ScheduleError(
                    f"{what} {b.name}: it reads {x.buffer}, and {p.name} computes that later; move {p.name} "
                    "first"
                )
            extra = [v for v in loop_vars(block_path(nest, p.name)) if v not in around]
            path = [s for s in block_path(nest, p.name) if isinstance(s, Loop)]
            owned = {s.var for s in path if all(q in ws for q in blocks(s))}
            if any(v not in owned for v in extra):
                raise ScheduleError(
                    f"{what} {b.name}: it reads {x.buffer}, which is valid only inside "
                    f"{next(v for v in extra if v not in owned)}; move {p.name} out first"
                )
