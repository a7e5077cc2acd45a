"""Rule for products that the matrix units of a GPU do: a warp computes a tile of the result by instructions
of all its lanes.

The structure is that of CUTLASS's kernels for Ampere. A block computes a tile of the result, each of its
warps a part of it. All threads together copy tiles of both operands to shared memory in the background, a few
steps of the sum ahead. A warp takes parts of them into fragments, in the order of the instruction, and adds
their product to a fragment. What is made of the sums is computed from that fragment.

Which blocks are such a product follows from their expression (`schedules.instructions.match.fits`), and how a
fragment is loaded from how the operand lies. Copies are padded with zeros to whole tiles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Const, Expr, Hole, Load, Var
from schedules.instructions import INSTRUCTIONS, Instruction
from schedules.instructions.match import Fit, fits
from schedules.ir import Block, const
from schedules.ir.nest import axis_ranges, behind, vars_bound
from schedules.ir.strides import SWIZZLES
from schedules.primitives.base import as_expr
from schedules.space.estimate.gpu.rates import WARP
from schedules.space.rules.gpu.maps import lanes_of
from schedules.space.rules.parts import copy_read, inline_copies, side_by_side
from schedules.space.rules.patterns import (
    extents,
    is_gathered,
    spatial,
    vector_axis,
)
from schedules.space.sketch_builder import SketchBuilder

# Elements of a block's tile along rows and columns that are offered.
TILES = (16, 32, 64, 128, 256)
# Most warps of a block along rows, and along columns.
WARPS = 4
# Bytes of a row of a tile along the sum that are offered.
DEPTHS = (32, 64, 128)
# Steps that lie in shared memory at a time that are offered.
STAGES = (2, 3, 4, 5)
# Most rows of tiles whose blocks follow each other, so that they find operands in the second cache.
GROUP = 16
# Usual side of a block's tile, by which tiles are counted, and fewest steps of a part of a sum.
USUAL, LEAST_STEPS = 128, 8
# Most times the work of a product that whole instructions may do.
MOST_WASTE = 4.0


@dataclass(frozen=True)
class ProductOperand:
    """An operand of a product. ``dims``: {axis of the block: dimension of what it reads, which is that axis}
    for the two axes of a tile. ``load``: the instruction that makes a fragment of a tile in shared memory;
    None: lanes read their elements one by one. ``windows``: {axis: (elements of its dimension, elements that
    the rest of an index adds at most)} where an axis is a part of an index."""

    read: Load
    dims: Mapping[str, int]
    load: Instruction | None
    windows: Mapping[str, tuple[int, int]]

    def has_whole(self, axis: str, n: int, size: int) -> bool:
        """Whether tiles of ``size`` elements, which a copy is filled up to, hold what all whole tiles of an
        axis of length ``n`` read."""
        if axis not in self.windows:
            return True
        length, more = self.windows[axis]
        return -(-n // size) * size + more <= -(-length // size) * size


@dataclass(frozen=True)
class Product:
    """A block as products of tiles. ``rows``, ``columns``, ``terms``: its axes. ``operands``: those that are
    read."""

    instruction: Instruction
    rows: str
    columns: str
    terms: str
    operands: tuple[ProductOperand, ...]

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the operands."""
        return DTYPES[self.instruction.meaning.inputs[0].dtype].itemsize

    def sizes(self, axis: str, n: int, sizes: Sequence[int]) -> list[int]:
        """Those of the ``sizes`` of a tile along an axis of length ``n`` that operands have whole."""
        return [k for k in sizes if all(o.has_whole(axis, n, k) for o in self.operands)]

    def unit(self, axis: str) -> int:
        """Elements along an axis that one instruction takes."""
        of = dict(
            zip((self.rows, self.columns, self.terms), self.instruction.iterations.values(), strict=True)
        )
        return of[axis]


