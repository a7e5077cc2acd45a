"""Whether loops are an instruction: which loop is which of its axes, and where its operands lie.

The loops are compared with the instruction's meaning (unification): loops with axes of their extent, operands
of + and * in either order, and the step of every operand along every axis with its layout.

Before loops are cut, `fits` says which axes of a block may become those of the instruction.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from schedules import affine
from schedules import expr as E
from schedules.dtypes import holds, is_integer, offset_to
from schedules.errors import ScheduleError
from schedules.expr import Binary, Cast, Const, Expr, Load, Select, Var
from schedules.ir import Block, Loop, Operand, Store, const, loop_nest
from schedules.ir.instruction import Instruction
from schedules.strides import row_major

Strides = Mapping[str, tuple[int, ...]]  # of buffers, in elements


class NoMatch(ScheduleError):
    """The loops are not the instruction. The message names the operand, what it needs and what it has."""


def match(loop: Loop, ins: Instruction, strides: Strides | None) -> tuple[Operand, ...]:
    """The operands of the instruction that the loops from ``loop`` on are. ``strides``: of the buffers. None:
    how operands lie is not asked. Raises NoMatch."""
    loops, s = loop_nest(loop)
    if not isinstance(s, Store):
        raise NoMatch(
            f"tensorize {loop.var}: inside of it is no single store, as where a tail or the start of a "
            "reduction is left; split by factors that divide, and decompose_reduction first"
        )
    have = {x.var: const(x.extent) for x in loops}
    want = ins.iterations
    errors: list[NoMatch] = []
    for order in itertools.permutations(have):
        if len(order) == len(want) and [have[v] for v in order] == list(want.values()):
            try:
                return _Unifier(ins, dict(zip(want, order, strict=True)), s, strides).operands()
            except NoMatch as err:
                errors.append(err)
    if errors:
        raise NoMatch(f"tensorize {loop.var}: {errors[0]}")
    raise NoMatch(
        f"tensorize {loop.var}: the loops {_extents(have)} are not the axes {_extents(want)} of {ins.name}; "
        "split and reorder so that its axes are innermost"
    )


@dataclass(frozen=True)
class Fit:
    """A block as many runs of an instruction. ``axes``: {axis of the instruction: axis of the block of which
    it is a part}; several axes of its sum may be parts of one. ``reads``: {input: what the block reads}.
    ``merged``: the loops that have to be merged into one axis before, that of the sum. ``added``: inputs to
    which the sum adds something, as less a zero point, which has to be taken out of it before."""

    instruction: Instruction
    axes: Mapping[str, str]
    reads: Mapping[str, Load]
    merged: tuple[str, ...] = ()
    added: frozenset[str] = frozenset()

    @property
    def changes(self) -> dict[str, str]:
        """{input: the dtype that the instruction reads}, where the block reads another one, or adds something
        to it. The operand may be changed while it is copied: offset, as each of its values with the same
        number added is one of that dtype (`offset_to`), or widened, as each is one itself (`holds`)."""
        have = {x.name: x.dtype for x in self.instruction.meaning.inputs}
        return {k: have[k] for k, x in self.reads.items() if x.dtype != have[k] or k in self.added}


def fits(b: Block, ins: Instruction, *, changed: bool = False) -> list[Fit]:
    """All ways in which a block is an instruction, by its expression alone: where operands lie, and how long
    axes are, is not asked. Axes of the result are spatial axes of the block, and all axes of the sum are
    parts of one of its reduction axes. Empty where the block computes something else. ``changed``: also where
    an operand would have to be changed first (`Fit.changes`).

    ``c[i, j] += a[i, k] * b[k, j]`` is ``c[i] += a[t] * b[i, t]`` with i = j, t = k and the operands as they
    stand, and with i = i, t = k and the operands turned around.
    """
    stage = ins.meaning.stages[0]
    sums = [x.reducer.operation(0) if x.reducer is not None else "" for x in (b, stage)]
    if b.where or len(b.writes) != 1 or sums[0] != sums[1] or (b.reducer is None) != (stage.reducer is None):
        return []
    moves = {x.buffer: _moving(x) for x in stage.reads()}
    spatial, reduce = ([i.var for i in b.iters if i.kind == kind] for kind in ("spatial", "reduce"))
    out = []
    for reads in _readings(stage.values[0], b.values[0], changed):
        used = {name: _moving(x) for name, x in reads.items()}
        added = frozenset(name for name, x in reads.items() if _is_added_to(b.values[0], x))

        def alike(axis: str, v: str, used: Mapping[str, set[str]] = used) -> bool:
            return all((axis in moves[name]) == (v in at) for name, at in used.items())

        results = [[v for v in spatial if alike(a.var, v)] for a in stage.axes]
        terms = [r for r in reduce if all(alike(a.var, r) for a in stage.reduce_axes)]
        for (*at, r) in itertools.product(*results, terms if stage.reduce_axes else [""]):
            if len(set(at)) == len(at):
                axes = dict(zip((a.var for a in stage.axes), at, strict=True))
                axes |= {a.var: r for a in stage.reduce_axes}
                out.append(Fit(ins, axes, reads, added=added))
    return out


def _readings(p: Expr, e: Expr, changed: bool) -> Iterator[dict[str, Load]]:
    """{operand: what is read for it}, for every order of the operands of + and * in which ``e`` is ``p``."""
    if isinstance(p, Load) and isinstance(e, Load):
        if p.dtype == e.dtype or (changed and _changes(e.dtype, p.dtype)):
            yield {p.buffer: e}
        return
    if changed and isinstance(p, Cast) and isinstance(e, Binary) and e.op in "+-" and is_integer(p.dtype):
        for x in (e.a, e.b) if e.op == "+" else (e.a,):
            yield from _readings(p, x, changed)
        return
    if isinstance(p, Const) or not _alike(p, e):
        if p == e:
            yield {}
        return
    orders = [tuple(E.children(e))]
    if isinstance(p, Binary) and p.op in ("+", "*"):
        orders.append(orders[0][::-1])
    for order in orders:
        parts = (tuple(_readings(x, y, changed)) for x, y in zip(E.children(p), order, strict=True))
        for found in itertools.product(*parts):
            whole: dict[str, Load] = {}
            if all(whole.setdefault(name, x) == x for one in found for name, x in one.items()):
                yield whole


def _is_added_to(e: Expr, x: Load) -> bool:
    """Whether a product adds something to an element that it reads."""
    sums = (y for y in E.walk(e) if isinstance(y, Binary) and y.op in "+-" and E.dtype_of(y) != E.INDEX)
    return any(x in E.loads(y) for y in sums)


def _changes(old: str, new: str) -> bool:
    """Whether an operand may be changed to another dtype while it is copied."""
    return offset_to(old, new) is not None or holds(new, old)


def _alike(p: Expr, e: Expr) -> bool:
    """Whether two expressions are the same operation, whatever their operands are."""
    names = ("op", "fn")
    same = E.kind(p) is E.kind(e) and not isinstance(p, Load) and E.dtype_of(p) == E.dtype_of(e)
    return same and all(getattr(p, n, None) == getattr(e, n, None) for n in names)


def _moving(x: Load) -> set[str]:
    """Variables with which an access moves."""
    return {v for i in x.indices for v in E.variables(i)}


def _extents(loops: Mapping[str, int | None]) -> str:
    return "[" + ", ".join(f"{v}: {n}" for v, n in loops.items()) + "]"


class _Unifier:
    """``to``: the loop of each axis of the instruction."""

    def __init__(self, ins: Instruction, to: Mapping[str, str], s: Store, strides: Strides | None) -> None:
        self.ins, self.to, self.s, self.known = ins, to, s, strides
        self.found: dict[str, Operand] = {}

    def operands(self) -> tuple[Operand, ...]:
        step = self.ins.step
        out = self.ins.result
        self.operand(Load(step.buffer, step.indices, out.dtype), self.s.buffer, self.s.indices, None)
        self.value(step.value, self.s.value)
        return tuple(self.found[t.name] for t in self.ins.operands)

    def value(self, p: Expr, e: Expr) -> None:
        """Compare a part of the meaning with a part of the store's value."""
        if self.known is None and isinstance(e, Select) and not isinstance(p, Select):
            e = e.a  # padding: tiles without any are left when loops are cut, which is asked again then
        if isinstance(p, Load) and isinstance(e, Load):
            self.operand(p, e.buffer, e.indices, e.dtype)
            return
        if isinstance(p, Binary) and isinstance(e, Binary) and p.op == e.op:
            self.pair(p, e)
            return
        if isinstance(p, Const) or not _alike(p, e):
            if p == e:
                return
            raise NoMatch(f"{E.show(e)} stands where {self.ins.name} has {E.show(p)}")
        for x, y in zip(E.children(p), E.children(e), strict=True):
            self.value(x, y)

    def pair(self, p: Binary, e: Binary) -> None:
        held = dict(self.found)
        try:
            self.value(p.a, e.a)
            self.value(p.b, e.b)
            return
        except NoMatch as err:
            if p.op not in ("+", "*"):
                raise
            as_written = err
        self.found = held
        try:
            self.value(p.a, e.b)
            self.value(p.b, e.a)
        except NoMatch:
            raise as_written from None

    def operand(self, p: Load, buffer: str, at: tuple[Expr, ...], dtype: str | None) -> None:
        """Compare an access with that of the instruction, and note where the operand lies."""
        name, ins = p.buffer, self.ins
        layout = next(t for t in ins.operands if t.name == name)
        if dtype is not None and dtype != layout.dtype:
            raise NoMatch(f"operand {name} of {ins.name} is {layout.dtype}, {buffer} is {dtype}")
        own = [i.name for i in p.indices if isinstance(i, Var)]
        moving = {v for i in at for v in E.variables(i)}
        for axis, loop in self.to.items():
            if axis not in own and loop in moving:
                raise NoMatch(
                    f"operand {name} of {ins.name} stands still along {axis}, {buffer} moves with {loop}"
                )
        strides = self.strides(p, buffer, at)
        start: dict[str, Expr] = {v: Const(0) for v in self.to.values()}
        first = tuple(affine.simplify(E.substitute(i, start), {}) for i in at)
        here = Operand(name, buffer, first, strides)
        if self.found.setdefault(name, here) != here:
            raise NoMatch(f"operand {name} of {ins.name} would lie in two places")

    def strides(self, p: Load, buffer: str, at: tuple[Expr, ...]) -> tuple[int, ...]:
        """Elements from one to the next along each dimension of an operand."""
        name, ins = p.buffer, self.ins
        dense = row_major(next(t for t in ins.operands if t.name == name).shape)
        if self.known is None:
            return dense
        steps, uneven = affine.steps_of(affine.offset(at, self.known[buffer]))
        out = []
        for d, (i, need) in enumerate(zip(p.indices, dense, strict=True)):
            axis = i.name if isinstance(i, Var) else ""
            loop = self.to[axis]
            if loop in uneven:
                raise NoMatch(f"operand {name} of {ins.name}: {buffer} moves unevenly with {loop}")
            step = steps.get(loop, 0)
            if (name, d) not in ins.free and step != need:
                raise NoMatch(
                    f"operand {name} of {ins.name} needs step {need} along {axis}; {buffer} has {step} along "
                    f"{loop}: pack it so that {ins.layout(name)} is innermost"
                )
            out.append(step)
        return tuple(out)
