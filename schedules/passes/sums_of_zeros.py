"""Sums that go on over zeros, so that an instruction has no tail.

An instruction adds a few terms at a time. Where these do not divide a sum, the loops run over its end::

    for k: for t in range(4): if k * 4 + t < 501: C[i] += A[i, k, t] * B[k, t]

Where both factors are copies that are 0 from there on, each term is 0 * 0, and the condition is left out.
One factor is not enough: the other may be NaN there, or an element of another row.

Adding 0 changes no sum but one: -0.0 becomes 0.0. A sum that starts with 0.0 is -0.0 only where a product
underflows in a fused multiply-add. Both are equal, and which one it is depends on the order of a sum anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Load, Var
from schedules.functions import FUNCTIONS
from schedules.ir import Block, Iter, Loop, Nest, Stmt, blocks, loops_around, walk, with_body
from schedules.ir.nest import bound, writers
from schedules.ir.regions import dense, span

# Most steps beyond the end of a sum that are asked one by one: fewer than the terms of an instruction.
MOST_STEPS = 64
Ranges = Mapping[str, affine.Range]


def sums_of_zeros(nest: Nest) -> Nest:
    """The nest in which sums by an instruction end where their loops do, as far as what is added there is 0.
    Axes that a hole's factor cuts stay as they are."""
    marked = [x for x in walk(nest.body) if isinstance(x, Loop) and x.instruction is not None]
    longer = {id(b): new for x in marked for b in blocks(x.body) if (new := _longer(nest, b)) is not b}

    def go(s: Stmt) -> Stmt:
        return longer.get(id(s), s) if isinstance(s, Block) else with_body(s, go)

    return replace(nest, body=go(nest.body)) if longer else nest


def _longer(nest: Nest, b: Block) -> Block:
    """The block with its sum as long as its loops."""
    if b.reducer is None or len(b.values) != 1 or b.reducer.operation(0) != "+":
        return b
    runs = {x.var: _range(x.extent) for x in loops_around(b, nest.body)}
    for it, e in zip(b.iters, b.binds, strict=True):
        end, reach = _range(it.extent), affine.bounds(e, {v: r for v, r in runs.items() if r is not None})
        if it.kind != "reduce" or end is None or reach is None or reach[1] <= end[1]:
            continue
        within = {i.var: r for i in b.iters if (r := _range(i.extent)) is not None}
        asked = any(it.var in E.variables(w) for w in b.where)
        if not asked and _adds_nothing(nest, b, within, it.var, (end[1] + 1, reach[1])):
            iters = tuple(Iter(i.var, Const(reach[1] + 1), i.kind) if i is it else i for i in b.iters)
            b = replace(b, iters=iters)
    return b


def _adds_nothing(nest: Nest, b: Block, ranges: Ranges, var: str, beyond: affine.Range) -> bool:
    """Whether terms are 0 where ``var`` is ``beyond``. Where a range does not tell, each step is asked."""
    first, last = beyond
    every = [beyond, *((k, k) for k in range(first, last + 1) if last - first < MOST_STEPS)]
    whole, *each = (_Beyond(nest, b, {**ranges, var: at}, var) for at in every)
    value = b.values[0]
    if not all(map(whole.inside, E.loads(value))):
        return False
    return whole.is_zero(value) or (bool(each) and all(x.is_zero(value) for x in each))


def _selects(e: Expr) -> list[E.Select]:
    return [x for x in E.walk(e) if isinstance(x, E.Select)]


def _is_open(extent: Expr) -> bool:
    """Whether a call tells an extent, and no factor is left to be decided."""
    return affine.has_size(E.rewrite(extent, lambda x: Var(x.name) if isinstance(x, E.Hole) else None))


def _range(extent: Expr) -> affine.Range | None:
    return (0, int(extent.value) - 1) if isinstance(extent, Const) else None


def _is_whole(w: Block, dim: int, own: Mapping[str, Expr]) -> bool:
    """Whether loops of its own walk through all of a dimension that a block writes."""
    at = bound(w, w.writes[0].indices[dim])
    runs = {v: r for v, n in own.items() if (r := _range(n)) is not None}
    if not E.variables(at) <= runs.keys() or not dense((at,), own):
        return False
    end = next((_range(i.extent) for i in w.iters if Var(i.var) == w.writes[0].indices[dim]), None)
    reach = affine.bounds(at, runs)
    return end is not None and reach is not None and reach[0] <= 0 and reach[1] >= end[1]


