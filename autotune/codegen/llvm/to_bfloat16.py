"""Rounds float32 to bfloat16 by the instruction of AVX512-BF16, where that is the same.

The instruction rounds to the nearest, of two to the even one, and keeps NaN, as `schedules.conversions` does
in ten operations. But it takes subnormal numbers for 0. So it is used for what is never subnormal: sums by
instructions whose own results never are (`Instruction.flushes`), and the larger or smaller of one and a
number.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2 (VCVTNEPS2BF16).
"""

from __future__ import annotations

from collections.abc import Collection

from autotune.codegen.llvm import intrinsic
from autotune.codegen.llvm.scope import Scopes
from autotune.codegen.llvm.types import LLVM_TYPE, Value, vector
from schedules.dtypes import DTYPES
from schedules.expr import Binary, Const, Expr, Load
from schedules.ir import Alloc, AllReduce, Intrinsic, Stmt, Store, with_body

FEATURE = "avx512bf16"
LANES = 16  # of the widest register
ZERO = Const(0.0, "float32")


def never_subnormal(s: Stmt, features: Collection[str]) -> frozenset[str]:
    """Buffers of a function whose elements are never subnormal on a target with these features: what is
    stored there is 0, the result of an instruction that has none, or of another such buffer."""
    if FEATURE not in features:
        return frozenset()
    made: set[str] = set()
    stored: list[tuple[str, Expr | None]] = []  # buffer, value; None: of an instruction that may be subnormal

    def go(x: Stmt) -> Stmt:
        match x:
            case Intrinsic(instruction=ins, operands=operands) if intrinsic.has(ins, features):
                (value,) = ins.meaning.stages[0].values
                begins = ins.meaning.stages[0].reducer is None
                stored.append((operands[-1].buffer, ZERO if ins.flushes else value if begins else None))
                return x
            case Store(buffer=b, value=v):
                stored.append((b, v))
            case AllReduce(buffer=b):
                stored.append((b, None))
            case Alloc(buffer=b) if b.dtype == "float32":
                made.add(b.name)
        return with_body(x, go)

    go(s)
    while True:
        bad = {b for b, v in stored if b in made and (v is None or not holds(v, made))}
        if not bad:
            return frozenset(made)
        made -= bad


def holds(e: Expr, buffers: Collection[str]) -> bool:
    """Whether an expression of float32 is never subnormal, as elements of ``buffers`` are not."""
    match e:
        case Const(value=n):
            return n == 0 or abs(n) >= DTYPES["float32"].tiny
        case Load(buffer=b):
            return b in buffers
        case Binary(op="min" | "max", a=a, b=b):
            return holds(a, buffers) and holds(b, buffers)
    return False


def fits(x: Value) -> bool:
    """Whether a value fills registers of the instruction."""
    return x.dtype == "float32" and x.lanes % LANES == 0


def narrowed(x: Value, s: Scopes) -> Value:
    """The bfloat16 of a float32 that is not subnormal."""
    wide = vector("bfloat", x.lanes)
    rounded = s.emit(f"fptrunc {x} to {wide}")
    return Value(
        s.emit(f"bitcast {wide} {rounded} to {vector(LLVM_TYPE['bfloat16'], x.lanes)}"), "bfloat16", x.lanes
    )
