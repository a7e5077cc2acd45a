"""Random small changes of lowered programs that copy in stages and use matrix units: whatever such a change
breaks is found by emulation, in every order, or by the interpreter of grids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from background_products import staged_product
from cuda_text import run_between_walls, unanimous
from grid_cases import Case, need_cxx
from grid_mutants import STRONGER, Mutant, grid_mutants
from warp_attention import AttentionTiles
from warp_attention import by_warps as attention_by_warps
from warp_cases import WarpCase
from warp_products import Tiles, by_warps

from autotune.codegen.simt import cuda, emulator
from schedules import ops, te
from schedules.ir.grid import GridProgram
from schedules.ir.interp import InterpError
from schedules.ir.interp_grid import run_grid
from schedules.passes.simt import lower_simt

DRAWN, TOGETHER = 200, 10  # changes in all, and in one object
UNUSED = "without row_max_scale = 1.0"  # the first part of the rows sets it, before it is read


def warp_product(m: int, n: int, k: int, tiles: Tiles) -> tuple[Case, GridProgram]:
    """A product of float16, in whole numbers."""
    a, b = te.placeholder((m, k), "float16", name="a"), te.placeholder((k, n), "float16", name="b")
    t = te.reduce_axis(k, name="k")
    c = te.compute(
        (m, n),
        lambda i, j: te.sum(te.cast(a[i, t], "float32") * te.cast(b[t, j], "float32"), axis=t),
        name="c",
    )
    dag = te.dag([a, b, te.compute((m, n), lambda i, j: te.cast(c[i, j], "float16"), name="c_float16")])
    rng = np.random.default_rng(5)
    x, y = (rng.integers(-3, 4, s).astype("float16") for s in ((m, k), (k, n)))
    right = (x.astype("float32") @ y.astype("float32")).astype("float16")
    return Case(dag, (x, y), (right,)), lower_simt(by_warps(dag, tiles).nest)


def sums(stages: int, shape: tuple[int, int, int] = (13, 20, 36)) -> tuple[Case, GridProgram]:
    """A product of float32."""
    s = staged_product(shape, stages)
    m, n, k = shape
    rng = np.random.default_rng(7)
    x, y = (rng.integers(-4, 5, size).astype("float32") for size in ((m, k), (k, n)))
    return Case(s.dag, (x, y), (x @ y,)), lower_simt(s.nest)


def products(stages: int) -> tuple[Case, GridProgram]:
    return warp_product(40, 56, 72, Tiles(16, 32, 2, 1, 16, stages, 2))


def bytes_of(product: str, loads: tuple[str, str], turned: str, stages: int) -> tuple[Case, GridProgram]:
    """A product by other instructions, with a bias, whose k is no multiple of what a stage has."""
    w = WarpCase(product, loads, turned, (40, 48, 136), stages=stages)
    inputs = w.inputs()
    return Case(w.dag(), tuple(inputs), (w.expected(inputs),)), lower_simt(w.schedule().nest)


def attention(stages: int) -> tuple[Case, GridProgram]:
    """What is right is what the program computes: its results are rounded."""
    dag = ops.workload("attention", {"heads": 1, "seq": 64, "dim": 16}, "bfloat16").dag
    s = attention_by_warps(dag, AttentionTiles(warps=2, part=16, stages=stages))
    s.annotate("q_shared", "async", 0)  # what the loop awaits first is awaited before it too
    p = lower_simt(s.nest)
    rng = np.random.default_rng(6)
    inputs = tuple(rng.integers(-2, 3, t.shape).astype(t.dtype) for t in dag.inputs)
    (y,) = (t for t in dag.params if t.name in dag.outputs)
    ran = run_between_walls(emulator.build(p), p, inputs, np.empty(y.shape, y.dtype), "early")
    assert ran.fault is None
    return Case(dag, inputs, (ran.out,)), p


CASES = {
    **{f"{n} stages": (sums, n) for n in (1, 2, 3, 4)},
    **{f"mma in {n} stages": (products, n) for n in (1, 2, 3, 4)},
    "mma of int8": (bytes_of, "mma_m16n8k32_int32_int8_int8", ("ldmatrix_int8_a", "ldmatrix_int8_b"), "b", 3),
    "mma of bfloat16, turned": (
        bytes_of,
        "mma_m16n8k16_float32_bfloat16",
        ("ldmatrix_bfloat16_a_trans", "ldmatrix_bfloat16_b"),
        "ab",
        2,
    ),
    "attention": (attention, 2),
}


@dataclass(frozen=True)
class Drawn:
    case: Case
    program: GridProgram
    mutant: Mutant


def every_mutant() -> list[Drawn]:
    made = [make(*args) for make, *args in CASES.values()]  # type: ignore[operator]
    return [Drawn(c, p, m) for c, p in made for m in grid_mutants(p)]


def is_none(x: Drawn) -> bool:
    """Whether a change makes the program wait for more, or is none."""
    same = cuda.source(x.mutant.program) == cuda.source(x.program)
    return same or x.mutant.harmless == STRONGER or x.mutant.what == UNUSED


def emulated_together(c: Case, programs: Sequence[GridProgram]) -> Iterator[dict[str, str]]:
    """What is wrong with each program, by order."""
    obj = emulator.build(*programs)
    for n, p in enumerate(programs):
        ran = {o: run_between_walls(obj, p, c.inputs, c.expected[0], o, n) for o in emulator.ORDERS}
        yield unanimous(ran, c.expected[0])


def interpreted(c: Case, p: GridProgram, landing: str = "late") -> str:
    """What the interpreter says; empty if all is well."""
    outputs = c.poisoned()
    arrays = dict(zip((t.name for t in c.dag.params), [*(x.copy() for x in c.inputs), *outputs], strict=True))
    try:
        run_grid(p, arrays, landing=landing)
    except InterpError as err:
        return str(err)
    return "" if np.array_equal(outputs[0], c.expected[0]) else "wrong numbers"


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_what_is_changed_is_right(name: str) -> None:
    need_cxx()
    make, *args = CASES[name]
    c, p = make(*args)  # type: ignore[operator]
    assert list(emulated_together(c, [p])) == [{}]


@pytest.mark.slow
def test_every_random_change_is_found() -> None:
    """Or it changes nothing: the program waits for more, the text is the same. What goes to places that
    nobody reads is found by the interpreter, which knows where an array's rows end."""
    need_cxx()
    every = every_mutant()
    draws = sorted(np.random.default_rng(11).permutation(len(every))[:DRAWN])
    found = missed = harmless = 0
    groups: dict[int, list[Drawn]] = {}
    for i in draws:
        groups.setdefault(id(every[i].case), []).append(every[i])
    for group in groups.values():
        for at in range(0, len(group), TOGETHER):
            some = group[at : at + TOGETHER]
            said = emulated_together(some[0].case, [x.mutant.program for x in some])
            for x, faults in zip(some, said, strict=True):
                if len(faults) == len(emulator.ORDERS):
                    found += 1
                elif is_none(x):
                    harmless += 1
                    assert not faults, x.mutant.what
                else:
                    missed += 1
                    assert interpreted(x.case, x.mutant.program), f"{x.mutant.what} is not found"
    assert found + missed + harmless == DRAWN
    assert found >= 0.75 * DRAWN and harmless <= 0.2 * DRAWN, (found, missed, harmless)


@pytest.mark.slow
def test_the_interpreter_finds_them_too() -> None:
    c, p = sums(3, (9, 8, 20))
    assert not any(interpreted(c, p, landing) for landing in ("early", "late", "random"))
    every = [x for x in grid_mutants(p) if x.harmless != STRONGER]
    for i in np.random.default_rng(12).permutation(len(every))[:25]:
        assert interpreted(c, every[i].program), every[i].what
