"""The innermost of nested reductions by dot products of a few terms (`schedules.instructions`).

A factor that differs between outputs, as a code of few bits that is shifted and masked, becomes a stage in
the dtype that the instruction reads (`stage_factor`). It is computed in registers, next to where it is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from schedules import affine
from schedules import expr as E
from schedules.expr import Cast, Expr, Load
from schedules.instructions import INSTRUCTIONS, Instruction, match
from schedules.ir import Block
from schedules.ir.nest import behind, readers
from schedules.ir.strides import known_strides
from schedules.primitives.stage_factor import factors, fits
from schedules.space.rules.cpu.changed_operands import can_change, change_operands
from schedules.space.rules.cpu.copies import schedule_copy
from schedules.space.rules.cpu.instructed_operands import lane_axis
from schedules.space.rules.cpu.nested_levels import NestLevel, digit_axes
from schedules.space.rules.parts import copy_read
from schedules.space.rules.patterns import depends, extents, operands
from schedules.space.sketch_builder import SketchBuilder, extent


@dataclass(frozen=True, slots=True)
class Dots:
    """How an instruction is the innermost reduction. ``packed``: which factor differs between outputs.
    ``term``: the axis of the block of which its terms are steps. ``digits``: axes all of whose steps read the
    same bytes. ``source``: the stage that reads what is packed. ``staged``: it is a factor, not the block."""

    instruction: Instruction
    packed: int
    term: str
    digits: tuple[str, ...]
    source: str = ""
    staged: bool = False

    @property
    def lanes(self) -> int:
        return int(self.instruction.result.shape[0])


def fit_signs(d: SketchBuilder, name: str, own: str) -> None:
    """Let the innermost reduction read weights as the dtype of the other sign, if an instruction of the
    target takes them so at less cost than as they are: they are offset while they are packed, and what that
    adds is taken off the sum of a group. ``own``: the axis along which weights differ."""
    b = d.block(name)
    if len(b.values) != 1:
        return
    ways = [(i.cost, x) for i in _instructions(d) for x in match.fits(b, i, changed=True)]
    ways = [(cost, x) for cost, x in ways if lane_axis(x) == own and not x.added]
    usual = min((cost for cost, x in ways if not x.changes), default=inf)
    of_weights = [w for w in ways if [*w[1].changes] == [w[1].instruction.meaning.inputs[1].name]]
    cost, fit = min(of_weights, key=lambda w: w[0], default=(inf, None))
    if fit is None or cost >= usual or not can_change(d, b, fit):
        return
    if any(fit.reads[x].buffer not in d.s.nest.params for x in fit.changes):
        return
    reader = next((x.name for x in readers(d.s.nest, b.writes[0].buffer)), "")
    change_operands(d, name, reader, fit)
    d.done |= d.copies


def _instructions(d: SketchBuilder) -> list[Instruction]:
    """Instructions of the target that add dot products with what all lanes share to a lane each."""
    out = []
    for ins in INSTRUCTIONS.values():
        stage = ins.meaning.stages[0]
        one = ins.registers is None and len(stage.axes) == 1 and len(stage.reduce_axes) == 1
        ranks = [len(x.shape) for x in ins.meaning.inputs]
        if one and ins.features and d.runs(ins) and ranks == [1, 2]:
            out.append(ins)
    return out


def dots_for(d: SketchBuilder, level: NestLevel, v: str) -> dict[str, Dots]:
    """{instruction of the target: how it is the innermost reduction}; the cheapest alone."""
    b = d.block(level.name)
    own = level.axis.get(v, "")
    if b.reducer is None or b.reducer.operation(0) != "+" or len(b.values) != 1 or not own:
        return {}
    found = factors(b.values[0])
    if len(found) != 2:
        return {}
    for ins in sorted(_instructions(d), key=lambda i: i.cost):
        same, each = ins.meaning.inputs  # one of all lanes, and one of each
        if ins.result.dtype != d.dtype(b):
            continue
        for k in (0, 1):
            apart = any(own in E.variables(i) for x in E.loads(found[1 - k]) for i in x.indices)
            if apart or not _is_load(found[1 - k], same.dtype) or not fits(found[k], each.dtype):
                continue
            term = _term(d, b, found[k], own, int(each.shape[1]))
            if term and any(term in E.variables(i) for x in E.loads(found[1 - k]) for i in x.indices):
                return {ins.name: Dots(ins, k, term, tuple(digit_axes(d, level, v)))}
    return {}


def _is_load(e: Expr, dtype: str) -> bool:
    x = e.a if isinstance(e, Cast) else e
    return isinstance(x, Load) and x.dtype == dtype


def _term(d: SketchBuilder, b: Block, e: Expr, own: str, terms: int) -> str:
    """The axis of the sum along which the only argument that a factor reads goes on in memory, if its steps
    are whole groups of terms."""
    n = extents(b)
    read = [x for x in operands(b) if x in E.loads(e)]
    if len(read) != 1 or not depends(read[0], own):
        return ""
    moves = _moves(d, read[0])
    summed = (i.var for i in b.iters if i.kind == "reduce" and (b.name, i.var) not in d.open)
    return next((v for v in summed if moves.get(v) == 1 and n[v] % terms == 0), "")


def _moves(d: SketchBuilder, x: Load) -> dict[str, int]:
    """{axis: elements that a load moves with each step of it}, of axes that move it evenly."""
    strides = known_strides(d.s.nest.buffer(x.buffer))
    return affine.steps_of(affine.offset(x.indices, strides))[0]


def prepare_dots(d: SketchBuilder, levels: list[NestLevel], v: str, dots: Dots) -> Dots:
    """Make the terms an axis of the innermost block, and its factor a stage, which ``levels`` then has
    too."""
    level = levels[-1]
    b = d.block(level.name)
    loops = dict(zip((i.var for i in b.iters), (x.var for x in d.loops(level.name)), strict=True))
    term, depth = dots.term, dict(level.depth)
    if extents(b)[term] > dots.instruction.terms:
        d.s.split_axis(loops[term], dots.instruction.terms)
        new = [i.var for i in d.block(level.name).iters]
        at = new.index(next(x for x in new if x not in loops))
        depth |= dict.fromkeys(new[at : at + 2], depth.pop(term))
        term = new[at + 1]
    level = levels[-1] = replace(level, depth=depth)
    b = d.block(level.name)
    e = factors(b.values[0])[dots.packed]
    source, staged = level.name, False
    dtype = dots.instruction.meaning.inputs[1].dtype
    if not _is_load(e, dtype):
        source, staged = d.s.stage_factor(level.name, dots.packed, dtype), True
        d.done.add(source)
        levels.append(NestLevel(source, level.axis, depth, is_factor=True))
    _turn_terms(d, level, v, term, dots.instruction.terms)
    return replace(dots, term=term, source=source, staged=staged)


def _turn_terms(d: SketchBuilder, level: NestLevel, v: str, term: str, terms: int) -> None:
    """Let the block read what all lanes share through a copy in which terms lie side by side, if they lie
    some elements apart."""
    b = d.block(level.name)
    x = next(x for x in operands(b) if not depends(x, level.axis[v]))
    if _moves(d, x).get(term, 0) == 1:
        return
    dim = next(k for k, i in enumerate(x.indices) if term in E.variables(i))
    step = affine.steps_of(x.indices[dim])[0].get(term, 0)
    name = copy_read(d, level.name, x)
    d.done.add(name)
    at = k = dim  # the dimension of the terms, and that which is split
    for inner in (step * terms, step) if step != 1 else ():
        if inner == extent(d.own_loops(name)[k]):
            continue
        d.s.split_axis(d.own_loops(name)[k].var, inner)
        d.s.split_dim(name, k, inner)
        at, k = k, k + 1
    order = [*(k for k in range(len(d.own_loops(name))) if k != at), at]
    loops = [q.var for q in d.own_loops(name)]
    d.s.reorder_storage(name, order)
    d.s.reorder(*(loops[k] for k in order))
    schedule_copy(d, name, parallel=False)


def compute_factor(d: SketchBuilder, level: NestLevel, v: str, dots: Dots, loop: str) -> None:
    """Compute the factor in ``loop``, in vectors along the terms of all lanes."""
    d.s.compute_at(dots.source, loop)
    b = d.block(dots.source)
    own = [x.var for x in d.own_loops(dots.source)]
    wide = next(x for x in own if x in behind(b, level.axis[v]))
    terms = next(x for x in own if x in behind(b, dots.term))
    rest = [x for x in own if x not in (wide, terms)]
    runs, lanes = d.s.split(wide, (None, dots.lanes))
    d.s.reorder(*rest, runs, lanes, terms)
    for x in (*rest, runs):
        d.s.unroll(x)
    d.s.vectorize(d.s.fuse(lanes, terms))
    axes = [i.var for i in b.iters]
    last = [axes.index(level.axis[v]), axes.index(dots.term)]
    d.s.reorder_storage(b.writes[0].buffer, [*(k for k in range(len(axes)) if k not in last), *last])
