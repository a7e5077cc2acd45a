"""How operands of an instruction lie, and copies in which they lie as it wants them.

What an instruction reads follows from the shape of its operand: the dimensions behind the last one that may
have any step lie innermost, in this order. A copy has tiles of these lengths (`pack`). A sum whose length the
instruction's terms do not divide is padded by zeros in both operands.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Hole, Load, Var
from schedules.instructions import INSTRUCTIONS, Instruction
from schedules.instructions.match import Fit
from schedules.ir import Block, Nest, const
from schedules.ir.nest import bound, readers, reads, writers
from schedules.ir.strides import known_strides
from schedules.primitives.unfold import Unfolding
from schedules.space.rules.cpu.copies import PANELS, schedule_copy
from schedules.space.rules.parts import copy_read
from schedules.space.rules.patterns import extents, is_filled, is_gathered, is_guarded_copy, unit_stride_vars
from schedules.space.sketch_builder import SketchBuilder
from schedules.strides import row_major

# Times that an instruction copies faster than vectors of short rows.
FASTER = 4
Sizes = Mapping[str, int | Hole]  # of tiles, by axis of the block


def units_of(fit: Fit) -> dict[str, int]:
    """{spatial axis of the block: points of it that are one run of the instruction}."""
    return {fit.axes[a.var]: a.extent for a in fit.instruction.meaning.stages[0].axes}


def lane_axis(fit: Fit) -> str:
    """The axis of the block along which results of one instruction lie side by side."""
    return fit.axes[fit.instruction.meaning.stages[0].axes[-1].var]


def term_axis(fit: Fit) -> str:
    """The reduction axis of the block of which the terms are parts."""
    return fit.axes[fit.instruction.meaning.stages[0].reduce_axes[0].var]


@dataclass(frozen=True, slots=True)
class OperandRead:
    """An input of an instruction, and what a block reads for it. ``dims``: axes of the instruction along its
    dimensions. ``inner``: those of the dimensions that must lie innermost. ``opened``: axes of the block that
    are dimensions of its copy (`Unfold`), from which ``read`` reads then."""

    fit: Fit
    name: str
    read: Load
    dims: tuple[str, ...]
    inner: tuple[str, ...]
    opened: tuple[str, ...] = ()

    @staticmethod
    def of(fit: Fit, name: str) -> OperandRead:
        ins = fit.instruction
        at = next(x for x in ins.meaning.stages[0].reads() if x.buffer == name).indices
        dims = tuple(i.name for i in at if isinstance(i, Var))
        first = max((d + 1 for n, d in ins.free if n == name), default=0)
        return OperandRead(fit, name, fit.reads[name], dims, dims[first:])

    def is_term(self, axis: str) -> bool:
        """Whether an axis of the instruction belongs to its sum."""
        return self.fit.axes[axis] == term_axis(self.fit)

    @property
    def side_by_side(self) -> int:
        """Terms that lie side by side."""
        return math.prod(self.fit.instruction.iterations[a] for a in self.inner if self.is_term(a))

    def turns_terms(self, n: Mapping[str, int]) -> bool:
        """Whether groups of terms of a copy lie behind each other, so that a sum with a tail is padded."""
        ins = self.fit.instruction
        return n[term_axis(self.fit)] % ins.terms != 0 and ins.terms > self.side_by_side

    def in_rows(self, nest: Nest) -> bool:
        """Whether terms lie side by side where they are read."""
        read = self.fit.reads[self.name]
        steps, _ = affine.rejoined(affine.offset(read.indices, known_strides(nest.buffer(read.buffer))))
        return steps.get(Var(term_axis(self.fit))) == Const(1)

    def has_rows_of_terms(self, nest: Nest, n: Mapping[str, int]) -> bool:
        """Whether a copy has whole rows of terms, with zeros at their ends."""
        tail = n[term_axis(self.fit)] % self.fit.instruction.terms != 0
        return tail and all(map(self.is_term, self.inner)) and self.in_rows(nest)

    def lies(self, nest: Nest, n: Mapping[str, int]) -> bool:
        """Whether the instruction can read it where it lies. ``n``: extents of the block's axes."""
        ins, axes = self.fit.instruction, self.fit.axes
        runs = ins.iterations
        whole = all(n[axes[a]] >= runs[a] for a in self.dims if not self.is_term(a))
        if n[term_axis(self.fit)] % ins.terms or not whole or is_gathered(self.read):
            return False
        strides = known_strides(nest.buffer(self.read.buffer))
        steps, uneven = affine.steps_of(affine.offset(self.read.indices, strides))
        if uneven & {axes[a] for a in self.dims}:
            return False
        shape = tuple(runs[a] for a in self.dims)
        free = {d for name, d in ins.free if name == self.name}
        inside = 1
        for d, (axis, need) in reversed(list(enumerate(zip(self.dims, row_major(shape), strict=True)))):
            have = steps.get(axes[axis], 0)
            if self.is_term(axis):
                have, inside = have * inside, inside * runs[axis]
            if have != need and d not in free:
                return False
        return True

    def panels(self) -> list[str]:
        """Spatial axes of the block that alone move along a dimension: those by which a copy has panels."""
        own = [self.fit.axes[a] for a in self.dims if not self.is_term(a)]
        return [v for v in own if Var(v) in self.read.indices and self.place(v) is not None]

    def place(self, axis: str) -> int | None:
        """The only dimension of what is read that moves with an axis of the block, if it moves by one."""
        along = [k for k, i in enumerate(self.read.indices) if axis in E.variables(i)]
        if len(along) != 1 or affine.linear(self.read.indices[along[0]])[0].get(Var(axis)) != Const(1):
            return None
        return along[0]

    def copied(self, p: Block) -> OperandRead:
        """As block ``p`` reads a copy that can lie as the instruction wants it: each axis that has to be a
        dimension alone is one."""
        n = extents(p)
        opened = tuple(dict.fromkeys(self.fit.axes[a] for a in self.dims if not self._is_apart(a, n)))
        if not opened or is_gathered(self.read):
            return self
        place = Unfolding.of(p, self.read, opened).place
        return replace(self, read=replace(self.read, indices=place), opened=opened)

    def _is_apart(self, axis: str, n: Mapping[str, int]) -> bool:
        """Whether an axis of the instruction is a dimension of what is read, as far as a copy needs that."""
        v = self.fit.axes[axis]
        at = self.place(v)
        if at is not None and self.read.indices[at] == Var(v):
            return True
        if self.is_term(axis) or at is None or n[v] < self.fit.instruction.iterations[axis]:
            return False
        return axis not in self.inner[1:]

    def can_be_packed(self, d: SketchBuilder, nest: Nest, p: Block) -> bool:
        """Whether a copy can lie as the instruction wants it."""
        x = self.fit.reads[self.name]
        made = x.buffer in nest.params or self.name in self.fit.changes or _is_made_for_it(d, nest, x)
        if is_gathered(x) or not made:
            return False
        groups = [self.is_term(a) for a in self.inner]
        if len([k for k, _ in groupby(groups) if k]) != 1:
            return False
        return not self.opened or Unfolding.of(p, x, self.opened).leaving(nest, p) is None


