"""Facts of a scheduled nest for CPUs, as expressions over its holes.

`analyse` reads a nest once. `schedules.space.estimate.cpu.quantities` evaluates the facts for any number of
candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Const, Expr, Var
from schedules.ir import Block, Loop, Nest, blocks, loops_around
from schedules.ir.instruction import Instruction
from schedules.ir.nest import of_kind, reads, vars_bound
from schedules.ir.regions import footprint, values_at_most
from schedules.model import LINE
from schedules.primitives.base import as_expr
from schedules.space.estimate.counting import arithmetic, code, conversion_steps, integer_steps, product
from schedules.space.estimate.cpu.instructed import Instructed
from schedules.space.estimate.cpu.lane_strides import lane_stride
from schedules.space.estimate.domains import Domain, domain_of
from schedules.space.estimate.traffic import BlockAccess, places_of

WALKED = 4  # loops that are asked whether they go on along a run


class LoopHeader(NamedTuple):
    """A loop without its body. Sketches have many blocks in common, so this is enough to cache by."""

    var: str
    extent: Expr


@dataclass(frozen=True, slots=True)
class AccessFacts:
    """One read or write. Amounts are in elements unless another unit is given.

    ``stride``: from lane to lane. ``tile``: touched by the register tile. ``inner``: by the loops up to a
    full reduction. ``whole``: by the whole nest. ``moved``: that come anew after others were touched.
    ``distance``: bytes touched since the last use of the buffer. ``run``: side by side within the tile.
    ``longer``: side by side up to the next loop outside a full reduction that moves on; ``visits``: touches
    meanwhile. ``walk``: (extent, elements side by side up to there) of the `WALKED` innermost loops that move
    on, innermost first."""

    buffer: str
    item: int
    write: bool
    stride: Expr | None  # None: not linear in the lane
    digits: tuple[Expr, ...]  # divisors of the lane in the index: linear where all lanes have one quotient
    pitch: Expr | None  # step along the innermost reduction loop; None: not linear
    rows: tuple[tuple[Expr, Expr], ...]  # (extent, step) of each other loop of the tile
    tile: Expr
    step: Expr  # of the tile, touched by one step of the reduction
    inner: Expr
    whole: Expr
    scratch: Expr  # allocated for a written buffer; 0 for an argument
    moved: Expr
    distance: Expr
    run: Expr
    longer: Expr
    visits: Expr
    reach: Expr  # side by side within ``inner``
    walk: tuple[tuple[Expr, Expr], ...]
    again: Expr  # times that the loops outside a full reduction return to the same elements
    row: Expr  # bytes from a row of the buffer to the next; 0 if it has one row
    pieces: float  # rows of an instruction's operand that may lie apart, for each element; 0: none may
    conversion: int  # vector operations that convert an element, a float of storage
    across: int  # lines that such a row lies in: large arrays of a caller begin within a line


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """One block: how often it runs, and in what shape."""

    name: str
    instances: Expr
    domain: Domain | None  # the part of the instances that runs; None: all
    lanes: Expr
    unrolled: Expr
    taps: Expr  # steps of the reduction among the unrolled iterations
    reduction: Expr  # length of the reduction loops around the register tile
    parts: Expr  # parts in which the whole reduction is done
    outer: Expr  # iterations of the loops outside those
    parallel: Expr
    flops: int
    integer_steps: int  # vector operations a point that computes integers
    special: int  # special functions a point
    selects: int  # selects and comparisons a point
    copies: Expr  # of its code: peeled loops have a prologue and an epilogue; unrolled ones are around sums
    code: int  # operations a point, those of indices and guards included, before anything is simplified
    item: int
    reduces: bool
    streams: Expr  # 1: streaming stores; 2: streaming stores by tiles that begin with a line
    ahead: Expr  # iterations ahead that its reads are prefetched, 0 if not
    meanwhile: bool  # whether other blocks are computed between prefetch and use
    pipelined: Expr  # more than 0: an iteration's last blocks run beside the next one's first
    instruction: Instruction | None  # that is a point of each lane, and as many lanes as it has
    stores_tiles: bool  # whether it stores what a unit with registers of its own made, to an argument
    accesses: tuple[AccessFacts, ...]
    nested: tuple[Nested, ...]  # outermost first; empty without loops around the register tile
    levels: tuple[Level, ...]  # innermost first: the register tile, then one loop more each time


@dataclass(frozen=True, slots=True)
class Level:
    """What all accesses of a block touch while some inner loops run. ``lines``: cache lines, as if rows
    shared none. ``runs``: runs of elements that lie side by side, in one row or in rows that are touched
    whole."""

    lines: Expr
    runs: Expr


@dataclass(frozen=True, slots=True)
class Nested:
    """An inner part of a block's loops. ``times``: how often it runs. ``back``: how often with elements
    touched before. ``points``: elements that it touches of each of the block's accesses."""

    times: Expr
    back: Expr
    points: tuple[Expr, ...]


