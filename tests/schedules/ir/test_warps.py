"""What warps do: sectors, turns of shared memory, divergence, with numbers that follow from the addresses."""

from __future__ import annotations

import numpy as np
import pytest
from grid_cases import TARGET

from schedules import te
from schedules.ir.warps import BufferCounts, KernelCounts, watch
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule


def watched(s: Schedule) -> tuple[KernelCounts, dict[str, np.ndarray]]:
    p = lower_simt(s.nest)
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.integers(-3, 4, t.shape).astype(t.dtype) for t in s.dag.inputs}
    arrays |= {n: np.full(s.dag.tensors[n].shape, np.nan, "f4") for n in s.dag.outputs}
    (found,) = watch(p, arrays)
    return found, arrays


def of(k: KernelCounts, name: str) -> BufferCounts:
    return next(b for b in k.buffers if b.name == name)


def elementwise(n: int, threads: int) -> Schedule:
    x = te.placeholder((n,), "float32", "x")
    s = Schedule([x, te.compute((n,), lambda i: x[i] * 2.0, "y")], TARGET)
    block, thread = s.split("y_i", threads)
    s.bind(block, "blockIdx.x")
    s.bind(thread, "threadIdx.x")
    return s


def transposition(n: int) -> Schedule:
    x = te.placeholder((n, n), "float32", "x")
    s = Schedule([x, te.compute((n, n), lambda i, j: x[j, i], "y")], TARGET)
    s.bind("y_i", "blockIdx.x")
    s.bind("y_j", "threadIdx.x")
    return s


def through_shared(n: int, pad: int, rows: int = 32) -> Schedule:
    """A transposition by way of a shared tile: written by rows, read by columns."""
    s = transposition_tiles(n, rows)
    copy = s.cache_read("y", "x", "shared")
    s.compute_at(copy, s.loops("y")[0])
    _, columns = (x for x in s.loops(copy) if x.startswith(copy))
    s.bind(columns, "threadIdx.x")
    if pad:
        s.annotate(copy, "pad", pad)
    return s


def transposition_tiles(n: int, rows: int) -> Schedule:
    x = te.placeholder((n, n), "float32", "x")
    s = Schedule([x, te.compute((n, n), lambda i, j: x[j, i], "y")], TARGET)
    bj, j = s.split("y_j", 32)
    bi, i = s.split("y_i", rows)
    s.reorder(bi, bj, j, i)
    s.bind(s.fuse(bi, bj), "blockIdx.x")
    s.bind(j, "threadIdx.x")
    return s


def test_neighbours_that_read_neighbours_share_sectors() -> None:
    k, arrays = watched(elementwise(256, 64))
    np.testing.assert_array_equal(arrays["y"], arrays["x"] * 2)
    x = of(k, "x")
    assert (x.scope, x.read_bytes, x.written_bytes) == ("global", 1024, 0)
    assert (x.requests, x.cost, x.least) == (8, 32, 32)
    assert of(k, "y").written_bytes == 1024 and k.divergent == 0


def test_a_transposition_reads_a_sector_for_each_element() -> None:
    k, arrays = watched(transposition(64))
    np.testing.assert_array_equal(arrays["y"], arrays["x"].T)
    assert (of(k, "x").cost, of(k, "x").least) == (64 * 64, 64 * 64 * 4 // 32)
    assert of(k, "y").cost == of(k, "y").least == 64 * 64 * 4 // 32


@pytest.mark.fast("2-2")
@pytest.mark.parametrize(("pad", "turns"), [(0, 32), (1, 1), (2, 2)])
def test_columns_of_a_shared_tile_meet_in_a_bank_unless_rows_are_padded(pad: int, turns: int) -> None:
    k, arrays = watched(through_shared(64, pad))
    np.testing.assert_array_equal(arrays["y"], arrays["x"].T)
    (tile,) = k.of("shared")
    stores = loads = 64 * 64 // 32
    assert tile.least == stores + loads
    assert tile.cost == stores + loads * turns
    assert tile.read_bytes == tile.written_bytes == 64 * 64 * 4
    assert of(k, "x").cost == of(k, "x").least


@pytest.mark.parametrize(("n", "divergent"), [(128, 0), (120, 1), (96, 0), (70, 1)])
def test_a_tail_diverges_where_it_ends_within_a_warp(n: int, divergent: int) -> None:
    k, arrays = watched(elementwise(n, 64))
    np.testing.assert_array_equal(arrays["y"], arrays["x"] * 2)
    assert k.divergent == divergent and k.branches >= k.divergent


@pytest.mark.fast("32-0")
@pytest.mark.parametrize(("rows", "divergent"), [(32, 0), (16, 2 * 4 * 32)])
def test_a_loop_over_fewer_threads_than_the_block_has_diverges(rows: int, divergent: int) -> None:
    """A tile of 16 columns is copied by half of the threads, row by row in each of the blocks."""
    k, arrays = watched(through_shared(64, 1, rows))
    np.testing.assert_array_equal(arrays["y"], arrays["x"].T)
    assert k.divergent == divergent


def test_one_element_for_all_is_one_request_of_its_bytes() -> None:
    x, f = te.placeholder((64,), "float32", "x"), te.placeholder((1,), "float32", "f")
    s = Schedule([x, f, te.compute((64,), lambda i: x[i] * f[0], "y")], TARGET)
    s.bind(s.split("y_i", 32)[0], "blockIdx.x")
    s.bind("y_i_1", "threadIdx.x")
    k, _ = watched(s)
    assert (of(k, "f").read_bytes, of(k, "f").requests, of(k, "f").cost, of(k, "f").least) == (8, 2, 2, 2)


def test_lanes_of_a_vector_are_one_request() -> None:
    x = te.placeholder((256,), "float32", "x")
    s = Schedule([x, te.compute((256,), lambda i: x[i] * 2.0, "y")], TARGET)
    block, thread, lane = s.split("y_i", [None, 32, 4])
    s.bind(block, "blockIdx.x")
    s.bind(thread, "threadIdx.x")
    s.vectorize(lane)
    k, _ = watched(s)
    assert (of(k, "x").requests, of(k, "x").cost, of(k, "x").least) == (2, 32, 32)