def copied_runs(d: SketchBuilder, nest: Nest, p: Block, x: OperandRead) -> float:
    """Vectors, or elements where neighbours do not lie side by side, that are copied one by one of an operand
    of block ``p``, where no instruction copies and rows are short: those of windows, and rows with zeros at
    their ends."""
    read, n, r = x.fit.reads[x.name], extents(p), term_axis(x.fit)
    copying = _copying(d, nest, x, n)
    if not x.opened and (copying is not None or n[r] % x.fit.instruction.terms == 0):
        return 0.0
    buffer = nest.buffer(read.buffer)
    shape: Sequence[Expr] = buffer.shape
    if x.opened:
        how = Unfolding.of(p, read, x.opened)
        shape = how.placed(shape, [Const(n[v]) for v in how.axes])
    run = min(n[r], d.lanes_of(read.dtype)) if x.in_rows(nest) else 1
    if copying is not None:
        run = FASTER * math.prod(copying.result.shape)
    return math.prod(const(e) or 1 for e in shape) / run


def _is_made_for_it(d: SketchBuilder, nest: Nest, x: Load) -> bool:
    """Whether an operand is padded, or changed, for one block."""
    made = writers(nest, x.buffer)
    copied = x.buffer in d.copies or (len(made) == 1 and (is_guarded_copy(made[0]) or is_filled(made[0])))
    return copied and len(readers(nest, x.buffer)) == 1


