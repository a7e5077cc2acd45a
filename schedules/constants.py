"""What a schedule makes of inputs known ahead, such as weights, apart from the rest.

A nest whose first stages only copy a constant into another layout splits in two: a nest that packs, to be
run once, and the nest that is left, which takes the packed array in the constant's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from schedules.ir import Nest, Stmt, blocks, in_order, seq
from schedules.ir.nest import reads
from schedules.passes.sums_of_zeros import sums_of_zeros


def split_constants(nest: Nest, constants: Sequence[str]) -> tuple[Nest, dict[str, Nest]]:
    """The nest that is left, and by name of the constant the nest that packs it: parameters
    ``(constant, packed)``. The packed buffer stands in the constant's place among the parameters of what is
    left. A constant that is read as it is, or of which more than one array is made, stays as it is; so does
    one that is packed into its own shape, as nobody could tell the two apart."""
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
        if read and read <= known and not written & set(nest.params):
            ahead.append(s)
            known |= written
        else:
            rest.append(s)
    wanted = known & {b for s in rest for b in _reads(s)}
    if len(wanted) != 1 or wanted == {constant} or wanted & {b for s in rest for b in _writes(s)}:
        return None
    (packed,) = wanted
    if nest.buffer(packed).shape == nest.buffer(constant).shape or nest.buffer(packed).strides is not None:
        return None  # (arguments are row-major)
    before = tuple(b for b in nest.buffers if b.name in known)
    after = tuple(b for b in nest.buffers if b.name == packed or b.name not in known)
    swapped = tuple(packed if n == constant else n for n in nest.params)
    return (
        replace(nest, params=swapped, buffers=after, body=seq(*rest)),
        Nest((constant, packed), (packed,), before, seq(*ahead)),
    )


def _reads(s: Stmt) -> set[str]:
    return {x.buffer for b in blocks(s) for x in reads(b)}


def _writes(s: Stmt) -> set[str]:
    return {w.buffer for b in blocks(s) for w in b.writes}
