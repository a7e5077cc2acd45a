"""Patterns that rules recognise in a block, from its accesses alone."""

from __future__ import annotations

import math

from schedules import affine
from schedules import expr as E
from schedules.expr import Binary, Compare, Const, Expr, Load, Select, Var
from schedules.ir import Block, Nest, blocks
from schedules.ir.nest import find_loop, is_scatter, places_of, readers, reads
from schedules.ir.strides import as_row_major
from schedules.primitives.inline import outgrown
from schedules.primitives.skip_zeros import zero_steps

# Largest expression after inlining: nodes, levels. Computing a larger one again costs more than memory does.
MAX_INLINED = 1 << 12, 256
# Longest side of a window (steps) whose lanes are neighbouring outputs, however wide vectors are.
SHORT_WINDOW = 7
# Most phases along an axis, as the stride of a transposed convolution has.
MOST_PHASES = 16


def outgrows(nest: Nest, b: Block) -> bool:
    """Whether inlining the stage would make a reader's expression larger than `MAX_INLINED`. Each use
    computes the stage again, so that the size doubles with every stage that is used twice."""
    return outgrown(nest, b, *MAX_INLINED) is not None


def is_map(b: Block) -> bool:
    """Whether a block makes one element from others without a reduction."""
    return b.reducer is None


def spatial(b: Block) -> list[str]:
    """Names of a block's spatial axes."""
    return [i.var for i in b.iters if i.kind == "spatial"]


def extents(b: Block) -> dict[str, int]:
    """{axis of a block: its extent}."""
    return {i.var: int(i.extent.value) if isinstance(i.extent, Const) else 0 for i in b.iters}


def operands(b: Block) -> list[Load]:
    """Loads of a block, without those of its own partial result and those that are read as indices."""
    own = {w.buffer for w in b.writes}
    every = reads(b)
    indices = {y for i in (*(i for x in every for i in x.indices), *places_of(b)) for y in E.loads(i)}
    return [x for x in every if x.buffer not in own and x not in indices]


def uses(b: Block, x: Load) -> int:
    """How many results of a block need an element that it reads."""
    n = extents(b)
    return math.prod(n[v] for v in spatial(b) if not depends(x, v))


def is_gathered(x: Load) -> bool:
    """Whether a place of a load is read from a tensor: it may be anywhere in that dimension."""
    return any(map(E.loads, x.indices))


def is_read_anywhere(nest: Nest, b: Block) -> bool:
    """Whether some reader gathers from what a block makes, so that it may need any part of it."""
    made = {w.buffer for w in b.writes}
    return any(is_gathered(x) for n in made for u in readers(nest, n) for x in reads(u) if x.buffer in made)


def reduction_length(b: Block) -> int:
    """Steps of the reduction of one point; 0 if not known."""
    n = extents(b)
    return math.prod(n[i.var] for i in b.iters if i.kind == "reduce")


def is_guarded_copy(b: Block) -> bool:
    """Whether a block is a padding stage: a load where a condition holds, else a constant. Of one element
    nothing is padding."""
    return (
        is_map(b)
        and len(b.iters) > 0
        and len(b.values) == 1
        and isinstance(b.values[0], Select)
        and isinstance(b.values[0].a, Load)
        and isinstance(b.values[0].b, Const)
    )


def is_copied(b: Block) -> bool:
    """Whether a block only copies, with padding or without."""
    return is_guarded_copy(b) or (is_map(b) and len(b.values) == 1 and isinstance(b.values[0], Load))


def is_filled(b: Block) -> bool:
    """Whether a block is a padding stage that pads with a number that is loaded."""
    value = b.values[0] if is_map(b) and len(b.values) == 1 else None
    return isinstance(value, Select) and isinstance(value.a, Load) and isinstance(value.b, Load)


def is_chosen_along(b: Block, axis: str) -> bool:
    """Whether a select, such as that of inlined padding, depends on ``axis``."""
    every = (x for v in b.values for x in E.walk(v))
    return any(isinstance(x, Select) and axis in E.variables(x.cond) for x in every)


