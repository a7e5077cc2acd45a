"""stage_factor: compute a factor of a product in a stage of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Binary, Cast, Expr, Load, Var
from schedules.ir import SCOPES, Access, Block, Buffer, Iter, Nest, blocks
from schedules.ir.nest import (
    add_buffer,
    block_names,
    find_block,
    fresh_each,
    insert,
    replace_stmt,
    root_child,
    with_values,
    wrap_loops,
    writers,
)
from schedules.model import Target
from schedules.primitives.base import Primitive, scope_in_words


@dataclass(frozen=True)
class StageFactor(Primitive[str]):
    """Compute factor ``place`` of the value of ``block`` in a stage before the block, as ``dtype``. Factors
    count from 0, in the order in which the value has them.

    Before: ``C[i] += x[k] * (w[i, k // 2] >> 4 * (k % 2) & 15)``. After ``stage_factor("C", 1, "uint8")``::

        C_factor1[i, k] = uint8(w[i, k // 2] >> 4 * (k % 2) & 15)
        C[i] += x[k] * int32(C_factor1[i, k])

    With `ComputeAt` on the stage, codes of few bits are unpacked in registers, a vector at a time. What is
    unpacked lies as an instruction wants it (`Tensorize`). The stage has those axes of the block that the
    factor depends on. Legal for a block of one value, without conditions. Legal where all values that the
    factor may have are values of ``dtype``, or ``dtype`` is its own; and what it reads is computed before.
    Cost: one more pass over the factor. Returns the stage's name.

    >>> x, k = te.placeholder((4, 8), "uint8", name="x"), te.reduce_axis(8, "k")
    >>> v = te.compute((4,), lambda i: te.sum((x[i, k] & 15) * 3, axis=k), "v")
    >>> t = at.Schedule([x, v])
    >>> t.stage_factor("v", 0, "uint8")
    'v_factor0'
    >>> t.blocks()
    ['v_factor0', 'v']
    """

    name: ClassVar[str] = "stage_factor"
    block: str
    place: int
    dtype: str
    scope: str = "local"

    def result(self) -> str:
        return f"{self.block}_factor{self.place}"

    def sentence(self) -> str:
        return (
            f"Compute factor {self.place} of `{self.block}` in a stage before it, `{self.result()}`, as "
            f"{self.dtype}, in {scope_in_words(self.scope)}."
        )

    def check(self, nest: Nest, target: Target | None = None) -> None:
        b, new = find_block(nest, self.block), self.result()
        if self.scope not in SCOPES:
            raise self.refused(f"scope {self.scope!r} is not one of {', '.join(SCOPES)}")
        if self.dtype not in DTYPES:
            raise self.refused(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if len(b.values) != 1 or b.where:
            raise self.refused("it has several values, or a condition; use it on a block of one plain value")
        if new in block_names(nest) or any(x.name == new for x in nest.buffers):
            raise self.refused(f"{new} exists already")
        found = factors(b.values[0])
        if not 0 <= self.place < len(found):
            raise self.refused(f"it has {len(found)} factors; give one of 0..{len(found) - 1}")
        e = found[self.place]
        if not fits(e, self.dtype):
            raise self.refused(
                f"factor {self.place} may have values that {self.dtype} lacks; use {E.dtype_of(e)}"
            )
        here = blocks(root_child(nest, self.block))
        for x in E.loads(e):
            if any(w is p for w in writers(nest, x.buffer) for p in here):
                raise self.refused(
                    f"factor {self.place} reads {x.buffer}, which is computed in a loop around the block; "
                    "use stage_factor before compute_at"
                )

    def apply(self, nest: Nest) -> Nest:
        b, new = find_block(nest, self.block), self.result()
        e = factors(b.values[0])[self.place]
        used = E.variables(e)
        axes = [i for i in b.iters if i.var in used] or list(b.iters[:1])
        at = tuple(Var(i.var) for i in axes)
        taken: Expr = Load(new, at, self.dtype)
        stored = e
        if self.dtype != E.dtype_of(e):
            taken, stored = Cast(E.dtype_of(e), taken), Cast(self.dtype, e)
        block = with_values(b, lambda v: _with_factor(v, self.place, taken))
        stage = Block(
            new,
            tuple(Iter(i.var, i.extent, "spatial") for i in axes),
            tuple(E.Const(0) for _ in axes),
            (Access(new, at),),
            (stored,),
        )
        nest = add_buffer(
            replace_stmt(nest, b, block), Buffer(new, tuple(i.extent for i in axes), self.dtype, self.scope)
        )
        stmt = wrap_loops(stage, fresh_each(nest, (f"{new}_{i.var}" for i in axes)))
        return insert(nest, None, stmt, before=block)


def factors(e: Expr) -> list[Expr]:
    """The factors of an expression, in order; itself where it is no product."""
    match e:
        case Binary(op="*", a=a, b=b):
            return [*factors(a), *factors(b)]
    return [e]


def fits(e: Expr, dtype: str) -> bool:
    """Whether ``dtype`` has every value that an expression may have."""
    if E.dtype_of(e) == dtype:
        return True
    found = affine.value_bounds(e, {})
    have = DTYPES[dtype].range
    return found is not None and len(have) > 0 and have[0] <= found[0] and found[1] <= have[-1]


def _with_factor(e: Expr, place: int, to: Expr) -> Expr:
    """An expression with ``to`` in the place of one of its factors."""
    match e:
        case Binary(op="*", a=a, b=b):
            n = len(factors(a))
            if place < n:
                return Binary("*", _with_factor(a, place, to), b)
            return Binary("*", a, _with_factor(b, place - n, to))
    return to