def analyse(nest: Nest) -> tuple[BlockFacts, ...]:
    """Facts of every block, as expressions over the holes that the nest still has."""
    everything: Expr = Const(0)  # bytes of the arguments: touched between one call and the next
    for buf in (nest.buffer(name) for name in nest.params):
        everything = everything + product(list(buf.shape)) * DTYPES[buf.dtype].itemsize
    within = _within(nest)
    used = dict(within)
    tiles = _tiles(nest)
    return tuple(_block(nest, b, within, used, everything, tiles) for b in blocks(nest.body))


def _tiles(nest: Nest) -> frozenset[str]:
    """Buffers that instructions with registers of their own write."""
    return frozenset(
        w.buffer
        for b in blocks(nest.body)
        if any(x.instruction is not None and x.instruction.registers for x in loops_around(b, nest.body))
        for w in b.writes
    )


def _within(nest: Nest) -> dict[str, list[Loop]]:
    """{buffer that is no argument: loops around all blocks that use it}. An iteration of them reuses the
    memory of the last one."""
    common: dict[str, list[Loop]] = {}
    for b in blocks(nest.body):
        loops = loops_around(b, nest.body)
        for name in {w.buffer for w in b.writes} | {x.buffer for x in reads(b)}:
            if name not in nest.params:
                common[name] = loops[: _shared(loops, common.get(name, loops))]
    return {name: loops for name, loops in common.items() if loops}


def _peeled(b: Block, loops: Sequence[Loop]) -> list[Loop]:
    """The loops around a reduction over tiles whose ends are peeled."""
    if b.reducer is None:
        return []
    red = vars_bound(b, "reduce")
    return [x for x in loops if ("partition", 1) in x.annotations and x.var not in red]


def selects(b: Block, loops: Sequence[Loop] = ()) -> int:
    """Selects and comparisons of one instance; a table of few numbers is one. Those of padding do not count
    inside a loop over tiles whose ends are peeled, because nearly all iterations avoid them."""
    peeled = _peeled(b, loops)

    def count(x: Expr) -> int:
        if isinstance(x, E.Select) and (table := E.lookup_of(x)) is not None:
            return 1 + count(table.index)
        if peeled and isinstance(x, E.Select) and not E.loads(x.cond):
            return count(x.a) + count(x.b)
        return isinstance(x, (E.Select, E.Compare, E.Logic)) + sum(map(count, E.children(x)))

    return sum(map(count, b.values))


class _Loops:
    """The loops around a block, outermost first. ``one``: those that are one instruction; ``tile``: the
    register tile, these included (an unrolled loop around a whole sum repeats it, and is not of the tile);
    ``rest``: the others; ``deep``: of these the innermost run of reduction loops (if the reduction is done in
    parts, others lie further out); ``outer``: those around that; ``red``: variables of the reduction, without
    those of an instruction's terms; ``points``: all loops but these."""

    def __init__(self, nest: Nest, b: Block) -> None:
        self.all = loops_around(b, nest.body)
        reduced = vars_bound(b, "reduce")
        self.one = one = Instructed.of(self.all, reduced, lambda: places_of(nest, b)[0])
        terms = {x.var for x in one.terms} if one else set()
        self.red = red = reduced - terms
        self.points = [x for x in self.all if x.var not in terms]
        steps = {v for i, e in of_kind(b, "reduce") if i.extent != Const(1) for v in E.variables(e)} - terms
        sums = [k for k, x in enumerate(self.all) if x.kind not in ("vectorize", "unroll") and x.var in steps]
        inner = {x.var for x in self.all if x.kind == "vectorize"} | (one.names if one else set())
        inner |= {x.var for x in self.all[sums[-1] if sums else 0 :] if x.kind == "unroll"}
        self.tile = [x for x in self.all if x.var in inner]
        self.rest = rest = [x for x in self.all if x.var not in inner]
        ends = [k + 1 for k, x in enumerate(rest) if x.var in red]
        last = ends[-1] if ends else len(rest)
        first = next((k for k in range(last, 0, -1) if rest[k - 1].var not in red), 0) if ends else last
        self.deep, self.outer = rest[first:], rest[:first]
        self.lane = next((x for x in self.tile if x.kind == "vectorize"), None)
        self.along = next((x for x in reversed(self.all) if x.var in red), None)
        self.across = [x for x in self.tile if x.var not in red]

    @property
    def lanes(self) -> Expr:
        """Lanes of the register tile."""
        if self.one:
            return Const(self.one.width)
        return self.lane.extent if self.lane is not None else Const(1)


