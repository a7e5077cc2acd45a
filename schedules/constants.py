"""What a schedule makes of inputs known ahead, such as weights, apart from the rest.

A nest whose first stages only copy a constant into another layout splits in two: a nest that packs, to be
run once, and the nest that is left, which takes the packed array in the constant's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from schedules import affine
from schedules import expr as E
from schedules.dtypes import is_integer
from schedules.ir import Loop, Nest, Stmt, blocks, in_order, seq, walk
from schedules.ir.nest import places_of, reads
from schedules.passes.sums_of_zeros import sums_of_zeros


def split_constants(nest: Nest, constants: Sequence[str]) -> tuple[Nest, dict[str, Nest]]:
    """The nest that is left, and by name of the constant the nest that packs it: parameters
    ``(constant, packed)``. The packed buffer stands in the constant's place among the parameters of what is
    left. Of an integer constant several arrays may be made, as weights and their sums (`cache_read_offset`):
    they are parameters side by side, which are ``joined``. A constant that is read as it is stays as it is.
    So does one of floats of which several arrays are made, and one that is packed into its own shape, as
    nobody could tell the two apart."""
    nest = sums_of_zeros(nest) if constants else nest  # while it is seen what is packed
    packing: dict[str, Nest] = {}
    for name in constants:
        parts = _split(nest, name)
        if parts is not None:
            nest, packing[name] = parts
    return nest, packing


def _split(nest: Nest, constant: str) -> tuple[Nest, Nest] | None:
    known, ahead, rest = {constant}, [], []
    for s in in_order(nest.body):
        written = _writes(s)
        read = _reads(s) - written
        if read and read <= known and not written & set(nest.params) and not _depends(s):
            ahead.append(s)
            known |= written
        else:
            rest.append(s)
    wanted = known & {b for s in rest for b in _reads(s)}
    if not wanted or constant in wanted or wanted & {b for s in rest for b in _writes(s)}:
        return None
    packed = tuple(b.name for b in nest.buffers if b.name in wanted)
    source = nest.buffer(constant)
    if any(nest.buffer(n).strides is not None for n in packed):
        return None  # (arguments are row-major)
    if len(packed) == 1 and nest.buffer(packed[0]).shape == source.shape:
        return None
    if len(packed) > 1 and (not is_integer(source.dtype) or len(source.shape) < 2):
        return None  # (what is joined has one dimension)
    before = tuple(b for b in nest.buffers if b.name in known)
    after = tuple(b for b in nest.buffers if b.name in wanted or b.name not in known)
    swapped = tuple(p for n in nest.params for p in (packed if n == constant else (n,)))
    joined = (packed,) if len(packed) > 1 else ()
    return (
        replace(nest, params=swapped, buffers=after, body=seq(*rest), joined=(*nest.joined, *joined)),
        Nest((constant, *packed), packed, before, seq(*ahead), joined=joined),
    )


def _depends(s: Stmt) -> bool:
    """Whether what a statement makes, or how much of it, depends on a size that a call tells."""
    extents = (x.extent for x in walk(s) if isinstance(x, Loop))
    values = (v for b in blocks(s) for v in (*b.values, *b.where, *b.binds, *places_of(b)))
    return any(affine.is_size(h) for e in (*extents, *values) for h in E.holes(e))


def _reads(s: Stmt) -> set[str]:
    return {x.buffer for b in blocks(s) for x in reads(b)}


def _writes(s: Stmt) -> set[str]:
    return {w.buffer for b in blocks(s) for w in b.writes}
