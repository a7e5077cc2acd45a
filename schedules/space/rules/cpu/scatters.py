"""Rule for scatters: terms are pushed to their places, one after another.

A dimension of the output in which a term stays in its own row is free. Vectors run along the last one, and
threads may share any of them: each goes over all terms, and writes columns of its own. Where no dimension is
free, or few, threads share the terms instead, each with a copy of the output (`rfactor`). One thread may have
several copies too: a term then waits less for the one before it that went to the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from schedules import expr as E
from schedules.expr import Var
from schedules.ir import Block
from schedules.ir.nest import init_name, is_scatter, places_of, readers, vars_bound, writers
from schedules.space.rules.patterns import extents, is_map
from schedules.space.sketch_builder import SketchBuilder, extent

# Most elements of the copies of an output together: beyond, joining them takes longer than the terms.
MOST_COPIED = 1 << 20
# Copies of one thread that are offered.
CHAINS = (2, 4, 8)
# Fewest terms for each element of the copies.
TERMS = 4
# Terms whose places are made together.
TILES = (64, 256)
# Vectors of a term that are offered.
VECTORS = (1, 2, 4)
# Fewest terms that threads share.
ALONE = 4096


def schedule_scatter(d: SketchBuilder, name: str) -> None:
    """Schedule a block whose terms go to places of their own, and the block that starts its output."""
    b = d.block(name)
    n = extents(b)
    free = [i.var for i in b.iters if i.kind == "spatial"]
    terms = prod(n[i.var] for i in b.iters if i.kind == "reduce")
    ways = [""]
    size = prod(extent_of_output(d, b))
    few = size * TERMS * max(CHAINS[0], d.threads) <= terms * prod(n[a] for a in free)
    shared = d.threads > 1 and terms * prod(n[a] for a in free) > ALONE
    if few and shared and size * d.threads <= MOST_COPIED:
        ways.append("copies")
    if few and _columns(d, b) is None and size * CHAINS[0] <= MOST_COPIED and not shared:
        ways.append("chains")
    way = d.choose(f"{name}.by", ways)
    if any(map(E.loads, b.where)) and _columns(d, b) is None:
        d.s.annotate(name, "masked", d.choice(f"{name}.masked", (0, 1)))
    if not way:
        _push(d, name)
        return
    reduce = [x for x in d.loops(name) if x.var in vars_bound(b, "reduce")]
    if way == "copies":
        outer, _ = d.s.split(max(reduce, key=extent).var, (d.choice(f"{name}.copies", _parts(d)), None))
        rest = [x.var for x in d.loops(name) if x.var != outer]
        d.s.reorder(outer, *rest)
        part = d.s.rfactor(name, outer)
        d.s.parallel(outer)
        _start(d, init_name(part))
        if lanes := _in_vectors(d, part, _columns(d, d.block(part))):
            d.s.vectorize(lanes[-1])
        elif makers := _makers(d, part):
            tile, _ = d.s.split(d.loops(part)[-1].var, (None, d.choice(f"{name}.tile", TILES)))
            _make_ahead(d, name, makers, tile)
    else:
        makers, last, tile = _makers(d, name), reduce[-1].var, ""
        if makers:
            tile, last = d.s.split(last, (None, d.choice(f"{name}.tile", TILES)))
        _, chain = d.s.split(last, (None, d.choice(f"{name}.chains", CHAINS)))
        part = d.s.rfactor(name, chain)
        d.s.unroll(chain)
        _start(d, init_name(part))
        if makers:
            _make_ahead(d, name, makers, tile)
    _join(d, name)


def made_ahead(d: SketchBuilder) -> set[str]:
    """The stages that make places of scatters whose terms are single elements. They are not inlined: vectors
    of them are made a tile ahead."""
    scatters = [b for b in map(d.block, d.s.blocks()) if is_scatter(b) and _columns(d, b) is None]
    return {name for b in scatters for name in _makers(d, b.name)}


def _makers(d: SketchBuilder, name: str) -> list[str]:
    """The stages that make the places of a scatter, which nothing else reads."""
    b = d.block(name)
    asked = {x.buffer for e in (*places_of(b), *b.where) for x in E.loads(e)}
    out = []
    for n in sorted(asked - set(d.s.nest.params)):
        made, users = writers(d.s.nest, n), [u.name for u in readers(d.s.nest, n)]
        if len(made) == 1 and is_map(made[0]) and len(made[0].writes) == 1 and users == [name]:
            out.append(made[0].name)
    return out


def _make_ahead(d: SketchBuilder, name: str, makers: Sequence[str], tile: str) -> None:
    """Make places in vectors, for a tile of terms at once."""
    for maker in makers:
        d.s.compute_at(maker, tile)
        last = d.own_loops(maker)[-1]
        w = d.lanes_of(d.dtype(d.block(maker)))
        _, vec = d.s.split(last.var, (None, d.choice(f"{name}.lanes", (w, 2 * w))))
        d.s.vectorize(vec)
        d.done.add(maker)


def extent_of_output(d: SketchBuilder, b: Block) -> list[int]:
    """The extents of the buffer that a block writes."""
    shape = d.s.nest.buffer(b.writes[0].buffer).shape
    return [int(getattr(n, "value", 0)) for n in shape]


def _parts(d: SketchBuilder) -> list[int]:
    return [d.threads * k for k in (1, 2, 4)]


def _columns(d: SketchBuilder, b: Block) -> str | None:
    """The axis along which a term lies in memory as the output does: the last dimension, if that is free."""
    last = b.writes[0].indices[-1]
    spatial = {i.var for i in b.iters if i.kind == "spatial"}
    return last.name if isinstance(last, Var) and last.name in spatial and extents(b)[last.name] > 1 else None


def _push(d: SketchBuilder, name: str) -> None:
    """Terms in order, their rows innermost. Threads share what stays apart: rows of leading dimensions, else
    parts of a row."""
    b = d.block(name)
    lanes = _columns(d, b)
    reduce, apart = vars_bound(b, "reduce"), vars_bound(b, "spatial")
    loops = [x.var for x in d.loops(name)]
    axis = dict(zip((i.var for i in b.iters), (e for e in b.binds), strict=True))
    own = None if lanes is None else axis[lanes]
    first = [x for x in loops if x in apart and Var(x) != own]
    terms = [x for x in loops if x in reduce]
    count = prod(extent(x) for x in d.loops(name))
    makers = _makers(d, name) if lanes is None else []
    if makers and terms:
        tile, rest = d.s.split(terms[-1], (None, d.choice(f"{name}.tile", TILES)))
        terms[-1:] = [tile, rest]
    inner = _in_vectors(d, name, lanes, parts=d.threads > 1 and count > ALONE and not first)
    if d.threads > 1 and count > ALONE and (first or len(inner) > 1):
        outer = first or inner[:1]
        d.s.reorder(*outer, *terms, *(inner if first else inner[1:]))
        d.parallel(*outer)
    elif first:
        d.s.reorder(*first, *terms, *inner)
    if inner:
        d.s.vectorize(inner[-1])
    if makers and terms:
        _make_ahead(d, name, makers, tile)


def _in_vectors(d: SketchBuilder, name: str, lanes: str | None, parts: bool = False) -> list[str]:
    """Cut an axis of a block into vectors. ``parts``: threads are to share it. Returns its loops, the
    outermost first; the last is to be one vector."""
    if lanes is None:
        return []
    b = d.block(name)
    n = extents(b)[lanes]
    bind = dict(zip((i.var for i in b.iters), b.binds, strict=True))[lanes]
    assert isinstance(bind, Var)
    w = d.lanes_of(d.dtype(b))
    wide = [w * k for k in VECTORS if w * k <= n] or [n]
    share = []
    loop = bind.name
    if parts and n >= 2 * w:
        outer, loop = d.s.split(loop, (d.choice(f"{name}.parts", _parts(d)), None))
        share = [outer]
    return [*share, *d.s.split(loop, (None, d.choice(f"{name}.vec", wide)))]


def _start(d: SketchBuilder, name: str) -> None:
    """The last loop of a block that starts copies in vectors."""
    last = d.loops(name)[-1]
    w = d.lanes_of(d.dtype(d.block(name)))
    if extent(last) > w:
        _, inner = d.s.split(last.var, (None, w))
        d.s.vectorize(inner)


def _join(d: SketchBuilder, name: str) -> None:
    """Join copies of an output, elements side by side in vectors."""
    *rows, last, copies = [x.var for x in d.loops(name)]
    d.done.add(init_name(name))
    w = d.lanes_of(d.dtype(d.block(name)))
    n = extent(d.loops(name)[-2])
    if n > w:
        last, vec = d.s.split(last, (None, w))
        d.s.reorder(*rows, last, copies, vec)
        d.s.decompose_reduction(name, copies)
        d.s.vectorize(vec)
    else:
        d.s.decompose_reduction(name, copies)
    if prod(extent(x) for x in d.loops(name)) > ALONE * 4:
        d.parallel(*rows, last)