@dataclass(frozen=True)
class _Beyond:
    """The iterations of a block ``b`` in some ranges, where ``var`` is beyond its extent."""

    nest: Nest
    b: Block
    ranges: Ranges
    var: str

    def inside(self, x: Load) -> bool:
        """Whether a load stays within its buffer, and that is made before, whole along the sum. In a loop
        with it, a buffer may have only what the sum itself reads."""
        around = {id(s) for s in loops_around(self.b, self.nest.body)}
        beyond = {v for v, (low, high) in self.ranges.items() if low > 0}
        along = [k for k, i in enumerate(x.indices) if E.variables(i) & beyond]
        for w in writers(self.nest, x.buffer):
            loops = loops_around(w, self.nest.body)
            own = {s.var: s.extent for s in loops if id(s) not in around}
            if len(own) < len(loops) and not all(self._has(w, own, x, k) for k in along):
                return False
            if (behind := self._copied(w, x)) is not None and not self.inside(behind):
                return False
        # Along an open dimension a load stays where it is before ``var`` ends, unless the two have to do with
        # each other.
        asked = any(self.var in E.variables(s.cond) for v in self.b.values for s in _selects(v))
        for i, n in zip(x.indices, self.nest.buffer(x.buffer).shape, strict=True):
            if not asked and _is_open(n) and self.var not in E.variables(i):
                continue
            at = affine.bounds(affine.simplify(i, self.ranges), self.ranges)
            if at is None or not isinstance(n, Const) or at[0] < 0 or at[1] >= n.value:
                return False
        return True

    def _has(self, w: Block, own: Mapping[str, Expr], x: Load, dim: int) -> bool:
        """Whether what ``w`` writes in its ``own`` loops is all of a dimension, or, of memory on a GPU's
        chip, all that is read there, beyond the end of the sum too. Loops write every element between the
        first and the last."""
        if _is_whole(w, dim, own):
            return True
        if self.nest.buffer(x.buffer).scope not in ("shared", "fragment"):
            return False
        mine = {id(s) for s in loops_around(w, self.nest.body)}
        inner = {s.var: s.extent for s in loops_around(self.b, self.nest.body) if id(s) not in mine}
        made, needed = (
            span(bound(w, w.writes[0].indices[dim]), own),
            span(bound(self.b, x.indices[dim]), inner),
        )
        if made is None or needed is None:
            return False
        around = {s.var: r for s in loops_around(w, self.nest.body) if (r := _range(s.extent)) is not None}
        apart, more = (affine.simplify(p - q, around) for p, q in zip(needed, made, strict=True))
        return apart == Const(0) and isinstance(more, Const) and more.value <= 0

    def _copied(self, w: Block, x: Load) -> Load | None:
        """What a copy on a GPU's chip has at a place that is read, where it is an element of another such
        copy."""
        value, places = w.values[0], w.writes[0].indices
        if w.reducer is not None or w.where or len(w.values) != 1 or not isinstance(value, Load):
            return None
        if self.nest.buffer(x.buffer).scope != "fragment" or value.buffer in self.nest.params:
            return None
        to = {i.name: j for i, j in zip(places, x.indices, strict=True) if isinstance(i, Var)}
        at = tuple(E.substitute(i, to) for i in value.indices)
        return Load(value.buffer, at, value.dtype) if len(to) == len(places) else None

    def is_zero(self, e: Expr) -> bool:
        """Whether a term is 0 in all of them, whatever is stored."""
        known = E.rewrite(e, lambda x: self.stored(x) if isinstance(x, Load) else None)
        known = E.rewrite(known, _folded)
        if not E.loads(known) and not E.variables(known):
            return bool(E.evaluate(known, {}) == 0)
        match e:
            case E.Cast(a=a):
                return self.is_zero(a)
            case E.Binary(op="*", a=a, b=b) if not E.is_float(E.dtype_of(e)):  # 0 times NaN is NaN
                return self.is_zero(a) or self.is_zero(b)
            case E.Binary(op="+" | "-", a=a, b=b):
                return self.is_zero(a) and self.is_zero(b)
        return False

    def stored(self, x: Load) -> Const | None:
        """What a padded copy has at a place, if that is one number."""
        made = writers(self.nest, x.buffer)
        if x.buffer in self.nest.params or len(made) != 1:
            return None
        (copy,) = made
        if (behind := self._copied(copy, x)) is not None:
            return self.stored(behind)
        if copy.reducer is not None or copy.where or len(copy.writes) != 1:
            return None
        at = copy.writes[0].indices
        extents: dict[Expr, Expr] = {Var(i.var): i.extent for i in copy.iters} | {Const(0): Const(1)}
        whole = tuple(map(extents.get, at)) == self.nest.buffer(x.buffer).shape
        found = {i.name: j for i, j in zip(at, x.indices, strict=True) if isinstance(i, Var)}
        rest = [i for i in copy.iters if i.var not in found]  # an axis of one step writes at 0
        once = len(found) == sum(isinstance(i, Var) for i in at)
        if not (whole and once and all(i.extent == Const(1) for i in rest)):
            return None
        return self._value(copy.values[0], found | {i.var: Const(0) for i in rest})

    def _value(self, e: Expr, at: Mapping[str, Expr]) -> Const | None:
        """The value of an expression of a copy at ``at``, if it is one number."""
        match e:
            case Const():
                return e
            case E.Select(cond=c, a=a, b=b):
                holds = {affine.decide(E.substitute(x, at), self.ranges) for x in E.conjuncts(c)}
                if False in holds:
                    return self._value(b, at)
                if holds <= {True}:
                    return self._value(a, at)
                one, other = self._value(a, at), self._value(b, at)
                return one if one == other else None
        return None


@np.errstate(all="ignore")  # that of 0 may be infinite, or none
def _folded(e: Expr) -> Expr | None:
    """The number that a function of a number is."""
    if isinstance(e, E.Call) and len(e.args) == 1 and isinstance(e.args[0], Const):
        return Const(float(FUNCTIONS[e.fn].of(np.float64(e.args[0].value))), E.dtype_of(e))
    return None
