"""cache_read_offset: read an operand of integer products through a copy that is offset."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar

from schedules import expr as E
from schedules.dtypes import DTYPES, computed, holds, is_integer, offset_to, wrapped
from schedules.expr import Binary, Cast, Const, Expr, Load, Var
from schedules.ir import Access, Block, Buffer, Nest, Stmt
from schedules.ir.nest import (
    add_buffer,
    block_names,
    find_block,
    fresh_each,
    insert,
    of_kind,
    readers,
    wrap_loops,
)
from schedules.model import Target
from schedules.primitives.base import Primitive, scope_in_words
from schedules.primitives.cache_read import check_complete, check_copied, through_copy
from schedules.primitives.cache_write import check_written_apart


@dataclass(frozen=True)
class CacheReadOffset(Primitive[list[str]]):
    """Read ``buffer``, an operand of the products that ``block`` adds up, through a copy with ``offset``
    added. What that adds to the sum is taken off it once: Σ a b = Σ (a + 128) b - 128 Σ b.

    Before: ``C[i, j] += int32(A[i, k]) * int32(B[k, j])``, of int8. After ``cache_read_offset("C", "A",
    128)``::

        A_offset_C[x0, x1] = uint8(int32(A[x0, x1]) + 128)
        A_compensation_C[j] += int32(B[k, j])
        A_product_C[i, j] += int32(A_offset_C[i, k]) * int32(B[k, j])
        C[i, j] = A_product_C[i, j] - 128 * A_compensation_C[j]

    So int8 becomes the uint8 that an instruction takes (128), or uint8 int8 (-128). What the sum adds to the
    operand, as in ``(int32(A[i, k]) - z[i]) * int32(B[k, j])``, is taken out of it too: with an offset of 0
    only that. It may depend on no axis of the reduction. Integers wrap, so all is exact whatever the sums
    are. Returns the names of three blocks, ``<buffer>_offset_<block>``, ``<buffer>_compensation_<block>``
    and ``<buffer>_compensated_<block>``, which writes the result, and that of the buffer which ``block``
    writes now, ``<buffer>_product_<block>``. It keeps its loops. New blocks stand at the root. `Pack` takes
    the copy as one of `CacheRead`. Loops of a new block are called ``<block>_x0, ...``.

    Legal for a whole sum of products of integers that is not scheduled inside of others. The offset must
    lead from one dtype to all of another that has as many bytes. Cost: the copy, a sum of the other operands,
    which is known ahead where these are, and one more pass over the result.

    >>> a, b = te.placeholder((4, 8), "int8", "a"), te.placeholder((8, 4), "int8", "b")
    >>> k = te.reduce_axis(8, "k")
    >>> c = te.compute((4, 4), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    >>> t = at.Schedule([a, b, c])
    >>> t.cache_read_offset("c", "a", 128)
    ['a_offset_c', 'a_compensation_c', 'a_compensated_c', 'a_product_c']
    """

    name: ClassVar[str] = "cache_read_offset"
    subject: ClassVar[str] = "buffer"
    block: str
    buffer: str
    offset: int
    scope: str = "global"

    def result(self) -> list[str]:
        return [self._named(x) for x in ("offset", "compensation", "compensated", "product")]

    def _named(self, what: str) -> str:
        return f"{self.buffer}_{what}_{self.block}"

    def sentence(self) -> str:
        copy, _, out, _ = self.result()
        return (
            f"Copy `{self.buffer}` with {self.offset} added into `{copy}`, in {scope_in_words(self.scope)}; "
            f"`{self.block}` reads the copy, and `{out}` takes off its sum what that adds."
        )

    def check(self, nest: Nest, target: Target | None = None) -> None:
        copy, *others = self.result()
        check_copied(nest, self.name, self.block, self.buffer, self.scope, copy)
        b = find_block(nest, self.block)
        self._check_sum(nest, b)
        p = self._product(b)
        self._dtype(p.read.dtype)
        if self.offset == 0 and not p.added:
            raise self.refused(
                f"block {self.block} adds nothing to it, and an offset of 0 adds nothing; use cache_read"
            )
        for x in (*E.loads(p.rest), *(y for _, a in p.added for y in E.loads(a))):
            check_complete(nest, self.name, self.block, x.buffer)
        check_written_apart(nest, b, self)
        for n in others:
            if n in block_names(nest) or any(x.name == n for x in nest.buffers):
                raise self.refused(f"{n} exists already")

    def _check_sum(self, nest: Nest, b: Block) -> None:
        if b.reducer is None or len(b.writes) != 1 or b.reducer.operation(0) != "+":
            raise self.refused(f"block {b.name} adds nothing up; only an operand of a sum has an offset")
        dtype = nest.buffer(b.writes[0].buffer).dtype
        if not is_integer(dtype):
            raise self.refused(
                f"block {b.name} adds up {dtype}, which rounds; an offset is exact for integers only"
            )
        if b.where:
            raise self.refused(f"block {b.name} is computed in part; use it before that")

    def _product(self, b: Block) -> OffsetProduct:
        """The products that a block adds up. Raises ScheduleError."""
        factors = _factors(b.values[0])
        own = [f for f in factors if _reads(f, self.buffer)]
        if len(own) != 1 or len(factors) < 2:
            raise self.refused(
                f"block {b.name} adds up {E.show(b.values[0])}, in which it is not one factor beside others; "
                "use cache_read_part where one buffer is several operands"
            )
        reduced = {i.var for i, _ in of_kind(b, "reduce")}
        x, added = own[0], list[tuple[str, Expr]]()
        while (found := self._sum(x)) is not None:
            x, op, more = found
            added.append((op, more))
        read = _widened(x)
        if read is None or len(_reads(own[0], self.buffer)) != 1:
            raise self.refused(f"the factor {E.show(own[0])} is no element of it with something added")
        for _, a in added:
            if E.variables(a) & reduced:
                raise self.refused(
                    f"{E.show(a)} is added to it, which differs along the reduction; only what is the same "
                    "for a whole sum can be taken out of it"
                )
        rest = reduce(lambda a, c: Binary("*", a, c), (f for f in factors if f is not own[0]))
        return OffsetProduct(own[0], x, read, tuple(added), rest)

    def _sum(self, e: Expr) -> tuple[Expr, str, Expr] | None:
        """``(x, op, a)`` of ``x op a``, where only ``x`` reads the buffer; None for others."""
        if not isinstance(e, Binary) or e.op not in "+-":
            return None
        of_a, of_b = (bool(_reads(y, self.buffer)) for y in (e.a, e.b))
        if of_a and not of_b:
            return e.a, e.op, e.b
        return (e.b, "+", e.a) if of_b and not of_a and e.op == "+" else None

    def _dtype(self, old: str) -> str:
        """The dtype of the copy."""
        if self.offset == 0:
            return old
        ways = {n: k for n in DTYPES if n != old and (k := offset_to(old, n)) is not None}
        found = next((n for n, k in ways.items() if k == self.offset), None)
        if found is None:
            known = [f"{k} for {n}" for n, k in ways.items()]
            raise self.refused(
                f"{old} with {self.offset} added is no dtype of as many bytes; give "
                f"{', '.join((*known, '0 to take out only what the sum adds'))}"
            )
        return found

    def apply(self, nest: Nest) -> Nest:
        b, (copied, compensation, out, product) = find_block(nest, self.block), self.result()
        p, write, src = self._product(b), b.writes[0], nest.buffer(self.buffer)
        whole, dtype = nest.buffer(write.buffer), self._dtype(src.dtype)
        moved = Load(copied, p.read.indices, dtype)
        operand = E.rewrite(p.operand, lambda e: moved if e == p.read else None)
        value = E.rewrite(b.values[0], lambda e: operand if e == p.factor else None)
        new = replace(b, writes=(Access(product, write.indices),), values=(value,))

        def element(at: tuple[Expr, ...]) -> Expr:
            x = Load(self.buffer, at, src.dtype)
            if self.offset == 0:
                return x
            wide = computed(src.dtype)
            return Cast(dtype, Binary("+", Cast(wide, x), Const(self.offset, wide)))

        axes = [i for i, _ in of_kind(b, "spatial")]
        used = [i for i in axes if i.var in E.variables(p.rest)]
        summed = Block(
            compensation,
            (*used, *(i for i, _ in of_kind(b, "reduce"))),
            (),
            (Access(compensation, tuple(Var(i.var) for i in used)),),
            (p.rest,),
            b.reducer,
            True,
        )
        taken = Load(compensation, summed.writes[0].indices, whole.dtype)
        result = p.compensated(Load(product, write.indices, whole.dtype), taken, self.offset)
        last = Block(out, tuple(axes), (), (write,), (result,))

        def in_loops(x: Block) -> Stmt:
            return wrap_loops(x, fresh_each(nest, (f"{x.name}_x{d}" for d in range(len(x.iters)))))

        first = next((x for x in readers(nest, write.buffer)), None)
        nest = add_buffer(nest, Buffer(product, whole.shape, whole.dtype))
        nest = add_buffer(nest, Buffer(compensation, tuple(i.extent for i in used), whole.dtype))
        nest = through_copy(nest, new, Buffer(copied, src.shape, dtype, self.scope), element)
        nest = insert(nest, None, in_loops(summed), before=find_block(nest, b.name))
        return insert(nest, None, in_loops(last), before=first)


@dataclass(frozen=True)
class OffsetProduct:
    """What a sum adds up: ``factor * rest``, where ``factor`` is ``operand + added``. ``operand``: the
    ``read`` in the dtype of the sum. ``added``: pairs of + or - and what."""

    factor: Expr
    operand: Expr
    read: Load
    added: tuple[tuple[str, Expr], ...]
    rest: Expr

    def compensated(self, product: Expr, taken: Expr, offset: int) -> Expr:
        """The sum, by that of ``(operand + offset) * rest`` and that of the rest."""
        dtype = E.dtype_of(taken)
        numbers = [(op, a.value) for op, a in self.added if isinstance(a, Const)]
        known = offset + sum(int(v) if op == "-" else -int(v) for op, v in numbers)
        more: Expr = Const(wrapped(known, dtype), dtype)
        for op, a in self.added:
            if not isinstance(a, Const):
                more = E.binary("-" if op == "+" else "+", more, a)
        return E.binary("-", product, E.binary("*", more, taken))


def _reads(e: Expr, buffer: str) -> list[Load]:
    return [x for x in E.loads(e) if x.buffer == buffer]


def _factors(e: Expr) -> list[Expr]:
    return _factors(e.a) + _factors(e.b) if isinstance(e, Binary) and e.op == "*" else [e]


def _widened(e: Expr) -> Load | None:
    """The element that an expression is in a wider dtype, or as it is."""
    while isinstance(e, Cast) and is_integer(old := E.dtype_of(e.a)) and is_integer(e.dtype):
        if not holds(e.dtype, old):
            return None
        e = e.a
    return e if isinstance(e, Load) else None
