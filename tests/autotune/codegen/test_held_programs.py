"""Programs of instructions on tiles, of stores, loops and conditions, drawn at random: compiled code does
what the interpreter does, whatever is held in registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import host

from autotune.codegen.llvm.compile import compile_module, load_object
from autotune.codegen.llvm.emit import emit
from autotune.codegen.runtime.entry import entry
from schedules import te
from schedules.expr import Compare, Const, Expr, Load, Var
from schedules.ir import Buffer, Guard, Intrinsic, Loop, LoweredFunc, Operand, Stmt, Store, seq
from schedules.ir.instruction import Instruction, Registers
from schedules.ir.interp import run

# A unit that exists nowhere: 4 registers of 2 by 2 integers. Every CPU runs its text.
BOXES = Registers("box", 4, 16, {"llvm": {
    "type": "<4 x i32>",
    "load": """
%low = load <2 x i32>, ptr {at}, align 4
%next = getelementptr i8, ptr {at}, i64 {step}
%high = load <2 x i32>, ptr %next, align 4
{value} = shufflevector <2 x i32> %low, <2 x i32> %high, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
""",
    "store": """
%low = shufflevector <4 x i32> {value}, <4 x i32> poison, <2 x i32> <i32 0, i32 1>
%high = shufflevector <4 x i32> {value}, <4 x i32> poison, <2 x i32> <i32 2, i32 3>
store <2 x i32> %low, ptr {at}, align 4
%next = getelementptr i8, ptr {at}, i64 {step}
store <2 x i32> %high, ptr %next, align 4
""",
    "take": "{value} = load <4 x i32>, ptr {slot}, align 16",
    "keep": "store <4 x i32> {value}, ptr {slot}, align 16",
}})  # fmt: skip
TEXT = """
%a0 = shufflevector <4 x i32> {a}, <4 x i32> poison, <4 x i32> <i32 0, i32 0, i32 2, i32 2>
%a1 = shufflevector <4 x i32> {a}, <4 x i32> poison, <4 x i32> <i32 1, i32 1, i32 3, i32 3>
%b0 = shufflevector <4 x i32> {b}, <4 x i32> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
%b1 = shufflevector <4 x i32> {b}, <4 x i32> poison, <4 x i32> <i32 2, i32 3, i32 2, i32 3>
%p0 = mul <4 x i32> %a0, %b0
%p1 = mul <4 x i32> %a1, %b1
%sum = add <4 x i32> %p0, %p1
{c.new} = add <4 x i32> {c}, %sum
"""


def unit() -> tuple[Instruction, Instruction]:
    """``c = 0`` and ``c += a b``."""
    free = frozenset((n, 0) for n in "abc")
    c = te.compute((2, 2), lambda i, j: te.const(0, "int32"), "c")
    start = {"llvm": "{c.new} = add <4 x i32> zeroinitializer, zeroinitializer"}
    zero = Instruction("zero", "", te.dag([c]), free, (), start, registers=BOXES)
    a, b = (te.placeholder((2, 2), "int32", n) for n in "ab")
    q = te.reduce_axis(2, "q")
    c = te.compute((2, 2), lambda i, j: te.sum(a[i, q] * b[q, j], axis=q), "c")
    text = {"llvm": TEXT}
    return zero, Instruction("product", "", te.dag([a, b, c]), free, (), text, registers=BOXES, start=zero)


ZERO, PRODUCT = unit()
SIZES = {"a": (2, 4), "b": (2, 4), "c": (5, 6), "d": (5, 6)}
BUFFERS = tuple(Buffer(n, tuple(map(Const, SIZES[n])), "int32") for n in SIZES)


def operand(name: str, buffer: str, row: Expr, column: Expr) -> Operand:
    return Operand(name, buffer, (row, column), (SIZES[buffer][1], 1))


def over(body: Stmt, *loops: str) -> Stmt:
    for var in reversed(loops):
        body = Loop(var, Const(2), body)
    return body


def product(to: str, row: Expr, column: Expr, deep: Expr, left: str = "a") -> Intrinsic:
    a, b = operand("a", left, Const(0), deep), operand("b", "b", Const(0), deep)
    i, j, q = Var("i"), Var("j"), Var("q")
    at = row + i, column + j
    x, y = Load(left, (i, deep + q), "int32"), Load("b", (q, deep + j), "int32")
    body = over(Store(to, at, Load(to, at, "int32") + x * y, True), "i", "j", "q")
    return Intrinsic(PRODUCT, (a, b, operand("c", to, row, column)), body)


def zero(to: str, row: Expr, column: Expr) -> Intrinsic:
    body = over(Store(to, (row + Var("i"), column + Var("j")), Const(0, "int32")), "i", "j")
    return Intrinsic(ZERO, (operand("c", to, row, column),), body)


class Drawn:
    """A program of a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def one(self, *xs: Any) -> Any:
        return xs[self.rng.integers(len(xs))]

    def place(self, loops: tuple[str, ...]) -> tuple[Expr, Expr]:
        """A tile of c or d, which moves with a loop or does not. Tiles overlap."""
        row: Expr = Const(self.one(0, 0, 1, 2))
        column: Expr = Const(self.one(0, 0, 2))
        if loops and self.one(0, 0, 1):
            row = row + Var(self.one(*loops))
        if loops and self.one(0, 0, 1):
            column = column + Var(self.one(*loops)) * 2
        return row, column

    def statements(self, loops: tuple[str, ...], depth: int) -> Stmt:
        return seq(*(self.statement(loops, depth) for _ in range(self.one(1, 2, 3, 4))))

    def statement(self, loops: tuple[str, ...], depth: int) -> Stmt:
        if depth and self.one(0, 1):
            var = f"v{len(loops)}"
            kind = self.one("serial", "serial", "unroll", "guard")
            if kind == "guard" and loops:
                return Guard(Compare("<", Var(self.one(*loops)), Const(1)), self.statements(loops, depth - 1))
            extent: Expr = Const(self.one(1, 2))
            if kind == "serial" and loops and self.one(0, 1):
                extent = Var(self.one(*loops))  # it may be empty
            body = self.statements((*loops, var), depth - 1)
            return Loop(var, extent, body, "unroll" if kind == "unroll" else "serial")
        row, column = self.place(loops)
        to, other = self.one(("c", "d"), ("c", "d"), ("d", "c"))
        kind = self.one("product", "product", "product", "zero", "store", "input")
        if kind == "zero":
            return zero(to, row, column)
        if kind == "store":
            return Store(to, (row, column), Load(other, (row, column), "int32") + Const(1, "int32"))
        deep: Expr = Const(self.one(0, 2))
        if kind == "input":
            return Store("a", (Const(1), deep), Load(to, (row, column), "int32"))
        return product(to, row, column, deep, self.one("a", "a", "a", other))


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {n: rng.integers(-3, 4, SIZES[n]).astype("int32") for n in SIZES}


def check(body: Stmt) -> None:
    """All arrays are read and written, so that the interpreter is told of no outputs."""
    want, got, here = arrays(), arrays(), host()
    run(LoweredFunc("f", BUFFERS, (), body), want)
    f = LoweredFunc("f", BUFFERS, tuple(SIZES), body)
    loaded = load_object(compile_module(emit(f, here).text + entry(BUFFERS, tuple(SIZES), 0, 1), here))
    loaded.run([got[n].ctypes.data for n in SIZES])
    for n in SIZES:
        np.testing.assert_array_equal(got[n], want[n], n)


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 100))]
)
def test_programs_mean_what_they_meant(seed: int) -> None:
    for n in range(3):
        check(Drawn(3 * seed + n).statements((), 3))


def test_an_input_that_changes_is_loaded_again() -> None:
    at = (Const(0), Const(0))
    check(seq(product("c", *at, Const(0)), Store("a", at, Const(9, "int32")), product("c", *at, Const(0))))
