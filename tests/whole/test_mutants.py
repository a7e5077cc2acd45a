"""Would the tests notice? Each mutant breaks one pass, guard or primitive; the battery must fail on it."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from helpers import check_compiled, check_interpreted, expected, host, inputs
from programs import argmax, conv2d, flat, make, matmul, matmul_relu

from autotune.codegen.llvm.expr import LlvmExpressions
from autotune.codegen.llvm.store import Stores
from autotune.codegen.llvm.types import Value
from schedules import affine
from schedules import expr as E
from schedules.errors import AutotuneError
from schedules.expr import Const, Expr
from schedules.ir import Guard, Stmt, regions, with_body
from schedules.ir.interp import InterpError
from schedules.passes import compact as compact_pass
from schedules.passes import drop_harmless_guards as guards_pass
from schedules.passes import expand_blocks as expand_pass
from schedules.passes import lower, pipeline
from schedules.passes import partition as partition_pass
from schedules.passes import simplify as simplify_pass
from schedules.passes import tighten_bounds as bounds_pass
from schedules.primitives import compute_at, decompose_reduction, pack, parallel, rfactor, split
from schedules.primitives.base import as_expr
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

Patch = pytest.MonkeyPatch


def tail(s: Schedule) -> None:
    s.split("C_i", [None, 2])
    s.split("C_k", [None, 4])


def peeled(s: Schedule) -> None:
    tail(s)
    s.partition("C_i_0")
    s.partition("C_k_0")


def packed(s: Schedule) -> None:
    s.cache_read("C", "B")
    s.pack("B_global", [0, 4], [1, 0, 2])
    outer, inner = s.split("C_j", [None, 4])
    s.reorder("C_i", outer, "C_k", inner)
    s.decompose_reduction("C", "C_k")
    s.vectorize(inner)


def stencil(s: Schedule) -> None:
    s.tile(["Y_y", "Y_z"], [2, 3])
    s.compute_at("P", "Y_z_0")


def local_tile(s: Schedule) -> None:
    s.cache_write("C", "local")
    s.tile(["C_i", "C_j"], [2, 4])
    s.reorder("C_i_0", "C_j_0", "C_k", "C_i_1", "C_j_1")
    s.reverse_compute_at("C_write", "C_j_0")
    s.split("C_k", [None, 4])
    s.vectorize("C_j_1")


def factored(s: Schedule) -> None:
    s.split("C_k", [None, 4])
    s.rfactor("C", "C_k_1")


def lanes(s: Schedule) -> None:
    s.split("C_k", [None, 4])
    s.decompose_reduction("C", "C_k_0")
    s.vectorize("C_k_1")


def shared(s: Schedule) -> None:
    s.reverse_compute_at("D", "C_i")
    s.reverse_compute_at("E", "C_i")
    s.parallel("C_i")


def tuple_tail(s: Schedule) -> None:
    s.split("V_k", [None, 4])


BATTERY: list[tuple[Callable[[], ComputeDAG], Callable[[Schedule], object]]] = [
    (matmul, tail),
    (matmul, peeled),
    (matmul, packed),
    (conv2d, stencil),
    (matmul, local_tile),
    (matmul, factored),
    (matmul, lanes),
    (matmul_relu, shared),
    (argmax, tuple_tail),
    (matmul, lambda s: s.fuse("C_i", "C_j")),  # rows and columns of other arrays: its digits stay apart
    (flat, lambda s: s.split("s_i", [None, 5])),
    (lambda: make("chain"), lambda s: s.vectorize(s.split("d_j", [None, 4], "shift")[1])),
]


def battery(*, compiled: bool) -> None:
    """Raise unless every schedule of the battery is right in every form."""
    for program, do in BATTERY:
        dag = program()
        data = inputs(dag)
        want = expected(dag, data)
        s = Schedule(dag)
        do(s)
        if compiled:
            check_compiled(dag, s.trace, host(), data, want)
        else:
            check_interpreted(s.nest, dag, data, want)


@pytest.mark.slow
def test_the_battery_holds() -> None:
    battery(compiled=False)
    battery(compiled=True)


# -- mutants -----------------------------------------------------------------------------------


def drop_reduce_guards(m: Patch) -> None:
    real = lower.expand_blocks

    def go(s: Stmt) -> Stmt:
        s = with_body(s, go)
        return s.body if isinstance(s, Guard) and not s.speculative and "== 0" not in E.show(s.cond) else s

    m.setattr(lower, "expand_blocks", lambda nest: go(real(nest)))


def drop_spatial_guards(m: Patch) -> None:
    def go(s: Stmt) -> Stmt:
        s = with_body(s, go)
        return s.body if isinstance(s, Guard) and s.speculative else s

    m.setattr(pipeline, "drop_harmless_guards", lambda s, *more: go(s))


def drop_start(m: Patch) -> None:
    """The identity is written at every iteration of the reduction."""
    real = E.compare
    m.setattr(expand_pass.E, "compare", lambda op, a, b: E.TRUE if op == "==" and b == 0 else real(op, a, b))


def partition_loses_its_epilogue(m: Patch) -> None:
    real = partition_pass.seq
    m.setattr(partition_pass, "seq", lambda *xs: real(*xs[:-1]) if len(xs) > 1 else real(*xs))


def trim_too_short(m: Patch) -> None:
    real = bounds_pass.bound_of

    def less(c: Expr, var: str) -> Expr | None:
        b = real(c, var)
        return None if b is None else b - 1

    m.setattr(bounds_pass, "bound_of", less)


def trim_too_long(m: Patch) -> None:
    real = bounds_pass.bound_of

    def more(c: Expr, var: str) -> Expr | None:
        b = real(c, var)
        return None if b is None else b + 1

    m.setattr(bounds_pass, "bound_of", more)


def speculate_everything(m: Patch) -> None:
    m.setattr(guards_pass, "_harmless", lambda *a: True)


def speculate_outside_buffers(m: Patch) -> None:
    m.setattr(guards_pass, "_inside", lambda *a: True)


def speculate_reductions(m: Patch) -> None:
    def go(s: Stmt) -> Stmt:
        s = with_body(s, go)
        return replace(s, speculative=True) if isinstance(s, Guard) else s

    real = pipeline.drop_harmless_guards
    m.setattr(guards_pass, "_harmless", lambda s, *a: True)
    m.setattr(pipeline, "drop_harmless_guards", lambda s, *more: real(go(s), *more))


def regions_too_small(m: Patch) -> None:
    real = regions.footprint

    def less(*a: object, **k: object) -> list[tuple[Expr, Expr]]:
        return [(b, Const(max(1, int(n.value) - 1)) if isinstance(n, Const) else n) for b, n in real(*a, **k)]

    m.setattr(compute_at, "footprint", less)


def allocations_too_small(m: Patch) -> None:
    real = regions.footprint

    def less(*a: object, **k: object) -> list[tuple[Expr, Expr]]:
        return [(b, Const(max(1, int(n.value) - 1)) if isinstance(n, Const) else n) for b, n in real(*a, **k)]

    m.setattr(compact_pass, "footprint", less)


def decompose_without_start(m: Patch) -> None:
    m.setattr(decompose_reduction, "insert_before", lambda nest, *a, **k: nest)


def split_rounds_down(m: Patch) -> None:
    real = split.Split.extents

    def floor(self: split.Split, n: Expr) -> list[Expr]:
        known: Expr = Const(1)
        for f in self.factors:
            known = known * as_expr(f) if f is not None else known
        return [n // known if f is None else x for f, x in zip(self.factors, real(self, n), strict=True)]

    m.setattr(split.Split, "extents", floor)


def no_multiply_add(m: Patch) -> None:
    """a + b * c forgets the sum."""
    m.setattr(LlvmExpressions, "multiply_add", lambda self, a, b, c: self.value(E.binary("*", a, b)))


def lanes_overwrite(m: Patch) -> None:
    """Lanes that reduce into one element are taken to write elements of their own."""
    m.setattr(Stores, "reduce_lanes", lambda self, op, operand, s: self.uniform(s.value.a))


def division_rounds_up(m: Patch) -> None:
    real = LlvmExpressions.binary

    def up(self: LlvmExpressions, op: str, x: Value, y: Value) -> Value:
        return real(self, "ceildiv" if op == "//" else op, x, y)

    m.setattr(LlvmExpressions, "binary", up)
    m.setattr(LlvmExpressions, "_divide_unsigned", up)


def lanes_unmasked(m: Patch) -> None:
    m.setattr(LlvmExpressions, "_lane_bound", lambda self, e: self.splat(self.value(E.TRUE), self.lanes))


def pack_without_padding(m: Patch) -> None:
    m.setattr(pack.E, "ceildiv", lambda a, b: E.binary("//", a, b))


def rfactor_without_tail(m: Patch) -> None:
    real = rfactor.Rfactor.apply

    def bare(self: rfactor.Rfactor, nest: object) -> object:
        out = real(self, nest)

        def go(s: Stmt) -> Stmt:
            return replace(s, where=()) if hasattr(s, "where") else with_body(s, go)

        return replace(out, body=go(out.body))

    m.setattr(rfactor.Rfactor, "apply", bare)


def bounds_too_tight(m: Patch) -> None:
    real = affine.decide

    def eager(cond: Expr, ranges: object) -> bool | None:
        known = real(cond, ranges)
        return True if known is None and isinstance(cond, E.Compare) and cond.op == "<" else known

    m.setattr(affine, "decide", eager)


def one_store_of_a_tuple(m: Patch) -> None:
    """The second output of a tuple reduction reads the first one's new value."""
    m.setattr(expand_pass, "apart", lambda b: True)


