"""Estimated traffic beyond a cache beside a cache that is simulated access by access; and the lecture's
formulas, which nothing in the estimate states."""

from __future__ import annotations

import pytest
from lru_cache import ANYWHERE, lru_bytes

from schedules import ops, te
from schedules.schedule import Schedule
from schedules.space.estimate.traffic import traffic

# How far the estimate may be from the simulation, as docs/how-to/explain.md states.
FACTOR = 1.7


def matmul(n: int, tile: int = 0) -> Schedule:
    s = Schedule(ops.workload("matmul", {"m": n, "n": n, "k": n}).dag)
    if tile:
        i, j, k = s.loops("c")
        i0, i1 = s.split(i, tile)
        j0, j1 = s.split(j, tile)
        s.reorder(i0, j0, k, i1, j1)
    return s


def of(op: str, **params: object) -> Schedule:
    return Schedule(ops.workload(op, params).dag)


def gathered(n: int, terms: int, width: int) -> Schedule:
    """Sums of rows of a table, or of its elements, at places that are read."""
    at, k = te.placeholder((n, terms), "int32", "at"), te.reduce_axis(terms, "k")
    t = te.placeholder((ANYWHERE, width), "float32", "t")
    if width == 1:
        y = te.compute((n,), lambda i: te.sum(t[at[i, k], 0], axis=k), "y")
    else:
        y = te.compute((n, width), lambda i, j: te.sum(t[at[i, k], j], axis=k), "y")
    return Schedule([at, t, y])


CASES = {
    "matmul": lambda: matmul(32),
    "matmul in tiles of 8": lambda: matmul(32, 8),
    "matmul in tiles of 16": lambda: matmul(32, 16),
    "conv2d": lambda: of("conv2d", b=1, ci=4, h=8, w=8, co=4, k=3),
    "copy": lambda: of("permute", shape=(32, 32), axes=(0, 1)),
    "transposition": lambda: of("permute", shape=(48, 48), axes=(1, 0)),
    "softmax": lambda: of("softmax", m=16, n=48),
    "gathered rows": lambda: gathered(40, 2, 32),
    "gathered elements": lambda: gathered(60, 8, 1),
    "several stages": lambda: of("matmul_bias_gelu", m=16, n=16, k=16),
}


@pytest.mark.fast(
    "copy-*", "gathered*-*", "transposition-512", "softmax-*", "several stages-1024", "conv2d-4096"
)
@pytest.mark.parametrize("capacity", [512, 1 << 10, 4 << 10, 8 << 10, 1 << 20])
@pytest.mark.parametrize("name", CASES)
def test_traffic_is_near_that_of_a_simulated_cache(name: str, capacity: int) -> None:
    nest = CASES[name]().nest
    exact = lru_bytes(nest, capacity)
    assert exact / FACTOR <= traffic(nest, capacity).bytes <= exact * FACTOR


@pytest.mark.parametrize("tile", [16, 32, 64])
def test_a_tiled_matmul_reads_n3_over_the_tile_of_each_operand(tile: int) -> None:
    n = 256
    found = {b.buffer: b for b in traffic(matmul(n, tile).nest, 24 << 10).buffers}
    assert [found[x].fetched for x in "ab"] == [n**3 // tile * 4] * 2
    assert found["c"].fetched == found["c"].written == n * n * 4
    assert dict(found["a"].parts[0].outside) == {"c_i_0": n // tile, "c_j_0": n // tile}


def test_plain_loops_read_a_column_for_each_element() -> None:
    n = 256
    found = {b.buffer: b for b in traffic(matmul(n).nest, 4 << 10).buffers}
    assert found["b"].fetched == n**3 * 64  # a line of 64 bytes for every element


def test_what_every_iteration_uses_stays_while_loops_around_begin_anew() -> None:
    """A convolution's weights are used again by the next row as soon as by the next column."""
    nest = of("conv2d", b=1, ci=4, h=8, w=8, co=4, k=3).nest
    found = {b.buffer: b for b in traffic(nest, 1 << 10).buffers}
    assert found["w"].fetched == found["w"].size == 3 * 3 * 4 * 4 * 4
    assert [p.outside for p in found["x"].parts] == [(("y_n", 1), ("y_p", 6))]


@pytest.mark.parametrize(("row", "lines"), [(4, 1), (8, 2), (12, 3), (16, 4), (32, 4), (64, 4)])
def test_short_rows_share_lines(row: int, lines: int) -> None:
    """Four rows of which the first four elements are read, of 4 bytes each."""
    x = te.placeholder((4, row), "float32", "x")
    nest = Schedule([x, te.compute((4, 4), lambda i, j: x[i, j] + 1.0, "y")]).nest
    assert {b.buffer: b.fetched for b in traffic(nest, 1 << 20).buffers} == {"x": lines * 64, "y": 64}


def test_what_is_gathered_is_no_more_than_what_is_read_and_than_there_is() -> None:
    big, small = gathered(1000, 4, 1).nest, gathered(1000, 4, 64).nest
    few, rows = ({b.buffer: b for b in traffic(n, 1 << 20).buffers}["t"] for n in (big, small))
    assert few.fetched == ANYWHERE * 4 and rows.fetched == ANYWHERE * 64 * 4  # all of it, once
    (t,) = (b for b in traffic(big, 512).buffers if b.buffer == "t")
    assert t.fetched == 4000 * 64  # a line for each read
    (t,) = (b for b in traffic(small, 8 << 10).buffers if b.buffer == "t")
    assert t.fetched == 4000 * 64 * 4  # a row for each


def test_a_cache_that_holds_all_reads_each_line_once() -> None:
    found = traffic(matmul(64).nest, 1 << 20)
    assert [b.fetched for b in found.buffers] == [64 * 64 * 4] * 3


def test_what_stays_in_registers_moves_nothing() -> None:
    s = matmul(64, 8)
    s.cache_write("c", "local")
    s.reverse_compute_at(s.blocks()[-1], "c_j_0")
    local = next(b.name for b in s.nest.buffers if b.name not in s.nest.params)
    here = {b.buffer: b.size for b in traffic(s.nest, 1 << 10).buffers}
    assert here[local] <= 8 * 64  # the tile of 8 rows, not the whole matrix
    assert local not in {b.buffer for b in traffic(s.nest, 1 << 10, registers=1 << 10).buffers}