def matrix_products(d: SketchBuilder, producer: str, consumer: str) -> dict[str, Product]:
    """{name of an instruction: how block ``producer``, whose results ``consumer`` stores, is products by
    it}."""
    p, c = d.block(producer), d.block(consumer)
    if p.reducer is None or len(p.writes) != 1 or any(n == 0 for n in extents(p).values()):
        return {}
    holds = axis_ranges(p.iters)
    p = replace(p, where=tuple(x for x in p.where if affine.decide(x, holds) is not True))
    columns = dict(zip(spatial(c)[::-1], spatial(p)[::-1], strict=False)).get(vector_axis(c) or "")
    out: dict[object, tuple[tuple[object, ...], Product]] = {}
    for ins in INSTRUCTIONS.values():
        if not ins.collective or not ins.terms > 1 or not d.runs(ins):
            continue
        kind = ins.result.dtype, tuple(ins.iterations.values())  # one with its operands turned is no other
        for x in filter(None, (_product(d, p, fit) for fit in fits(p, ins))):
            cost = _waste(p, x), x.columns != columns, sum(o.load is None for o in x.operands)
            if cost[0] <= MOST_WASTE and (kind not in out or cost < out[kind][0]):
                out[kind] = cost, x
    return {x.instruction.name: x for _, x in out.values()}


