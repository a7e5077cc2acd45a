"""Emits casts of numbers as LLVM IR.

Casts of floats to integers end at the largest and the least, and NaN is 0. LLVM's intrinsic for that
(`llvm.fptosi.sat`) is one instruction on ARM. For vectors on x86 it falls apart into scalars, so that ends
are made here: comparisons around `fptosi`, or none where the expression stays between the ends anyway.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence

from autotune.codegen.llvm import by_half, by_tables, to_bfloat16
from autotune.codegen.llvm.address import Addresses
from autotune.codegen.llvm.scope import Scopes
from autotune.codegen.llvm.types import CONVERTED, LLVM_TYPE, Value, literal, mangle, vector
from schedules import conversions
from schedules import expr as E
from schedules.dtypes import DTYPES, computed, is_float, is_storage, rounded
from schedules.expr import INDEX, Binary, Call, Const, Expr
from schedules.float_ranges import EVERY, Range, float_range
from schedules.functions import FUNCTIONS


def itemsize(dtype: str) -> int:
    """Bytes of an integer."""
    return 8 if dtype == INDEX else DTYPES[dtype].itemsize


class Casts(Addresses):
    """Emits casts into `Scopes`. ``features``: of the target."""

    def __init__(self, scopes: Scopes, declare: Callable[[str], None], features: Collection[str]) -> None:
        super().__init__(scopes)
        self.declare = declare
        self.features = features

    @abstractmethod
    def value(self, e: Expr) -> Value:
        """Emit an expression."""

    @abstractmethod
    def _operation(self, e: Expr, of: Sequence[Value]) -> Value:
        """Emit an operation on the values of its operands."""

    @abstractmethod
    def _call(self, fn: str, args: Sequence[Value]) -> Value:
        """Emit a call of a function."""

    @abstractmethod
    def splat(self, v: Value, lanes: int) -> Value:
        """A value in all of ``lanes`` lanes."""

    def cast(self, x: Value, to: str, within: Range = EVERY) -> Value:
        """A value as ``to``. ``within``: between which numbers it lies, unless it is NaN."""
        b = vector(LLVM_TYPE[to], x.lanes)
        if to == "float32" and by_tables.applies(x.dtype, x.lanes, self.features):
            return Value(by_tables.widened(x, self.s, self.declare), to, x.lanes)
        if to == "float32" and by_half.applies(x.dtype, self.features):
            return Value(by_half.widened(x, self.s), to, x.lanes)
        if to == "bfloat16" and to_bfloat16.applies(x, self.features):
            return to_bfloat16.rounded(x, self.s, self.declare)
        if x.dtype in CONVERTED or to in CONVERTED:
            e = conversions.narrowed(to) if to in CONVERTED else conversions.widened(x.dtype)
            return self._converted(e, {conversions.operand(x.dtype): x})
        if LLVM_TYPE[x.dtype] == LLVM_TYPE[to]:
            return Value(x.ref, to, x.lanes)

        def out(code: str) -> Value:
            return Value(self.s.emit(code), to, x.lanes)

        if is_float(x.dtype):
            if is_float(to):
                wider = DTYPES[to].itemsize > DTYPES[x.dtype].itemsize
                return out(f"{'fpext' if wider else 'fptrunc'} {x} to {b}")
            if x.lanes > 1 and self._ends_are_made(x.dtype):
                return self._ended(x, x, to, within)
            name = f"@llvm.fptosi.sat.{mangle(LLVM_TYPE[to], x.lanes)}.{mangle(LLVM_TYPE[x.dtype], x.lanes)}"
            self.declare(f"declare {b} {name}({x.type})")
            return out(f"call {b} {name}({x})")
        unsigned = x.dtype in DTYPES and DTYPES[x.dtype].range[0] == 0
        if is_float(to):
            return out(f"{'uitofp' if unsigned else 'sitofp'} {x} to {b}")
        wider = x.dtype == "bool" or itemsize(x.dtype) < itemsize(to)
        return out(f"{('zext' if unsigned else 'sext') if wider else 'trunc'} {x} to {b}")

    def _converted(self, e: Expr, known: dict[Expr, Value]) -> Value:
        """An expression whose leaves are ``known``. What it has several times is emitted once."""
        if e not in known:
            known[e] = self._operation(e, [self._converted(x, known) for x in E.children(e)])
        return known[e]

    def _ends_are_made(self, dtype: str) -> bool:
        """Whether this target has no instruction that ends at the largest integer and the least."""
        return "sse2" in self.features and not is_storage(dtype)

    def integer(self, e: Expr, to: str) -> Value:
        """A floating-point expression as an integer.

        What moves a value or cuts it off is NaN just where the value is. That is asked of the value, once,
        and minima and maxima on the way need not hand NaN on."""
        within = float_range(e)
        if not self.lane_dependent(e) or not self._ends_are_made(E.dtype_of(e)):
            return self.cast(self.value(e), to, within)
        inner, x = self._but_for_nan(e)
        return self._ended(inner, x, to, within)

    def _but_for_nan(self, e: Expr) -> tuple[Value, Value]:
        """(a value within an expression that is NaN just where the expression is, the value of the
        expression, any number where that is NaN)."""
        match e:
            case Call(fn=fn, args=(a,)) if FUNCTIONS[fn].change is None:
                inner, x = self._but_for_nan(a)
                return inner, self._call(fn, [x])
            case Binary(op="min" | "max" as op, a=a, b=b) if _is_finite(a) or _is_finite(b):
                a, b = (b, a) if _is_finite(a) else (a, b)
                inner, x = self._but_for_nan(a)
                return inner, self._within(op, x, self.value(b))
            case Binary(op="+" | "-" as op, a=a, b=b) if _is_finite(b):
                inner, x = self._but_for_nan(a)
                return inner, self._operation(e, [x, self.value(b)])
        x = self.value(e)
        return x, x

    def _within(self, op: str, x: Value, end: Value) -> Value:
        """The minimum or maximum of a value and a number: that number where the value is NaN."""
        end = self.splat(end, x.lanes)
        holds = self.s.emit(f"fcmp {'olt' if op == 'min' else 'ogt'} {x}, {end.ref}")
        text = f"select {vector('i1', x.lanes)} {holds}, {x}, {end}"
        return Value(self.s.emit(text), x.dtype, x.lanes)

    def _ended(self, inner: Value, x: Value, to: str, within: Range) -> Value:
        """A float as an integer that ends at the largest and the least; 0 where ``inner`` is NaN."""
        values, bits, wide = DTYPES[to].range, vector("i1", x.lanes), computed(to)
        least, most = values[0], values[-1]
        top, over = rounded(most, x.dtype), ""
        if not within[0] > least - 1:
            x = self._within("max", x, Value(literal(least, x.dtype), x.dtype))
        if not within[1] < most + 1:
            end = Value(literal(top, x.dtype), x.dtype)
            if int(top) == most:
                x = self._within("min", x, end)
            else:  # the largest has no float: the next one is too large
                over = self.s.emit(f"fcmp oge {x}, {self.splat(end, x.lanes).ref}")
        out = Value(self.s.emit(f"fptosi {x} to {vector(LLVM_TYPE[wide], x.lanes)}"), wide, x.lanes)
        if over:
            largest = self.splat(Value(str(most), wide), x.lanes)
            out = Value(self.s.emit(f"select {bits} {over}, {largest}, {out}"), wide, x.lanes)
        number = self.s.emit(f"fcmp ord {inner}, {inner.ref}")
        zero = self.splat(Value("0", wide), x.lanes)
        out = Value(self.s.emit(f"select {bits} {number}, {out}, {zero}"), wide, x.lanes)
        return out if wide == to else self.cast(out, to)


def _is_finite(e: Expr) -> bool:
    return isinstance(e, Const) and math.isfinite(e.value)
