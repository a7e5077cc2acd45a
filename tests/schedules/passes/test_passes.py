"""Each pass does what its docstring says, seen in the printed code."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from helpers import check_compiled, check_interpreted, expected, host, inputs
from programs import chain, conv2d, make, matmul, matmul_relu

from schedules import expr as E
from schedules import te
from schedules.errors import AutotuneError
from schedules.expr import Const, Expr, Load, Logic, Var
from schedules.ir import Alloc, Buffer, Guard, Loop, LoweredFunc, Seq, Store, interp, walk
from schedules.ir.printer import show
from schedules.ir.strides import elements, known_strides
from schedules.ir.verify import VerifyError, verify
from schedules.passes.lower import lower, stages
from schedules.passes.partition import partition
from schedules.passes.promote import promote
from schedules.passes.simplify import simplify
from schedules.passes.storage_align import storage_align
from schedules.passes.tighten_bounds import tighten_bounds
from schedules.passes.unswitch import unswitch
from schedules.schedule import Schedule
from schedules.strides import row_major
from schedules.te.compute_dag import ComputeDAG

V, J = Var("i"), Var("j")
X = Buffer("X", (Const(10),), "float32")
STORE = Store("X", (V,), Const(0.0, "float32"))


def after(s: Schedule, title: str) -> LoweredFunc:
    return next(f for t, f in reversed(stages(s.nest)) if t == title)


def guards(f: LoweredFunc) -> int:
    return sum(isinstance(x, Guard) for x in walk(f.body))


@pytest.mark.parametrize("program", [matmul, matmul_relu, conv2d, chain])
def test_an_unscheduled_nest_needs_no_guards_but_for_starts(program: type) -> None:
    dag: ComputeDAG = program()
    f = lower(Schedule(dag).nest)
    starts = sum(s.reducer is not None for s in dag.stages)
    borders = 2 * (program is conv2d)  # inside the padding and outside
    assert guards(f) == starts + borders


def test_simplify_drops_what_the_ranges_prove() -> None:
    body = Loop("i", Const(10), Guard(V < 10, Guard(J < 4, STORE)))
    assert simplify(body, {"j": (0, 3)}) == Loop("i", Const(10), STORE)
    assert simplify(Guard(V < 0, STORE), {"i": (0, 9)}) == Seq(())
    assert simplify(Loop("i", Const(1), STORE)) == Store("X", (Const(0),), STORE.value)


def test_promote_takes_a_reduction_that_is_unrolled_whole() -> None:
    at = (Var("p") * 4 + V,)
    step = Loop("i", Const(4), Store("X", at, Load("X", at, "float32") + 1.0), "vectorize")
    out = promote(Loop("p", Const(2), Loop("k", Const(8), step, "unroll")), {"X": "float32"})
    inside = next(x for x in walk(out) if isinstance(x, Loop) and x.var == "k")
    assert [x.buffer for x in walk(inside) if isinstance(x, Store)] == ["X_reg"]


@pytest.mark.parametrize(
    ("shape", "spread_to"),
    [
        ((16, 1024), (16, 1040)),  # rows 4 KiB apart
        ((3, 4, 512), (3, 4, 528)),
        ((16, 1000), (16, 1000)),  # rows in sets of their own
        ((16, 256), (16, 256)),  # four rows to a way
        ((1, 4096), (1, 4096)),  # one row
        ((4096,), (4096,)),
    ],
)
def test_spread_moves_rows_of_scratch_that_share_the_sets_of_a_cache(
    shape: tuple[int, ...], spread_to: tuple[int, ...]
) -> None:
    s = Alloc(Buffer("t", tuple(map(Const, shape)), "float32", "global"), STORE)
    out = storage_align(Loop("i", Const(2), s))
    assert isinstance(out, Loop) and isinstance(out.body, Alloc)
    b = out.body.buffer
    assert b.shape == tuple(map(Const, shape)) and out.body.body == STORE
    assert known_strides(b) == row_major(spread_to) and elements(b) == math.prod(spread_to)


def test_unswitch_takes_a_choice_out_of_the_loops_that_do_not_decide_it() -> None:
    choice = E.select(J < 3, Load("Y", (V,), "float32"), 0.0)
    row = Loop("i", Const(10), Store("X", (V,), choice), "vectorize")
    out = unswitch(Loop("j", Const(4), row))
    assert isinstance(out, Loop) and isinstance(out.body, Seq)
    there, not_there = out.body.stmts
    assert there == Guard(J < 3, Loop("i", Const(10), Store("X", (V,), choice.a), "vectorize"))
    assert not_there == Guard(
        Logic("not", (J < 3,)), Loop("i", Const(10), Store("X", (V,), choice.b), "vectorize")
    )


AT = J * 4 + V
WITHIN = E.compare("<=", 1, AT)


@pytest.mark.parametrize("kind", ["serial", "vectorize"])
@pytest.mark.parametrize(
    ("cond", "always"),
    [
        (AT < 10, J * 4 + 3 < 10),
        (E.all_of(WITHIN, AT < 10), E.all_of(E.compare("<=", 1, J * 4), J * 4 + 3 < 10)),
        (E.all_of(V < 4, J < 2), E.all_of(J < 2)),
        (10 - AT > 0, None),
        (E.all_of(J < 2, AT < 10), E.all_of(J < 2, J * 4 + 3 < 10)),
    ],
    ids=["tail", "both borders", "known", "turned round", "rows too"],
)
def test_tiles_on_no_border_are_copied_without_a_choice(cond: Expr, always: Expr | None, kind: str) -> None:
    shape = (Const(12),)
    x, y = Buffer("X", shape, "float32"), Buffer("Y", shape, "float32")
    row = Loop("i", Const(4), Store("X", (AT,), E.select(cond, Load("Y", (AT,), "float32"), 7.0)), kind)
    before = Loop("j", Const(3), row)
    after = unswitch(before)
    copy = replace(row, body=Store("X", (AT,), Load("Y", (AT,), "float32")))
    (plain,) = [s for s in walk(after) if isinstance(s, Guard) and s.body == copy]
    assert always is None or plain.cond == always
    outputs = [np.zeros(12, dtype=np.float32) for _ in range(2)]
    for s, out in zip((before, after), outputs, strict=True):
        arrays = {"X": out, "Y": np.arange(12, dtype=np.float32)}
        interp.run(LoweredFunc("f", (x, y), ("X",), s), arrays)
    assert outputs[0].tolist() == outputs[1].tolist()


@pytest.mark.parametrize(
    "cond", [V < 3, Load("Y", (J,), "float32") < 0.5], ids=["changes with the loop", "depends on values"]
)
def test_unswitch_leaves_a_choice_that_may_change(cond: Expr) -> None:
    loop = Loop("i", Const(10), Store("X", (V,), E.select(cond, Load("Y", (V,), "float32"), 0.0)))
    assert unswitch(loop) == loop


def test_promote_sees_through_unrolled_steps_of_the_reduction() -> None:
    k, u, r = Var("k"), Var("u"), Var("r")
    acc = Load("X", (J * 4 + r,), "float32")
    step = Loop("u", Const(2), Loop("r", Const(4), Store("X", acc.indices, acc + 1.0), "unroll"), "unroll")
    out = promote(Loop("j", Const(2), Loop("k", Const(8), step)), {"X": "float32"})
    assert "X_reg[r] = X_reg[r] + 1.0" in show(LoweredFunc("f", (X,), ("X",), out))
    assert k.name in {x.var for x in walk(out) if isinstance(x, Loop)} and u.name != k.name


def test_promote_leaves_a_tile_whose_iterations_share_elements() -> None:
    s = Schedule(matmul(m=3, n=4, k=5))
    s.decompose_reduction("C", "C_j")
    s.unroll(s.fuse("C_j", "C_k"))
    data = inputs(s.dag)
    check_interpreted(s.nest, s.dag, data, expected(s.dag, data))


def test_compact_shrinks_a_buffer_to_a_tile() -> None:
    s = Schedule(matmul(m=8, n=8))
    s.cache_write("C", "local")
    s.tile(["C_i", "C_j"], [2, 4])
    s.reorder("C_i_0", "C_j_0", "C_i_1", "C_j_1", "C_k")
    s.reverse_compute_at("C_write", "C_j_0")
    assert "alloc C_local: float32[2, 4]  # local" in show(lower(s.nest))


def test_compact_keeps_what_goes_on_from_iteration_to_iteration() -> None:
    """Of a tuple reduction one output may be read by nobody; still every step goes on from the last one."""
    first = te.reducer(
        lambda i, v: (-1, te.min_value(v)),
        lambda x, y: (te.select(x[1] >= y[1], x[0], y[0]), te.maximum(x[1], y[1])),
        "first",
    )
    a, k = te.placeholder((5, 7), name="A"), te.reduce_axis(7, "k")
    place, top = te.compute((5,), lambda i: first((te.cast(k, "int32"), a[i, k]), axis=k), ["place", "top"])
    dag = te.dag([a, place])
    data = [np.random.default_rng(3).permutation(35).reshape(5, 7).astype("float32")]
    want = data[0].argmax(1).astype("int32")
    orders: list[Callable[[Schedule], object]] = [
        lambda s: None,
        lambda s: s.reorder("place_k", "place_i"),
        lambda s: s.reorder(s.split("place_k", (None, 3))[0], "place_i"),
        lambda s: s.decompose_reduction("place", "place_k"),
        lambda s: s.unroll("place_k"),
    ]
    for order in orders:
        s = Schedule(dag)
        order(s)
        check_interpreted(s.nest, dag, data, [want])
        check_compiled(dag, s.trace, host(), data, [want])
        assert top.name not in dag.outputs


def test_speculate_keeps_only_guards_of_outputs_and_reductions() -> None:
    s = Schedule(chain())
    s.split("d_j", [None, 4])
    s.compute_at("c", "d_j_0")
    before, now = after(s, "compact"), after(s, "drop_harmless_guards")
    assert guards(now) <= guards(before)
    assert any(isinstance(x, Guard) for x in walk(now.body))  # the output's tail


def test_a_guard_stays_where_outside_is_another_row() -> None:
    """``v[4 * i + j] += …``: j = 4 is the first element of row i + 1, which would get its terms twice."""
    x = te.placeholder((3,), "float32", "x")
    k = te.reduce_axis(3, "k")
    v = te.compute((8,), lambda i: te.sum(x[k], axis=k), "v")
    s = Schedule(te.dag([x, te.compute((8,), lambda i: v[i] + x[0], "y")]))
    i, j = s.split_axis("v_i", 4)
    outer, inner = s.split(j, [None, 3])
    s.reorder("v_k", outer, i, inner)
    data = inputs(s.dag)
    check_interpreted(s.nest, s.dag, data, expected(s.dag, data))


def test_partition_peels_the_tail() -> None:
    loop = Loop(
        "i", Const(3), Loop("j", Const(4), Guard(V * 4 + J < 10, Store("X", (V * 4 + J,), STORE.value)))
    )
    marked = Loop("i", loop.extent, loop.body, "serial", (("partition", 1),))
    out = partition(marked)
    assert isinstance(out, Seq) and len(out.stmts) == 2
    assert not any(isinstance(x, Guard) for x in walk(out.stmts[0]))
    assert any(isinstance(x, Guard) for x in walk(out.stmts[1]))
    assert partition(loop) == loop


def test_trim_turns_a_guard_into_an_extent() -> None:
    store = Store("X", (V * 4 + J,), STORE.value)
    out = tighten_bounds(Loop("j", Const(4), Guard(V * 4 + J < 10, store)))
    assert isinstance(out, Loop) and out.body == store
    for kind in ("unroll", "vectorize", "parallel"):
        kept = tighten_bounds(Loop("j", Const(4), Guard(V * 4 + J < 10, store), kind))
        assert isinstance(kept, Loop) and kept.extent == Const(4) and isinstance(kept.body, Guard)


def test_trim_keeps_a_guard_that_reads_what_the_loop_writes() -> None:
    own = Load("X", (Const(0),), "float32") < Const(1.0, "float32")
    loop = Loop("i", Const(4), Guard(own, STORE))
    assert tighten_bounds(loop) == loop


def test_trim_leaves_no_sequence_in_a_sequence() -> None:
    two = Seq((STORE, STORE))
    out = tighten_bounds(Loop("i", Const(4), Seq((Guard(J < 3, two), Guard(J < 3, STORE)))))
    verify(Loop("j", Const(5), out), (X,), "tighten_bounds")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (Store("X", (J,), STORE.value), "after test: variable j is not defined in j"),
        (Loop("i", Const(4), Store("Y", (V,), STORE.value)), "a store to Y has the wrong rank"),
        (Loop("i", Const(4), Store("X", (V, V), STORE.value)), "a store to X has the wrong rank"),
        (Loop("i", Const(4), Store("X", (V,), Load("Z", (V,), "float32"))), r"Z\[i\] reads a buffer"),
        (Loop("j", Const(4), Loop("i", Const(4), STORE), "vectorize"), "vectorized loop j holds a loop"),
    ],
)  # fmt: skip
def test_verify_names_the_fault(body: Loop, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(body, (X,), "test")
    assert issubclass(VerifyError, AutotuneError)


def test_lowering_is_deterministic() -> None:
    s = Schedule(make("conv2d"))
    s.tile(["Y_y", "Y_z"], [2, 2])
    s.compute_at("P", "Y_z_0")
    assert lower(s.nest) == lower(s.nest)
    assert show(lower(s.nest)) == show(lower(s.nest))