def _block(
    nest: Nest,
    b: Block,
    within: dict[str, list[Loop]],
    used: dict[str, list[Loop]],
    everything: Expr,
    tiles: frozenset[str],
) -> BlockFacts:
    """Facts of one block. ``within``: as of `_within`. ``used``: the loops around the last block that used
    each buffer; this call updates it. ``tiles``: as of `_tiles`."""
    loops = _Loops(nest, b)
    flops, special = arithmetic(b)
    own = {w.buffer for w in b.writes}  # what it reads of that counts once
    places = tuple(p for p in places_of(nest, b) if p.write or p.buffer.name not in own)
    pieces = [loops.one.pieces(p) if loops.one else 0.0 for p in places]
    converts = {} if loops.one else conversion_steps(b)
    given = {*nest.params} if loops.one and loops.one.instruction.registers else set()
    if loops.one:
        places = tuple(map(loops.one.merged, places))
    facts = []
    for place, apart in zip(places, pieces, strict=True):
        buf = place.buffer
        there = loops.all[len(within.get(buf.name, [])) :]
        scratch: Expr = Const(0)
        if place.write and buf.name not in nest.params:
            scratch = product(_box(place.at, buf.shape, there))
        shared = _shared(loops.all, used.get(buf.name, []))
        distance = _touched(places, loops.all[shared:]) if buf.name in used else everything
        rows = apart, converts.get(buf.name, 0), 1 + (buf.name in given)
        facts.append(_access(place, loops, shared, distance, scratch, rows))
    used.update((buf.name, loops.all) for buf, _, _ in places)
    return BlockFacts(
        b.name,
        _times(loops.points),
        domain_of(b, loops.tile),
        loops.lanes,
        _times([x for x in loops.tile if x.kind == "unroll"]),
        _times([x for x in loops.tile if x.var in loops.red]),
        _times(loops.deep),
        _times([x for x in loops.outer if x.var in loops.red]),
        _times(loops.outer),
        _times([x for x in loops.all if x.kind == "parallel"]),
        flops,
        integer_steps(b),
        special,
        selects(b, loops.all),
        product([E.minimum(x.extent, 3) for x in _peeled(b, loops.all)])
        * _times([x for x in loops.rest if x.kind == "unroll"]),
        code(b),
        DTYPES[places[0].buffer.dtype].itemsize,
        b.reducer is not None,
        as_expr(dict(b.annotations).get("nontemporal", 0)),
        *_ahead(loops.all),
        _hint(loops.all, "software_pipeline")[0],
        loops.one.instruction if loops.one else None,
        bool(own & {*nest.params}) and any(p.buffer.name in tiles for p in places),
        tuple(facts),
        _nested(places, _spans(loops.rest), _spans(loops.tile)),
        _levels(places, _spans(loops.rest), _spans(loops.tile)),
    )


def _times(loops: Sequence[Loop]) -> Expr:
    return product([x.extent for x in loops])


def _touched(places: Sequence[BlockAccess], since: list[Loop]) -> Expr:
    """Bytes that all accesses touch while the loops ``since`` run."""
    out: Expr = Const(0)
    for buf, at, _ in places:
        out = out + _points(at, buf.shape, since) * DTYPES[buf.dtype].itemsize
    return out


