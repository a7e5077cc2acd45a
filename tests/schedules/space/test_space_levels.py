"""What the inner parts of a block's loops touch, counted: lines of a cache, and runs of neighbours."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

import numpy as np
import pytest
from helpers import check_compiled, expected, host, in_tiles, inputs, tiled
from space_cases import target

from autotune.codegen.llvm.emit import emit
from schedules import expr as E
from schedules import ops, te
from schedules.ir import Block, Loop, Nest, blocks, path_to
from schedules.ir.nest import bound, reads
from schedules.model import LINE
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space.estimate.counting import number
from schedules.space.estimate.cpu.facts import Level, analyse
from schedules.space.estimate.cpu.quantities import measure
from schedules.space.estimate.cpu.rates import CpuRates
from schedules.space.holes import Columns

ITEM = 4
CPU = CpuRates(vector=16.0, registers=16.0, l1=2048.0, l2=8192.0, l3=1e9, threads=1.0)


def counted(nest: Nest, b: Block, inner: list[Loop], others: list[Loop]) -> tuple[int, int]:
    """Lines and runs of what is touched while ``inner`` loops run, the others in their first iteration."""
    lines: set[tuple[str, int]] = set()
    elements: dict[str, set[int]] = {}
    accesses = [(w.buffer, w.indices) for w in b.writes] + [(x.buffer, x.indices) for x in reads(b)]
    for at in itertools.product(*(range(E.evaluate(x.extent, {})) for x in inner)):
        env = {x.var: 0 for x in others} | dict(zip((x.var for x in inner), at, strict=True))
        for name, indices in accesses:
            index = [E.evaluate(bound(b, i), env) for i in indices]
            flat = int(np.ravel_multi_index(index, [E.evaluate(n, {}) for n in nest.buffer(name).shape]))
            lines.add((name, flat * ITEM // LINE))
            elements.setdefault(name, set()).add(flat)
    runs = sum(x - 1 not in found for found in elements.values() for x in found)
    return len(lines), runs


def levels(s: Schedule, name: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """By the formulas, and counted: innermost first, each different one once."""
    nest = s.nest
    block = next(b for b in blocks(nest.body) if b.name == name)
    facts = next(f for f in analyse(nest) if f.name == name)

    def value(level: Level) -> tuple[int, int]:
        return int(number(level.lines, Columns())), int(number(level.runs, Columns()))

    loops = [x for x in path_to(nest.body, lambda x: x is block) or () if isinstance(x, Loop)]
    tile = [x for x in loops if x.kind in ("vectorize", "unroll")]
    rest = [x for x in loops if x not in tile]
    each = [counted(nest, block, rest[k:] + tile, rest[:k]) for k in range(len(rest), -1, -1)]
    return once(map(value, facts.levels)), once(each)


def once(values: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Without those that are like the one before."""
    return [value for value, _ in itertools.groupby(values)]


def product_of(order: str, factors: tuple[int, int, int]) -> Schedule:
    s = tiled(ops.workload("matmul", {"m": 16, "n": 32, "k": 32}).dag, order, factors)
    s.vectorize(s.loops("c")[-1])
    return s


def turned(rows: int, lanes: int) -> Schedule:
    """A matrix transposed by tiles."""
    a = te.placeholder((64, 32), name="a")
    s = Schedule(te.dag([a, te.compute((32, 64), lambda i, j: a[j, i], "b")]))
    s.unroll(in_tiles(s, "b", rows, lanes)[1])
    return s


@pytest.mark.slow
@pytest.mark.parametrize("factors", [(4, 16, 8), (1, 32, 4), (16, 16, 32)])
@pytest.mark.parametrize("order", ["ijkIKJ", "kijKIJ", "jkiKIJ"])
def test_a_tiled_product_touches_what_is_counted(order: str, factors: tuple[int, int, int]) -> None:
    found, want = levels(product_of(order, factors), "c")
    assert found == want and len(want) > 3


@pytest.mark.parametrize(("rows", "lanes"), [(1, 16), (16, 16), (32, 16), (16, 64), (8, 32)])
def test_a_transposed_tile_touches_what_is_counted(rows: int, lanes: int) -> None:
    found, want = levels(turned(rows, lanes), "b")
    assert found == want and len(want) >= 2


def test_rows_that_are_touched_whole_are_one_run() -> None:
    x = te.placeholder((8, 16), name="x")
    s = Schedule(te.dag([x, te.compute((8, 16), lambda i, j: x[i, j] + 1.0, "y")]))
    s.vectorize(s.loops("y")[-1])
    assert levels(s, "y") == ([(2, 2), (16, 2)],) * 2


@pytest.mark.slow
def test_the_largest_part_that_fits_a_cache_says_how_long_its_runs_are() -> None:
    s = product_of("ijkIKJ", (4, 16, 8))
    found = measure(analyse(s.nest)[0], Columns(), CPU)
    each = [(LINE * lines, LINE * lines / runs) for lines, runs in levels(s, "c")[1]]
    for cache, size in (("l1", CPU.l1), ("l2", CPU.l2)):
        touched, run = max(x for x in each if x[0] <= size)
        assert (found[f"{cache}_touched"], found[f"{cache}_run"]) == (touched, run)
    assert found["l1_touched"] < found["l2_touched"], "they tell the caches apart"
    tiny = CpuRates(16.0, 16.0, l1=64.0, l2=64.0, l3=64.0, threads=1.0)
    nothing = measure(analyse(s.nest)[0], Columns(), tiny)
    assert nothing["l1_touched"] == nothing["l1_run"] == 0.0


@pytest.mark.parametrize("lanes", [4, 8, 16, 32])
@pytest.mark.parametrize("rows", [1, 4, 8, 12, 16, 32])
def test_squares_are_loaded_by_rows_where_code_generation_does(rows: int, lanes: int) -> None:
    s, cpu = turned(rows, lanes), target(vector_bytes=32)
    found = measure(analyse(s.nest)[0], Columns(), CpuRates.of(cpu))
    by_element = "load float," in emit(lower(s.nest), cpu).text
    assert (found["gathers"] > 0) == by_element


@pytest.mark.parametrize("lanes", [4, 6, 8, 12, 16, 24])
@pytest.mark.parametrize("group", [3, 4, 8, 12, 16, 32])
def test_lanes_share_an_element_where_code_generation_sees_it(group: int, lanes: int) -> None:
    """Channels of a group read the same input; registers are of 8 lanes."""
    x, w = te.placeholder((3, 32), name="x"), te.placeholder((3, 96), name="w")
    s = Schedule(te.dag([x, w, te.compute((3, 96), lambda i, o: x[i, o // group] * w[i, o], "y")]), host())
    s.vectorize(s.split(s.loops("y")[-1], (None, lanes))[-1])
    cpu = target(vector_bytes=32)
    found = measure(analyse(s.nest)[0], Columns(), CpuRates.of(cpu))
    lane_by_lane = re.search("insertelement .* i64 [1-9]", emit(lower(s.nest), cpu).text)
    assert (found["gathers"] > 0) == (lane_by_lane is not None)
    data = inputs(s.dag)
    check_compiled(s.dag, s.trace, host(), data, expected(s.dag, data))
