"""online: reduce a maximum and the sums relative to it in one pass over parts of their axis (ADR 16)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Binary, Const, Expr, Load, Select, Var
from schedules.ir import Access, Block, Buffer, Iter, Loop, Nest, Stmt, blocks, in_order, seq, walk
from schedules.ir.carried import carried_buffers
from schedules.ir.nest import (
    add_buffer,
    bind_loops,
    block_names,
    find_block,
    find_loop,
    fresh,
    loop_path,
    loop_vars,
    loops_of,
    map_blocks,
    readers,
    reads,
    redirect_reads,
    replace_stmt,
    subtree_of,
    vars_bound,
    writers,
)
from schedules.model import Target
from schedules.primitives.base import Factor, Primitive, as_tuple, listed, require_extent
from schedules.primitives.compute_at import ComputeAt
from schedules.primitives.decompose_reduction import DecomposeReduction
from schedules.primitives.reorder import Reorder
from schedules.primitives.reorder_storage import ReorderStorage
from schedules.primitives.rfactor import Rfactor, fresh_iter
from schedules.primitives.split import Split
from schedules.rescaling import degree
from schedules.te.compute_dag import Reducer, operand
from schedules.te.scalars import limit, min_value


@dataclass(frozen=True)
class Online(Primitive[str]):
    """Reduce a maximum and the sums that are relative to it together, ``size`` elements at a time (Milakov &
    Gimelshein, 2018; FlashAttention: Dao et al., 2022).

    Before: ``m = max_j s[j]``, ``e[j] = exp(s[j] - m)``, ``l = sum_j e[j]``, ``o[c] = sum_j e[j] * v[j, c]``.
    After ``online(m, [l, o], 64)``, where a part moves the maximum from ``M`` to ``m``::

        m = -inf; l = 0; o[c] = 0
        for m_part in range(ceildiv(n, 64)):
          m = max(m, m_rf)              # m_rf: the maximum of the part;  m_scale = exp(M - m)
          l *= m_scale
          for j: l += e[j]              # of the part, e[j] = exp(s[j] - m)
          for c: o[c] *= m_scale
          for c: for j: o[c] += e[j] * v[j, c]

    The stages between and ``m_rf`` are computed in ``m_part``, as by `ComputeAt`, and hold no more than a
    part. The stages that compute ``s`` may be moved there too.

    Legal if the terms of each sum are proved to be products of ``exp(p * (s - m))``, ``p > 0``, and of
    factors that do not depend on ``m``, and nothing else reads the stages between. Parts of a sum must not
    overflow, as in any other order. While all elements so far are -inf, the lowest number is subtracted
    instead (``m_shift``), as infinities would make NaN. Cost: the rescaling, once a part. The row is walked
    once.

    >>> t = at.Schedule(at.ops.workload("softmax", {"m": 4, "n": 64}).dag)
    >>> t.inline("e")
    >>> t.online("row_max", ["row_sum"], 16)
    'row_max_part'
    >>> t.loops("row_sum")
    ['row_max_part', 'row_sum_i', 'row_sum_k_1']
    """

    name: ClassVar[str] = "online"
    rounded: ClassVar[bool] = False
    block: str
    sums: tuple[str, ...]
    size: int | E.Hole

    @classmethod
    def of(cls, block: str, sums: Sequence[str], size: Factor) -> Online:
        """As `Schedule` has it."""
        return cls(block, as_tuple(sums), size)

    def result(self) -> str:
        return f"{self.block}_part"

    def sentence(self) -> str:
        return (
            f"Reduce the maximum `{self.block}` and the sums {listed(self.sums)} in one pass, {self.size} "
            "elements at a time; the sums so far are rescaled when the maximum grows."
        )

    def check(self, nest: Nest, target: Target | None = None) -> None:
        if carried := carried_buffers(nest):
            raise self.refused(f"later steps of a scan read {min(carried)}; use it where there is no scan")
        self._fused(nest, self._plan(nest))

    def apply(self, nest: Nest) -> Nest:
        return self._fused(nest, self._plan(nest))

    # -- what is legal -------------------------------------------------------------------------

    def _plan(self, nest: Nest) -> _Plan:
        """The plan of the rewriting. Raises ScheduleError if legality is not proved."""
        m = find_block(nest, self.block)
        if not self.sums or len({self.block, *self.sums}) <= len(self.sums):
            raise self.refused(
                f"name the sums that depend on it, each once; got {', '.join(self.sums) or 'none'}"
            )
        for name in (self.block, *self.sums):
            self._check_reduction(nest, find_block(nest, name))
        if isinstance(self.size, int) and self.size < 1:
            raise self.refused(f"parts of {self.size} elements; choose 1 or more")
        require_extent(self.size if isinstance(self.size, int) else 0, f"online {self.block}")
        relative = _depending(nest, {w.buffer for w in m.writes})
        used = {
            x.buffer
            for name in self.sums
            for x in E.loads(_written_out(nest, find_block(nest, name).values[0]))
        }
        maxima = (n for n, w in enumerate(m.writes) if w.buffer in used and _reduces_by(m, "max", n))
        which = next(maxima, None)
        if which is None:
            raise self.refused(
                f"{', '.join(self.sums)} do not depend on a maximum of it; name the maximum first, then the "
                "sums"
            )
        followers = tuple(self._follower(nest, m, which, find_block(nest, n), relative) for n in self.sums)
        return _Plan(m, which, followers, self._between(nest, m, relative))

    def _check_reduction(self, nest: Nest, b: Block) -> None:
        """Check that a block has one axis, reduced by one loop that it shares with no other block."""
        if b.reducer is None or not b.init:
            raise self.refused(f"{b.name} is not a whole reduction; use online before decompose_reduction")
        loops = {x.var: x for x in loops_of(nest, b.name)}
        axes = [(i, e) for i, e in zip(b.iters, b.binds, strict=True) if i.kind == "reduce"]
        loop = axes[0][1]
        if len(axes) > 1 or not isinstance(loop, Var) or loops[loop.name].extent != axes[0][0].extent:
            raise self.refused(
                f"{b.name} does not reduce one axis by one loop; use online before split and fuse"
            )
        at = tuple(Var(i.var) for i in b.iters if i.kind == "spatial")
        if any(w.indices != at for w in b.writes):
            raise self.refused(f"{b.name} does not store at its axes in order; use online before split_dim")
        if b.name != self.block and (len(b.writes) > 1 or not _reduces_by(b, "+")):
            raise self.refused(f"{b.name} is not a sum; only sums can be rescaled")

    def _follower(self, nest: Nest, m: Block, which: int, b: Block, relative: set[str]) -> _Follower:
        """The sum, if its terms are proportional to a power of ``exp(-m)``. Raises ScheduleError if not."""
        top = m.writes[which]
        value = _written_out(nest, b.values[0])
        found = {x for x in E.loads(value) if x.buffer == top.buffer}
        spatial = {i.var for i in b.iters if i.kind == "spatial"}
        at = next(iter(found), None)
        p = None
        if at is not None and len(found) == 1 and all(E.variables(i) <= spatial for i in at.indices):
            k, j = (next(i for i in x.iters if i.kind == "reduce") for x in (m, b))
            row = dict(zip((i.var for i in m.iters if i.kind == "spatial"), at.indices, strict=True))
            of = E.substitute(_written_out(nest, m.values[which]), {**row, k.var: Var(j.var)})
            if k.extent == j.extent:
                p = degree(
                    value,
                    at,
                    of,
                    lambda x: isinstance(x, Load) and x.buffer in relative,
                    rounded=self.rounded,
                )
        if p is None:
            raise self.refused(
                f"the terms of {b.name}, {E.show(value)[:80]}, are not proved to be products of exp(x - "
                f"{top.buffer}), with {self.block} the maximum of x, and factors that do not depend on it; "
                f"leave {b.name} out, so that it reads the final maximum"
            )
        assert at is not None
        return _Follower(b.name, p, at.indices)

    def _between(self, nest: Nest, m: Block, relative: set[str]) -> tuple[str, ...]:
        """Elementwise stages between the maximum and the sums, in program order."""
        group = {self.block, *self.sums}
        wanted = {x.buffer for name in self.sums for x in reads(find_block(nest, name))}
        own = {w.buffer for w in m.writes}
        out: list[str] = []
        for b in reversed(blocks(nest.body)):
            if b.name in group or not any(w.buffer in wanted & relative - own for w in b.writes):
                continue
            for w in b.writes:
                others = [u.name for u in readers(nest, w.buffer) if u.name not in (*group, *out)]
                if others or w.buffer in nest.params:
                    raise self.refused(
                        f"{w.buffer} changes with the maximum, but {others[0] if others else 'the caller'} "
                        f"reads it too; name all sums of it, or inline {b.name} first"
                    )
            out.append(b.name)
            wanted |= {x.buffer for x in reads(b)}
        return tuple(reversed(out))

    # -- the rewriting -------------------------------------------------------------------------

    def _fused(self, nest: Nest, plan: _Plan) -> Nest:
        def do(p: Primitive) -> None:
            nonlocal nest
            try:
                p.check(nest)
            except ScheduleError as err:
                raise self.refused(f"{err}") from None
            nest = p.apply(nest)

        taken = {*block_names(nest), *loop_vars(walk(nest.body))}
        for new in (self.result(), *(f"{s}_rescale" for s in self.sums)):
            if new in taken:
                raise self.refused(f"{new} exists already")
        loops: list[str] = []
        for name in (self.block, *self.sums):
            b = find_block(nest, name)
            reduced = b.binds[next(n for n, i in enumerate(b.iters) if i.kind == "reduce")]
            assert isinstance(reduced, Var)
            split = Split(reduced.name, (None, self.size))
            do(split)
            part = split.result()[0]
            if name == self.block:
                do(Rfactor(name, part))
                nest, moving = _moving(_part_first(nest, f"{name}_rf"), plan)
                part = loops_of(nest, name)[-1].var
            own = [x.var for x in walk(subtree_of(nest, name)) if isinstance(x, Loop)]
            if part not in own:
                held = ", ".join(x.name for x in blocks(find_loop(nest, part).body) if x.name != name)
                raise self.refused(
                    f"{name} reduces over loop {part}, but it also holds {held}; use online before compute_at"
                )
            if own[0] != part:
                do(Reorder((part, *own[: own.index(part)])))
            do(DecomposeReduction(name, part))
            loops.append(part)
        top, inside = plan.block.writes[plan.which].buffer, {*plan.between, *self.sums}
        nest = map_blocks(nest, lambda b: redirect_reads(b, top, moving.shift) if b.name in inside else b)
        nest = self._together(nest, loops, plan, moving)
        for name in reversed((f"{self.block}_rf", *plan.between)):
            do(ComputeAt(name, self.result()))
        return nest

    def _together(self, nest: Nest, loops: list[str], plan: _Plan, moving: _Moving) -> Nest:
        """Fuse the loops over parts into one. Readers of their results come after it."""
        names = (self.block, *self.sums)
        around = [loop_vars(loop_path(nest, v))[:-1] for v in loops]
        apart = [n for n, a in zip(names, around, strict=True) if a != around[0]]
        if apart:
            raise self.refused(f"{apart[0]} is not in the same loops; compute_at one loop first")
        each = [find_loop(nest, v) for v in loops]
        part = Var(self.result())
        first, *steps = [bind_loops(x.body, {x.var: part}) for x in each]
        body = [first]
        for f, step in zip(plan.followers, steps, strict=True):
            body += [_rescaled(nest, step, f, moving, Iter("part", each[0].extent, "reduce"), part), step]
        parent = find_loop(nest, around[0][-1]) if around[0] else None
        before: list[Stmt] = []
        after: list[Stmt] = []
        late: set[str] = set()
        for s in in_order(parent.body if parent is not None else nest.body):
            own = blocks(s)
            gone = any(s is x for x in each)
            if gone or any(x.buffer in late for b in own for x in reads(b)):
                late |= {w.buffer for b in own for w in b.writes}
                if not gone:
                    (before if all(b.name in plan.between for b in own) else after).append(s)
            else:
                before.append(s)
        new = seq(*before, Loop(part.name, each[0].extent, seq(*body)), *after)
        if parent is None:
            return replace(nest, body=new)
        return replace_stmt(nest, parent, replace(parent, body=new))


@dataclass(frozen=True)
class OnlineRounded(Online):
    """As `Online`, where the terms may be rounded to fewer bits: each is then rounded relative to the maximum
    so far, and no longer to the final one. That is as exact, within the rounding of each term: the dtype must
    have as many exponents, as bfloat16 has those of float32.

    >>> t = at.Schedule(at.ops.workload("attention", {"heads": 1, "seq": 64, "dim": 8}, "bfloat16").dag)
    >>> t.inline("scores")
    >>> t.online_rounded("row_max", ["row_sum", "mixed"], 16)
    'row_max_part'
    """

    name: ClassVar[str] = "online_rounded"
    rounded: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class _Follower:
    """A sum whose terms are proportional to ``exp(-power * m[row])``."""

    name: str
    power: float
    row: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The maximum is output ``which`` of ``block``. Only the followers read the stages ``between``."""

    block: Block
    which: int
    followers: tuple[_Follower, ...]
    between: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Moving:
    """Buffers. ``shift``: what is subtracted for the maximum so far. ``scales``: {power: what rescales the
    sums so far}."""

    shift: str
    scales: dict[float, Buffer]