def is_joined_along(b: Block, axis: str) -> bool:
    """Whether it depends on ``axis`` which of two loads a value is, as where arrays are joined."""
    every = (x for v in b.values for x in E.walk(v) if isinstance(x, Select))
    return any(axis in E.variables(x.cond) and E.loads(x.a) and E.loads(x.b) for x in every)


def computed_again(nest: Nest, b: Block) -> bool:
    """Whether a reader with the stage inlined would compute a value of it again for a neighbour, because it
    reads arithmetic at several places, as a stencil of a stencil does."""
    if not any(isinstance(x, E.Binary) and E.dtype_of(x) != E.INDEX for v in b.values for x in E.walk(v)):
        return False
    made = b.writes[0].buffer
    return any(len({x.indices for x in reads(u) if x.buffer == made}) > 1 for u in readers(nest, made))


def skips_in_phases(b: Block) -> bool:
    """Whether steps of a sum add 0 by conditions that differ in phases alone, as those of a transposed
    convolution: along short axes, or where the end of a reduction axis moves by less than a step of it."""
    found = zero_steps(b)
    return found is not None and all(_differs_in_phases(c, b) for c in found[0])


def ends_with_data(b: Block) -> bool:
    """Whether data say where each lane's sum ends, as where rows of a sparse matrix do, and a step beyond
    costs a gather."""
    found = zero_steps(b)
    if found is None or not any(E.loads(i) for x in E.loads(found[1]) for i in x.indices):
        return False
    kinds = {i.var: i.kind for i in b.iters}
    asked = [c for c in found[0] if isinstance(c, Compare) and E.loads(c)]
    return any({kinds[v] for v in E.variables(c)} == {"spatial", "reduce"} for c in asked)


def _differs_in_phases(c: Expr, b: Block) -> bool:
    n = extents(b)
    used, reduce = E.variables(c), {i.var for i in b.iters if i.kind == "reduce"}
    short = all(n[a] <= MOST_PHASES for a in used - reduce)
    if not isinstance(c, Compare) or vector_axis(b) in used or not short:
        return False
    terms, _ = affine.linear(c.b - c.a)
    step, moves = 0, 0
    for a, k in terms.items():
        r = affine.bounds(a, {v: (0, n[v] - 1) for v in used})
        if r is None or not isinstance(k, Const) or (step and E.variables(a) & reduce):
            return False
        if E.variables(a) & reduce:
            step = abs(int(k.value))
        else:
            moves += abs(int(k.value)) * (r[1] - r[0])
    return not used & reduce or moves < step


def unit_stride_vars(nest: Nest, x: Load) -> set[str]:
    """Iterations along which consecutive points read consecutive elements: those of the dimension longer than
    1 that is innermost in memory."""
    b, at = as_row_major(nest.buffer(x.buffer), x.indices)
    if not at:
        return set()
    long = [i for i, n in zip(at, b.shape, strict=True) if n != Const(1)] or at
    terms, _ = affine.linear(long[-1])
    return {a.name for a, c in terms.items() if isinstance(a, Var) and c == Const(1)}


def vector_axis(b: Block) -> str | None:
    """The spatial axis along which the output is contiguous: the last one longer than 1, as of a row-major
    output, in whose order rules take the loops."""
    n = extents(b)
    axes = spatial(b)
    long = [v for v in axes if n[v] > 1]
    return long[-1] if long else (axes[-1] if axes else None)


def _vars(x: Load) -> frozenset[str]:
    return frozenset().union(*(E.variables(i) for i in x.indices)) if x.indices else frozenset()


def depends(x: Load, var: str) -> bool:
    """Whether an index of a load depends on ``var``."""
    return var in _vars(x)


def has_product(b: Block) -> bool:
    """Whether a value of a block multiplies two loaded ones."""
    every = (x for v in b.values for x in E.walk(v))
    return any(isinstance(x, E.Binary) and x.op == "*" and E.loads(x.a) and E.loads(x.b) for x in every)


def is_placed(b: Block) -> bool:
    """Whether a reduction stores elsewhere than at its own axes: a scatter, or one whose places follow from
    free axes alone, as the elements of a diagonal do."""
    if is_scatter(b) or b.reducer is None or b.init:
        return is_scatter(b)
    return any(len({i for i in w.indices if isinstance(i, Var)}) < len(w.indices) for w in b.writes)


