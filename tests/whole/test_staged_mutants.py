"""Random small changes of lowered programs that copy in stages and use matrix units: whatever such a change
breaks is found by emulation, in every order, or by the interpreter of grids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from cuda_text import run_between_walls, unanimous
from grid_cases import Case, need_cxx
from grid_mutants import STRONGER, Mutant, grid_mutants
from staged_products import staged_product
from warp_products import WarpTiles, by_warps

from autotune.codegen.simt import cuda, emulator
from schedules import te
from schedules.ir.grid import GridProgram
from schedules.ir.interp import InterpError
from schedules.ir.interp_grid import run_grid
from schedules.passes.simt import lower_simt

DRAWN, TOGETHER = 200, 10  # changes in all, and in one object


def warp_product(m: int, n: int, k: int, tiles: WarpTiles) -> tuple[Case, GridProgram]:
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
    return warp_product(40, 56, 72, WarpTiles(16, 32, 2, 1, 16, stages, 2))


CASES = {
    **{f"{n} stages": (sums, n) for n in (1, 2, 3, 4)},
    **{f"mma in {n} stages": (products, n) for n in (1, 2, 3, 4)},
}


@dataclass(frozen=True)
class Drawn:
    case: Case
    program: GridProgram
    mutant: Mutant


def every_mutant() -> list[Drawn]:
    made = [make(*args) for make, *args in CASES.values()]  # type: ignore[operator]
    return [Drawn(c, p, m) for c, p in made for m in grid_mutants(p)]


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
        c.check(outputs, "result")
    except (InterpError, AssertionError) as err:
        return str(err) or "wrong"
    return ""


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
                elif cuda.source(x.mutant.program) == cuda.source(x.program) or x.mutant.harmless == STRONGER:
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
