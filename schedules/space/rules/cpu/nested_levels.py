"""Reductions of reductions: which they are, how their axes belong together, and copies of what they read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from schedules import affine
from schedules import expr as E
from schedules.expr import Binary, Const, Expr, Hole, Load, Var
from schedules.ir import Block
from schedules.ir.nest import axis_ranges, reads
from schedules.space.rules.parts import copy_read
from schedules.space.rules.patterns import depends, extents, is_gathered, operands, sole_reader, spatial
from schedules.space.sketch_builder import SketchBuilder, extent

# Most digits along one axis: codes of a byte have up to 8.
MOST_DIGITS = 8


@dataclass(frozen=True, slots=True)
class NestLevel:
    """A stage of the nest. ``axis``: {axis of the outputs: its own axis}. ``depth``: {its own axis: how many
    reductions are around the one that walks along it}. ``is_factor``: a factor of the innermost one."""

    name: str
    axis: dict[str, str]
    depth: dict[str, int]
    is_factor: bool = False


def inner_reductions(d: SketchBuilder) -> dict[str, str]:
    """{reduction: the one that it alone reads, one result in each of its iterations}."""
    return {y: p for p in d.s.blocks() if (y := _reduction_around(d, d.block(p))) is not None}


def _reduction_around(d: SketchBuilder, p: Block) -> str | None:
    y = sole_reader(d.s.nest, p)
    if p.reducer is None or y is None or y.reducer is None or len(y.writes) != 1:
        return None
    n = extents(y)
    places = {x.indices for x in reads(y) if x.buffer == p.writes[0].buffer}
    at = next(iter(places))
    used = [i.name for i in at if isinstance(i, Var)]
    plain = len(places) == 1 and len(set(used)) == len(used) == sum(i != Const(0) for i in at)
    each = {v for v in n if n[v] > 1} <= set(used)
    return y.name if plain and each and any(i.kind == "reduce" and n[i.var] > 1 for i in y.iters) else None


def levels_of(d: SketchBuilder, chain: Sequence[str], consumer: str) -> list[NestLevel]:
    """The reductions of a chain from the outermost on. ``consumer`` reads it at its own iterations."""
    y = d.block(chain[0])
    axis = dict(zip(spatial(d.block(consumer)), spatial(y), strict=True))
    out: list[NestLevel] = []
    place: dict[str, str] = {}  # {axis of the last block: axis of this one}
    depth: dict[str, int] = {}
    for name in chain:
        b = d.block(name)
        if out:
            around = d.block(out[-1].name)
            at = next(x.indices for x in reads(around) if x.buffer == b.writes[0].buffer)
            place = {i.name: v for i, v in zip(at, spatial(b), strict=True) if isinstance(i, Var)}
            axis = {a: place[v] for a, v in axis.items() if v in place}
            depth = {place[v]: k for v, k in depth.items() if v in place}
        most = max(depth.values(), default=-1)
        depth |= {i.var: most + 1 + k for k, i in enumerate(i for i in b.iters if i.kind == "reduce")}
        out.append(NestLevel(name, axis, depth))
    return out


def split_digits(d: SketchBuilder, name: str) -> None:
    """Split the axes of a reduction into their digits: those of ``w[i, k // 2] >> k % 2 * 4`` are ``k // 2``,
    which goes through memory, and ``k % 2``."""
    for _ in range(MOST_DIGITS):
        b = d.block(name)
        n, loops = extents(b), [x.var for x in d.loops(name)]
        found = (
            (loop, k)
            for it, loop in zip(b.iters, loops, strict=True)
            if it.kind == "reduce" and (name, it.var) not in d.open
            for k in _divisors(b, it.var)
            if 1 < k < n[it.var] and n[it.var] % k == 0
        )
        split = next(found, None)
        if split is None:
            return
        d.s.split_axis(*split)


def _divisors(b: Block, axis: str) -> list[int]:
    """Numbers by which an axis is divided in an index, the least first."""
    ranges = axis_ranges(b.iters)
    every = (x for v in b.values for e in _indices(v) for x in E.walk(affine.simplify(e, ranges)))
    by = {
        int(x.b.value)
        for x in every
        if isinstance(x, Binary) and x.op in ("//", "%") and x.a == Var(axis) and isinstance(x.b, Const)
    }
    return sorted(by)


def _indices(e: Expr) -> Iterator[Expr]:
    """The largest indices in an expression."""
    if E.dtype_of(e) == E.INDEX:
        yield e
        return
    for x in E.children(e):
        yield from _indices(x)


def digit_axes(d: SketchBuilder, level: NestLevel, v: str) -> list[str]:
    """Short axes of the reduction along which nothing that differs between outputs moves in memory."""
    b = d.block(level.name)
    n = extents(b)
    across = [x for x in operands(b) if depends(x, level.axis[v])]
    return [
        i.var
        for i in b.iters
        if i.kind == "reduce" and n[i.var] <= MOST_DIGITS and not any(depends(x, i.var) for x in across)
    ]


def packable(d: SketchBuilder, level: NestLevel, x: Load, v: str) -> bool:
    """Whether a copy of an operand can have panels along an axis of the outputs: it moves with that axis
    alone along one dimension of an argument, or of an offset copy."""
    own = level.axis.get(v, "")
    alone = sum(own in E.variables(i) for i in x.indices) == 1 and Var(own) in x.indices
    made = x.buffer in d.s.nest.params or x.buffer in d.copies
    return made and alone and not is_gathered(x)


def pack_panels(
    d: SketchBuilder, levels: Sequence[NestLevel], level: NestLevel, x: Load, v: str, panel: int | Hole,
    term: str = "", terms: int = 0,
) -> str:  # fmt: skip
    """Copy an operand in panels along ``v``. Before them stands what no reduction walks through, behind them
    the rest, that of the outermost reduction first. ``term``: an axis of which ``terms`` steps lie side by
    side in each lane; "" for none. Returns the name of the copy."""
    at = x.indices.index(Var(level.axis[v]))
    side = next((k for k, i in enumerate(x.indices) if term and term in E.variables(i)), -1)

    def depth(k: int) -> int:
        return max((level.depth[a] for a in E.variables(x.indices[k]) if a in level.depth), default=-1)

    name = x.buffer if x.buffer in d.copies else copy_read(d, level.name, x)
    dims = list(range(len(x.indices)))  # of the copy, that of the terms last
    order = {k: depth(k) for k in dims if k != at}
    last = []
    if side >= 0:
        if extent(d.own_loops(name)[side]) > terms:
            d.s.split_axis(d.own_loops(name)[side].var, terms)
            d.s.split_dim(name, side, terms)
            at += at > side
            order = {k + (k > side): n for k, n in order.items()}
            dims.append(len(dims))
            last = [side + 1]
        else:
            order.pop(side)
            last = [side]
    others = sorted(order, key=order.__getitem__)
    before = [k for k in others if order[k] < 0]
    tiles = [panel if k == at else 0 for k in dims]
    d.s.pack(name, tiles, [*before, at, *others[len(before) :], len(dims), *last])
    d.done.add(name)
    return name