def is_row_reduction(nest: Nest, b: Block) -> bool:
    """Whether a reduction goes along memory, as row sums and norms do: lanes then belong to the reduction, as
    nothing is contiguous along the output."""
    if b.reducer is None or is_placed(b):
        return False
    v = vector_axis(b)
    n = extents(b)
    own = operands(b)
    if v is None or not own:
        return True
    reduce = {i.var for i in b.iters if i.kind == "reduce"}
    # What is the same for the whole row, such as its mean, is read once and does not count.
    along = [x for x in own if v in unit_stride_vars(nest, x) and reduce & _vars(x)]
    reused = any(not depends(x, v) and reduce & _vars(x) for x in own) and any(depends(x, v) for x in own)
    # A row of offsets, such as a mask of keys, is no operand of a product where the other is read once. Where
    # many results have a number each, as bins have edges, all of them share the rows that are walked.
    axes = [a for a in spatial(b) if n[a] != 1]
    many = n[v] > SHORT_WINDOW
    once = any(all(depends(x, a) for a in axes) and (reduce & _vars(x) or not many) for x in own)
    sums_products = has_product(b) and "+" in {b.reducer.operation(n) for n in range(len(b.writes))}
    if once and any(not depends(x, v) and reduce & _vars(x) for x in own) and not sums_products:
        reused = False
    if n[v] == 1:
        return any(unit_stride_vars(nest, x) & reduce for x in own)
    return not along and not reused


def is_short_window(nest: Nest, b: Block, lanes: int = 0) -> bool:
    """Whether a reduction is a window that moves with its output and is too short for ``lanes`` of its own:
    no axis of it is longer than `SHORT_WINDOW`, or what lies side by side in it is less than a vector. With
    0 lanes the former alone counts."""
    n = extents(b)
    reduce = {i.var for i in b.iters if i.kind == "reduce"}
    own = operands(b)
    used = [E.variables(i) for x in own for i in x.indices]
    moves = any(v & reduce and v - reduce for v in used)
    along = {r for x in own for r in unit_stride_vars(nest, x) & reduce}
    less = lanes > 0 and all(n[r] < lanes for r in along)
    return moves and (less or all(n[r] <= SHORT_WINDOW for r in reduce))


def rows_of_group(index: Expr, axis: str) -> int:
    """How many neighbouring points of ``axis`` read the same place: 1 for the axis itself, the divisor where
    it is divided by a constant. 0 for other indices."""
    if isinstance(index, Binary) and index.op == "//" and isinstance(index.b, Const):
        return int(index.b.value) if index.a == Var(axis) else 0
    return int(index == Var(axis))


def is_read_by_rows(nest: Nest, b: Block) -> bool:
    """Whether all that read a reduction over rows go along its rows themselves, or along groups of rows, with
    their own first axes. Else a row of a reader needs several of its rows."""
    for w in b.writes:
        for u in readers(nest, w.buffer):
            axes = spatial(u)
            for x in reads(u):
                if x.buffer != w.buffer or u is b:
                    continue
                if len(x.indices) > len(axes) or not all(map(rows_of_group, x.indices, axes)):
                    return False
    return True


def reads_identity(consumer: Block, buffer: str) -> bool:
    """Whether the consumer reads the buffer only at its own iteration variables, in order."""
    places = [x.indices for x in reads(consumer) if x.buffer == buffer]
    at = tuple(Var(v) for v in spatial(consumer))
    return bool(places) and all(p == at for p in places)


def sole_reader(nest: Nest, b: Block) -> Block | None:
    """The only block that reads what ``b`` writes. None if there are several, or ``b`` has several outputs or
    returns its output."""
    if len(b.writes) != 1 or b.writes[0].buffer in nest.params:
        return None
    users = [u for u in readers(nest, b.writes[0].buffer) if u is not b]
    return users[0] if len(users) == 1 else None


def read_only_inside(nest: Nest, b: Block, loop: str) -> bool:
    """Whether no block outside ``loop`` reads what ``b`` writes."""
    inside = {x.name for x in blocks(find_loop(nest, loop).body)} | {b.name}
    return all(u.name in inside for w in b.writes for u in readers(nest, w.buffer))
