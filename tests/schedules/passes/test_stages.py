"""Copies to shared memory in the background, in stages: what they are made of, that every wait and barrier is
needed and one an iteration is enough, and that the interpreter of grids finds what is missing in whatever
order copies land."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from background_products import Tiles, staged_product
from grid_cases import TARGET, need_cxx
from grid_changes import changed, count

from autotune.codegen.simt import cuda, emulator, opencl
from schedules import expr as E
from schedules import te
from schedules.errors import ScheduleError
from schedules.expr import Const, Load, Var
from schedules.ir import (
    Alloc,
    Await,
    Barrier,
    Buffer,
    Copy,
    Guard,
    Loop,
    LoweredFunc,
    Seq,
    Signal,
    Stmt,
    Store,
    seq,
    walk,
    with_body,
)
from schedules.ir.exprs import loads
from schedules.ir.grid import GridKernel, GridProgram
from schedules.ir.interp import InterpError
from schedules.ir.interp_grid import LANDINGS, run_grid
from schedules.ir.printer import show
from schedules.ir.strides import elements, known_extents, known_strides
from schedules.passes.barriers import barriers
from schedules.passes.simt import lower_simt
from schedules.passes.stages import stages
from schedules.schedule import Schedule

SHAPE = (5, 9, 10)
TINY = Tiles(warps=(1, 1), own=(1, 1), vector=2)


def copies(p: GridProgram) -> list[Copy]:
    return [x for k in p.kernels for x in walk(k.body) if isinstance(x, Copy)]


def shared(p: GridProgram) -> dict[str, Buffer]:
    every = (x.buffer for k in p.kernels for x in walk(k.body) if isinstance(x, Alloc))
    return {b.name: b for b in every if b.scope == "shared"}


def data(s: Schedule) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(-4, 5, t.shape).astype(t.dtype) for t in s.dag.inputs]


def product(p: GridProgram, s: Schedule, **how: object) -> np.ndarray:
    """What a program makes of `data`; checked against numpy where it ends."""
    a, b = data(s)
    c = np.full((a.shape[0], b.shape[1]), np.nan, "f4")
    run_grid(p, {"A": a, "B": b, "C": c}, **how)  # type: ignore[arg-type]
    return c


def right(p: GridProgram, s: Schedule, **how: object) -> None:
    a, b = data(s)
    np.testing.assert_array_equal(product(p, s, **how), a.astype("f4") @ b.astype("f4"))


@pytest.mark.parametrize("n", range(1, 6))
def test_any_number_of_stages_computes_the_same_in_any_order(n: int) -> None:
    s = staged_product(SHAPE, n, TINY)
    p = lower_simt(s.nest)
    for k, landing in enumerate(LANDINGS):
        right(p, s, landing=landing, backwards=k % 2 == 1, seed=n)
    assert count(p, Await) == 1
    assert count(p, Barrier) == (2 if n == 1 else 1)  # with one stage, the next copies wait for its readers
    assert shared(p)["A_shared"].shape[0] == Const(n if n > 1 else 2)  # versions, or rows


def test_waits_are_for_all_but_the_stages_between() -> None:
    for n in range(1, 5):
        (kernel,) = lower_simt(staged_product(SHAPE, n, TINY).nest).kernels
        assert [x.pending for x in walk(kernel.body) if isinstance(x, Await)] == [max(n - 2, 0)]


def each(p: GridProgram, kind: type, change: Callable[[Stmt], Stmt | None]) -> list[GridProgram]:
    """The program with each statement of a kind changed, or left out, in turn."""
    out = []
    for number in range(count(p, kind)):
        left = iter(range(1000))

        def go(s: Stmt, number: int = number, left: object = left) -> Stmt:
            if isinstance(s, kind) and next(left) == number:  # type: ignore[call-overload]
                return change(s) or Seq(())
            if isinstance(s, Seq):
                return seq(*map(go, s.stmts))
            return with_body(s, go)

        out.append(changed(p, go))
    return out


MISTAKES: dict[str, tuple[type, Callable[[Stmt], Stmt | None]]] = {
    "no barrier": (Barrier, lambda s: None),
    "no wait": (Await, lambda s: None),
    "a wait for one group less": (Await, lambda s: replace(s, pending=s.pending + 1)),
    "no signal": (Signal, lambda s: None),
    "a copy of another version": (
        Copy,
        lambda s: replace(s, indices=((s.indices[0] + 1) % 3, *s.indices[1:])),
    ),
    "no copy": (Copy, lambda s: None),
    "no condition": (Copy, lambda s: replace(s, cond=E.TRUE)),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_every_part_is_needed(what: str) -> None:
    s = staged_product(SHAPE, 3, TINY)
    p = lower_simt(s.nest)
    kind, change = MISTAKES[what]
    a, b = data(s)
    tried = 0
    for wrong in each(p, kind, change):
        if wrong == p:  # a copy without a condition
            continue
        tried += 1
        try:
            bad = not np.array_equal(product(wrong, s), a @ b)
        except InterpError:
            bad = True
        assert bad, f"{what}, number {tried}"
    assert tried


@pytest.mark.parametrize("landing", LANDINGS)
def test_what_is_missing_is_found_whenever_copies_land(landing: str) -> None:
    s = staged_product(SHAPE, 3, TINY)
    p = lower_simt(s.nest)
    for kind, says in (
        (Await, "race on A_shared.* begun to copy and not awaited"),
        (Barrier, "race on [AB]_shared"),
    ):
        for wrong in each(p, kind, lambda s: None):
            with pytest.raises(InterpError, match=says):
                product(wrong, s, landing=landing)


def by_hand(*stmts: Stmt) -> GridProgram:
    """A block of two threads, each of which does all the statements, with t its number."""
    body = Alloc(
        Buffer("s", (Const(4),), "float32", "shared"), Loop("t", Const(2), seq(*stmts), "threadIdx.x")
    )
    x, y = (Buffer(n, (Const(4),), "float32") for n in "xy")
    kernel = GridKernel("k", (x, y), frozenset({"y"}), (1, 1, 1), (2, 1, 1), (), body)
    return GridProgram((x, y), ("y",), (), (kernel,))


OWN = Copy("s", (Var("t"),), Load("x", (Var("t"),), "float32"), 1)
FIRST = Load("s", (Const(0),), "float32")
READ = Store("y", (Var("t"),), Load("s", (Var("t"),), "float32"))
ILLEGAL = {
    "a copy that nothing awaits": ([OWN], "thread 0 of block .. ends, and nothing awaited its copy to s.0."),
    "a copy of no group": ([OWN, Await(0)], "nothing awaited its copy"),
    "a group that is not awaited": ([OWN, Signal(), Await(1)], "nothing awaited its copy"),
    "its own element, before the wait": (
        [OWN, Signal(), READ, Await(0)],
        "race on s.0.: thread 0.*not awaited",
    ),
    "copied to twice": ([OWN, OWN, Signal(), Await(0)], "race on s.0.: thread 0.*not awaited"),
    "copied to by both": (
        [replace(OWN, indices=(Const(0),)), Signal(), Await(0)],
        "race on s.0.: thread 1 .* thread 0 of block .. has written",
    ),
    "another's, which has landed": (
        [
            OWN,
            Signal(),
            Barrier(),
            Await(0),
            Guard(0 < Var("t"), Store("y", (Const(0),), Load("s", (Const(0),), "float32"))),
        ],
        "race on s.0.: thread 1 .* thread 0 of block .. has written",
    ),
    "outside of the array": ([replace(OWN, count=8), Signal(), Await(0)], "writes s.4., out of bounds"),
    "read outside of the array": (
        [replace(OWN, value=Load("x", (Var("t") + 3,), "float32")), Signal(), Await(0)],
        "reads x.4., out of bounds",
    ),
}


@pytest.mark.parametrize("what", ILLEGAL)
@pytest.mark.parametrize("landing", LANDINGS)
def test_what_no_copy_may_do_is_told(what: str, landing: str) -> None:
    stmts, says = ILLEGAL[what]
    arrays = {n: np.arange(4, dtype="f4") for n in "xy"}
    with pytest.raises(InterpError, match=says):
        run_grid(by_hand(*stmts), arrays, landing=landing)


def test_copies_are_printed_with_what_they_read_and_when() -> None:
    program = by_hand(replace(OWN, cond=Var("t") < 1), Signal(), Await(2))
    text = show(LoweredFunc("k", program.params, program.outputs, program.kernels[0].body))
    assert [x.strip() for x in text.splitlines()[-3:]] == [
        "copy s[t], x[t], 1, if t < 1",
        "signal",
        "await 2",
    ]


def test_where_its_condition_fails_a_copy_reads_nothing_and_is_zero() -> None:
    far = Load("x", (Var("t") + 3,), "float32")
    arrays = {"x": np.arange(4, dtype="f4"), "y": np.full(4, np.nan, "f4")}
    run_grid(by_hand(replace(OWN, value=far, cond=Var("t") < 1), Signal(), Await(0), READ), arrays)
    np.testing.assert_array_equal(arrays["y"][:2], [3, 0])


WIDTHS = {  # {(dtype, columns of B): elements of its copies}; rows begin where vectors of 4, 2 or 1 may
    ("float32", 12): {4},
    ("float32", 10): {2},
    ("float32", 9): {1},
    ("float16", 12): {4},  # 8 bytes
    ("float16", 10): {2},
    ("int8", 12): {4},
}


@pytest.mark.parametrize(("dtype", "columns"), WIDTHS)
def test_copies_are_as_wide_as_both_sides_allow(dtype: str, columns: int) -> None:
    s = staged_product((4, columns, 8), 2, Tiles(warps=(1, 1), own=(1, 1)), dtype)
    p = lower_simt(s.nest)
    assert {x.count for x in copies(p) if x.buffer == "B_shared"} == WIDTHS[dtype, columns]
    right(p, s)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_what_is_narrower_than_a_copy_goes_through_registers(dtype: str) -> None:
    s = staged_product((4, 9, 8), 3, Tiles(warps=(1, 1), own=(1, 1)), dtype)
    p = lower_simt(s.nest)
    assert {x.buffer for x in copies(p)} == {"A_shared"}
    assert "B_shared_next" in {x.buffer.name for x in walk(p.kernels[0].body) if isinstance(x, Alloc)}
    assert count(p, Barrier) == 2  # what all stored is seen behind another one
    right(p, s)


@pytest.mark.parametrize("n", [1, 3])
def test_loads_an_iteration_ahead_need_no_second_version(n: int) -> None:
    """With ``prefetch`` alone copies go through registers, as estimates of shared memory count them."""
    s = staged_product(SHAPE, n, TINY)
    (step,) = (x.var for x in walk(s.nest.body) if isinstance(x, Loop) and ("stages", n) in x.annotations)
    s.annotate(step, "prefetch", 1)
    p = lower_simt(s.nest)
    assert bool(copies(p)) == (n > 1) and len(shared(p)["A_shared"].shape) == 2 + (n > 1)
    right(p, s)


def test_what_is_computed_on_the_way_goes_through_registers() -> None:
    a, b = (te.placeholder((8, 8), "float32", name=n) for n in "AB")
    k = te.reduce_axis(8, name="k")
    twice = te.compute((8, 8), lambda i, j: a[i, j] * 2.0, name="twice")
    s = Schedule(
        [a, b, te.compute((8, 8), lambda i, j: te.sum(twice[i, k] * b[k, j], axis=k), name="C")], TARGET
    )
    i, j, r = s.loops("C")
    step, _ = s.split(r, (None, 2))
    s.reorder(step, i, j)
    s.bind(s.fuse(i, j), "threadIdx.x")
    s.compute_at("twice", step)
    s.set_scope("twice", "shared")
    s.annotate("twice", "async", 1)
    s.bind(s.fuse(*s.loops("twice")[-2:]), "threadIdx.x")
    s.annotate(step, "stages", 3)
    p = lower_simt(s.nest)
    assert not copies(p) and count(p, Await) == 0
    x, y = data(s)
    out = np.full((8, 8), np.nan, "f4")
    run_grid(p, {"A": x, "B": y, "C": out})
    np.testing.assert_array_equal(out, 2 * x @ y)


def padded_sum(n: int, stages: int) -> Schedule:
    """y[i] = x[i - 1] + x[i] + x[i + 1], 0 outside: rows of x with their border in shared memory."""
    x = te.placeholder((3, n), "float32", name="x")
    z = te.compute((3, n + 2), lambda r, i: te.select(te.all(i >= 1, i < n + 1), x[r, i - 1], 0.0), name="z")
    y = te.compute((3, n), lambda r, i: z[r, i] + z[r, i + 1] + z[r, i + 2], name="y")
    s = Schedule([x, y], TARGET)
    r, i = s.loops("y")
    s.bind(i, "threadIdx.x")
    s.compute_at("z", r)
    s.set_scope("z", "shared")
    s.bind(s.loops("z")[-1], "threadIdx.x")
    s.annotate("z", "async", 1)
    s.annotate(r, "stages", stages)
    return s


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_choice_of_zero_is_the_condition_of_a_copy(stages: int) -> None:
    s = padded_sum(7, stages)
    p = lower_simt(s.nest)
    assert copies(p) and all(E.variables(x.cond) for x in copies(p))
    (x,) = data(s)
    y = np.full((3, 7), np.nan, "f4")
    run_grid(p, {"x": x, "y": y})
    z = np.pad(x, ((0, 0), (1, 1)))
    np.testing.assert_array_equal(y, z[:, :-2] + z[:, 1:-1] + z[:, 2:])


@pytest.mark.parametrize("outer", [0, 1])
def test_a_loop_in_stages_within_another_is_one_with_it_or_begins_again(outer: int) -> None:
    """A convolution in one dimension: taps around steps of channels, whose loop is in stages. A hint of the
    loop over taps keeps it."""
    x, w = te.placeholder((12, 6), "float32", name="A"), te.placeholder((3, 6, 4), "float32", name="B")
    t, c = te.reduce_axis(3, name="t"), te.reduce_axis(6, name="c")
    y = te.compute((10, 4), lambda i, o: te.sum(x[i + t, c] * w[t, c, o], axis=(t, c)), name="C")
    s = Schedule([x, w, y], TARGET)
    i, o, tap, channel = s.loops("C")
    step, inner = s.split(channel, (None, 2))
    s.reorder(tap, step, i, o, inner)
    s.bind(s.fuse(i, o), "threadIdx.x")
    for name in "AB":
        copy = s.cache_read("C", name, "shared")
        s.compute_at(copy, step)
        s.bind(s.fuse(*[q for q in s.loops(copy) if q.startswith(copy)]), "threadIdx.x")
        s.annotate(copy, "async", 1)
    s.annotate(step, "stages", 2)
    if outer:
        s.annotate(tap, "stages", 1)
    p = lower_simt(s.nest)
    assert count(p, Barrier) == 1 + outer and count(p, Await) == 1
    a, b = data(s)
    want = sum(a[k : k + 10] @ b[k] for k in range(3))
    for landing in LANDINGS:
        out = np.full((10, 4), np.nan, "f4")
        run_grid(p, {"A": a, "B": b, "C": out}, landing=landing)
        np.testing.assert_array_equal(out, want)
    for wrong in each(p, Barrier, lambda s: None):
        with pytest.raises(InterpError, match="race"):
            run_grid(wrong, {"A": a, "B": b, "C": out})


def test_a_loop_of_no_fixed_length_begins_no_copy_behind_its_end() -> None:
    """y[i, t] = sum of x[k, t] for k up to i, by a loop whose length is i + 1."""
    i, k, t = Var("i"), Var("k"), Var("t")
    phase = Loop("t", Const(4), Store("s", (t,), Load("x", (k, t), "float32")), "threadIdx.x")
    add = Loop(
        "t",
        Const(4),
        Store("y", (i, t), Load("y", (i, t), "float32") + Load("s", (t,), "float32")),
        "threadIdx.x",
    )
    body = Alloc(Buffer("s", (Const(4),), "float32", "shared"), seq(phase, add))
    loop = Loop("k", i + 1, body, annotations=(("stages", 3),))
    zero = Loop("t", Const(4), Store("y", (i, t), Const(0.0, "float32")), "threadIdx.x")
    x, y = Buffer("x", (Const(5), Const(4)), "float32"), Buffer("y", (Const(5), Const(4)), "float32")
    made = stages(Loop("i", Const(5), seq(zero, loop)), {"s"}, (x, y), {})
    kernel = GridKernel(
        "k", (x, y), frozenset({"y"}), (1, 1, 1), (4, 1, 1), (), barriers(made, frozenset("y"))
    )
    data, out = np.arange(20, dtype="f4").reshape(5, 4), np.full((5, 4), np.nan, "f4")
    for landing in LANDINGS:
        run_grid(GridProgram((x, y), ("y",), (), (kernel,)), {"x": data, "y": out}, landing=landing)
        np.testing.assert_array_equal(out, np.cumsum(data, 0))


def test_what_a_loop_writes_is_not_copied_ahead() -> None:
    """A row of y is copied to shared memory after the row before was written."""
    k, t = Var("k"), Var("t")
    phase = Loop("t", Const(4), Store("s", (t,), Load("y", (k, t), "float32")), "threadIdx.x")
    write = Loop("t", Const(4), Store("y", (k + 1, t), Load("s", (3 - t,), "float32") + 1.0), "threadIdx.x")
    body = Alloc(Buffer("s", (Const(4),), "float32", "shared"), seq(phase, write))
    y = Buffer("y", (Const(4), Const(4)), "float32")
    made = stages(Loop("k", Const(3), body, annotations=(("stages", 3),)), {"s"}, (y,), {})
    assert [x.pending for x in walk(made) if isinstance(x, Await)] == [0]  # begun and awaited in place


def between(*stmts: Stmt, x: Buffer) -> tuple[GridProgram, Stmt]:
    """A loop in two stages over rows k of x, with statements of 4 threads t, r and s in shared memory."""
    body: Stmt = seq(*(Loop("t", Const(4), y, "threadIdx.x") for y in stmts))
    for name in "rs":
        body = Alloc(Buffer(name, (Const(4),), "float32", "shared"), body)
    loop = Loop("k", Const(5), body, annotations=(("stages", 2),))
    y = replace(x, name="y")
    made = barriers(stages(loop, {"r", "s"}, (x, y), {}), frozenset())  # each has its own of y
    kernel = GridKernel("k", (x, y), frozenset({"y"}), (1, 1, 1), (4, 1, 1), (), made)
    return GridProgram((x, y), ("y",), (), (kernel,)), made


def test_what_is_copied_is_not_overwritten_before_it_is_there() -> None:
    """S = x; x = 0; y = S: a copy in the background may read x late."""
    t, four = Var("t"), (Const(4),)
    shared, x, y = Buffer("S", four, "float32", "shared"), *(Buffer(n, four, "float32") for n in "xy")

    def each_thread(s: Stmt) -> Stmt:
        return Loop("t", Const(4), s, "threadIdx.x")

    body = seq(
        each_thread(Store("S", (t,), Load("x", (t,), "float32"))),
        each_thread(Store("x", (t,), Const(0.0, "float32"))),
        each_thread(Store("y", (t,), Load("S", (t,), "float32"))),
    )
    found = walk(stages(Alloc(shared, body), {"S"}, (x, y), {}))
    kinds = [type(s) if not isinstance(s, Store) else s.buffer for s in found]
    assert [k for k in kinds if k in (Copy, Await, "x", "y")] == [Copy, Await, "x", "y"]


def test_copies_between_other_statements_are_begun_ahead_with_the_first() -> None:
    k, t = Var("k"), Var("t")
    x = Buffer("x", (Const(6), Const(4)), "float32")
    here, other = (Load(n, (3 - t,), "float32") for n in "rs")
    program, made = between(
        Store("r", (t,), Load("x", (k, t), "float32")),
        Store("y", (k, t), here),
        Store("s", (t,), Load("x", (k + 1, t), "float32")),
        Store("y", (k, t), Load("y", (k, t), "float32") + other),
        x=x,
    )
    assert [type(y) for y in walk(made) if isinstance(y, (Await, Barrier))] == [Await, Barrier]
    data, out = np.arange(24, dtype="f4").reshape(6, 4), np.full((6, 4), np.nan, "f4")
    for landing in LANDINGS:
        run_grid(program, {"x": data, "y": out}, landing=landing)
        np.testing.assert_array_equal(out[:5], (data[:5] + data[1:])[:, ::-1])


def test_a_copy_to_what_was_used_before_it_stays_where_it_is() -> None:
    """What ``r`` holds in an iteration is twice another row."""
    k, t = Var("k"), Var("t")
    x = Buffer("x", (Const(6), Const(4)), "float32")
    here = Load("r", (3 - t,), "float32")
    program, made = between(
        Store("r", (t,), Load("x", (k, t), "float32")),
        Store("y", (k, t), here),
        Store("r", (t,), Load("x", (k + 1, t), "float32")),
        Store("y", (k, t), Load("y", (k, t), "float32") + here),
        x=x,
    )
    assert [y.pending for y in walk(made) if isinstance(y, Await)] == [0, 0]
    data, out = np.arange(24, dtype="f4").reshape(6, 4), np.full((6, 4), np.nan, "f4")
    for landing in LANDINGS:
        run_grid(program, {"x": data, "y": out}, landing=landing)
        np.testing.assert_array_equal(out[:5], (data[:5] + data[1:])[:, ::-1])


def test_a_hint_of_padding_and_one_of_swizzle_are_refused_together() -> None:
    s = staged_product((8, 16, 64), 2, replace(TINY, depth=32))
    s.annotate("A_shared", "swizzle", 128)
    s.annotate("A_shared", "pad", 4)
    says = "buffer A_shared: its block has the hints pad=4 and swizzle=128, .* leave one of them out"
    with pytest.raises(ScheduleError, match=says):
        lower_simt(s.nest)


@pytest.mark.parametrize(("depth", "width"), [(32, 128), (16, 64), (8, 32), (4, 0), (24, 32)])
def test_a_swizzle_is_as_wide_as_rows_allow(depth: int, width: int) -> None:
    s = staged_product((3, 4, 2 * depth), 2, replace(TINY, lanes=(3, 2), depth=depth))
    s.annotate("A_shared", "swizzle", 128)
    p = lower_simt(s.nest)
    assert shared(p)["A_shared"].swizzle == width
    assert shared(p)["B_shared"].swizzle == 0
    for b in shared(p).values():  # versions take no more room than their elements
        assert known_strides(b)[0] == elements(b) // 2 == math.prod(known_extents(b)[1:])


@pytest.mark.slow  # it compiles C++
def test_vectors_that_one_stage_copies_and_another_reads_are_emulated() -> None:
    need_cxx()
    s = staged_product((9, 20, 70), 3, Tiles(depth=32))
    for name in "AB":
        s.annotate(f"{name}_shared", "swizzle", 128)
    p = lower_simt(s.nest)
    broken = [*each(p, Await, lambda s: None), *each(p, Barrier, lambda s: None)]
    obj = emulator.build(p, *broken)
    a, b = data(s)
    for order in ("early", "late", "random"):
        for which in range(1 + len(broken)):
            c = np.full((9, 20), np.nan, "f4")
            fault = emulator.run(obj, p, [a, b, c], which, order=order)
            if which == 0:
                assert fault is None
                np.testing.assert_array_equal(c, a @ b)
            else:
                assert fault is not None and "_shared[" in fault


def test_other_languages_copy_at_once() -> None:
    p = lower_simt(staged_product(SHAPE, 3, TINY).nest)
    assert "AT_COPY" in cuda.source(p) and "AT_AWAIT(1)" in cuda.source(p)
    text = opencl.source(p)
    assert "AT_COPY" not in text and "AT_AWAIT" not in text and "barrier(" in text


def test_conditions_and_loads_of_a_copy_are_what_generic_code_sees() -> None:
    x = replace(OWN, cond=Load("m", (Var("t"),), "float32") < 1.0)
    assert [y.buffer for y in loads(x)] == ["x", "m"]
