"""Rule for two products with operations of rows between them on matrix units: one kernel, in which what is
between stays in registers of warps. Attention over short rows is such.

A warp has 16 rows of the scores, whole, as the sums of its instructions. So the maximum and the sum of a row
are those of 4 neighbouring lanes, and the weights lie as the instruction of the second product takes them.

Longer rows would have to be rescaled on the way. Weights that are stored rounded may not be (ADR 128).

Source: Dao et al., "FlashAttention", 2022, with a single block of keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from schedules.expr import Const, Var
from schedules.ir import Block
from schedules.ir.nest import readers, reads, writers
from schedules.primitives.base import Factor
from schedules.space.rules.cpu.groups import reductions_behind
from schedules.space.rules.gpu.matrix_units import (
    Cuts,
    Product,
    copy_to_shared,
    load_fragment,
    matrix_products,
)
from schedules.space.rules.parts import copy_read
from schedules.space.rules.patterns import extents, is_map, reads_identity, spatial
from schedules.space.sketch_builder import SketchBuilder

# Rows of a warp: those of an instruction.
ROWS = 16
# Longest rows of scores, and of results, that registers hold beside each other.
LONGEST, WIDEST = 256, 128
# Most warps of a block.
WARPS = 8


@dataclass(frozen=True)
class ChainedProducts:
    """``scores``: the first product, ``weights``: what is made of each score, ``mixed``: the second product.
    ``rows``: stages with one number for each row, in order."""

    scores: Product
    weights: str
    mixed: Product
    names: tuple[str, str]  # of the blocks of the two products
    rows: tuple[str, ...]


def chained_products(d: SketchBuilder, name: str) -> ChainedProducts | None:
    """How what block ``name`` stores is two products; None if it is not, or rows are long or odd."""
    y = d.block(name)
    mixed, _ = reductions_behind(d, y)
    second = next(iter(matrix_products(d, mixed.name, name).values()), None) if mixed is not None else None
    if mixed is None or second is None:
        return None
    made = [
        b for b in writers(d.s.nest, second.operands[0].read.buffer) if b.name not in d.done and is_map(b)
    ]
    if len(made) != 1:
        return None
    (weights,) = made
    dots = [
        b for x in dict.fromkeys(reads(weights)) for b in writers(d.s.nest, x.buffer)
        if b.reducer is not None and b.name not in d.done and reads_identity(weights, x.buffer)
    ]  # fmt: skip
    first = (
        next(iter(matrix_products(d, dots[0].name, weights.name).values()), None) if len(dots) == 1 else None
    )
    if first is None:
        return None
    rows = _rows(d, name, (dots[0].name, weights.name, mixed.name))
    found = ChainedProducts(first, weights.name, second, (dots[0].name, mixed.name), rows or ())
    return found if rows and _fits(d, found, y) else None


def _rows(d: SketchBuilder, name: str, others: tuple[str, ...]) -> tuple[str, ...] | None:
    """Stages between the scores, the first of ``others``, and block ``name``, beside ``others``, in order.
    None if something else needs them."""
    inside, todo = {name, *others}, [name, *others[1:]]
    while todo:
        read = {w.name for x in reads(d.block(todo.pop())) for w in writers(d.s.nest, x.buffer)}
        new = read - inside - d.done
        inside |= new
        todo += new
    for b in inside - {name}:
        if any(u.name not in inside for w in d.block(b).writes for u in readers(d.s.nest, w.buffer)):
            return None
    return tuple(b for b in d.s.blocks() if b in inside - {name, *others})


def _fits(d: SketchBuilder, x: ChainedProducts, y: Block) -> bool:
    first, weights, second = (d.block(n) for n in (x.names[0], x.weights, x.names[1]))
    n, m, axes = extents(first), extents(second), spatial(y)
    shape = [extents(y)[v] for v in axes[:-1]]
    alike = all([extents(b)[v] for v in spatial(b)] == shape for b in map(d.block, x.rows))
    last = spatial(weights)[-1]
    long, deep = extents(weights)[last], n[x.scores.terms]
    units = max(ROWS, x.scores.unit(x.scores.terms)), max(ROWS, x.mixed.unit(x.mixed.terms))
    whole = not (n[x.scores.rows] % ROWS or m[x.mixed.columns] % ROWS or deep % units[0] or long % units[1])
    turned = spatial(first)[-2:] != [x.scores.rows, x.scores.columns] or (
        spatial(second)[-2:] != [x.mixed.rows, x.mixed.columns]
    )
    short = long <= LONGEST and max(deep, m[x.mixed.columns]) <= WIDEST
    own = all(_reads_own_rows(d, b, x, len(shape)) for b in (y, weights, second, *map(d.block, x.rows)))
    return alike and short and own and not turned and whole


def _reads_own_rows(d: SketchBuilder, b: Block, x: ChainedProducts, rank: int) -> bool:
    """Whether a stage reads, of what warps keep, the rows that it makes: its first ``rank`` axes."""
    kept = {w.buffer for n in (*x.names, x.weights, *x.rows) for w in d.block(n).writes}
    rows = tuple(map(Var, spatial(b)[:rank]))
    return all(
        r.indices[:rank] == rows and all(isinstance(i, Var) for i in r.indices)
        for r in reads(b)
        if r.buffer in kept
    )


def schedule_chained_products(d: SketchBuilder, name: str, x: ChainedProducts) -> None:
    """Make block ``name`` and all behind it in one kernel, whose warps have 16 rows each."""
    y, (dot, mixed) = d.block(name), x.names
    n = extents(y)[spatial(y)[-2]]
    warps = d.divisor(f"{mixed}.warps", Const(n // ROWS), WARPS)
    cuts = Cuts(x.scores, {}, {"": warps})
    *batch, i, c = (loop.var for loop in d.loops(name))
    block, warp, ii = d.s.split(i, (None, warps, ROWS))
    tj, jj = d.s.split(c, (None, x.mixed.unit(x.mixed.columns)))
    d.s.reorder(*batch, block, warp, tj, ii, jj)
    block = d.fused([*batch, block])
    d.s.bind(block, "blockIdx.x")
    d.s.bind(warp, "threadIdx.y")
    d.s.unroll(tj)
    inside = [b for b in d.s.blocks() if b in (*x.names, x.weights, *x.rows)]
    for b in reversed(inside):
        d.s.set_scope(d.block(b).writes[0].buffer, "fragment")
        d.s.compute_at(b, block)
        d.done.add(b)
    for b in (x.weights, *x.rows):
        _by_rows(d, b, warps, len(batch))
    for b, p, operands in ((dot, x.scores, x.scores.operands), (mixed, x.mixed, x.mixed.operands[1:])):
        copies = [copy_read(d, b, o.read, "shared", moved=True) for o in operands]
        fragments = [d.s.cache_read(b, shared, "fragment") for shared in copies]
        part = _product(d, b, p, warps)
        for shared, fragment, o in zip(copies, fragments, operands, strict=True):
            load_fragment(d, fragment, part, o)
            copy_to_shared(d, shared, block, o, cuts)


def _by_rows(d: SketchBuilder, name: str, warps: Factor, at: int) -> None:
    """Let each warp do its rows of a stage. ``at``: the axis of rows."""
    every = [name]
    if d.block(name).reducer is not None:
        every.append(d.s.decompose_reduction(name, d.own_loops(name)[0].var))
        d.done.add(every[-1])
    for b in every:
        own = [loop.var for loop in d.own_loops(b)]
        warp, _ = d.s.split(own[at], (warps, ROWS))
        d.s.reorder(warp, *own[:at])
        d.s.bind(warp, "threadIdx.y")


def _product(d: SketchBuilder, name: str, p: Product, warps: Factor) -> str:
    """Let warps do a product. Returns the loop in which fragments are loaded."""
    reduce, (*batch, i, j) = d.own_apart(name)
    (k,) = reduce
    warp, ii = d.s.split(i, (warps, ROWS))
    tj, jj = d.s.split(j, (None, p.unit(p.columns)))
    part, kk = d.s.split(k, (None, p.unit(p.terms)))
    d.s.reorder(warp, *batch, part, tj, ii, jj, kk)
    d.s.bind(warp, "threadIdx.y")
    d.done.add(d.s.decompose_reduction(name, warp))
    for x in (part, tj):
        d.s.unroll(x)
    d.s.tensorize(ii, p.instruction)
    return part
