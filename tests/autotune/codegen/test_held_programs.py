"""Programs of instructions on tiles, of stores, loops and conditions, drawn at random: compiled code does what
the interpreter does, whatever is held in registers."""

from __future__ import annotations

import numpy as np
from helpers import host
from hypothesis import given, settings
from hypothesis import strategies as st

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


def product(to: str, row: Expr, column: Expr, deep: Expr) -> Intrinsic:
    a, b = operand("a", "a", Const(0), deep), operand("b", "b", Const(0), deep)
    i, j, q = Var("i"), Var("j"), Var("q")
    at = row + i, column + j
    x, y = Load("a", (i, deep + q), "int32"), Load("b", (q, deep + j), "int32")
    body = over(Store(to, at, Load(to, at, "int32") + x * y, True), "i", "j", "q")
    return Intrinsic(PRODUCT, (a, b, operand("c", to, row, column)), body)


def zero(to: str, row: Expr, column: Expr) -> Intrinsic:
    body = over(Store(to, (row + Var("i"), column + Var("j")), Const(0, "int32")), "i", "j")
    return Intrinsic(ZERO, (operand("c", to, row, column),), body)


@st.composite
def place(draw: st.DrawFn, loops: tuple[str, ...]) -> tuple[Expr, Expr]:
    """A tile of c or d, which moves with a loop or does not. Tiles overlap."""
    row: Expr = Const(draw(st.integers(0, 2)))
    column: Expr = Const(draw(st.sampled_from([0, 2])))
    if loops and draw(st.booleans()):
        row = row + Var(draw(st.sampled_from(loops))) 
    if loops and draw(st.booleans()):
        column = column + Var(draw(st.sampled_from(loops))) * 2
    return row, column


@st.composite
def statement(draw: st.DrawFn, loops: tuple[str, ...], depth: int) -> Stmt:
    kinds = ["product", "product", "zero", "store", "input"]
    kind = draw(st.sampled_from(kinds + ["loop", "loop", "unroll", "guard", "seq"] * (depth > 0)))
    if kind == "seq":
        return seq(*draw(st.lists(statement(loops, depth - 1), min_size=2, max_size=3)))
    if kind in ("loop", "unroll"):
        var = f"v{len(loops)}"
        extent: Expr = Const(draw(st.integers(1, 2)))
        if kind == "loop" and loops and draw(st.booleans()):
            extent = Var(draw(st.sampled_from(loops)))  # it may be empty
        body = draw(statement((*loops, var), depth - 1))
        return Loop(var, extent, body, "serial" if kind == "loop" else "unroll")
    if kind == "guard":
        if not loops:
            return draw(statement(loops, depth - 1))
        return Guard(Compare("<", Var(draw(st.sampled_from(loops))), Const(1)), draw(statement(loops, depth - 1)))
    row, column = draw(place(loops))
    to = draw(st.sampled_from(["c", "c", "d"]))
    if kind == "zero":
        return zero(to, row, column)
    if kind == "store":
        other = "d" if to == "c" else "c"
        return Store(to, (row, column), Load(other, (row, column), "int32") + Const(1, "int32"))
    deep: Expr = Const(draw(st.sampled_from([0, 2])))
    if kind == "input":
        return Store("a", (Const(1), deep), Load(to, (row, column), "int32"))
    return product(to, row, column, deep)


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


@settings(max_examples=150, deadline=None)
@given(st.lists(statement((), 3), min_size=1, max_size=4).map(lambda xs: seq(*xs)))
def test_programs_mean_what_they_meant(body: Stmt) -> None:
    check(body)


def test_an_input_that_changes_is_loaded_again() -> None:
    at = (Const(0), Const(0))
    check(seq(product("c", *at, Const(0)), Store("a", at, Const(9, "int32")), product("c", *at, Const(0))))