def split_matrix_product(d: SketchBuilder, name: str) -> bool:
    """Split-k: split a long sum of products with too few tiles for the processors, if matrix units can add up
    its parts. As many parts are made as there are processors for, by blocks of their own, in a kernel before
    the one that adds them up. Returns whether it was split."""
    b = d.block(name)
    found = [*matrix_products(d, name, name).values()] if spatial(b) else []
    if not found:
        return False
    x, n = found[0], extents(b)
    tiles = math.prod(-(-n[v] // (USUAL if v in (x.rows, x.columns) else 1)) for v in spatial(b))
    parts = 1 << max(0, (int(d.target.limit("sms", 1)) // tiles).bit_length() - 1)
    most = n[x.terms] // (DEPTHS[-1] // x.itemsize)  # whole steps
    parts = min(parts, most // LEAST_STEPS)
    parts = max((k for k in (2, 4, 8, 16, 32) if k <= parts and most % k == 0), default=1)
    if parts == 1 or n[x.terms] % (DEPTHS[-1] // x.itemsize) or not d.choose(f"{name}.sum", ("", "parts")):
        return False
    loop = next(v.var for v in d.loops(name) if v.var in behind(b, x.terms))
    outer, _ = d.s.split(loop, (parts, None))
    own = [v.var for v in d.loops(name) if v.var in vars_bound(b, "spatial")]
    part = d.s.rfactor(name, outer)
    rank = len(d.block(part).writes[0].indices)
    d.s.reorder_storage(d.block(part).writes[0].buffer, [rank - 1, *range(rank - 1)])
    d.s.reorder_axes(outer, *own)  # a part is a product as the whole is
    d.roots.add(part)
    d.in_parts |= {name, part}
    return True


def _waste(p: Block, x: Product) -> float:
    """Work of whole instructions over the work of the block."""
    n = extents(p)
    return math.prod(-(-n[v] // x.unit(v)) * x.unit(v) / n[v] for v in (x.rows, x.columns, x.terms))


def _product(d: SketchBuilder, p: Block, fit: Fit) -> Product | None:
    """The product that a fit is, if tiles of both operands are boxes."""
    stage, out = fit.instruction.meaning.stages[0], []
    for x in stage.reads():
        own = [i.name for i in x.indices if isinstance(i, Var)]
        operand = _operand(d, p, fit, x.buffer, [fit.axes[v] for v in own])
        if operand is None:
            return None
        out.append(operand)
    rows, columns = (fit.axes[a.var] for a in stage.axes)
    (terms,) = {fit.axes[a.var] for a in stage.reduce_axes}
    found = Product(fit.instruction, rows, columns, terms, tuple(out))
    return found if all(_offered(found, v, extents(p)[v]) for v in (rows, columns, terms)) else None


def _offered(x: Product, axis: str, n: int) -> list[int]:
    """Elements of a block's tile along an axis of length ``n`` that are offered."""
    unit = x.unit(axis)
    if axis == x.terms:
        sizes = [k // x.itemsize for k in DEPTHS if k // x.itemsize < 2 * max(n, unit)] or [unit]
    else:
        least = max(TILES[0], unit)
        sizes = [k for k in TILES if least <= k < 2 * max(n, least)]
    return x.sizes(axis, n, sizes)


def _operand(d: SketchBuilder, p: Block, fit: Fit, name: str, axes: list[str]) -> ProductOperand | None:
    """``axes``: of the block, in the order of the operand's dimensions."""
    read, ranges = fit.reads[name], axis_ranges(p.iters)
    dims, windows = {}, {}
    for v in axes:
        at = [k for k, i in enumerate(read.indices) if v in E.variables(i)]
        if len(at) != 1 or not _is_part(read.indices[at[0]], v, axes):
            return None
        dims[v] = at[0]
        if (rest := affine.simplify(read.indices[at[0]] - Var(v), ranges)) != Const(0):
            span, length = affine.bounds(rest, ranges), const(d.s.nest.buffer(read.buffer).shape[at[0]])
            if span is None or span[0] < 0 or length is None:
                return None
            windows[v] = (length, span[1])
    if is_gathered(read) or len(set(dims.values())) < len(axes):
        return None
    order = tuple(sorted(dims.values()).index(dims[v]) for v in axes)
    wanted = fit.instruction.layouts[name].along(order)
    loads = (
        x for x in INSTRUCTIONS.values()
        if x.collective and x.terms == 1 and len(x.meaning.inputs) == 1 and d.runs(x)
        and x.meaning.inputs[0].dtype == read.dtype and wanted.begins(x.layouts[x.result.name])
    )  # fmt: skip
    return ProductOperand(read, dims, next(loads, None), windows)


def _is_part(index: Expr, axis: str, axes: Sequence[str]) -> bool:
    """Whether an index is an axis, or a part of one whose other part is outside of a tile."""
    terms, first = affine.linear(index)
    others = {Var(v) for v in axes} & set(terms) - {Var(axis)}
    return terms.get(Var(axis)) == Const(1) and not others and first == Const(0)


@dataclass(frozen=True)
class Cuts:
    """How a product is cut. ``block``: {axis: elements of a block's tile}. ``warps``: {axis: warps}."""

    product: Product
    block: Mapping[str, int | Hole]
    warps: Mapping[str, int | Hole]

    @property
    def threads(self) -> tuple[int | Hole, ...]:
        """Factors of a loop that all threads of a block share."""
        return (*self.warps.values(), WARP)


def schedule_matrix_product(d: SketchBuilder, producer: str, consumer: str, x: Product) -> None:
    """Tile product ``producer`` for warps, and make ``consumer``, its only reader, of fragments."""
    p = d.block(producer)
    d.done.add(producer)
    d.s.set_scope(p.writes[0].buffer, "fragment")
    cuts = _cuts(d, producer, x)
    copies = [_copies(d, producer, o, cuts) for o in x.operands]
    own = dict(zip(spatial(p)[::-1], (loop.var for loop in d.loops(consumer)[::-1]), strict=False))
    blocks = [loop.var for loop in d.loops(consumer) if loop.var not in (own[x.rows], own[x.columns])]
    rows, *of_rows = _cut(d, own[x.rows], x.rows, cuts)
    columns, *of_columns = _cut(d, own[x.columns], x.columns, cuts)
    count = E.ceildiv(as_expr(extents(p)[x.rows]), as_expr(cuts.block[x.rows]))
    group, rows = d.s.split(rows, (None, d.divisor(f"{producer}.group", count, GROUP)))
    tile = _order(of_rows, of_columns)
    d.s.reorder(*blocks, group, columns, rows, *tile)
    block = d.fused([*blocks, group, columns, rows])
    d.s.bind(block, "blockIdx.x")
    _by_warps(d, tile[:2])
    for loop in tile[2:4]:
        d.s.unroll(loop)
    d.s.compute_at(producer, block)
    step, part = _accumulate(d, producer, block, cuts)
    d.s.annotate(step, "stages", d.choice(f"{producer}.stages", STAGES))
    for (shared, fragment), operand in zip(copies, x.operands, strict=True):
        load_fragment(d, fragment, part, operand)
        copy_to_shared(d, shared, step, operand, cuts)


def _cuts(d: SketchBuilder, producer: str, x: Product) -> Cuts:
    p = d.block(producer)
    n, block, warps = extents(p), {}, {}
    for what, many, v in (("rows", "down", x.rows), ("columns", "across", x.columns)):
        block[v] = d.choice(f"{producer}.{what}", _offered(x, v, n[v]))
        warps[v] = d.divisor(f"{producer}.{many}", as_expr(block[v]) // max(TILES[0], x.unit(v)), WARPS)
    block[x.terms] = d.choice(f"{producer}.depth", _offered(x, x.terms, n[x.terms]))
    return Cuts(x, block, warps)


def _copies(d: SketchBuilder, producer: str, x: ProductOperand, cuts: Cuts) -> tuple[str, str]:
    """Let a product read an operand through a copy in shared memory, and that through fragments. Returns
    their names."""
    shared = copy_read(d, producer, x.read, "shared", moved=True)
    axes = {k: v for v, k in x.dims.items()}
    d.s.pack(shared, [cuts.block[axes[k]] if k in axes else 0 for k in range(len(x.read.indices))], [])
    fragment = d.s.cache_read(producer, shared, "fragment")
    return shared, fragment


def _cut(d: SketchBuilder, loop: str, axis: str, cuts: Cuts) -> list[str]:
    """Cut a loop into (blocks, warps, instructions of a warp, what one takes)."""
    outer, loop = d.s.split(loop, (None, cuts.block[axis]))
    return [outer, *d.s.split(loop, (cuts.warps[axis], None, cuts.product.unit(axis)))]


def _order(rows: list[str], columns: list[str]) -> list[str]:
    return [x for pair in zip(rows, columns, strict=True) for x in pair]


def _by_warps(d: SketchBuilder, warps: list[str]) -> None:
    d.s.bind(d.fused(warps), "threadIdx.y")


def _accumulate(d: SketchBuilder, producer: str, block: str, cuts: Cuts) -> tuple[str, str]:
    """Cut the producer as the consumer is. Returns (the loop in which operands are copied, that in which
    fragments are loaded)."""
    x, p = cuts.product, d.block(producer)
    loops = [loop.var for loop in d.loops(producer) if loop.var != block]
    reduce = [v for v in loops if v in vars_bound(p, "reduce")]
    own = dict(zip(spatial(p), (v for v in loops if v not in reduce), strict=True))
    (terms,) = (v for v in reduce if v in E.variables(dict(zip((i.var for i in p.iters), p.binds))[x.terms]))
    still = [v for a, v in own.items() if a not in (x.rows, x.columns)]
    # The first two loops run once: of a tile that is longer than its axis, warps have the same parts here.
    once_0, once_1, *tile = _order(
        _cut(d, own[x.rows], x.rows, cuts), _cut(d, own[x.columns], x.columns, cuts)
    )
    step, part = d.s.split(terms, (None, cuts.block[x.terms]))
    part, term = d.s.split(part, (None, x.unit(x.terms)))
    taps = [v for v in reduce if v != terms]
    d.s.reorder(once_0, once_1, *taps, step, *still, *tile[:2], part, *tile[2:], term)
    _by_warps(d, tile[:2])
    for loop in (part, *tile[2:4]):
        d.s.unroll(loop)
    init = d.s.decompose_reduction(producer, once_0)
    d.done.add(init)
    d.s.tensorize(tile[4], x.instruction)
    return step, part


def load_fragment(d: SketchBuilder, fragment: str, part: str, x: ProductOperand) -> None:
    """Load a fragment in parts that one instruction loads."""
    d.s.compute_at(fragment, part)
    own = [loop.var for loop in d.own_loops(fragment)]
    tile = [own[k] for k in sorted(x.dims.values())]
    if x.load is None:
        return
    cut = [d.s.split(v, (None, n)) for v, n in zip(tile, x.load.iterations.values(), strict=True)]
    outer, inner = [o for o, _ in cut], [i for _, i in cut]
    d.s.reorder(*(v for v in own if v not in tile), *outer, *inner)
    for v in outer:
        d.s.unroll(v)
    d.s.tensorize(inner[0], x.load)


def copy_to_shared(d: SketchBuilder, shared: str, step: str, x: ProductOperand, cuts: Cuts) -> None:
    """Let all threads of a block copy a step's tile of an operand to shared memory. Padding is made on the
    way."""
    d.s.compute_at(shared, step)
    b = d.block(shared)
    inline_copies(d, shared, x.read.buffer)
    lanes = lanes_of(side_by_side(d, shared), d.dtype(b))[-1]
    flat = d.fused([loop.var for loop in d.own_loops(shared)])
    outer, *threads, v = d.s.split(flat, (None, *cuts.threads, lanes))
    d.s.reorder(*threads, outer, v)
    *warps, lane = threads
    _by_warps(d, warps)
    d.s.bind(lane, "threadIdx.x")
    d.s.unroll(outer)
    d.s.vectorize(v)
    d.s.annotate(shared, "async", 1)
    d.s.annotate(shared, "swizzle", SWIZZLES[-1])
