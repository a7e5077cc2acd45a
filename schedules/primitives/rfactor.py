"""rfactor: factor a reduction over one of its loops."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from schedules import expr as E
from schedules.expr import Expr, Load, Var
from schedules.ir import Access, Block, Buffer, Iter, Loop, Nest, Seq, Stmt, blocks, walk
from schedules.ir.nest import (
    add_buffer,
    block_names,
    find_block,
    find_loop,
    fresh,
    fresh_each,
    is_scatter,
    loops_of,
    numbered,
    numbered_each,
    of_kind,
    only_block,
    replace_stmt,
    subtree_of,
    vars_bound,
)
from schedules.model import Target
from schedules.primitives.base import Primitive
from schedules.primitives.copies_of_output import check_start, of_copies


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

    Terms that go to places of their own get copies of the whole output, one after another, in a buffer with
    the new axis first. Each is set to the identity by block ``<block>_rf_init``, in its own iteration of the
    loop where that is the outermost one. Then each thread adds to a copy of its own::

        for k_1: (for i: C_rf[k_1, i] = 0); for k_0: C_rf[k_1, at[k_0 * 8 + k_1]] += A[k_0 * 8 + k_1]
        for i: for rf in range(8): C[i] += C_rf[rf, i]

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
        if is_scatter(b):
            check_start(nest, b, self)
        elif b.reducer is None or not b.init:
            raise self.refused("it is not a whole reduction; use rfactor before decompose_reduction")
        around = [x.var for x in loops_of(nest, self.block)]
        if self.loop not in around:
            raise self.refused(f"{self.loop} is not around it; its loops are {', '.join(around)}")
        if self.loop not in vars_bound(b, "reduce") or self.loop in vars_bound(b, "spatial"):
            raise self.refused(f"{self.loop} is not a reduction loop; choose a loop of a reduction axis")
        only_block(find_loop(nest, self.loop), self.block, "rfactor")
        own = subtree_of(nest, self.block)
        for x in loops_of(nest, self.block):
            if x.var in vars_bound(b, "reduce") and not any(x is y for y in walk(own)):
                others = ", ".join(y.name for y in blocks(x.body) if y.name != self.block)
                raise self.refused(
                    f"it also reduces over loop {x.var}, and that holds {others} too; use rfactor before "
                    "compute_at"
                )
        mixed = vars_bound(b, "reduce") & vars_bound(b, "spatial")
        for y in walk(own):
            if isinstance(y, Loop) and y.var in mixed:
                raise self.refused(f"{y.var} mixes spatial and reduction axes; do not fuse those")
        if self.result() in block_names(nest):
            raise self.refused(f"{self.result()} exists already")

    def apply(self, nest: Nest) -> Nest:
        b = find_block(nest, self.block)
        assert b.reducer is not None
        scatters = is_scatter(b)
        loops = {x.var: x for x in loops_of(nest, self.block)}
        names = [fresh(nest, f"{w.buffer}_rf") for w in b.writes]
        partial = self._partial(b, loops, names)
        whole = subtree_of(nest, b.name)
        parts = loops[self.loop].extent
        if scatters:
            return of_copies(nest, b, partial, loops[self.loop])
        final = _final(nest, b, whole, names, parts)
        for n, w in zip(names, b.writes, strict=True):
            x = nest.buffer(w.buffer)
            nest = add_buffer(nest, Buffer(n, (*x.shape, parts), x.dtype))
        swap = replace_stmt(replace(nest, body=whole), b, partial).body
        return replace_stmt(nest, whole, Seq((swap, final)))

    def _partial(self, b: Block, loops: dict[str, Loop], names: list[str]) -> Block:
        """The block of partial results, in buffers of these names. Every remaining reduction loop becomes a
        reduction axis of it. The old axes become expressions of those, and their domain moves into
        `where`."""
        spatial, reduce = of_kind(b, "spatial"), of_kind(b, "reduce")
        rest = [v for v in loops if v != self.loop and any(v in E.variables(e) for _, e in reduce)]
        rf = fresh_iter(b, "rf")  # a partial block may be factored again
        kept = {rf, *(i.var for i, _ in spatial)}
        reduced = dict(zip(rest, numbered_each((f"r_{v}" for v in rest), kept), strict=True))
        env: dict[str, Expr] = {self.loop: Var(rf), **{v: Var(n) for v, n in reduced.items()}}
        old: dict[str, Expr] = {i.var: E.substitute(e, env) for i, e in reduce}
        where = tuple(E.substitute(w, old) for w in b.where)
        where += tuple(E.substitute(Var(i.var), old) < i.extent for i, _ in reduce)
        where = tuple(
            sorted(where, key=lambda w: bool(E.loads(w)))
        )  # what data say is asked inside the domain

        def at(w: Access) -> tuple[Expr, ...]:
            if is_scatter(b):
                return (Var(rf), *(E.substitute(i, old) for i in w.indices))
            return (*w.indices, Var(rf))

        iters = (
            *(i for i, _ in spatial),
            Iter(rf, loops[self.loop].extent, "spatial"),
            *(Iter(n, loops[v].extent, "reduce") for v, n in reduced.items()),
        )
        partial = replace(
            b,
            name=self.result(),
            iters=iters,
            binds=(*(e for _, e in spatial), Var(self.loop), *(Var(v) for v in rest)),
            writes=tuple(Access(n, at(w)) for n, w in zip(names, b.writes, strict=True)),
            values=tuple(E.substitute(v, old) for v in b.values),
            where=tuple(w for w in where if w != E.TRUE),
        )
        if not rest:  # no reduction is left: each partial result is one value
            once = Iter(numbered("r_1", kept), E.Const(1), "reduce")
            partial = replace(partial, iters=(*iters, once), binds=(*partial.binds, E.Const(0)))
        return partial


def _final(nest: Nest, b: Block, whole: Stmt, names: list[str], parts: Expr) -> Stmt:
    """The block that reduces so many partial results, with its loops. It runs over the same spatial points:
    those that the loops of the whole subtree cover."""
    spatial, used = of_kind(b, "spatial"), vars_bound(b, "spatial")
    walked = [x for x in walk(whole) if isinstance(x, Loop) and x.var in used]
    axes = fresh_each(nest, (f"{b.name}_ax{n}" for n in range(len(walked))))
    rename: dict[str, Expr] = {x.var: Var(new) for x, new in zip(walked, axes, strict=True)}
    rf_k = fresh_iter(b, "rf_k")
    last = fresh(nest, f"{b.name}_rf_k")
    stmt: Stmt = Block(
        b.name,
        (*(i for i, _ in spatial), Iter(rf_k, parts, "reduce")),
        (*(E.substitute(e, rename) for _, e in spatial), Var(last)),
        b.writes,
        tuple(
            Load(n, (*w.indices, Var(rf_k)), nest.buffer(w.buffer).dtype)
            for n, w in zip(names, b.writes, strict=True)
        ),
        b.reducer,
        True,
    )
    loops = [*zip(axes, (x.extent for x in walked), strict=True), (last, parts)]
    for n, extent in reversed(loops):
        stmt = Loop(n, extent, stmt)
    return stmt


def fresh_iter(b: Block, name: str) -> str:
    """``name``, numbered if an iteration of the block has it already."""
    return numbered(name, {i.var for i in b.iters})
