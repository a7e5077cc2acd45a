"""rfactor: factor a reduction over one of its loops."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Expr, Load, Var
from schedules.ir import Access, Block, Buffer, Iter, Loop, Nest, Seq, Stmt, blocks, walk
from schedules.ir.nest import (
    add_buffer,
    block_names,
    find_block,
    find_loop,
    fresh,
    fresh_each,
    loops_of,
    numbered,
    numbered_each,
    only_block,
    replace_stmt,
    subtree_of,
    vars_bound,
)
from schedules.model import Target
from schedules.primitives.base import Primitive


@dataclass(frozen=True)
class Rfactor(Primitive[str]):
    """Make a reduction loop spatial: partial results, one for each of its iterations, then a
    second reduction over them (Suriana et al., CGO'17).

    Before: ``for k_0: for k_1 in range(8): C[i] += A[i, k_0 * 8 + k_1]``. After ``rfactor(C, k_1)``::

        for i: for k_0: for k_1: C_rf[i, k_1] += A[i, k_0 * 8 + k_1]
        for i: for rf in range(8): C[i] += C_rf[i, rf]

    The partial sums can then be vectorized or run in parallel. Legal for any reducer, as reducers are
    associative, in a block whose loops hold nothing else. ``C_rf`` has the new axis last. The new block is
    ``<block>_rf`` and keeps the loops; the final one gets loops ``<block>_ax0, ..., <block>_rf_k``. Cost:
    memory for the partial results.

    >>> s.rfactor("y", s.split("y_k", 8)[1])
    'y_rf'
    >>> s.blocks()
    ['y_rf', 'y', 'z']
    """

    name: ClassVar[str] = "rfactor"
    block: str
    loop: str

    def result(self) -> str:
        return f"{self.block}_rf"

    def sentence(self) -> str:
        return (
            f"Reduce `{self.block}` in parts: one partial result for each iteration of loop `{self.loop}` "
            f"(`{self.result()}`), which are reduced afterwards."
        )

    def check(self, nest: Nest, target: Target | None = None) -> None:
        b = find_block(nest, self.block)
        if b.reducer is None or not b.init:
            raise ScheduleError(
                f"rfactor {self.block}: it is not a whole reduction; use rfactor before decompose_reduction"
            )
        around = [x.var for x in loops_of(nest, self.block)]
        if self.loop not in around:
            raise ScheduleError(
                f"rfactor {self.block}: {self.loop} is not around it; its loops are {', '.join(around)}"
            )
        if self.loop not in vars_bound(b, "reduce") or self.loop in vars_bound(b, "spatial"):
            raise ScheduleError(
                f"rfactor {self.block}: {self.loop} is not a reduction loop; choose a loop of a reduction "
                "axis"
            )
        only_block(find_loop(nest, self.loop), self.block, "rfactor")
        own = subtree_of(nest, self.block)
        for x in loops_of(nest, self.block):
            if x.var in vars_bound(b, "reduce") and not any(x is y for y in walk(own)):
                others = ", ".join(y.name for y in blocks(x.body) if y.name != self.block)
                raise ScheduleError(
                    f"rfactor {self.block}: it also reduces over loop {x.var}, and that holds {others} too; "
                    "use rfactor before compute_at"
                )
        mixed = vars_bound(b, "reduce") & vars_bound(b, "spatial")
        for y in walk(own):
            if isinstance(y, Loop) and y.var in mixed:
                raise ScheduleError(
                    f"rfactor {self.block}: {y.var} mixes spatial and reduction axes; do not fuse those"
                )
        if self.result() in block_names(nest):
            raise ScheduleError(f"rfactor {self.block}: {self.result()} exists already")

    def apply(self, nest: Nest) -> Nest:
        b = find_block(nest, self.block)
        assert b.reducer is not None
        loops = {x.var: x for x in loops_of(nest, self.block)}
        spatial = [(i, e) for i, e in zip(b.iters, b.binds, strict=True) if i.kind == "spatial"]
        reduce = [(i, e) for i, e in zip(b.iters, b.binds, strict=True) if i.kind == "reduce"]
        rf_extent = loops[self.loop].extent

        # Every remaining reduction loop becomes a reduction axis of the partial block. The old axes become
        # expressions of those, and their domain moves into `where`.
        rest = [v for v in loops if v != self.loop and any(v in E.variables(e) for _, e in reduce)]
        rf = fresh_iter(b, "rf")  # a partial block may be factored again
        kept = {rf, *(i.var for i, _ in spatial)}
        reduced = dict(zip(rest, numbered_each((f"r_{v}" for v in rest), kept), strict=True))
        env: dict[str, Expr] = {self.loop: Var(rf), **{v: Var(n) for v, n in reduced.items()}}
        old: dict[str, Expr] = {i.var: E.substitute(e, env) for i, e in reduce}
        where = tuple(E.substitute(w, old) for w in b.where)
        where += tuple(E.substitute(Var(i.var), old) < i.extent for i, _ in reduce)
        names = [fresh(nest, f"{w.buffer}_rf") for w in b.writes]
        iters = (
            *(i for i, _ in spatial),
            Iter(rf, rf_extent, "spatial"),
            *(Iter(n, loops[v].extent, "reduce") for v, n in reduced.items()),
        )
        partial = replace(
            b,
            name=self.result(),
            iters=iters,
            binds=(*(e for _, e in spatial), Var(self.loop), *(Var(v) for v in rest)),
            writes=tuple(Access(n, (*w.indices, Var(rf))) for n, w in zip(names, b.writes, strict=True)),
            values=tuple(E.substitute(v, old) for v in b.values),
            where=tuple(w for w in where if w != E.TRUE),
        )
        if not rest:  # no reduction is left: each partial result is one value
            once = Iter(numbered("r_1", kept), E.Const(1), "reduce")
            partial = replace(partial, iters=(*iters, once), binds=(*partial.binds, E.Const(0)))
        # The final block runs over the same spatial points: those that the loops of the whole subtree cover.
        whole = subtree_of(nest, b.name)
        used = vars_bound(b, "spatial")
        walked = [x for x in walk(whole) if isinstance(x, Loop) and x.var in used]
        axes = fresh_each(nest, (f"{b.name}_ax{n}" for n in range(len(walked))))
        names_of = dict(zip((x.var for x in walked), axes, strict=True))
        rename: dict[str, Expr] = {old_var: Var(new) for old_var, new in names_of.items()}
        rf_k = fresh_iter(b, "rf_k")
        final_iters = (*(i for i, _ in spatial), Iter(rf_k, rf_extent, "reduce"))
        last = fresh(nest, f"{b.name}_rf_k")
        final_loops = [(names_of[x.var], x.extent) for x in walked] + [(last, rf_extent)]
        buffers = [nest.buffer(w.buffer) for w in b.writes]
        final = Block(
            b.name,
            final_iters,
            (*(E.substitute(e, rename) for _, e in spatial), Var(last)),
            b.writes,
            tuple(
                Load(n, (*w.indices, Var(rf_k)), x.dtype)
                for n, w, x in zip(names, b.writes, buffers, strict=True)
            ),
            b.reducer,
            True,
        )
        for n, x in zip(names, buffers, strict=True):
            nest = add_buffer(nest, Buffer(n, (*x.shape, rf_extent), x.dtype))
        stmt: Stmt = final
        for n, extent in reversed(final_loops):
            stmt = Loop(n, extent, stmt)
        swap = replace_stmt(replace(nest, body=whole), b, partial).body
        return replace_stmt(nest, whole, Seq((swap, stmt)))


def fresh_iter(b: Block, name: str) -> str:
    """``name``, numbered if an iteration of the block has it already."""
    return numbered(name, {i.var for i in b.iters})