def _part_first(nest: Nest, name: str) -> Nest:
    """Put the axis that rfactor adds last first, so that the elements of a part lie together."""
    b = find_block(nest, name)
    rank = len(b.writes[0].indices)
    order = (rank - 1, *range(rank - 1))
    for w in b.writes:
        nest = ReorderStorage(w.buffer, order).apply(nest)
    b = find_block(nest, name)
    order = (*order, *range(rank, len(b.iters)))
    new = replace(b, iters=tuple(b.iters[k] for k in order), binds=tuple(b.binds[k] for k in order))
    return replace_stmt(nest, b, new)


def _moving(nest: Nest, plan: _Plan) -> tuple[Nest, _Moving]:
    """(nest, buffers): the maximum gets more outputs, which tell in each part how it moved."""
    b = find_block(nest, plan.block.name)
    assert b.reducer is not None
    top = nest.buffer(b.writes[plan.which].buffer)
    d, n = top.dtype, len(b.writes)
    k = next(i for i in b.iters if i.kind == "reduce")
    low, one = min_value(d), Const(1.0, d)
    # Infinities must not be subtracted: a maximum of -inf counts as the lowest number until the last element.
    floor = Select(E.compare("==", Var(k.var), k.extent - 1), limit(d, -1), low)
    shift = E.maximum(b.reducer.combine[plan.which], operand(f"y{n}", d))
    moved = operand(f"x{n}", d) - shift
    scales: dict[float, Buffer] = {}
    made = [replace(top, name=fresh(nest, f"{top.name}_shift"))]
    combine, identity, values = [shift], [low], list[Expr]([floor])
    for power in sorted({f.power for f in plan.followers}):
        nest = add_buffer(nest, made[-1])
        made.append(replace(top, name=fresh(nest, f"{top.name}_scale")))
        scales[power] = made[-1]
        combine.append(E.Call("exp", (moved if power == 1 else moved * Const(power, d),)))
        identity.append(one)
        values.append(one)
    nest = add_buffer(nest, made[-1])
    at = b.writes[plan.which].indices
    new = replace(
        b,
        writes=(*b.writes, *(Access(x.name, at) for x in made)),
        values=(*b.values, *values),
        reducer=Reducer(
            f"{b.reducer.name}_online",
            (*b.reducer.identity, *identity),
            (*b.reducer.combine, *combine),
        ),
    )
    return replace_stmt(nest, b, new), _Moving(made[0].name, scales)