def loop_of_one_dropped(m: Patch) -> None:
    real = simplify_pass.loop_range
    m.setattr(simplify_pass, "loop_range", lambda n, r: (0, 0) if real(n, r) == (0, 1) else real(n, r))


MUTANTS = [
    drop_reduce_guards, drop_spatial_guards, drop_start, partition_loses_its_epilogue,
    trim_too_short, trim_too_long, speculate_everything, speculate_reductions, regions_too_small,
    allocations_too_small, decompose_without_start, split_rounds_down, pack_without_padding,
    rfactor_without_tail, bounds_too_tight, one_store_of_a_tuple, loop_of_one_dropped,
]  # fmt: skip
CODE_MUTANTS = [lanes_unmasked, no_multiply_add, lanes_overwrite, division_rounds_up]


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    """What a mutant computes must not outlive it."""
    caches = (affine.linear, affine._simplify_index)
    for x in caches:
        x.cache_clear()
    yield
    for x in caches:
        x.cache_clear()


@pytest.mark.fast("drop_reduce_guards", "drop_start", "trim_too_short", "speculate_everything")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda f: f.__name__)
def test_mutant_is_caught(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, AutotuneError, InterpError, RecursionError)):
        battery(compiled=False)


@pytest.mark.fast("no_multiply_add")
@pytest.mark.parametrize("mutant", CODE_MUTANTS, ids=lambda f: f.__name__)
def test_mutant_of_the_code_generator_is_caught(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """In a process of its own: code that leaves its arrays dies at the inaccessible pages."""
    battery(compiled=True)
    mutant(monkeypatch)
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # dying is a fair way to be caught
        status = 3
        try:
            battery(compiled=True)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] != 0


def test_a_missing_check_of_races_is_caught(monkeypatch: Patch) -> None:
    """Parallel loops are also interpreted backwards: partial sums of a shared element come out wrong."""
    monkeypatch.setattr(parallel, "check_races", lambda *a: None)
    dag = matmul()
    data = inputs(dag)
    s = Schedule(dag)
    s.parallel("C_k")
    with pytest.raises(AssertionError, match="parallel loops run backwards"):
        check_interpreted(s.nest, dag, data, expected(dag, data))