def _access(
    place: BlockAccess,
    loops: _Loops,
    shared: int,
    distance: Expr,
    scratch: Expr,
    rows: tuple[float, int, int],
) -> AccessFacts:
    """Facts of one access. ``shared``: how many outer loops its block has in common with the last one that
    used the buffer. ``rows``: its ``pieces``, ``conversion`` and ``across``."""
    pieces, conversion, across = rows
    buf, at, write = place
    tile, rest, outer = loops.tile, loops.rest, loops.outer
    item = DTYPES[buf.dtype].itemsize
    held = _box(at, buf.shape, tile)
    moves = [k for k, x in enumerate(outer) if _moves(x, at)]
    walk = [rest[k:] for k in reversed(range(len(rest))) if _moves(rest[k], at)][:WALKED]
    near = rest[moves[-1] if moves else len(outer) :]
    onward = _box(at, buf.shape, tile + near)
    return AccessFacts(
        buf.name,
        item,
        write,
        *((loops.one.stride(at), ()) if loops.one else lane_stride(at, buf, loops.lane)),
        lane_stride(at, buf, loops.along)[0],
        tuple((x.extent, step) for x in loops.across if (step := lane_stride(at, buf, x)[0]) is not None),
        _loaded(at, held, tile),
        _loaded(at, _box(at, buf.shape, loops.across), loops.across),
        _points(at, buf.shape, tile + loops.deep),
        _points(at, buf.shape, tile + rest),
        scratch,
        _points(at, buf.shape, loops.all[shared:]) * _times(loops.all[:shared]),
        distance,
        _run(held, buf.shape, 1),
        _run(onward, buf.shape, 1 + write),
        product(onward) * _times([x for x in near if not _moves(x, at)]),
        _run(_box(at, buf.shape, tile + loops.deep), buf.shape, 2),
        tuple((x[0].extent, _run(_box(at, buf.shape, tile + x), buf.shape, 2)) for x in walk),
        _times([x for k, x in enumerate(outer) if k not in moves]),
        buf.shape[-1] * item if len(buf.shape) > 1 else Const(0),
        pieces,
        conversion,
        across,
    )


def _ahead(loops: list[Loop]) -> tuple[Expr, bool]:
    """(iterations ahead that a block's arguments are prefetched, at least; whether other blocks run in that
    loop too)."""
    ahead, loop = _hint(loops, "prefetch")
    if loop is None and (loop := _hint(loops, "prefetch_bytes")[1]) is not None:
        ahead = Const(1)
    return ahead, loop is not None and len(list(blocks(loop.body))) > 1


def _hint(loops: list[Loop], key: str) -> tuple[Expr, Loop | None]:
    """(value of a hint, outermost loop that has it); (0, None) if none has."""
    return next(((as_expr(n), x) for x in loops for k, n in x.annotations if k == key), (Const(0), None))


def _spans(loops: list[Loop]) -> tuple[LoopHeader, ...]:
    return tuple(LoopHeader(x.var, x.extent) for x in loops)


@lru_cache(256)
def _nested(
    places: tuple[BlockAccess, ...], loops: tuple[LoopHeader, ...], tile: tuple[LoopHeader, ...]
) -> tuple[Nested, ...]:
    """All of the loops, and those inner parts that return to what an earlier iteration touched. The register
    tile alone does not count, because it is smaller than any cache."""
    for x in loops:
        places, loops = _apart(places, loops, x)
    out = []
    times = back = product([])
    for k, loop in enumerate(loops):
        if k == 0 or back != Const(1):
            over = loops[k:] + tile
            points = tuple(_points(at, buf.shape, over) for buf, at, _ in places)
            out.append(Nested(times, back, points))
        times = times * loop.extent
        if not all(_moves(loop, at) for _, at, _ in places):
            back = back * loop.extent
    return tuple(out)


@lru_cache(256)
def _levels(
    places: tuple[BlockAccess, ...], loops: tuple[LoopHeader, ...], tile: tuple[LoopHeader, ...]
) -> tuple[Level, ...]:
    out: list[Level] = []
    for k in range(len(loops), -1, -1):
        lines = runs = as_expr(0)
        for buf, at, _ in places:
            box = _box(at, buf.shape, loops[k:] + tile)
            lines = lines + _lines(box, DTYPES[buf.dtype].itemsize)
            runs = runs + _runs(box, buf.shape)
        if not out or out[-1] != Level(lines, runs):
            out.append(Level(lines, runs))
    return tuple(out)


def _lines(box: list[Expr], item: int) -> Expr:
    """Cache lines that a box has a part of, as if rows shared none."""
    return product(box[:-1]) * E.ceildiv(box[-1] * item, Const(LINE)) if box else Const(1)


def _runs(box: list[Expr], shape: tuple[Expr, ...]) -> Expr:
    """Runs in a box: one a row, or one for all rows of its last two dimensions where they are touched whole.
    Equal to its points over `_run`, without a division for every row of a matrix."""
    if len(box) < 2:
        return Const(1)
    whole = E.maximum(box[-1] - shape[-1] + 1, Const(0))  # 1, or 0
    return product(box[:-2]) * E.maximum(box[-2] * (1 - whole), Const(1))


