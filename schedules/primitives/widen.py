"""widen: keep an intermediate buffer in a wider dtype."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from schedules import expr as E
from schedules.dtypes import NUMBERS, holds, is_float, rounded
from schedules.expr import Cast, Const, Expr, Load, Select
from schedules.ir import Block, Nest
from schedules.ir.nest import map_blocks, places_of, readers, reads, set_buffer, with_values, writers
from schedules.model import Target
from schedules.primitives.base import Primitive, require_intermediate
from schedules.te.scalars import cast


@dataclass(frozen=True)
class Widen(Primitive[None]):
    """Keep ``buffer`` in ``dtype``, which has all values of its own dtype. What makes it converts, once for
    each element; what reads it converts no more, or from ``dtype``.

    Before, of bfloat16: ``B_global[k, j] = B[k, j]; C[i, j] += float32(A[i, k]) * float32(B_global[k, j])``.
    After ``widen("B_global", "float32")``::

        B_global[k, j] = float32(B[k, j])
        C[i, j] += float32(A[i, k]) * B_global[k, j]

    So an operand that is used many times is converted while it is copied. Legal for a buffer that is no
    argument, that no reduction writes, and that no index reads. Cost: more bytes.

    >>> b, k = te.placeholder((4, 8), "bfloat16", name="b"), te.reduce_axis(4, "k")
    >>> t = at.Schedule([b, te.compute((8,), lambda j: te.sum(b[k, j], axis=k), "c")])
    >>> t.widen(t.cache_read("c", "b"), "float32")
    """

    name: ClassVar[str] = "widen"
    buffer: str
    dtype: str

    def sentence(self) -> str:
        return f"Keep `{self.buffer}` as {self.dtype}: what makes it converts its elements."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        require_intermediate(nest, self.buffer, self.name)
        old = nest.buffer(self.buffer).dtype
        wider = [n for n in NUMBERS if n != old and holds(n, old)]
        if self.dtype not in wider:
            raise self.refused(
                f"{self.dtype!r} is no other dtype that has all values of {old}; give one of "
                f"{', '.join(wider) or 'none: there is no such dtype'}"
            )
        for b in writers(nest, self.buffer):
            if b.reducer is not None:
                raise self.refused(
                    f"block {b.name} reduces into it, and would round otherwise; widen a copy (cache_read)"
                )
        for b in readers(nest, self.buffer):
            indices = (*(i for x in reads(b) for i in x.indices), *places_of(b))
            inside = (y for i in indices for y in E.loads(i))
            if any(y.buffer == self.buffer for y in inside):
                raise self.refused(f"block {b.name} reads it as an index; widen what is not an index")

    def apply(self, nest: Nest) -> Nest:
        old = nest.buffer(self.buffer)

        def moved(b: Block) -> Block:
            b = with_values(b, lambda v: E.rewrite(v, self._read))
            if all(w.buffer != self.buffer for w in b.writes):
                return b
            pairs = zip(b.writes, b.values, strict=True)
            return replace(b, values=tuple(self._made(v) if w.buffer == old.name else v for w, v in pairs))

        return set_buffer(map_blocks(nest, moved), replace(old, dtype=self.dtype))

    def _read(self, e: Expr) -> Expr | None:
        """What a part of a value reads now, if it reads the buffer."""
        match e:
            case Cast(a=Load(buffer=b) as x, dtype=d) if b == self.buffer and holds(d, self.dtype):
                wide = replace(x, dtype=self.dtype)
                return cast(wide, d)
            case Load(buffer=b, dtype=d) if b == self.buffer:
                return cast(replace(e, dtype=self.dtype), d)
        return None

    def _made(self, e: Expr) -> Expr:
        """A value as it is stored now. What is padded stays a choice between an element and a number."""
        match e:
            case Select(cond=c, a=a, b=b):
                return Select(c, self._made(a), self._made(b))
            case Const(value=v, dtype=d):
                exact = rounded(v, d)
                return Const(float(exact) if is_float(self.dtype) else int(exact), self.dtype)
        return cast(e, self.dtype)