def _rescaled(nest: Nest, step: Stmt, f: _Follower, moving: _Moving, parts: Iter, part: Var) -> Stmt:
    """The spatial loops of ``step``, which adds a part to the sum so far, around the rescaling before it. The
    rescaling is a product over the parts, so that no primitive takes it for a stage that may be computed
    twice."""
    (b,) = blocks(step)
    scale, d = moving.scales[f.power], nest.buffer(b.writes[0].buffer).dtype
    value: Expr = Load(scale.name, f.row, scale.dtype)
    used = vars_bound(b, "spatial")
    loops = [x for x in walk(step) if isinstance(x, Loop) and x.var in used]
    rename: dict[str, Expr] = {x.var: Var(fresh(nest, f"{x.var}_rescale")) for x in loops}
    spatial = [(i, e) for i, e in zip(b.iters, b.binds, strict=True) if i.kind == "spatial"]
    out: Stmt = Block(
        f"{b.name}_rescale",
        (*(i for i, _ in spatial), replace(parts, var=fresh_iter(b, parts.var))),
        (*(E.substitute(e, rename) for _, e in spatial), part),
        b.writes,
        (value if scale.dtype == d else E.Cast(d, value),),
        Reducer("prod", (Const(1.0, d),), (operand("x0", d) * operand("y0", d),)),
    )
    for x in reversed(loops):
        new = rename[x.var]
        assert isinstance(new, Var)
        out = Loop(new.name, x.extent, out)
    return out


