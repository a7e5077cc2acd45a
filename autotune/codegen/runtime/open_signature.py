"""What the signature of a compiled kernel says of sizes that a call tells (ADR 79).

The extents in it are those of the largest sizes. Behind them stand the sizes, in the order in which the
kernel takes them, and the extents that depend on them: ``... open 1..512 at 0.0=s0 2.0=s0`` of a kernel whose
first and third parameter have as many rows as its one size, ``s0``, says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Var
from schedules.ir import Buffer, size_ranges, size_variable
from schedules.ir.nest import open_buffers
from schedules.te.compute_dag import ComputeDAG
from schedules.te.open_sizes import OpenSize

# What a signature of a kernel with open sizes has.
OPEN = " open "


def at_largest(params: Sequence[Buffer], sizes: Sequence[OpenSize]) -> tuple[Buffer, ...]:
    """Parameters with the extents of the largest sizes."""
    most = {size_variable(s.name).name: s.most for s in sizes}

    def numbers(extents: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(Const(int(E.evaluate(e, most))) if affine.has_size(e) else e for e in extents)

    return tuple(
        replace(b, shape=numbers(b.shape), given=None if b.given is None else numbers(b.given))
        for b in params
    )


def open_text(params: Sequence[Buffer], sizes: Sequence[OpenSize]) -> str:
    """What a signature ends with; nothing where no size is open."""
    if not sizes:
        return ""
    names = {size_variable(s.name).name: Var(f"s{k}") for k, s in enumerate(sizes)}
    ranges = size_ranges(sizes)
    extents = [
        f"{k}.{d}={E.show(E.substitute(e, names)).replace(' ', '')}"
        for k, b in enumerate(params)
        for d, e in enumerate(_settled(x, ranges) for x in b.given or b.shape)
        if affine.has_size(e)
    ]
    return f"{OPEN}{' '.join(f'{s.least}..{s.most}' for s in sizes)} at {' '.join(extents)}"


def _settled(e: Expr, ranges: affine.Ranges) -> Expr:
    """An extent simplified as far as it goes, so that it is the same however often that was done before."""
    for _ in range(8):
        before, e = e, affine.simplify(e, ranges)
        if e == before:
            break
    return e


def open_text_of(dag: ComputeDAG) -> str:
    """`open_text` of a kernel of ``dag``."""
    return "" if dag.open is None else open_text(open_buffers(dag), dag.open.sizes)
