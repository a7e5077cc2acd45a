"""Tiles of sums are stored where they were copied to, if registers hold them and the copy is whole."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from helpers import interpret

from schedules import expr as E
from schedules import te
from schedules.expr import Const, Load, Var
from schedules.instructions import Instruction
from schedules.ir import (
    Alloc,
    Buffer,
    Intrinsic,
    Loop,
    LoweredFunc,
    Prefetch,
    Stmt,
    Store,
    walk,
    with_body,
)
from schedules.ir.instruction import Registers
from schedules.passes import results_in_place as module
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

SIDE = 4


def unit() -> tuple[Instruction, Instruction]:
    """Products of small tiles, and what starts them, on a unit with eight registers of a tile."""
    registers = Registers("unit", count=8, bytes=4 * SIDE * SIDE, spellings=MappingProxyType({}))
    a, b = te.placeholder((SIDE, 2), "uint8", "a"), te.placeholder((SIDE, 2), "int8", "b")
    t = te.reduce_axis(2, "t")
    c = te.compute((SIDE, SIDE), lambda i, j: te.sum(a[i, t] * b[j, t], axis=t), "c")
    zero = te.compute((SIDE, SIDE), lambda i, j: te.const(0, "int32"), "c")
    free = frozenset((x, 0) for x in "abc")
    start = Instruction("unit_zero", "", te.dag([zero]), frozenset({("c", 0)}), registers=registers)
    return Instruction("unit", "", te.dag([a, b, c]), free, registers=registers, start=start), start


TILES, ZERO = unit()


def product(m: int, n: int, epilogue: Any = None) -> ComputeDAG:
    """c = a b, and what is made of it."""
    a, b = te.placeholder((m, 8), "uint8", "a"), te.placeholder((8, n), "int8", "b")
    r = te.reduce_axis(8, "r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")
    return te.dag([a, b, c if epilogue is None else te.compute((m, n), lambda i, j: epilogue(c[i, j]), "y")])


def tiled(dag: ComputeDAG, rows: int = 1, columns: int = 1, tail: str = "guard", by: Any = TILES) -> Schedule:
    """Tiles of ``rows`` times ``columns`` instructions, added in a buffer and copied out. The loop over rows
    is parallel."""
    s = Schedule(dag)
    out = s.cache_write("c", "local") if dag.outputs == ("c",) else "y"
    s.cache_read("c", "b", "global")
    s.pack("b_global", (2, SIDE), (1, 0, 3, 2))
    i, j = s.loops(out)
    io, ii = s.split(i, (None, SIDE * rows), tail)
    jo, ji = s.split(j, (None, SIDE * columns), tail)
    s.reorder(io, jo, ii, ji)
    s.vectorize(ji)
    s.compute_at("c", jo)
    x, y, k = (v for v in s.loops("c") if v not in (io, jo))
    xo, xi = s.split(x, (None, SIDE))
    yo, yi = s.split(y, (None, SIDE))
    ko, kt = s.split(k, (None, 2))
    s.reorder(ko, xo, yo, xi, yi, kt)
    for loop in (xo, yo):
        s.unroll(loop)
    init = s.decompose_reduction("c", ko)
    if by.registers is not None:
        s.tensorize(s.loops(init)[-2], ZERO)
    s.tensorize(xi, by)
    s.parallel(io)
    return s


def lowered(s: Schedule) -> tuple[LoweredFunc, bool]:
    """The lowered function, and whether sums are stored in the result."""
    f = lower(s.nest)
    runs = [x for x in walk(f.body) if isinstance(x, Intrinsic) and x.instruction.name == TILES.name]
    assert runs
    (sums,) = {x.operands[-1].buffer for x in runs}
    made = [x.buffer.name for x in walk(f.body) if isinstance(x, Alloc)]
    assert sums in made or not set(made) & {"c_local", "c"}
    return f, sums not in made


def right(f: Any, dag: ComputeDAG) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.integers(0, 100, t.shape).astype(t.dtype) for t in dag.inputs]
    assert np.array_equal(interpret(f, dag, inputs)[0], te.evaluate(dag, inputs)[0])


@pytest.mark.parametrize("m, n, rows, columns", [(8, 8, 1, 2), (8, 4, 2, 1), (4, 12, 1, 1)])
def test_tiles_are_stored_in_the_result(m: int, n: int, rows: int, columns: int) -> None:
    dag = product(m, n)
    f, stored = lowered(tiled(dag, rows, columns))
    assert stored
    right(f, dag)


def test_the_result_of_a_view_is_right() -> None:
    """Its rows are further apart than they are long."""
    dag = te.with_strides(product(8, 8), {"c": (11, 1)})
    f, stored = lowered(tiled(dag))
    assert stored
    right(f, dag)


@pytest.mark.parametrize("tail, m, n", [("guard", 4, 6), ("shift", 6, 4)])
def test_tails_are_copied(tail: str, m: int, n: int) -> None:
    """A tile that is cut off has no room in the result; tiles that are moved inwards share results."""
    dag = product(m, n)
    f, stored = lowered(tiled(dag, tail=tail))
    assert not stored
    right(f, dag)


@pytest.mark.parametrize("epilogue", [lambda c: c + 1, lambda c: te.cast(c, "float32")])
def test_the_lines_of_what_is_computed_of_it_are_asked_for(epilogue: Any) -> None:
    """Before the sum, at the places that are stored to."""
    dag = product(8, 4, epilogue)
    f, stored = lowered(tiled(dag))
    assert not stored
    right(f, dag)
    order = [x for x in walk(f.body) if isinstance(x, (Prefetch, Intrinsic, Alloc))]
    assert order.index(next(x for x in order if isinstance(x, Intrinsic))) > 0


@pytest.mark.parametrize("columns, lines", [(1, 1), (4, 1), (5, 2)])
def test_every_line_of_a_tile_is_asked_for(columns: int, lines: int) -> None:
    """A line has 16 results: rows of 4, of 16, and of 20."""
    dag = te.with_strides(product(8, 4 * columns, lambda c: c + 1), {"y": (32, 1)})
    body = lower(tiled(dag, 1, columns).nest).body
    (asked,) = (x for x in walk(body) if isinstance(x, Loop) and isinstance(x.body, Prefetch))
    assert asked.extent == Const(lines)
    around = next(x for x in walk(body) if isinstance(x, Loop) and x.body is asked)
    assert around.extent == Const(SIDE)
    assert isinstance(asked.body, Prefetch) and asked.body.buffer == "y"
    assert E.variables(asked.body.indices[1]) <= {asked.var}


def test_lines_are_not_asked_for_where_tiles_go_on_in_memory() -> None:
    """A sum in parts, or one without registers, has its results in a buffer meanwhile."""
    for s in (tiled(product(4, 4, lambda c: c + 1), by=replace(TILES, registers=None)), tiled(product(4, 4))):
        assert not any(isinstance(x, Prefetch) for x in walk(lower(s.nest).body))


def test_results_around_the_caches_are_copied() -> None:
    dag = product(4, 4)
    s = tiled(dag)
    s.annotate("c_write", "nontemporal", 1)
    assert not lowered(s)[1]


def test_more_than_registers_hold_is_copied() -> None:
    """It would be added to in memory, where rows of tiles lie apart."""
    dag = product(12, 12)
    f, stored = lowered(tiled(dag, 3, 3))
    assert not stored
    right(f, dag)
    assert lowered(tiled(product(8, 16), 2, 4))[1], "eight tiles"


def test_a_buffer_that_is_used_otherwise_stays() -> None:
    """By code that is no instruction, or by one without registers of its own."""
    s = tiled(product(4, 4))
    plain = replace(TILES, registers=None)
    assert not lowered(tiled(product(4, 4), by=plain))[1]
    init = s.loops("c_init")[-2]
    other = tiled(product(4, 4))
    nest = replace(other.nest, body=_unmarked(other.nest.body, init))
    f = lower(nest)
    assert any(isinstance(x, Alloc) and x.buffer.name == "c_local" for x in walk(f.body))


def _unmarked(s: Stmt, loop: str) -> Stmt:
    if isinstance(s, Loop) and s.var == loop:
        return replace(s, annotations=())
    return with_body(s, lambda x: _unmarked(x, loop))


def test_the_copy_must_be_the_whole_buffer_once() -> None:
    """Asked of the copy itself: each variable moves one dimension by one."""

    def whole(source: tuple[Any, ...], target: tuple[Any, ...], n: int = 16) -> bool:
        b = Buffer("c_local", (Const(16), Const(16)), "int32", "local")
        loops = [Loop(v, Const(k), Store("c", (), Const(0))) for v, k in (("i", n), ("j", 16))]
        return module._is_copy(b, loops, Store("c", target, Load("c_local", source, "int32")))

    i, j, x = Var("i"), Var("j"), Var("x")
    assert whole((i, j), (x * 16 + i, j)) and whole((j, i), (j, i + x))
    assert not whole((i, j), (i, j), n=8), "a part"
    assert not whole((i, i), (i, j)) and not whole((i, Const(0)), (i, j))
    assert not whole((i, j), (i + j, x)), "one place for several"
    assert not whole((i, j), (i * 2, j)) and not whole((i, j), (i // 2, j))
    assert not whole((i, j), (i, x)), "all in one column"
