"""Emits expressions as LLVM IR: scalars, or vectors while a vectorized loop is open."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from autotune.codegen.llvm import four_bits, spaced, transpose, vector_math
from autotune.codegen.llvm.address import Flat
from autotune.codegen.llvm.casts import itemsize
from autotune.codegen.llvm.scope import Scope, Scopes
from autotune.codegen.llvm.tables import BYTE_VALUES, Tables
from autotune.codegen.llvm.types import IN_MEMORY, LLVM_TYPE, Value, literal, mangle, vector
from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES, is_integer
from schedules.expr import (
    INDEX,
    Binary,
    Bits,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Fma,
    Load,
    Logic,
    Select,
    Var,
    is_float,
)
from schedules.model import LINE

# A number beyond any index.
FAR = 1 << 62
# {operator: instruction}; that of floats has an f before it.
_OF_INTEGERS = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}
# {operator: (of floats, of integers)}.
_COMPARISONS = {"<": ("olt", "slt"), "<=": ("ole", "sle"), "==": ("oeq", "eq"), "!=": ("une", "ne")}


class CodegenError(Exception):
    """The generator met code that lowering should not produce. It is a fault of this package."""


class LlvmExpressions(Tables):
    """Emits expressions into `Scopes`."""

    def __init__(self, scopes: Scopes, declare: Callable[[str], None], features: Collection[str]) -> None:
        super().__init__(scopes, declare, features)
        self.calls_functions = False  # whether code so far has functions of lanes
        self.tabled = False  # whether the statement may have functions of four bits
        # {a call and its place: its value} in the statement that is being emitted; None outside of one.
        self.calls: dict[Any, Value] | None = None

    def scalar(self, e: Expr) -> Value:
        return self.of_all_lanes(self.value(e), e)

    def of_all_lanes(self, v: Value, e: Expr) -> Value:
        """The value of an expression that is the same in all lanes. Raises CodegenError for others."""
        if v.lanes != 1:
            raise CodegenError(f"{E.show(e)} differs between lanes where one value is needed")
        return v

    def splat(self, v: Value, lanes: int) -> Value:
        """A value in all of ``lanes`` lanes."""
        if v.lanes == lanes:
            return v
        if not v.ref.startswith("%"):
            return Value(f"splat ({v.type} {v.ref})", v.dtype, lanes)
        key = ("splat", v.ref, lanes)
        ref = self.s.recall(key)
        if ref is None:
            t = vector(LLVM_TYPE[v.dtype], lanes)
            one = self.s.emit(f"insertelement {t} poison, {v}, i64 0")
            ref = self.s.emit(f"shufflevector {t} {one}, {t} poison, <{lanes} x i32> zeroinitializer")
            self.s.top.memo[key] = ref
        return Value(ref, v.dtype, lanes)

    def same_lanes(self, *vs: Value) -> list[Value]:
        """Values with the lanes of the widest."""
        n = max(v.lanes for v in vs)
        return [self.splat(v, n) if n > 1 else v for v in vs]

    def value(self, e: Expr) -> Value:
        """Emit an expression."""
        if self.tabled and self.lane_dependent(e) and (t := four_bits.table_of(e)) is not None:
            found = self.entry(t)
            if found is not None:
                return found
        match e:
            case Var(name=n):
                return self._variable(n)
            case Load(buffer=b, indices=ix, dtype=d):
                return self.load(b, ix, d)
            case Select():
                return self.looked_up(e) or self._select(e)
            case Cast(dtype=("int8" | "uint8") as d, a=a) if (byte := self.looked_up_byte(a, d)) is not None:
                return byte
            case Binary(op="//" | "%" as op, a=a, b=Const(value=int(c))) if c > 0 and self._never_negative(a):
                return self._divide_unsigned(op, *self.same_lanes(self.value(a), Value(str(c), INDEX)))
            case Compare(op="<" | "<=") if self.lane_dependent(e) and (m := self._lane_bound(e)) is not None:
                return m
            case Call():
                return self._call_once(e)
            case Fma(a=a, b=b, c=c):
                return self.multiply_add(a, b, c)
            case Cast(dtype=d, a=a) if is_float(E.dtype_of(a)) and is_integer(d):
                return self.integer(a, d)
        return self._operation(e, [self.value(x) for x in E.children(e)])

    def _operation(self, e: Expr, of: Sequence[Value]) -> Value:
        """An operation on the values of its operands."""
        match e:
            case Const(value=number, dtype=d):
                return Value(literal(number, d), d)
            case Binary(op=op):
                return self.binary(op, *self.same_lanes(*of))
            case Compare(op=op):
                return self._compare(op, *self.same_lanes(*of))
            case Logic(op="not"):
                true = self.splat(Value("true", "bool"), of[0].lanes)
                return Value(self.s.emit(f"xor {of[0]}, {true.ref}"), "bool", of[0].lanes)
            case Logic(op=op):
                out, *others = self.same_lanes(*of)
                for v in others:
                    out = Value(self.s.emit(f"{op} {out}, {v.ref}"), "bool", out.lanes)
                return out
            case Select():
                return self._chosen(*of)
            case Cast(dtype=d):
                return self.cast(of[0], d)
            case Bits(dtype=d):
                old, new = (8 * DTYPES[x].itemsize for x in (of[0].dtype, d))
                kind = "bitcast" if old == new else "zext" if old < new else "trunc"
                text = f"{kind} {of[0]} to {vector(LLVM_TYPE[d], of[0].lanes)}"
                return Value(self.s.emit(text), d, of[0].lanes)
        raise CodegenError(f"cannot emit {E.show(e)}")

    def _divide_unsigned(self, op: str, x: Value, y: Value) -> Value:
        return Value(self.s.emit(f"{'udiv' if op == '//' else 'urem'} {x}, {y.ref}"), x.dtype, x.lanes)

    def _never_negative(self, e: Expr) -> bool:
        """Whether an index is 0 or more in every iteration, as loops count from 0."""
        if E.dtype_of(e) != INDEX or E.loads(e):
            return False
        known = {v: self.env[v] for v in E.variables(e) - {self.lane_var}}
        ranges = {v: (x, x) if isinstance(x, int) else (0, FAR) for v, x in known.items()}
        if self.lane_var is not None:
            ranges[self.lane_var] = (self.lane_base, self.lane_base + self.lanes - 1)
        span = affine.bounds(e, ranges)
        return span is not None and span[0] >= 0

    def _variable(self, name: str) -> Value:
        if name == self.lane_var:
            iota = ", ".join(f"i64 {self.lane_base + n}" for n in range(self.lanes))
            return Value(f"<{iota}>", INDEX, self.lanes)
        v = self.counter(name)
        return Value(str(v) if isinstance(v, int) else v[0], INDEX)

    def multiply_add(self, a: Expr, b: Expr, c: Expr) -> Value:
        """``a * b + c``, rounded once if the processor can."""
        x, y, z = self.same_lanes(self.value(a), self.value(b), self.value(c))
        t = mangle(LLVM_TYPE[x.dtype], x.lanes)
        self.declare(f"declare {x.type} @llvm.fmuladd.{t}({x.type}, {x.type}, {x.type})")
        return self._like(x, f"call {x.type} @llvm.fmuladd.{t}({x}, {y}, {z})")

    def _like(self, x: Value, code: str) -> Value:
        return Value(self.s.emit(code), x.dtype, x.lanes)

    def binary(self, op: str, x: Value, y: Value) -> Value:
        """``x op y``, rounded as one operation."""
        out = partial(self._like, x)
        if is_float(x.dtype):
            if op in ("min", "max"):
                return self._extreme(op, x, y)
            return out(f"f{'div' if op == '/' else _OF_INTEGERS[op]} {x}, {y.ref}")
        if op in ("min", "max"):
            c = self.s.emit(f"icmp {'slt' if op == 'min' else 'sgt'} {x}, {y.ref}")
            return out(f"select {vector('i1', x.lanes)} {c}, {x}, {y}")
        if op in ("<<", ">>"):
            return self._shift(op, x, y)
        name = _OF_INTEGERS.get(op)
        return out(f"{name} {x}, {y.ref}") if name else self._divide(op, x, y)

    def _shift(self, op: str, x: Value, y: Value) -> Value:
        """A shift as numpy has it. By less than 0, or by as many bits as there are, LLVM's is undefined."""
        out = partial(self._like, x)

        def all_lanes(n: int) -> Value:
            return self.splat(Value(str(n), x.dtype), x.lanes)

        i1, bits = vector("i1", x.lanes), 8 * itemsize(x.dtype)
        known = y.ref.removeprefix(f"splat (i{bits} ").removesuffix(")")
        if known.isdigit() and int(known) < bits:
            return out(f"{'shl' if op == '<<' else 'ashr'} {x}, {y.ref}")
        inside = self.s.emit(f"icmp ult {y}, {all_lanes(bits).ref}")
        by = out(f"select {i1} {inside}, {y}, {all_lanes(0 if op == '<<' else bits - 1)}")
        if op == ">>":
            return out(f"ashr {x}, {by.ref}")
        return out(f"select {i1} {inside}, {out(f'shl {x}, {by.ref}')}, {all_lanes(0)}")

    def _extreme(self, op: str, x: Value, y: Value) -> Value:
        """Minimum or maximum that propagates NaN from either side, as numpy's do. LLVM tests the first
        operand for NaN. That is not the partial result of a reduction, so that no step waits for the test."""
        name = f"@llvm.{op}imum.{mangle(LLVM_TYPE[x.dtype], x.lanes)}"
        self.declare(f"declare {x.type} {name}({x.type}, {x.type})")
        return Value(self.s.emit(f"call nsz {x.type} {name}({y}, {x})"), x.dtype, x.lanes)

    def _divide(self, op: str, x: Value, y: Value) -> Value:
        """Division that rounds towards minus infinity, its remainder, or ceildiv. Division by zero gives 0,
        as in numpy, and the least integer divided by -1 is itself. The processor would trap in both cases."""
        out = partial(self._like, x)

        zero = "zeroinitializer" if x.lanes > 1 else "0"
        if op == "ceildiv":
            q, r = self._divide("//", x, y), self._divide("%", x, y)
            more = Value(self.s.emit(f"icmp ne {r}, {zero}"), "bool", x.lanes)
            return out(f"add {q}, {out(f'zext {more} to {x.type}').ref}")
        c = int(y.ref) if y.lanes == 1 and y.ref.lstrip("-").isdigit() else 0
        if c > 0 and c & (c - 1) == 0:
            if op == "//":
                return out(f"ashr {x}, {c.bit_length() - 1}")
            return out(f"and {x}, {c - 1}")
        i1 = vector("i1", x.lanes)
        one = self.splat(Value("1", x.dtype), x.lanes)
        special, divisor = "", y
        if c in (0, -1):  # the quotient is x * c
            two = self.splat(Value("2", x.dtype), x.lanes)
            special = self.s.emit(f"icmp ult {out(f'add {y}, {one.ref}')}, {two.ref}")
            y = out(f"select {i1} {special}, {one}, {y}")
        r = out(f"srem {x}, {y.ref}")
        nonzero = self.s.emit(f"icmp ne {r}, {zero}")
        differ = self.s.emit(f"icmp slt {x.type} {out(f'xor {r}, {y.ref}').ref}, {zero}")
        fix = self.s.emit(f"and {i1} {nonzero}, {differ}")
        if op == "%":
            add = out(f"add {r}, {y.ref}")
            return out(f"select {i1} {fix}, {add}, {r}")
        q = out(f"sdiv {x}, {y.ref}")
        less = out(f"sub {q}, {one.ref}")
        floor = out(f"select {i1} {fix}, {less}, {q}")
        return out(f"select {i1} {special}, {out(f'mul {x}, {divisor.ref}')}, {floor}") if special else floor

    def _compare(self, op: str, x: Value, y: Value) -> Value:
        of_floats, of_integers = _COMPARISONS[op]
        code = f"fcmp {of_floats}" if is_float(x.dtype) else f"icmp {of_integers}"
        return Value(self.s.emit(f"{code} {x}, {y.ref}"), "bool", x.lanes)

    def _lane_bound(self, e: Compare) -> Value | None:
        """``lane < n`` or ``lane >= n`` with one n for all lanes, compared in 32 bits."""
        if E.dtype_of(e.a) != INDEX or E.loads(e):
            return None
        step, rest = affine.isolate(e.b - e.a, self.lane_var or "")  # > 0, or >= 0
        if step not in (Const(1), Const(-1)) or self.lane_dependent(rest):
            return None
        below = step == Const(-1)
        if below:  # lane < rest, or lane < rest + 1
            n = rest + 1 if e.op == "<=" else rest
        else:  # lane >= -rest + 1, or lane >= -rest
            n = Const(0) - rest if e.op == "<=" else 1 - rest
        ints = tuple(sorted((v, x) for v in E.variables(n) if isinstance(x := self.env[v], int)))
        key = ("lanes", below, n, ints, self.lane_base, self.lanes)
        ref = self.s.recall(key)
        if ref is None:
            clamped = E.maximum(E.minimum(n, self.lane_base + self.lanes), 0)
            short = self.s.emit(f"trunc {self.uniform(clamped)} to i32")
            t = f"<{self.lanes} x i32>"
            one = self.s.emit(f"insertelement {t} poison, i32 {short}, i64 0")
            all_ = self.s.emit(f"shufflevector {t} {one}, {t} poison, {t} zeroinitializer")
            iota = ", ".join(f"i32 {self.lane_base + k}" for k in range(self.lanes))
            ref = self.s.emit(f"icmp {'slt' if below else 'sge'} {t} <{iota}>, {all_}")
            self.s.top.memo[key] = ref
        return Value(ref, "bool", self.lanes)

    def uniform(self, e: Expr) -> Value:
        """An expression that all lanes share, once."""
        with self.without_lanes():
            return self.scalar(e)

    def vector_of(self, e: Expr) -> Value:
        """Emit an expression for each lane."""
        return self.splat(self.value(e), self.lanes)

    def _call_once(self, e: Call) -> Value:
        """A call. A statement that has it several times evaluates it once: some functions branch, and LLVM
        would keep each. In an index that is read, each lane has one of its own."""
        numbers = tuple(self.env[v] for v in sorted(E.variables(e)) if v != self.lane_var)
        at = e, self.mask, self.lane_var, self.lane_base, self.lanes, numbers
        known = None if self.calls is None else self.calls.get(at)
        if known is None:
            known = self._call(e.fn, self.same_lanes(*map(self.value, e.args)))
            if self.calls is not None:
                self.calls[at] = known
        return known

    def _call(self, fn: str, args: Sequence[Value]) -> Value:
        x = args[0]
        if not is_float(x.dtype):
            if fn == "floor":
                return x
            if fn == "abs":
                zero = Value("zeroinitializer" if x.lanes > 1 else "0", x.dtype, x.lanes)
                return self.binary("max", x, self.binary("-", zero, x))
            raise CodegenError(f"{fn} of {x.dtype}")
        self.calls_functions |= x.lanes > 1
        refs = [v.ref for v in args]
        m = vector_math.expand(fn, x.dtype, x.lanes, refs, f"{self.s.label('m')}_", self.features)
        for d in m.declares:
            self.declare(d)
        self.s.top.lines.extend(f"  {line}" for line in m.lines)
        self.s.top.label = m.label or self.s.top.label
        return Value(m.result, x.dtype, x.lanes)

    # -- memory --------------------------------------------------------------------------------

    def load(self, buffer: str, ix: tuple[Expr, ...], dtype: str) -> Value:
        if dtype in IN_MEMORY:  # conditions
            byte = self.load(buffer, ix, IN_MEMORY[dtype])
            return self._compare("!=", *self.same_lanes(byte, Value("0", byte.dtype)))
        flat = self.flat(buffer, ix)
        step = self.stride(flat)
        t, n = LLVM_TYPE[dtype], self.lanes
        if step == 0:
            if self.mask is not None and self.chosen is not None:
                return self._shared_load(buffer, flat, dtype, self.chosen)
            return Value(self._remembered_load(buffer, flat, t, 1), dtype)
        if step is None and (entries := self._byte_of_table(buffer, flat, dtype)) is not None:
            return entries
        if self.mask is not None and not (step == 1 and self._own(buffer, flat)):
            return self._masked_load(buffer, flat, step, dtype)
        if step == 1:
            return Value(self._remembered_load(buffer, flat, t, n), dtype, n)
        if step == -1:
            ptr, _ = self.address(buffer, flat, 1 - n)
            x = self.s.emit(f"load {vector(t, n)}, ptr {ptr}, align {DTYPES[dtype].itemsize}")
            return Value(self._turned(vector(t, n), x), dtype, n)
        if (column := self._column(buffer, flat, step, dtype)) is not None:
            return Value(column, dtype, n)
        if step is not None and self._has_gaps(buffer) and spaced.fits(n, step):
            return Value(self._picked(buffer, flat, step, dtype), dtype, n)
        out = "poison"
        for lane, ref in enumerate(self._lane_addresses(buffer, flat, step)):
            x = self.s.emit(f"load {t}, ptr {ref}, align {DTYPES[dtype].itemsize}")
            out = self.s.emit(f"insertelement {vector(t, n)} {out}, {t} {x}, i64 {lane}")
        return Value(out, dtype, n)

    def _byte_of_table(self, buffer: str, flat: Flat, dtype: str) -> Value | None:
        """What lanes read of a tensor that has a byte for each value of one. None: it is none, or the target
        looks it up in memory."""
        match flat:
            case Flat(terms=((index, 1),), const=0) if dtype in ("int8", "uint8"):
                if self.places[buffer].elements == BYTE_VALUES:
                    return self.byte_of_table(index, dtype, partial(self._of_table, buffer))
        return None

    def _of_table(self, buffer: str, at: int) -> str:
        """64 bytes of a buffer from a place on."""
        return self._remembered_load(buffer, Flat((), at, frozenset()), "i8", 64)

    def _column(self, buffer: str, flat: Flat, step: int | None, dtype: str) -> str | None:
        """The column of a square for lanes that are far apart but whose elements are contiguous along an
        unrolled loop. The square is loaded by rows and transposed in registers for all its columns. None if
        there is no square."""
        n, top = self.lanes, self.s.top
        if step is None or not transpose.fits(n, DTYPES[dtype].itemsize) or buffer in top.stores:
            return None
        for a, c in flat.terms:
            if not isinstance(a, Var) or c != 1 or a.name not in self.unrolled:
                continue
            count, scope = self.unrolled[a.name]
            number = self.env[a.name]
            assert isinstance(number, int)
            first = number // n * n
            others = [e for e, _ in flat.terms if e is not a]
            if scope is not top or first + n > count or any(a.name in E.variables(e) for e in others):
                continue  # some column is not read here
            self.env[a.name] = first
            rows = self._lane_addresses(buffer, flat, step)
            self.env[a.name] = number
            key = ("columns", tuple(rows))
            if key not in top.memo:
                top.memo[key] = self._transposed(rows, dtype)
            return str(top.memo[key][number - first])
        return None

    def _has_gaps(self, buffer: str) -> bool:
        """Whether no two elements of a buffer are neighbours in memory."""
        return all(abs(x) != 1 for x in self.places[buffer].strides)

    def _picked(self, buffer: str, flat: Flat, step: int, dtype: str) -> str:
        """Lanes a few elements apart, out of whole vectors."""
        n, t = self.lanes, vector(LLVM_TYPE[dtype], self.lanes)
        starts, permutations = spaced.picks(n, step)
        at = [self.address(buffer, flat, k)[0] for k in starts]
        out, *others = (self.s.emit(f"load {t}, ptr {p}, align {DTYPES[dtype].itemsize}") for p in at)
        for other, mask in zip(others, permutations, strict=True):
            out = self._shuffled(t, out, other, mask)
        return out

    def _shuffled(self, kind: str, a: str, b: str, mask: Sequence[int]) -> str:
        lanes = ", ".join(f"i32 {x}" for x in mask)
        return self.s.emit(f"shufflevector {kind} {a}, {kind} {b}, <{len(mask)} x i32> <{lanes}>")

    def _turned(self, kind: str, x: str) -> str:
        """The lanes of a vector from the last to the first."""
        return self._shuffled(kind, x, "poison", range(self.lanes - 1, -1, -1))

    def _transposed(self, rows: list[str], dtype: str) -> list[str]:
        t = vector(LLVM_TYPE[dtype], len(rows))
        loads = [self.s.emit(f"load {t}, ptr {ref}, align {DTYPES[dtype].itemsize}") for ref in rows]
        return transpose.transpose(loads, DTYPES[dtype].itemsize, partial(self._shuffled, t))

    def _own(self, buffer: str, flat: Flat) -> bool:
        """Whether every lane reads the kernel's own memory for any mask. A plain load then keeps the buffer
        in registers."""
        first = flat.const
        for a, c in flat.terms:
            if isinstance(a, Var) and a.name == self.lane_var:
                first += c * self.lane_base
                continue
            v = self.env.get(a.name) if isinstance(a, Var) else None
            if not isinstance(v, int):
                return False
            first += c * v
        return 0 <= first and first + self.lanes <= self.places[buffer].size

    def _remembered_load(self, buffer: str, flat: Flat, t: str, lanes: int) -> str:
        """A scalar or contiguous load, emitted as far out as its address and the stores allow."""
        ptr, depth = self.address(buffer, flat)
        key = ("load", ptr, lanes)
        old = self.s.recall_load(key, buffer)
        if old is not None:
            return str(old)
        level = self.s.load_level(buffer, depth)
        align = DTYPES[self.places[buffer].dtype].itemsize
        ref = self.s.emit(f"load {vector(t, lanes)}, ptr {ptr}, align {align}", at=level)
        home = level if buffer not in self.s.stack[level].stores else level + 1
        if home <= self.s.depth and buffer not in self.s.stack[home].stores:
            self.s.stack[home].memo[key] = ref
        return ref

    def pointers(self, buffer: str, flat: Flat) -> str:
        """A vector of element addresses, one for each lane."""
        e: Expr = Const(flat.const)
        for a, c in flat.terms:
            e = e + a * c
        index = self.splat(self.value(e), self.lanes)
        place = self.places[buffer]
        return self.s.emit(f"getelementptr {LLVM_TYPE[place.dtype]}, ptr {place.pointer}, {index}")

    def _masked_load(self, buffer: str, flat: Flat, step: int | None, dtype: str) -> Value:
        t, n = LLVM_TYPE[dtype], self.lanes
        vt, align = vector(t, n), DTYPES[dtype].itemsize
        assert self.mask is not None
        if step in (1, -1):
            ptr, _ = self.address(buffer, flat, 0 if step == 1 else 1 - n)
            mask = self.mask if step == 1 else f"<{n} x i1> {self._turned(f'<{n} x i1>', self.mask.ref)}"
            name = f"@llvm.masked.load.{mangle(t, n)}.p0"
            self.declare(f"declare {vt} {name}(ptr, <{n} x i1>, {vt})")
            code = f"call {vt} {name}(ptr align {align} {ptr}, {mask}, {vt} zeroinitializer)"
            if step == -1:
                return Value(self._turned(vt, self.s.emit(code)), dtype, n)
        else:
            name = f"@llvm.masked.gather.{mangle(t, n)}.v{n}p0"
            self.declare(f"declare {vt} {name}(<{n} x ptr>, <{n} x i1>, {vt})")
            code = (
                f"call {vt} {name}(<{n} x ptr> align {align} {self.pointers(buffer, flat)}, "
                f"{self.mask}, {vt} zeroinitializer)"
            )
        return Value(self.s.emit(code), dtype, n)

    def _shared_load(self, buffer: str, flat: Flat, dtype: str, lanes: Value) -> Value:
        """A load that is the same for all of ``lanes``. It may be out of bounds if none of them is active; a
        zero is loaded then."""
        t = LLVM_TYPE[dtype]
        name, fold = f"@zero.{t}", f"@llvm.vector.reduce.or.v{lanes.lanes}i1"
        self.declare(f"declare i1 {fold}(<{lanes.lanes} x i1>)")
        self.declare(f"{name} = private constant {t} zeroinitializer, align {LINE}")
        ptr, _ = self.address(buffer, flat)
        some = self.s.emit(f"call i1 {fold}({lanes})")
        place = self.s.emit(f"select i1 {some}, ptr {ptr}, ptr {name}", hint="p")
        return Value(self.s.emit(f"load {t}, ptr {place}, align {DTYPES[dtype].itemsize}"), dtype)

    # -- choice --------------------------------------------------------------------------------

    def and_mask(self, cond: Value) -> Value:
        """``cond`` within the open mask, one bit a lane."""
        cond = self.splat(cond, self.lanes)
        if self.mask is None:
            return cond
        return Value(self.s.emit(f"and {self.mask}, {cond.ref}"), "bool", self.lanes)

    def _select(self, e: Select) -> Value:
        """A select. Only the chosen side is evaluated if the sides load what the condition does not, as
        evaluating the other could fault."""
        if _reads_alike(e) and (known := self._known(e.cond)) is not None:
            return self.value(e.a if known else e.b)
        cond = self.value(e.cond)
        sure = _always_loaded(e.cond) | (_always_loaded(e.a) & _always_loaded(e.b))
        risky = {x for side in (e.a, e.b) for x in E.loads(side)} - sure
        if cond.lanes > 1:
            risky = {x for x in risky if not self._is_shared_inside(x)}
        if not risky:
            return self._chosen(cond, self.value(e.a), self.value(e.b))
        if cond.lanes == 1:
            found = self._load_or_constant(e, cond)
            return found if found is not None else self._branch(e, cond)
        true = self.splat(Value("true", "bool"), self.lanes)
        other = Value(self.s.emit(f"xor {cond}, {true.ref}"), "bool", self.lanes)
        x, y = self._side(e.a, cond), self._side(e.b, other)
        return Value(self.s.emit(f"select {cond}, {x}, {y}"), x.dtype, x.lanes)

    def _is_shared_inside(self, x: Load) -> bool:
        """Whether lanes share an element that is there whatever they choose."""
        return not self.lane_dependent(x) and self.stays_inside(x.buffer, self.flat(x.buffer, x.indices))

    def _known(self, cond: Expr) -> bool | None:
        """Whether a condition holds in this iteration of unrolled loops; None where others decide."""
        numbers = {v: self.env.get(v) for v in E.variables(cond)}
        if E.loads(cond) or not all(isinstance(n, int) for n in numbers.values()):
            return None
        return bool(E.evaluate(cond, numbers))

    def _chosen(self, cond: Value, x: Value, y: Value) -> Value:
        x, y = self.same_lanes(x, y)
        lanes = max(x.lanes, cond.lanes)
        c = self.splat(cond, lanes) if cond.lanes > 1 else cond
        x, y = self.splat(x, lanes), self.splat(y, lanes)
        return Value(self.s.emit(f"select {c}, {x}, {y}"), x.dtype, x.lanes)

    def _side(self, e: Expr, taken: Value) -> Value:
        """A side of a select, in the lanes that take it."""
        outer = self.mask, self.chosen
        self.mask = self.chosen = self.and_mask(taken)
        x = self.splat(self.value(e), self.lanes)
        self.mask, self.chosen = outer
        return x

    def _load_or_constant(self, e: Select, cond: Value) -> Value | None:
        """A vector from memory or a constant, chosen for all lanes together: a load from a selected address.
        An unrolled window has hundreds of these, and branches would take long to compile and run. A masked
        load would suppress faults, but takes hundreds of cycles for one."""
        if self.lane_var is None or self.mask is not None or not isinstance(e.b, Const):
            return None
        if not isinstance(e.a, Load) or e.a.dtype in IN_MEMORY or any(map(E.loads, e.a.indices)):
            return None  # (an index that is read may not be there either)
        if self.stride(flat := self.flat(e.a.buffer, e.a.indices)) != 1:
            return None
        t, other = vector(LLVM_TYPE[e.a.dtype], self.lanes), self.value(e.b)
        name = f"@constant.{self.lanes}.{other.type}.{other.ref}"
        self.declare(f"{name} = private constant {t} {self.splat(other, self.lanes).ref}, align {LINE}")
        ptr, _ = self.address(e.a.buffer, flat)
        place = self.s.emit(f"select {cond}, ptr {ptr}, ptr {name}", hint="p")
        align = DTYPES[e.a.dtype].itemsize
        return Value(self.s.emit(f"load {t}, ptr {place}, align {align}"), e.a.dtype, self.lanes)

    def _branch(self, e: Select, cond: Value) -> Value:
        then, other, join = (self.s.label(h) for h in ("then", "else", "join"))
        lanes = (
            self.lanes
            if self.lane_var is not None and (self.lane_dependent(e.a) or self.lane_dependent(e.b))
            else 1
        )
        sides: list[tuple[Value, Scope]] = []
        for label, side in ((then, e.a), (other, e.b)):
            self.s.stack.append(Scope(label, False, frozenset()))
            before, self.calls = self.calls, None if self.calls is None else dict(self.calls)
            v = self.value(side)
            v = self.splat(v, lanes) if lanes > 1 else v
            self.calls = before
            sides.append((v, self.s.stack.pop()))
        self.s.do(f"br {cond}, label %{then}, label %{other}")
        for label, (_, scope) in zip((then, other), sides, strict=True):
            self.s.top.lines.append(f"{label}:")
            self.s.top.lines.extend(scope.lines)
            self.s.do(f"br label %{join}")
        self.s.start(join)
        (x, sx), (y, sy) = sides
        ref = self.s.emit(f"phi {x.type} [ {x.ref}, %{sx.label} ], [ {y.ref}, %{sy.label} ]")
        return Value(ref, x.dtype, x.lanes)


def _reads_alike(e: Select) -> bool:
    """Whether both sides are of the same elements, as the two codes of a byte."""
    return bool(E.loads(e.a)) and set(E.loads(e.a)) == set(E.loads(e.b))


def _always_loaded(cond: Expr) -> set[Load]:
    """What is loaded wherever a condition is evaluated."""
    if isinstance(cond, Select):
        return _always_loaded(cond.cond)
    here = {cond} if isinstance(cond, Load) else set()
    return here.union(*map(_always_loaded, E.children(cond)))