def _depending(nest: Nest, buffers: set[str]) -> set[str]:
    """``buffers``, and all buffers whose contents depend on them."""
    out = set(buffers)
    for b in blocks(nest.body):
        if any(x.buffer in out for x in reads(b)):
            out |= {w.buffer for w in b.writes}
    return out


def _written_out(nest: Nest, e: Expr) -> Expr:
    """``e`` with every elementwise stage inlined."""

    def f(x: Expr) -> Expr | None:
        if not isinstance(x, Load):
            return None
        by = writers(nest, x.buffer)
        if len(by) != 1 or by[0].reducer is not None or by[0].where:
            return None
        n = next(k for k, w in enumerate(by[0].writes) if w.buffer == x.buffer)
        if by[0].writes[n].indices != tuple(Var(i.var) for i in by[0].iters):
            return None
        at = dict(zip((i.var for i in by[0].iters), x.indices, strict=True))
        return E.rewrite(E.substitute(by[0].values[n], at), f)

    return E.rewrite(e, f)


def _reduces_by(b: Block, op: str, n: int = 0) -> bool:
    """Whether output ``n`` of a reduction combines its own floating-point operands by ``op`` only."""
    assert b.reducer is not None
    c = b.reducer.combine[n]
    return (
        isinstance(c, Binary)
        and c.op == op
        and {x.buffer for x in (c.a, c.b) if isinstance(x, Load)} == {f"x{n}", f"y{n}"}
        and E.is_float(b.reducer.identity[n].dtype)
    )
