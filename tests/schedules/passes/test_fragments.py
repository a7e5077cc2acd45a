"""Fragments: what a warp does together means what its loops mean, and what lanes cannot do is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from warp_cases import CASES, F16, WarpCase

from schedules import te
from schedules.errors import ScheduleError
from schedules.ir import Alloc, Intrinsic, Loop, Stmt, bound_to, walk, with_body
from schedules.ir.grid import GridProgram
from schedules.ir.interp import InterpError
from schedules.ir.interp_grid import run_grid
from schedules.ir.warps import watch
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule

SMALL = WarpCase(
    F16, ("ldmatrix_float16_a", "ldmatrix_float16_b_trans"), size=(16, 16, 16), warps=(1, 1), depth=16
)


def instructions(p: GridProgram) -> list[Intrinsic]:
    return [x for k in p.kernels for x in walk(k.body) if isinstance(x, Intrinsic)]


def scopes(p: GridProgram) -> set[str]:
    return {x.buffer.scope for k in p.kernels for x in walk(k.body) if isinstance(x, Alloc)}


def changed(p: GridProgram, f: object) -> GridProgram:
    """A program with ``f`` of each of its instructions."""

    def go(s: Stmt) -> Stmt:
        return f(s) if isinstance(s, Intrinsic) else with_body(s, go)  # type: ignore[operator]

    return replace(p, kernels=tuple(replace(k, body=go(k.body)) for k in p.kernels))


def test_a_warp_multiplies_together() -> None:
    s = SMALL.schedule()
    p = lower_simt(s.nest)
    want = SMALL.expected(SMALL.inputs())
    assert (SMALL.by_loops(s) == want).all() and (SMALL.by_grid(p) == want).all()
    assert {x.instruction.name for x in instructions(p)} == {F16, *filter(None, SMALL.loads)}
    assert p.kernels[0].block == (32, 1, 1) and scopes(p) == {"shared", "local"}


@pytest.mark.slow
def test_a_target_without_the_instructions_runs_their_loops() -> None:
    s = SMALL.schedule()
    p = lower_simt(s.nest, ("sm_75",))
    assert not instructions(p)
    assert (SMALL.by_grid(p) == SMALL.expected(SMALL.inputs())).all()
    assert instructions(lower_simt(s.nest, ("sm_75", "sm_80")))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_product_of_warps_is_that_of_loops(name: str) -> None:
    c = CASES[name]
    s = c.schedule()
    want = c.expected(c.inputs())
    assert (c.by_loops(s) == want).all()
    p = lower_simt(s.nest)
    assert {x.instruction.name for x in instructions(p)} == {c.product, *filter(None, c.loads)}
    assert (c.by_grid(p) == want).all()
    if c.stages:
        assert (c.by_grid(p, backwards=True, landing="early") == want).all()


@pytest.mark.parametrize("which", range(3))
def test_an_operand_that_lies_elsewhere_changes_the_result(which: int) -> None:
    """Of every instruction, one operand by one place further in each lane."""
    p = lower_simt(SMALL.schedule().nest)
    want = SMALL.expected(SMALL.inputs())
    ins = instructions(p)[which]

    def moved(s: Intrinsic) -> Stmt:
        if s is not ins:
            return s
        first, *rest = s.operands
        at = (*first.indices[:-1], first.indices[-1] + 1)
        return replace(s, operands=(replace(first, indices=at), *rest))

    try:
        assert not (SMALL.by_grid(changed(p, moved)) == want).all()
    except InterpError as err:
        assert "out of bounds" in str(err)


def test_all_lanes_come_to_an_instruction() -> None:
    p = lower_simt(SMALL.schedule().nest)

    def some(s: Stmt) -> Stmt:
        if (
            isinstance(s, Loop)
            and bound_to(s, "threadIdx")
            and any(isinstance(x, Intrinsic) for x in walk(s))
        ):
            return replace(s, extent=te.const(31, "int64"))
        return with_body(s, some)

    few = replace(p, kernels=tuple(replace(k, body=some(k.body)) for k in p.kernels))
    with pytest.raises(InterpError, match="which not all 32 lanes of a warp reach: thread 31 is elsewhere"):
        SMALL.by_grid(few)


@pytest.mark.slow
@pytest.mark.parametrize(("hint", "turns"), [((), 8), (("swizzle", 128), 1), (("pad", 8), 1)])
def test_conflicts_of_rows_that_lanes_read_are_counted(hint: tuple[str, int] | tuple[()], turns: int) -> None:
    """Rows of 64 elements are 128 bytes: without a swizzle, all rows of a matrix begin in one bank."""
    c = WarpCase(
        F16, ("ldmatrix_float16_a", "ldmatrix_float16_b_trans"), "", (16, 16, 64), (16, 16), (1, 1), 64
    )
    s = c.schedule()
    if hint:
        s.annotate("a_shared", *hint)
    (kernel,) = watch(lower_simt(s.nest), c.named(c.inputs()))
    (shared,) = (b for b in kernel.of("shared") if b.name == "a_shared")
    reads = 4 * 4  # 16 by 16 elements are 4 matrices
    written = 4  # turns of what copies 8 elements a thread, in each of the 4 iterations
    assert shared.cost == reads * turns + 4 * written


# -- what is refused ---------------------------------------------------------------------------------------


def refused(s: Schedule, why: str) -> None:
    with pytest.raises(ScheduleError) as err:
        lower_simt(s.nest)
    assert why in str(err.value), str(err.value)


def test_lanes_are_32() -> None:
    c = WarpCase(F16, SMALL.loads, size=(16, 16, 32), warps=(1, 1), lanes=64)
    refused(c.schedule(), "is done by the 32 lanes of a warp, which are a row of threadIdx.x")


def test_a_fragment_is_of_all_lanes() -> None:
    s = SMALL.schedule()
    s.bind(s.split(s.loops("y")[-1], [None, 16])[1], "threadIdx.x")
    refused(
        s,
        "uses fragment c, but the lanes of a warp have that together; bind a loop over warps to threadIdx.y",
    )


def test_a_fragment_needs_an_instruction() -> None:
    x = te.placeholder((16, 8), "float32", "x")
    t = te.compute((16, 8), lambda i, j: x[i, j] + 1, "t")
    s = Schedule(te.dag([x, te.compute((16, 8), lambda i, j: t[i, j] * 2, "y")]))
    s.set_scope("t", "fragment")
    s.bind(s.split(s.loops("y")[0], [1, None])[0], "blockIdx.x")
    s.compute_at("t", s.loops("y")[0])
    refused(s, "fragment t: no instruction says which lane has which element")


def test_lanes_do_not_write_one_element() -> None:
    """Sums along rows of a fragment into memory, which lanes would add to one after another."""
    s = direct(rows=True)
    refused(s, "along loop y_q the lanes of a warp would write the same element")


def direct(rows: bool = False, load: str = "") -> Schedule:
    """A product whose fragments are read from global memory, by an instruction if ``load`` names one; with
    ``rows`` its rows are added up."""
    a, b = te.placeholder((16, 16), "float16", "a"), te.placeholder((16, 8), "float16", "b")
    r, q = te.reduce_axis(16, "r"), te.reduce_axis(8, "q")
    c = te.compute((16, 8), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")
    y = te.compute((16,), lambda i: te.sum(c[i, q], axis=q), "y") if rows else None
    s = Schedule(te.dag([a, b, y or te.compute((16, 8), lambda i, j: c[i, j] + 1, "y")]))
    s.set_scope("c", "fragment")
    for x in "ab":
        s.cache_read("c", x, "fragment")
    block, _ = s.split(s.loops("y")[0], [1, None])
    s.bind(block, "blockIdx.x")
    for x in ("c", "a_fragment", "b_fragment"):
        s.compute_at(x, block)
    i = s.loops("c")[1]
    s.decompose_reduction("c", i)
    s.tensorize(i, F16)
    if load:
        s.tensorize(s.loops("a_fragment")[1], load)
    return s


def test_fragments_are_read_from_anywhere() -> None:
    p = lower_simt(direct().nest)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, n).astype(np.float16) for n in ((16, 16), (16, 8)))
    arrays = {"a": a, "b": b, "y": np.zeros((16, 8), np.float32)}
    run_grid(p, arrays)
    assert (arrays["y"] == a.astype(np.float32) @ b.astype(np.float32) + 1).all()
    assert scopes(p) == {"local"}


@pytest.mark.parametrize(("rows", "size"), [(16, 121), (32, 249)])
def test_a_loop_ends_where_one_that_lanes_share_says(rows: int, size: int) -> None:
    """Elements of a product in a row, of which the last row has but some: ``j < min(8, size - 8 * i)``."""
    a, b = te.placeholder((rows, 16), "float16", "a"), te.placeholder((16, 8), "float16", "b")
    r = te.reduce_axis(16, "r")
    c = te.compute((rows, 8), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")
    s = Schedule(te.dag([a, b, te.compute((size,), lambda t: c[t // 8, t % 8] * 2, "y")]))
    s.set_scope("c", "fragment")
    for x in "ab":
        s.cache_read("c", x, "fragment")
    block, t = s.split(s.loops("y")[0], [1, None])
    s.split(t, [None, 8])
    s.bind(block, "blockIdx.x")
    for x in ("c", "a_fragment", "b_fragment"):
        s.compute_at(x, block)
    around, i = s.split(s.loops("c")[1], [None, 16])
    s.decompose_reduction("c", around)
    s.tensorize(i, F16)
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-3, 4, n).astype(np.float16) for n in ((rows, 16), (16, 8)))
    arrays = {"a": x, "b": y, "y": np.zeros(size, np.float32)}
    run_grid(lower_simt(s.nest), arrays)
    assert (arrays["y"] == 2 * (x.astype("f4") @ y.astype("f4")).ravel()[:size]).all()


def test_rows_begin_where_lanes_can_read_them() -> None:
    s = WarpCase(F16, SMALL.loads, size=(16, 16, 32), warps=(1, 1), depth=32).schedule()
    s.annotate("a_shared", "pad", 4)
    refused(s, "ldmatrix_float16_a: rows of a_shared do not begin at multiples of 16 bytes")


def test_two_instructions_have_to_agree() -> None:
    """A fragment of a that is read as one of b."""
    c = replace(SMALL, loads=("ldmatrix_float16_b", "ldmatrix_float16_b_trans"))
    refused(
        c.schedule(), "have its elements in different lanes; copy it for one of them through shared memory"
    )


def test_instructions_read_fragments_or_shared_memory() -> None:
    why = "ldmatrix_float16_a: operand x is a, which is neither a fragment nor shared memory"
    refused(direct(load="ldmatrix_float16_a"), why)


def test_warps_keep_to_their_own_parts() -> None:
    c = WarpCase(F16, SMALL.loads, size=(32, 32, 16), depth=16, crossed=True)
    refused(
        c.schedule(), "a warp uses another warp's element; cut loops over warps alike wherever it is used"
    )
