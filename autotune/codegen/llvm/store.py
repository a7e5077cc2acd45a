"""Emits stores as LLVM IR, reductions of lanes into one element, and prefetches."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace

from autotune.codegen.llvm import four_bits
from autotune.codegen.llvm.address import Flat
from autotune.codegen.llvm.expr import LlvmExpressions
from autotune.codegen.llvm.scope import Scopes
from autotune.codegen.llvm.stream import STREAM_ALIGN
from autotune.codegen.llvm.types import IN_MEMORY, LLVM_TYPE, Value, literal, mangle
from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Binary, Const, Expr, Load, Select, is_float
from schedules.ir import Prefetch, Store, multiply_add, skew
from schedules.model import LINE
from schedules.passes.cross_thread import identity


class Stores(LlvmExpressions):
    """Emits stores and prefetches into `Scopes`. ``streams``: whether code emitted now streams a buffer.
    ``scans``: whether the program has steps of a scan. Only there do masked lanes stay in registers; code of
    others is as it was."""

    def __init__(
        self,
        scopes: Scopes,
        declare: Callable[[str], None],
        features: Collection[str],
        streams: Callable[[str], bool],
        scans: bool = False,
    ) -> None:
        super().__init__(scopes, declare, features)
        self.streams = streams
        self.scans = scans

    def fits_lanes(self, s: Store, var: str) -> bool:
        """Whether lanes write different elements, or reduce into one."""
        if any(var in E.variables(i) for i in s.indices):
            # Lanes read written elements only at their own place, and no two write the same one.
            own = [x for x in E.loads(s.value) if x.buffer == s.buffer and not _apart(x, s, var)]
            if own and not self.steps(s, var):
                return False
            return all(x.indices == s.indices for x in own)
        return self._reduction(s) is not None

    def steps(self, s: Store, var: str) -> bool:
        """Whether the store's address moves by the same distance, not 0, from lane to lane."""
        terms = self.flat(s.buffer, s.indices).terms
        if any(var in E.variables(a) and a != E.Var(var) for a, _ in terms):
            return False
        return sum(c for a, c in terms if a == E.Var(var)) != 0

    def _reduction(self, s: Store) -> tuple[str, Expr] | None:
        """(operator, operand) of ``C[i] = C[i] op x``; None for other stores."""
        v = s.value
        if isinstance(v, Binary) and v.op in ("+", "*", "min", "max"):
            here = Load(s.buffer, s.indices, E.dtype_of(v))
            other = v.b if v.a == here else v.a if v.b == here else None
            if other is not None and all(x.buffer != s.buffer for x in E.loads(other)):
                return v.op, other
        return None

    def store(self, s: Store) -> None:
        """Emit a store, for all lanes."""
        self.calls = {}
        self.tabled = four_bits.pays(self.features) and any(map(four_bits.is_byte, E.loads(s.value)))
        self._store(s)
        self.calls = None

    def _store(self, s: Store) -> None:
        flat = self.flat(s.buffer, s.indices)
        dtype = self.places[s.buffer].dtype
        align = DTYPES[dtype].itemsize
        step = self.stride(flat)
        if step == 0:
            if self.lane_var is not None and (red := self._reduction(s)) is not None:
                value = self.reduce_lanes(*red, s)
            else:
                value = self.of_all_lanes(self.stored(s), s.value)
            ptr, _ = self.address(s.buffer, flat)
            self.s.do(f"store {value}, ptr {ptr}, align {align}")
            return
        value = self.splat(self.stored(s), self.lanes)
        if step == 1:
            ptr, _ = self.address(s.buffer, flat)
            if self.mask is None:
                whole = self.streamed(s.buffer, flat, align)
                hint = ", !nontemporal !0" if whole else ""
                self.s.do(f"store {value}, ptr {ptr}, align {whole or align}{hint}")
                return
            if self.scans and self._in_registers(s.buffer, flat):
                old = self.s.emit(f"load {value.type}, ptr {ptr}, align {align}")
                both = self.s.emit(f"select {self.mask}, {self._fenced(value)}, {value.type} {old}")
                self.s.do(f"store {value.type} {both}, ptr {ptr}, align {align}")
                return
            name = f"@llvm.masked.store.{mangle(LLVM_TYPE[dtype], self.lanes)}.p0"
            self.declare(f"declare void {name}({value.type}, ptr, <{self.lanes} x i1>)")
            self.s.do(f"call void {name}({value}, ptr align {align} {ptr}, {self.mask})")
            return
        if self.mask is not None:
            name = f"@llvm.masked.scatter.{mangle(LLVM_TYPE[dtype], self.lanes)}.v{self.lanes}p0"
            self.declare(f"declare void {name}({value.type}, <{self.lanes} x ptr>, <{self.lanes} x i1>)")
            to = self.pointers(s.buffer, flat)
            self.s.do(f"call void {name}({value}, <{self.lanes} x ptr> align {align} {to}, {self.mask})")
            return
        for lane, ptr in enumerate(self._lane_addresses(s.buffer, flat, step)):
            one = self.s.emit(f"extractelement {value}, i64 {lane}")
            self.s.do(f"store {LLVM_TYPE[dtype]} {one}, ptr {ptr}, align {align}")

    def _in_registers(self, buffer: str, flat: Flat) -> bool:
        """Whether all lanes are elements of a variable of this function, and floats. LLVM keeps such a
        variable in registers unless its address goes to a masked store."""
        place = self.places[buffer]
        floats = place.dtype in ("float32", "float64")
        return floats and place.pointer.startswith("%local") and self._own(buffer, flat)

    def _fenced(self, value: Value) -> Value:
        """A value that LLVM computes apart from the select that takes it. With AVX-512 it makes one masked
        instruction of both, with a masked load as operand, and may then load that without the mask."""
        name = f"@llvm.arithmetic.fence.{mangle(LLVM_TYPE[value.dtype], value.lanes)}"
        self.declare(f"declare {value.type} {name}({value.type})")
        return Value(self.s.emit(f"call {value.type} {name}({value})"), value.dtype, value.lanes)

    def stored(self, s: Store) -> Value:
        """The value of a store, as it lies in memory."""
        found = multiply_add(s)
        v = self.value(self._kept_or_added(s)) if found is None else self.multiply_add(*found)
        return self.cast(v, IN_MEMORY[v.dtype]) if v.dtype in IN_MEMORY else v

    def _kept_or_added(self, s: Store) -> Expr:
        """``c ? x + a : x`` for ``x + (c ? a : 0)`` in lanes of a sum, where the processor adds under a mask.
        A sum begins with +0, so it is never -0, which adding 0 would change."""
        match s.value:
            case Binary(op="+", a=Load() as x, b=Select(cond=c, a=a, b=Const(value=0))) if s.update:
                plain = isinstance(a, Const) or (isinstance(a, Load) and self._is_shared_inside(a))
                if plain and is_float(x.dtype) and self.lane_dependent(c) and "avx512f" in self.features:
                    return E.select(c, x + a, x)
        return s.value

    def prefetch(self, s: Prefetch) -> None:
        """Prefetch each line of contiguous lanes, each lane if lanes are lines apart, or the one element that
        lanes share.

        A vector that begins within a line is not prefetched, as the first vector of that line was. Nor are
        later unrolled iterations along the lines of lanes. Lanes that are lines apart, such as rows of a
        transposition, would share few sets of the first cache, so they go to the second whatever was
        asked."""
        flat = self.flat(s.buffer, s.indices)
        line = LINE // DTYPES[self.places[s.buffer].dtype].itemsize
        step = self.stride(flat)
        if step is None:
            return
        apart = abs(step) >= line
        if (self.unrolled_by(flat) if apart else self.lane_base if step == 1 else 0) % line:
            return
        name = "@llvm.prefetch.p0"
        self.declare(f"declare void {name}(ptr, i32, i32, i32)")
        locality = 2 if apart or s.cache == 2 else 3  # 3: first cache, 2: second cache
        for at in range(0, self.lanes if step else 1, line if step == 1 else 1):
            ptr, _ = self.address(s.buffer, flat, at * step)
            if self.s.recall(("prefetch", ptr)) is None:  # rows of a register tile may read the same line
                self.s.top.memo["prefetch", ptr] = True
                self.s.do(f"call void {name}(ptr {ptr}, i32 0, i32 {locality}, i32 1)")

    def streamed(self, buffer: str, at: Flat, item: int) -> int:
        """Alignment (bytes) of a streamed vector: that of its array, or its own size if tiles begin with
        lines. 0: it is not streamed, or is not aligned enough."""
        if not self.streams(buffer):
            return 0
        size = self.lanes * item
        first = skew(buffer)
        beside = replace(at, terms=tuple(t for t in at.terms if t != (first, 1)))  # from the first line on
        if beside != at and math.gcd(LINE, self.multiple(beside) * item) % size == 0:
            return size
        # If the array is aligned so, its first line is too.
        line = {first.name: Const(STREAM_ALIGN // item) * first}
        at = replace(at, terms=tuple((E.substitute(a, line), c) for a, c in at.terms))
        whole = math.gcd(size, self.multiple(at) * item) % STREAM_ALIGN == 0
        return STREAM_ALIGN if whole else 0

    def reduce_lanes(self, op: str, operand: Expr, s: Store) -> Value:
        """``C[i] op lanes of x``: a horizontal reduction, then one scalar operation."""
        v = self.splat(self.value(operand), self.lanes)
        scalar = LLVM_TYPE[v.dtype]
        if self.mask is not None:
            nothing = -0.0 if op == "+" and is_float(v.dtype) else identity(op, v.dtype)
            neutral = self.splat(Value(literal(nothing, v.dtype), v.dtype), self.lanes)
            v = Value(self.s.emit(f"select {self.mask}, {v}, {neutral}"), v.dtype, v.lanes)
        t = mangle(scalar, v.lanes)
        if is_float(v.dtype) and op in ("+", "*"):
            name = f"@llvm.vector.reduce.{'fadd' if op == '+' else 'fmul'}.{t}"
            start = literal(-0.0 if op == "+" else 1.0, v.dtype)
            self.declare(f"declare {scalar} {name}({scalar}, {v.type})")
            ref = self.s.emit(f"call reassoc {scalar} {name}({scalar} {start}, {v})")
        elif is_float(v.dtype):
            ref = self._extreme_of_lanes(op, v, t)
        else:
            name = f"@llvm.vector.reduce.{ {'+': 'add', '*': 'mul', 'min': 'smin', 'max': 'smax'}[op] }.{t}"
            self.declare(f"declare {scalar} {name}({v.type})")
            ref = self.s.emit(f"call {scalar} {name}({v})")
        with self.without_lanes():
            old = self.load(s.buffer, s.indices, v.dtype)
        return self.binary(op, old, Value(ref, v.dtype))

    def _extreme_of_lanes(self, op: str, v: Value, t: str) -> str:
        """The least or largest lane; NaN if a lane is NaN. All lanes are tested for NaN at once. Testing in
        each step of the reduction, as `llvm.vector.reduce.fmaximum` does, makes the next step wait three
        times as long."""
        scalar = LLVM_TYPE[v.dtype]
        bits = f"<{v.lanes} x i1>"
        look = f"@llvm.vector.reduce.or.v{v.lanes}i1"
        reduce = f"@llvm.vector.reduce.f{op}.{t}"
        self.declare(f"declare i1 {look}({bits})")
        self.declare(f"declare {scalar} {reduce}({v.type})")
        found = self.s.emit(f"call i1 {look}({bits} {self.s.emit(f'fcmp uno {v}, {v.ref}')})")
        # Without NaN and signed zero, plain comparisons of the processor suffice.
        most = self.s.emit(f"call nnan nsz {scalar} {reduce}({v})")
        return self.s.emit(f"select i1 {found}, {scalar} {literal(math.nan, v.dtype)}, {scalar} {most}")


def _apart(x: Load, s: Store, var: str) -> bool:
    """Whether a load is of another row than a store for all lanes, as of the step before in a scan. Rows that
    are kept in turns have numbers ``t % n``."""
    for i, j in zip(x.indices, s.indices, strict=True):
        if var not in E.variables(i) | E.variables(j):
            turns = 0
            match i, j:
                case (Binary(op="%", a=a, b=Const(value=n)), Binary(op="%", a=b, b=Const(value=m))) if n == m:
                    i, j, turns = a, b, int(n)
            terms, rest = affine.linear(E.binary("-", i, j))
            if not terms and isinstance(rest, Const):
                apart = int(rest.value)
                if (apart % turns if turns else apart) != 0:
                    return True
    return False