def _moves(x: Loop | LoopHeader, at: tuple[Expr, ...]) -> bool:
    """Whether a loop moves on to other elements and runs more than once."""
    return x.extent != Const(1) and any(x.var in E.variables(i) for i in at)


def _apart(
    places: tuple[BlockAccess, ...], loops: tuple[LoopHeader, ...], x: LoopHeader
) -> tuple[tuple[BlockAccess, ...], tuple[LoopHeader, ...]]:
    """A fused loop as the two that it was made of, if every index takes it as digits of one base."""
    used = [e for _, at, _ in places for i in at for e in E.walk(i)]
    digits = [e for e in used if isinstance(e, E.Binary) and e.op in ("//", "%") and e.a == Var(x.var)]
    bases = {e.b for e in digits}
    if len(bases) != 1 or len(digits) != used.count(Var(x.var)):
        return places, loops
    (base,) = bases
    high, low = LoopHeader(f"{x.var}//", _without(x.extent, base)), LoopHeader(f"{x.var}%", base)
    names = {"//": Var(high.var), "%": Var(low.var)}

    def renamed(e: Expr) -> Expr | None:
        return names[e.op] if isinstance(e, E.Binary) and e in digits else None

    places = tuple(p._replace(at=tuple(E.rewrite(i, renamed) for i in p.at)) for p in places)
    at = loops.index(x)
    return _apart(places, (*loops[:at], high, low, *loops[at + 1 :]), high)


def _without(extent: Expr, factor: Expr) -> Expr:
    """A fused extent divided by that of one of its loops."""
    match extent:
        case _ if extent == factor:
            return Const(1)
        case E.Binary(op="*", a=a, b=b) if b == factor:
            return a
        case E.Binary(op="*", a=a, b=E.Binary(op="*", a=b, b=c)):
            return _without(a * b * c, factor)
    return E.ceildiv(extent, factor)


def _shared(a: list[Loop], b: list[Loop]) -> int:
    """Number of outer loops that two blocks have in common."""
    same = 0
    while same < min(len(a), len(b)) and a[same] is b[same]:
        same += 1
    return same


def _box(at: tuple[Expr, ...], shape: tuple[Expr, ...], over: Sequence[Loop | LoopHeader]) -> list[Expr]:
    """Sizes of the box that an access spans while the loops ``over`` run. What tails and guards span beyond
    the buffer does not count, because they touch nothing there."""
    return [
        _size(i, n, tuple((x.var, x.extent) for x in over if x.var in E.variables(i)))
        for i, n in zip(at, shape, strict=True)
    ]


@lru_cache(1 << 14)  # most indices of a nest use few of its loops
def _size(index: Expr, most: Expr, over: tuple[tuple[str, Expr], ...]) -> Expr:
    if E.loads(index):  # anywhere, but at no more places than are read
        return E.minimum(values_at_most(index, dict(over)), most)
    ((_, size),) = footprint([(index,)], dict(over), (most,), clip=False)
    return E.minimum(size, most)


def _run(box: list[Expr], shape: tuple[Expr, ...], dims: int) -> Expr:
    """Elements of a box that lie side by side: in the last dimension, and in up to ``dims`` dimensions where
    the box has all of the inner ones."""
    run: Expr = Const(1)
    whole: Expr = Const(1)  # or 0
    for n, size in list(zip(box, shape, strict=True))[: -dims - 1 : -1]:
        run = run * E.maximum(whole * n, Const(1))
        whole = whole * E.maximum(n - size + 1, Const(0))  # cheaper than a division
    return run


def _points(at: tuple[Expr, ...], shape: tuple[Expr, ...], over: Sequence[Loop | LoopHeader]) -> Expr:
    """Elements that an access touches while the loops ``over`` run: those of its box, without the gaps of
    steps."""
    names = frozenset(x.var for x in over)
    box = _box(at, shape, over)
    return product([E.ceildiv(n, Const(_step(i, names))) for i, n in zip(at, box, strict=True)])


def _step(index: Expr, names: frozenset[str]) -> int:
    """The least step of an index for any decision. Its other steps are multiples of it."""
    steps = [c for x, c in affine.linear(index)[0].items() if names & E.variables(x)]
    return math.gcd(*(int(c.value) for c in steps if isinstance(c, Const))) or 1


def _loaded(at: tuple[Expr, ...], box: list[Expr], tile: list[Loop]) -> Expr:
    """Elements of a register tile's box, without the gaps of steps."""
    most = [product([x.extent for x in tile if x.var in E.variables(i)]) for i in at]
    return product([E.minimum(n, m) for n, m in zip(box, most, strict=True)])