@dataclass(frozen=True, slots=True)
class PackedCopy:
    """The copy of an operand, not yet scheduled. ``copying``: the instruction that copies what lies
    innermost. ``panel``: the position of the loop over panels that lie apart in it."""

    name: str
    copying: Instruction | None
    panel: int | None


def pack_whole(d: SketchBuilder, producer: str, x: OperandRead, tile: Sizes) -> str:
    """`pack` an operand before the loops that read it. Returns the name of the copy."""
    copy = pack(d, producer, x, tile)
    schedule_packing(d, copy)
    return copy.name


def pack(d: SketchBuilder, producer: str, x: OperandRead, tile: Sizes) -> PackedCopy:
    """Let ``producer`` read an operand through a copy that lies as the instruction wants it, in panels of
    ``tile`` points."""
    name = _copy(d, producer, x)
    p, ins = d.block(producer), x.fit.instruction
    n, read = extents(p), x.read
    whole = n[term_axis(x.fit)] % ins.terms == 0
    terms = x.side_by_side if whole else ins.terms
    turned = x.turns_terms(n)
    if x.has_rows_of_terms(d.s.nest, n):
        terms *= -(-n[term_axis(x.fit)] // terms)
    rank = len(read.indices)
    dims = {a: k for a in x.dims if (k := x.place(x.fit.axes[a])) is not None}
    at = next(k for a, k in dims.items() if x.is_term(a))
    panels = {read.indices.index(Var(v)): tile[v] for v in x.panels()}
    tiled = [k for k in range(rank) if k == at or k in panels]
    inner = {k: rank + m for m, k in enumerate(tiled)}
    last = list(dict.fromkeys(inner.get(k, k) for k in (dims[a] for a in x.inner)))
    first = [inner[k] for a, k in dims.items() if a not in x.inner and k in panels]
    if turned:  # its own terms behind the others, and the others further out
        last = [inner[at], *(k for k in last if k != inner[at])]
    outer = _by_depth(p, x, [k for k in range(rank) if k not in last], panels)
    order = [*outer, *first, *last]
    d.s.pack(name, [panels.get(k, terms if k == at else 0) for k in range(rank)], order)
    if turned:
        _turn_terms(d, name, order.index(inner[at]), x.side_by_side)
    copying = _copying(d, d.s.nest, x, n)
    source = x.fit.reads[x.name]
    if copying is None and _is_made_for_it(d, d.s.nest, source):
        d.s.inline(writers(d.s.nest, source.buffer)[0].name)
    panel = dims[x.inner[-2]] if len(x.inner) > 1 else None
    d.done.add(name)
    return PackedCopy(name, copying, order.index(panel) if panel in panels and panel in order else None)


def _copy(d: SketchBuilder, producer: str, x: OperandRead) -> str:
    """Let a block read an operand through a copy, with the dimensions that it needs."""
    b = d.block(producer)
    name = copy_read(d, producer, x.fit.reads[x.name])
    if x.opened:
        loops = dict(zip((i.var for i in b.iters), map(E.show, b.binds), strict=True))
        d.s.unfold(name, [loops[v] for v in x.opened])
    return name


def _by_depth(p: Block, x: OperandRead, dims: Sequence[int], panels: Container[int]) -> list[int]:
    """Dimensions from those that no sum walks through, over the panels, to those of the sums, in the order in
    which a tile goes through them: that of the terms innermost."""
    reduce = [i.var for i in p.iters if i.kind == "reduce" and i.var != term_axis(x.fit)] + [term_axis(x.fit)]

    def depth(k: int) -> int:
        used = E.variables(x.read.indices[k])
        walks = [m for m, r in enumerate(reduce) if r in used]
        if x.opened and used - set(reduce):  # a window slides, or none does: places side by side stay so
            return -1
        return 1 + max(walks) if walks else 0 if k in panels else -1

    return sorted(dims, key=depth)


def _turn_terms(d: SketchBuilder, name: str, dim: int, side_by_side: int) -> None:
    """Cut dimension ``dim`` of a copy, and put its inner part behind all others."""
    loops = [x.var for x in d.own_loops(name)]
    outer, terms = d.s.split_axis(loops[dim], side_by_side)
    d.s.split_dim(name, dim, side_by_side)
    rank = len(loops) + 1
    d.s.reorder_storage(name, [*(k for k in range(rank) if k != dim + 1), dim + 1])
    d.s.reorder(*loops[:dim], outer, *loops[dim + 1 :], terms)


def schedule_packing(d: SketchBuilder, copy: PackedCopy, *, inside: bool = False) -> None:
    """Copy by an instruction, where there is one, else in vectors of what lies innermost. Rows are read for a
    few panels at a time, in longer runs. ``inside``: the copy was moved into a loop. It is a few panels then,
    and what it reads of a row is read at once."""
    name, copying, panel = copy.name, copy.copying, copy.panel
    loops = [v.var for v in d.own_loops(name)]
    if copying is None:
        if inside:
            _read_along_rows(d, name)
        schedule_copy(d, name, parallel=not inside)
        return
    *rows, lanes, _ = copying.result.shape
    outer, inner = d.s.split(loops[-2], (None, lanes))
    last = [inner]
    cut = [*loops[-3:-2], outer]
    if not rows and panel is not None:
        few = loops[panel]
        if not inside:
            loops[panel], few = d.s.split(few, (None, PANELS))
        kept = [x for x in loops[panel:-2] if x != few]
        d.s.reorder(*kept, few, outer, inner, loops[-1])
    if rows:
        cut[0], row = d.s.split(loops[-3], (None, rows[0]))
        last = [row, inner]
        d.s.reorder(*cut, *last, loops[-1])
    for v in cut:
        d.s.partition(v)
    d.s.tensorize(last[0], copying)
    if not inside:
        d.parallel(*loops[: min(2, len(loops) - 3)])


def _read_along_rows(d: SketchBuilder, name: str) -> None:
    """Put the loops of a copy along the rows of what it reads inside of the others."""
    b = d.block(name)
    row = E.variables(bound(b, reads(b)[0].indices[-1]))
    *loops, last = (x.var for x in d.own_loops(name))
    if last in row:
        d.s.reorder(*(x for x in loops if x not in row), *(x for x in loops if x in row), last)


def _copying(d: SketchBuilder, nest: Nest, x: OperandRead, n: Mapping[str, int]) -> Instruction | None:
    """The instruction that copies what lies innermost, the terms of each lane side by side, if the operand
    has a whole one: it interleaves where lanes are contiguous, and turns squares where terms are."""
    lanes, terms = (x.fit.axes[a] for a in x.inner[-2:]) if len(x.inner) > 1 else ("", "")
    read = x.fit.reads[x.name]
    along = unit_stride_vars(nest, read)
    _, uneven = affine.steps_of(affine.offset(read.indices, known_strides(nest.buffer(read.buffer))))
    if terms != term_axis(x.fit) or not along & {lanes, terms} or uneven & {lanes, terms}:
        return None
    found = []
    for i in INSTRUCTIONS.values():
        if not d.runs(i) or len(i.meaning.inputs) != 1 or i.result.dtype != x.read.dtype:
            continue
        *rows, wide, side = i.result.shape
        along_last = i.meaning.stages[0].reads()[0].indices[-1]
        turns = along_last == Var(i.meaning.stages[0].axes[-1].var)
        fits = wide <= n[lanes] and math.prod(rows) * side <= n[terms]
        whole = side == x.side_by_side and x.fit.instruction.iterations[x.inner[-2]] % wide == 0
        if fits and whole and (terms if turns else lanes) in along:
            found.append(i)
    return max(found, key=lambda i: math.prod(i.result.shape), default=None)
