"""Rule for chains of elementwise stages that read each other through windows, such as sweeps of a stencil.

A band of rows goes through several stages while it is in the cache. Each stage computes what the next one
reads: the rows of the band and a few beyond, which the next band computes again (overlapped tiles:
Krishnamoorthy et al., 2007).
"""

from __future__ import annotations

from schedules import affine
from schedules.expr import Binary, Const, Expr, Var
from schedules.ir import Block, nbytes
from schedules.ir.nest import readers, reads, writers
from schedules.space.rules.cpu.rows import vectorize_last
from schedules.space.rules.patterns import is_map, spatial
from schedules.space.sketch_builder import SketchBuilder, extent

# Rows of a band that are offered.
ROWS = (8, 16, 32, 64, 128)
# Most stages that a band goes through: each computes more rows again than the next.
STAGES = 4
# Farthest that a stage reads from its own row.
NEAR = 4


def schedule_bands(d: SketchBuilder, root: str) -> bool:
    """Schedule ``root``, an elementwise stage, with the stages that it reads through windows, by bands of
    rows. Returns whether that may pay: a stage that fits the second cache is there for the next anyway."""
    stages, axis = _stages_behind(d, d.block(root))
    held = [nbytes(d.s.nest.buffer(d.block(name).writes[0].buffer)) for name in stages]
    if 2 * max(held, default=0) <= d.target.limit("l2_bytes", 512 << 10):
        return False
    loops = d.loops(root)
    sizes = [k for k in ROWS if 2 * k <= extent(loops[axis])]
    if not sizes:
        return False
    outer, _ = d.s.split(loops[axis].var, (None, d.choice(f"{root}.band", sizes)), "shift")
    band = d.fused([*(x.var for x in loops[:axis]), outer])
    for name in stages:
        d.s.compute_at(name, band)
        d.done.add(name)
    for name in stages:  # lanes of one do not widen what another computes
        vectorize_last(d, name)
    vectorize_last(d, root, skip=1)
    d.parallel(band)
    return True


def _stages_behind(d: SketchBuilder, root: Block) -> tuple[list[str], int]:
    """The stages that a band of ``root`` can go through before, the last first, and the axis of its rows: the
    first along which one is read at several places. The axis of vectors is not cut."""
    nest, rank = d.s.nest, len(spatial(root))
    inside, axis = [root], rank - 1
    for reader in inside:  # grows meanwhile
        for made in dict.fromkeys(x.buffer for x in reads(reader)):
            b = next((w for w in writers(nest, made) if w.name not in d.done and w not in inside), None)
            if b is None or made in nest.params or not is_map(b) or len(b.writes) > 1:
                continue
            if len(inside) == STAGES or len(b.iters) != rank:
                continue
            users = readers(nest, made)
            moves = [_moves(made, u, rank) for u in users]
            if not all(moves):
                continue
            first = min(next((k for k, far in enumerate(m) if far), rank) for m in moves)
            near = first < rank - 1 and all(0 <= m[first] <= NEAR for m in moves)
            if near and all(u in inside for u in users) and axis in (first, rank - 1):
                inside.append(b)
                axis = first
    return [b.name for b in inside[1:]], axis


def _moves(made: str, user: Block, rank: int) -> list[int]:
    """For each axis, how far from its own place a block reads a buffer of ``rank`` dimensions, -1 for
    anywhere. Empty if the block has another number of axes."""
    axes = spatial(user)
    if len(axes) != rank:
        return []
    places = [x.indices for x in reads(user) if x.buffer == made]
    far = [[_distance(p[k], axis) for p in places] for k, axis in enumerate(axes)]
    return [-1 if -1 in along else max(along) for along in far]


def _distance(index: Expr, axis: str) -> int:
    """How far an index is from ``axis``, -1 if it is not a constant. At borders it may be held inside."""
    while isinstance(index, Binary) and index.op in ("min", "max") and isinstance(index.b, Const):
        index = index.a
    terms, const = affine.linear(index)
    if terms != {Var(axis): Const(1)} or not isinstance(const, Const):
        return -1
    return abs(int(const.value))
