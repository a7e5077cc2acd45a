"""Bytes that a nest brings from beyond a cache: what a least-recently-used cache of that size misses when
the interpreter runs the nest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
import pytest
from helpers import tiled

from schedules import ops, te
from schedules.ir import interp
from schedules.schedule import Schedule
from schedules.space.estimate.cpu.facts import analyse
from schedules.space.estimate.cpu.quantities import measure
from schedules.space.estimate.cpu.rates import CpuRates
from schedules.space.holes import Columns

ITEM = 4
Touched = tuple[str, tuple[int, ...], bool]  # of which array, where, and whether it is written


class Watched(np.ndarray):
    """An array that tells which elements are touched, one after the other."""

    name: str
    touched: list[Touched] | None = None

    def __array_finalize__(self, of: object) -> None:
        self.name, self.touched = getattr(of, "name", ""), getattr(of, "touched", None)

    def __getitem__(self, at):
        self._tell(at, False)
        return super().__getitem__(at)

    def __setitem__(self, at, value):
        self._tell(at, True)
        super().__setitem__(at, value)

    def _tell(self, at: object, written: bool) -> None:
        if self.touched is not None and isinstance(at, tuple):
            self.touched.append((self.name, at, written))


def touched(s: Schedule) -> list[Touched]:
    """Elements of the arguments in the order in which the interpreter touches them."""
    out: list[Touched] = []
    arrays = {}
    for t in s.dag.params:
        a = np.zeros(t.shape, t.dtype).view(Watched)
        a.name, a.touched = t.name, out
        arrays[t.name] = a
    interp.run(s.nest, arrays)
    return out


def missed(accesses: Iterable[Touched], size: int) -> int:
    """Bytes that pass between a cache of whole elements, empty at first, and what is beyond it."""
    held: OrderedDict[tuple[str, tuple[int, ...]], bool] = OrderedDict()
    count = 0
    for name, at, written in accesses:
        if (name, at) in held:
            held.move_to_end((name, at))
            held[name, at] |= written
            continue
        count += 1
        held[name, at] = written
        if len(held) > size // ITEM:
            count += held.popitem(last=False)[1]
    return (count + sum(held.values())) * ITEM


def estimated(s: Schedule, size: int) -> float:
    """The same by the formulas."""
    cpu = CpuRates(vector=16.0, registers=16.0, l1=float(size), l2=1e9, l3=1e9, threads=1.0)
    found = [measure(b, Columns(), cpu) for b in analyse(s.nest)]
    return float(sum(q[level] for q in found for level in ("from_l2", "from_l3", "from_memory")))


@pytest.mark.fast("kijIKJ-factors2-2048")
@pytest.mark.parametrize("size", [512, 1024, 2048])
@pytest.mark.parametrize("factors", [(4, 8, 4), (6, 4, 12), (12, 24, 2)])
@pytest.mark.parametrize("order", ["ijkIKJ", "jkiKIJ", "kijIKJ"])
def test_a_tiled_product_brings_what_a_cache_misses(
    order: str, factors: tuple[int, int, int], size: int
) -> None:
    s = tiled(ops.workload("matmul", {"m": 24, "n": 24, "k": 24}).dag, order, factors)
    s.vectorize(s.loops("c")[-1])
    want = missed(touched(s), size)
    assert estimated(s, size) == pytest.approx(want, rel=0.35)  # more or less, where it nearly holds


@pytest.mark.slow
def test_most_of_them_to_the_byte() -> None:
    dag = ops.workload("matmul", {"m": 24, "n": 24, "k": 24}).dag
    exact = total = 0
    for order in ("ijkIKJ", "ikjIKJ", "jkiKIJ", "kijIKJ"):
        for factors in ((4, 8, 4), (6, 4, 12)):
            s = tiled(dag, order, factors)
            s.vectorize(s.loops("c")[-1])
            accesses = touched(s)
            for size in (512, 2048):
                exact += estimated(s, size) == missed(accesses, size)
                total += 1
    assert exact >= 0.8 * total


@pytest.mark.slow
def test_a_fused_loop_comes_back_as_its_loops_did() -> None:
    """All of b again for each block of rows, whether or not one loop runs over both kinds of blocks."""
    s = tiled(ops.workload("matmul", {"m": 8, "n": 64, "k": 32}).dag, "ijkKIJ", (4, 8, 8))
    apart = estimated(s, 4096)
    assert apart == missed(touched(s), 4096)
    s.fuse(*s.loops("c")[:2])
    assert estimated(s, 4096) == apart == missed(touched(s), 4096)


@pytest.mark.parametrize("size", [256, 2048])
def test_what_is_touched_once_is_brought_once(size: int) -> None:
    a = te.placeholder((16, 32), name="a")
    s = Schedule(te.dag([a, te.compute((32, 16), lambda i, j: a[j, i] + 1.0, "b")]))
    assert estimated(s, size) == missed(touched(s), size) == 3 * 16 * 32 * ITEM


@pytest.mark.slow
def test_a_small_buffer_of_a_tile_stays_in_the_cache() -> None:
    """Its elements are those of the tile before, whatever the whole of it would take."""
    w = ops.workload("matmul", {"m": 64, "n": 64, "k": 8})
    s = Schedule(w.dag)
    out = s.cache_write("c", "local")
    i, j = s.loops(out)
    i0, i1 = s.split(i, (None, 8))
    j0, j1 = s.split(j, (None, 8))
    s.reorder(i0, j0, i1, j1)
    s.compute_at("c", j0)
    assert estimated(s, 4096) == pytest.approx(missed(touched(s), 4096), rel=0.2)
