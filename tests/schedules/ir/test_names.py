"""Names that users give and names that are made up stay apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import check_compiled, check_interpreted, host, inputs, same

from schedules import te
from schedules.expr import Const, Expr, Load, Var
from schedules.ir import Alloc, Buffer, Loop, LoweredFunc, Nest, Seq, Stmt, Store, interp, walk
from schedules.ir.nest import initial
from schedules.ir.printer import show
from schedules.ir.verify import VerifyError, verify
from schedules.passes.lower import lower
from schedules.passes.simt import lower_simt
from schedules.passes.software_pipeline import software_pipeline
from schedules.passes.stages import stages
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG


def check(s: Schedule) -> None:
    """The nest, what it is lowered to, and the kernel compute what the expression says."""
    data = inputs(s.dag)
    want = te.evaluate(s.dag, data)
    check_interpreted(s.nest, s.dag, data, want)
    check_compiled(s.dag, s.trace, host(), data, want)


def two_loops() -> ComputeDAG:
    """Loop ``conv_out_c`` of axis ``out_c`` of one stage, and of axis ``c`` of another."""
    a = te.placeholder((30, 5), name="A")
    x = te.compute((30, 5), lambda out_c, j: a[out_c, j] + 1.0, name="conv")
    return te.dag([a, te.compute((3, 5), lambda c, c1: x[c * 9, c1] * 2.0, name="conv_out")])


def test_loops_of_two_stages_that_would_have_one_name_are_numbered() -> None:
    s = Schedule(two_loops())
    assert s.loops("conv") == ["conv_out_c", "conv_j"]
    assert s.loops("conv_out") == ["conv_out_c2", "conv_out_c1"]  # axis c1 keeps the plain name
    check(s)
    s.split("conv_out_c2", [None, 2])
    s.compute_at("conv", "conv_out_c2_0")
    check(s)


def test_a_copy_whose_loops_are_numbered_can_be_packed() -> None:
    a = te.placeholder((6, 5), name="A")
    b = te.compute((6, 5), lambda shared_x0, j: a[shared_x0, j] + 1.0, name="B")
    s = Schedule([a, te.compute((5, 6), lambda i, j: b[j, i] * 2.0, name="C")])
    copy = s.cache_read("C", "B", "shared")
    assert s.loops(copy) == ["B_shared_x01", "B_shared_x1"]
    s.pack(copy, [4, 0], [0, 1, 2])
    check(s)


def test_lowering_refuses_a_name_that_two_have() -> None:
    nest = initial(two_loops())
    assert isinstance(nest.body, Seq)
    first, second = nest.body.stmts
    assert isinstance(second, Loop)
    twice = replace(nest, body=Seq((first, replace(second, var="conv_out_c"))))
    refused(twice, "before lowering: two loops are named conv_out_c")
    refused(replace(nest, buffers=(*nest.buffers, nest.buffers[0])), "two buffers are named A")


def refused(nest: Nest, message: str) -> None:
    for f in (lower, lower_simt):
        with pytest.raises(VerifyError, match=message):
            f(nest)


@pytest.mark.slow
def test_accumulators_in_registers_are_no_tensor_of_that_name() -> None:
    a, t = te.placeholder((16, 6), name="A"), te.placeholder((6,), name="C_reg")
    k = te.reduce_axis(6, name="k")
    c = te.compute((16, 16), lambda i, j: te.sum(a[i, k] * t[k], axis=k), name="C")
    s = Schedule([a, t, c])
    s.reorder("C_i", "C_k", "C_j")
    s.decompose_reduction("C", "C_k")
    s.vectorize("C_j")
    assert "C_reg1" in show(lower(s.nest))
    check(s)


def test_temporaries_of_a_reduction_over_tuples_are_no_tensor_of_that_name() -> None:
    a, t = te.placeholder((3, 5), name="A"), te.placeholder((3,), name="p_t0")
    k = te.reduce_axis(5, name="k")
    both = te.reducer((0, 0), lambda x, y: (x[0] + y[0], x[1] + y[1] + x[0] * y[0]), "both")
    p = te.compute((3,), lambda i: both((a[i, k] + t[i], a[i, k] * t[i]), axis=k), name="p")
    s = Schedule([a, t, *p])
    assert "p_t01" in show(lower(s.nest))
    check(s)


@pytest.mark.parametrize("loop", ["C_k", "C_k_1"])
def test_iterations_that_rfactor_adds_are_no_axis_of_that_name(loop: str) -> None:
    a = te.placeholder((5, 6), name="A")
    k = te.reduce_axis(6, name="k")
    c = te.compute((5, 1), lambda r_C_k_0, r_1: te.sum(a[r_C_k_0, k] + r_times(r_1), axis=k), name="C")
    s = Schedule([a, c])
    if loop == "C_k_1":
        s.split("C_k", [None, 4])
    s.rfactor("C", loop)
    check(s)


def r_times(axis: Expr) -> Expr:
    return te.cast(axis, "float32") * 3.0


def test_a_part_of_a_turn_is_no_loop_of_that_name() -> None:
    row = Var("t_of_turn") * 4
    stage = Loop("t", Const(4), Store("b", (row + Var("t"),), Load("x", (row + Var("t"),), "float32")))
    first = Load("b", (row + Var("u"),), "float32")
    late = Loop("u", Const(2), Store("c", (Var("t_of_turn") * 2 + Var("u"),), first))
    loop = Loop("t_of_turn", Const(3), Seq((stage, late)), annotations=(("software_pipeline", 1),))
    piped = software_pipeline(loop)
    assert any(isinstance(x, Loop) and x.var == "t_of_turn1" for x in walk(piped))
    same_as(loop, piped, {"x": (12,), "b": (12,), "c": (6,)}, "bc")


def test_registers_that_are_fetched_ahead_are_no_tensor_of_that_name() -> None:
    at = (Var("k") * 4 + Var("t"),)
    copy = Loop("t", Const(4), Store("S", (Var("t"),), Load("x", at, "float32")))
    used = Load("S", (Var("t"),), "float32") * Load("S_next", (Var("t"),), "float32")
    phases = Seq((copy, Loop("t", Const(4), Store("c", at, used))))
    shared = Alloc(Buffer("S", (Const(4),), "float32", "shared"), phases)
    loop = Loop("k", Const(3), shared, annotations=(("prefetch", 1),))
    ahead = stages(loop, (), (), {})
    assert any(isinstance(x, Alloc) and x.buffer.name == "S_next1" for x in walk(ahead))
    same_as(loop, ahead, {"x": (12,), "S_next": (4,), "c": (12,)}, "c")


def same_as(before: Stmt, after: Stmt, shapes: dict[str, tuple[int, ...]], outputs: str) -> None:
    """Both statements leave the same in the outputs."""
    params = tuple(Buffer(n, tuple(map(Const, shape)), "float32") for n, shape in shapes.items())
    left = []
    for s in (before, after):
        arrays = {n: np.arange(1, 1 + np.prod(x), dtype=np.float32).reshape(x) for n, x in shapes.items()}
        verify(s, params, "the change")
        interp.run(LoweredFunc("kernel", params, tuple(outputs), s), arrays)
        left.append([arrays[n] for n in outputs])
    same(left[1], left[0], "after the change")
