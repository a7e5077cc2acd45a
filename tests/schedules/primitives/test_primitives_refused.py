"""What each primitive refuses, and that the message names the thing, the reason and the remedy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from programs import (
    argmax,
    chain,
    conv2d,
    doubling,
    layer_norm,
    make,
    matmul,
    matmul_relu,
    online,
    phases,
    several,
    views,
)

from schedules import te
from schedules.errors import ScheduleError
from schedules.model import Step, Target, Trace
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

Do = Callable[[Schedule], object]
CPU = Target("cpu", "x86-64")


def wide() -> ComputeDAG:
    x = te.placeholder((2000,), "float32", "X")
    return te.dag([x, te.compute((2000,), lambda i: x[i] + te.const(1, "float32"), "Y")])


def two() -> ComputeDAG:
    """A reduction that overlapping windows of a later stage read."""
    x = te.placeholder((6, 4), "float32", "X")
    k = te.reduce_axis(4, "k")
    b = te.compute((6,), lambda i: te.sum(x[i, k], axis=k), "B")
    return te.dag([x, te.compute((5,), lambda i: b[i] + b[i + 1], "C")])


def scaled() -> ComputeDAG:
    """A row's sum, read in each column by a stage that another one scales."""
    x = te.placeholder((3, 5), "float32", "X")
    k = te.reduce_axis(5, "k")
    b = te.compute((3,), lambda i: te.sum(x[i, k], axis=k), "B")
    c = te.compute((3, 4), lambda i, j: b[i] + x[i, j], "C")
    return te.dag([x, te.compute((3, 4), lambda i, j: c[i, j] * te.const(2, "float32"), "D")])


def after(*steps: Do) -> Do:
    """All but the last are legal and only prepare."""

    def do(s: Schedule) -> None:
        for f in steps[:-1]:
            f(s)
        steps[-1](s)

    return do


CASES: list[tuple[Callable[[], ComputeDAG], Do, str]] = [
    (matmul, lambda s: s.split("C_q", [None, 2]), r"no loop 'C_q'; the loops are C_i, C_j, C_k"),
    (matmul, lambda s: s.split("C_i", [2]), r"split C_i: needs at least two factors"),
    (matmul, lambda s: s.split("C_i", [None, None]), r"split C_i: only one factor may be None"),
    (
        matmul,
        lambda s: s.split("C_i", [None, 0]),
        r"split C_i: factor 0 is below 1; every factor must be >= 1",
    ),
    (chain, lambda s: s.split("a_i", [2**62, 4]), r"split a_i: .* exceed 64 bits, .*; choose factors"),
    (chain, lambda s: s.split("a_i", [2**62, 4], "shift"), r"split a_i: .* exceed 64 bits"),
    (matmul, lambda s: s.split("C_i", [None, 2**63 - 2]), r"split C_i: .* exceed 64 bits"),
    (matmul, lambda s: s.tile(["C_i", "C_j"], [2, 2**63]), r"split C_j: .* exceed 64 bits"),
    (
        matmul,
        after(
            lambda s: s.split("C_i", [2**33, 4]),
            lambda s: s.split("C_j", [2**31, 4]),
            lambda s: s.reorder("C_i_0", "C_j_0", "C_i_1", "C_j_1"),
            lambda s: s.fuse("C_i_0", "C_j_0"),
        ),
        r"fuse C_i_0_C_j_0: .* exceed 64 bits",
    ),
    (
        matmul,
        after(lambda s: s.cache_read("C", "A"), lambda s: s.pack("A_global", [2**63, 0], [0, 1, 2])),
        r"pack A_global: .* exceed 64 bits",
    ),
    (matmul, lambda s: s.split("C_i", [2, 2]), r"cover 4 of 5 iterations; make one of them None"),
    (matmul, lambda s: s.split("C_i", [None, 2], "pad"), r"tail 'pad' is not one of guard, shift"),
    (matmul, lambda s: s.split("C_i", [None, 2], "shift"), r'block C reduces inside it .*use tail="guard"'),
    (chain, lambda s: s.split("a_i", [2, None], "shift"), r"needs a known innermost factor; infer an outer"),
    (
        chain,
        lambda s: s.split("a_i", [None, 7], "shift"),
        r"factor 7 exceeds the extent 6; a shifted tile must",
    ),
    (
        matmul,
        after(lambda s: s.unroll("C_i"), lambda s: s.split("C_i", [None, 2])),
        r"split C_i: the loop is already unroll; split it before marking it",
    ),
    (
        matmul,
        after(lambda s: s.split("C_k", [None, 2]), lambda s: s.split("C_k_1", [None, 4])),
        r"split C_k_1: .* do not divide its 2 iterations.* block C; choose factors that divide 2",
    ),
    (matmul, lambda s: s.fuse("C_i"), r"fuse: needs at least two loops"),
    (
        matmul,
        lambda s: s.fuse("C_i", "C_k"),
        r"C_k is not directly inside C_i; reorder them to be neighbours",
    ),
    (
        matmul,
        after(lambda s: s.parallel("C_i"), lambda s: s.fuse("C_i", "C_j")),
        r"fuse C_i: the loop is already parallel; fuse it before",
    ),
    (matmul, lambda s: s.reorder("C_i", "C_i"), r"a loop is named twice"),
    (matmul, lambda s: s.reorder("C_i"), r"reorder: needs at least two loops"),
    (chain, lambda s: s.reorder("a_i", "b_i"), r"b_i is not nested directly below a_i.*reorder before"),
    (
        matmul,
        after(lambda s: s.vectorize("C_k"), lambda s: s.reorder("C_k", "C_j")),
        r"C_k is vectorized; reorder before vectorize",
    ),
    (matmul, lambda s: s.tile(["C_i", "C_j"], [2]), r"tile: 2 loops but 1 factors; give one factor a loop"),
    (
        matmul,
        lambda s: s.vectorize("C_i"),
        r"vectorize C_i: loop C_j is inside it; reorder so that C_i is inner",
    ),
    (wide, lambda s: s.vectorize("Y_i"), r"2000 lanes are more than 256; split the loop first"),
    (argmax, lambda s: s.vectorize("V_k"), r"block V reduces a tuple over it; rfactor the loop first"),
    (wide, lambda s: s.unroll("Y_i"), r"2000 copies are more than 1024; split the loop and unroll the inner"),
    (matmul, lambda s: s.parallel("C_k"), r"block C reduces over it, .* race on C; rfactor the loop first"),
    (
        matmul,
        after(lambda s: s.parallel("C_i"), lambda s: s.parallel("C_j")),
        r"C_i is parallel already; fuse the two loops instead",
    ),
    (matmul, lambda s: s.bind("C_i", "warp"), r"bind C_i: 'warp' is not one of blockIdx.x"),
    (matmul, lambda s: s.bind("C_k", "threadIdx.x"), r"bind C_k: block C reduces over it"),
    (
        matmul,
        after(lambda s: s.bind("C_i", "blockIdx.x"), lambda s: s.bind("C_j", "blockIdx.x")),
        r"C_i around it is blockIdx.x already; use another axis",
    ),
    (
        matmul,
        after(lambda s: s.bind("C_i", "threadIdx.x"), lambda s: s.bind("C_j", "blockIdx.x")),
        r"bind C_j: C_i around it is threadIdx.x; bind blocks outside threads",
    ),
    (
        matmul,
        after(lambda s: s.vectorize("C_k"), lambda s: s.partition("C_k")),
        r"partition C_k: the loop is vectorize; partition the serial loop around it",
    ),
    (matmul, lambda s: s.annotate("C", "speed", 1), r"unknown hint 'speed'; known: chunk"),
    (matmul, lambda s: s.annotate("C", "swizle", 8), r"unknown hint 'swizle' .did you mean 'swizzle'.*\)$"),
    (matmul, lambda s: s.annotate("D", "chunk", 1), r"no loop 'D'"),
    (matmul, lambda s: s.annotate("C_i", "chunk", -1), r"annotate C_i: chunk is 1 to \d+, not -1"),
    (matmul, lambda s: s.annotate("C_i", "min_blocks", 0), "min_blocks is 1 to 32, not 0"),
    (matmul, lambda s: s.annotate("C_i", "min_blocks", 2), "needs a loop that is bound to blockIdx"),
    (matmul, lambda s: s.annotate("C", "min_blocks", 2), "needs a loop that is bound to blockIdx"),
    (matmul, lambda s: s.annotate("C_i", "prefetch", 1 << 40), r"prefetch is 0 to 65535, not \d+"),
    (matmul, lambda s: s.annotate("C", "swizzle", 96), "swizzle is 0, 32, 64 or 128, not 96"),
    (matmul, lambda s: s.annotate("C_i", "stages", 9), "stages is 1 to 8, not 9"),
    (matmul, lambda s: s.annotate("C_i", "software_pipeline", 2), r"software_pipeline is 0 to 1, not 2"),
    (matmul, lambda s: s.annotate("C", "pad", -8), r"pad is 0 to 1023, not -8"),
    (matmul, lambda s: s.annotate("C", "nontemporal", 3), r"nontemporal is 0 to 2, not 3"),
    (matmul, lambda s: s.inline("Q"), r"there is no block 'Q'; the blocks are C"),
    (matmul, lambda s: s.inline("C"), r"inline C: it is a reduction; use compute_at"),
    (several, lambda s: s.inline("p"), r"it has 2 outputs; only one can be inlined"),
    (
        lambda: doubling(18),
        after(*(lambda s, k=k: s.inline(f"s{k}") for k in range(17))),  # type: ignore[misc]
        r"inline s1\d: the expression of s1\d would have more than 65536 operations .* use compute_at",
    ),
    (chain, lambda s: s.inline("d"), r"d is an output of the kernel; inline its producers"),
    (
        matmul_relu,
        after(lambda s: s.decompose_reduction("C", "C_k"), lambda s: s.inline("C_init")),
        r"inline C_init: C writes C too; only a whole stage can be inlined",
    ),
    (matmul, lambda s: s.merge_axes("C_i"), r"merge_axes: needs at least two loops, got \['C_i'\]"),
    (
        matmul,
        lambda s: s.merge_axes("C_i", "C_k"),
        r"merge_axes: C_k is not directly inside C_i; reorder them to be neighbours first",
    ),
    (
        matmul,
        lambda s: s.merge_axes("C_j", "C_k"),
        r"C_j, C_k are not neighbouring axes of one kind of block C; its axes are i, j, k",
    ),
    (
        matmul,
        after(lambda s: s.split("C_j", (None, 2)), lambda s: s.merge_axes("C_j_0", "C_j_1")),
        r"loop C_j_0 is not a whole axis of block C; merge axes before other steps",
    ),
    (
        matmul,
        after(lambda s: s.parallel("C_i"), lambda s: s.merge_axes("C_i", "C_j")),
        r"merge_axes C_i: the loop is already parallel",
    ),
    (matmul, lambda s: s.merge_dims("Z", 0, 2), r"there is no buffer 'Z'; the buffers are A, B, C"),
    (matmul, lambda s: s.merge_dims("A", 1, 2), r"A: it has 2 dimensions, and 2 from 1 on are asked for"),
    (
        matmul,
        lambda s: s.merge_dims("C", 0, 2),
        r"merge_dims C: block C writes it along several axes; use merge_axes on them first",
    ),
    (matmul, lambda s: s.split_axis("C_i", 2), r"split_axis C_i: 2 does not divide its 5 iterations"),
    (
        views,
        after(lambda s: s.split("Y_n", (None, 2)), lambda s: s.split_axis("Y_n_0", 3)),
        r"split_axis Y_n_0: it is not a whole axis of block Y; split axes before other steps",
    ),
    *(
        (
            views,
            lambda s, n=n: s.split_axis("Y_n", n),
            r"split_axis Y_n: one of the axes would have a single iteration; give a divisor between 1 and 6",
        )
        for n in (1, 6)
    ),
    (
        online,
        after(lambda s: s.split_dim("N", 0, 3), lambda s: s.cache_write("T")),
        r"cache_write T: its outputs \w+ and \w+ have unlike shapes; use it before split_dim or",
    ),
    (
        views,
        after(lambda s: s.parallel("Y_n"), lambda s: s.split_axis("Y_n", 3)),
        r"Y_n: the loop is already",
    ),
    (
        lambda: te.with_strides(matmul(), {"A": (8, 1)}),
        lambda s: s.merge_dims("A", 0, 2),
        r"merge_dims A: a step of dimension 0 is 8 elements of memory, and all 6 of dimension 1 are 1 apart; "
        "merge dimensions without gaps between them",
    ),
    (matmul, lambda s: s.split_dim("Z", 0, 2), r"split_dim: there is no buffer 'Z'; the buffers are A, B, C"),
    (matmul, lambda s: s.split_dim("A", 2, 2), r"split_dim A: it has 2 dimensions, and dimension 2 is asked"),
    (matmul, lambda s: s.split_dim("A", 1, 4), r"A: 4 does not divide the 6 elements of dimension 1; give a"),
    (
        views,
        lambda s: s.split_dim("Y", 1, 3),
        r"split_dim Y: block Y writes it along one axis; use split_axis on that first",
    ),
    (matmul, lambda s: s.reorder_axes("C_i"), r"reorder_axes: needs two different loops or more"),
    (
        matmul,
        lambda s: s.reorder_axes("C_i", "C_k"),
        r"reorder_axes: C_k is not directly nested with the other loops; name the loops between them too",
    ),
    (
        matmul,
        lambda s: s.reorder_axes("C_k", "C_j"),
        r"reorder_axes: loop C_k is not a whole spatial axis of block C; reorder axes before other steps",
    ),
    (
        matmul,
        lambda s: s.cache_read_part("C", "A", 1),
        r"cache_read_part A: block C reads it at 1 places, and place 1 is asked for; give one of 0..0",
    ),
    (
        matmul,
        lambda s: s.cache_read_part("C", "A", 0, "l1"),
        r"part A: scope 'l1' is not one of global, shared",
    ),
    (
        matmul,
        lambda s: s.cache_read_view("C", "A", 1),
        r"cache_read_view A: block C reads it at 1 places, and place 1 is asked for; give one of 0..0",
    ),
    (
        matmul,
        lambda s: s.cache_read_view("C", "A", 0),
        r"cache_read_view A: place 0 of block C divides no axes, or its copy would leave the buffer; use",
    ),
    (
        matmul,
        lambda s: s.cache_read_view("C", "A", 0, "l1"),
        r"view A: scope 'l1' is not one of global, shared",
    ),
    (
        matmul,
        lambda s: s.stage_factor("C", 2, "float32"),
        r"stage_factor C: it has 2 factors; give one of 0..1",
    ),
    (
        matmul,
        lambda s: s.stage_factor("C", 0, "uint8"),
        r"stage_factor C: factor 0 may have values that uint8 lacks; use float32",
    ),
    (matmul, lambda s: s.stage_factor("C", 0, "int3"), r"stage_factor C: dtype 'int3' is not one of float16"),
    (
        matmul,
        lambda s: s.stage_factor("C", 0, "float32", "l1"),
        r"factor C: scope 'l1' is not one of global, shared",
    ),
    (
        matmul,
        after(
            lambda s: s.stage_factor("C", 0, "float32"),
            lambda s: s.stage_factor("C", 0, "float32"),
        ),
        r"stage_factor C: C_factor0 exists already",
    ),
    (
        matmul_relu,
        after(lambda s: s.compute_at("C", "D_i"), lambda s: s.stage_factor("D", 0, "float32")),
        r"stage_factor D: factor 0 reads C, which is computed in a loop around the block; use stage_factor",
    ),
    (argmax, lambda s: s.stage_factor("V", 0, "float32"), r"stage_factor V: it has several values, or"),
    (matmul, lambda s: s.cache_read("C", "A", "l1"), r"scope 'l1' is not one of global, shared, local"),
    (matmul, lambda s: s.cache_read("C", "Z"), r"block C does not read it; it reads A, B"),
    (
        matmul,
        after(lambda s: s.cache_read("C", "A"), lambda s: s.cache_read("A_global", "A")),
        r"cache_read A: A_global exists already",
    ),
    (
        matmul_relu,
        after(lambda s: s.compute_at("C", "D_i"), lambda s: s.cache_read("D", "C")),
        r"cache_read C: C computes it inside a loop around block D.*use cache_read before compute_at",
    ),
    (matmul, lambda s: s.cache_write("C", "l1"), r"scope 'l1' is not one of"),
    (
        argmax,
        after(lambda s: s.decompose_reduction("V", s.loops("V")[-1]), lambda s: s.cache_write("V_init")),
        r"cache_write V_init: V writes V too; use cache_write before decompose_reduction",
    ),
    (
        matmul,
        after(lambda s: s.decompose_reduction("C", "C_k"), lambda s: s.cache_write("C")),
        r"cache_write C: use it before decompose_reduction",
    ),
    (
        matmul,
        after(lambda s: s.decompose_reduction("C", "C_k"), lambda s: s.cache_write("C_init")),
        r"cache_write C_init: C writes C too; use cache_write before decompose_reduction",
    ),
    (
        matmul_relu,
        after(lambda s: s.reverse_compute_at("D", "C_i"), lambda s: s.cache_write("C")),
        r"cache_write C: D reads C inside a loop around both.*use cache_write before compute_at",
    ),
    (
        matmul,
        after(lambda s: s.cache_write("C"), lambda s: s.cache_write("C")),
        r"cache_write C: C_write exists already",
    ),
    (
        matmul,
        lambda s: s.pack("Q_global", [2], [0, 1]),
        r"there is no buffer 'Q_global'; the buffers are A, B, C",
    ),
    (matmul, lambda s: s.pack("B", [0, 2], [0, 1, 2]), r"only a buffer made by cache_read can be packed"),
    (
        chain,
        lambda s: s.pack("a", [0, 2], [0, 1, 2]),
        r"block a computes it; cache_read it and pack the copy",
    ),
    (
        matmul,
        after(lambda s: s.cache_read("C", "B"), lambda s: s.pack("B_global", [2], [0, 1])),
        r"1 tile sizes for 2 dimensions; use 0 for a dimension left whole",
    ),
    (
        matmul,
        after(lambda s: s.cache_read("C", "B"), lambda s: s.pack("B_global", [0, 2], [0, 1, 1])),
        r"order \[0, 1, 1\] is not a permutation of 0..2",
    ),
    (
        matmul,
        after(lambda s: s.cache_read("C", "B"), lambda s: s.pack("B_global", [0, -2], [0, 1, 2])),
        r"tile sizes \[0, -2\] must be >= 0",
    ),
    (
        matmul,
        after(
            lambda s: s.cache_read("C", "B"),
            lambda s: s.unroll("B_global_x0"),
            lambda s: s.split("B_global_x1", [None, 2]),
            lambda s: s.pack("B_global", [0, 2], [0, 1, 2]),
        ),
        r"block B_global is scheduled already; pack it first",
    ),
    (
        matmul_relu,  # a row of the copy would be packed before the others are computed
        after(
            lambda s: s.cache_write("C", "local"),
            lambda s: s.compute_at("C", "C_write_x0"),
            lambda s: s.pack("C", [2, 0], [2, 1, 0]),
        ),
        r"pack C_write: its loops also hold C; move those out first",
    ),
    (
        matmul,
        after(
            lambda s: s.cache_read("C", "B"),
            lambda s: s.reorder_storage("B_global", [1, 0]),
            lambda s: s.pack("B_global", [0, 2], [0, 1, 2]),
        ),
        r"its dimensions were reordered; leave out reorder_storage",
    ),
    (matmul, lambda s: s.reorder_storage("B", [1, 0]), r"B: an argument; use cache_read or cache_write"),
    (
        chain,
        lambda s: s.reorder_storage("q", [1, 0]),
        r"there is no buffer 'q'; intermediate buffers are a",
    ),
    (
        chain,
        lambda s: s.reorder_storage("a", [0, 0]),
        r"order \[0, 0\] is not a permutation of its 2 dimensions; name each of 0..1 once",
    ),
    (matmul, lambda s: s.skip_zeros("C"), r"skip_zeros C: it is no sum .* a select of a value and 0"),
    (argmax, lambda s: s.skip_zeros("V"), r"skip_zeros V: it is no sum of one output"),
    (chain, lambda s: s.skip_zeros("a"), r"skip_zeros a: it is not a reduction"),
    (
        phases,
        after(lambda s: s.skip_zeros("P"), lambda s: s.skip_zeros("P")),
        r"skip_zeros P: it is no sum of one output",
    ),
    (matmul, lambda s: s.compute_at("C", "C_i"), r"compute_at C: it is inside C_i already"),
    (chain, lambda s: s.compute_at("d", "a_i"), r"d is an output of the kernel; use reverse_compute_at"),
    (chain, lambda s: s.compute_at("a", "b_i"), r"d reads a outside b_i; choose a loop around all readers"),
    (
        matmul_relu,
        after(lambda s: s.decompose_reduction("C", "C_k"), lambda s: s.compute_at("C", "D_i")),
        r"C_init writes C too; use compute_at before decompose_reduction",
    ),
    (
        chain,
        after(lambda s: s.vectorize("d_j"), lambda s: s.compute_at("c", "d_j")),
        r"compute_at c: d_j is vectorized and can hold no loops; vectorize after moving blocks",
    ),
    (
        conv2d,
        after(lambda s: s.vectorize("P_c"), lambda s: s.reverse_compute_at("Y", "P_c")),
        r"reverse_compute_at Y: P_c is vectorized and can hold no loops",
    ),
    (matmul_relu, lambda s: s.reverse_compute_at("D", "D_i"), r"D: it is inside D_i already"),
    (
        matmul_relu,
        lambda s: s.reverse_compute_at("E", "C_i"),
        r"reverse_compute_at E: nothing inside C_i produces what it reads",
    ),
    (
        matmul_relu,
        lambda s: s.reverse_compute_at("D", "C_k"),
        r"C still reduces over C_k there; choose a loop outside C_k",
    ),
    (conv2d, lambda s: s.reverse_compute_at("Y", "P_y"), r"it reads P at y \+ u, not at one of its own"),
    (
        matmul_relu,
        after(
            lambda s: s.split("C_i", [None, 2]),
            lambda s: s.reorder("C_i_1", "C_i_0"),
            lambda s: s.reverse_compute_at("D", "C_i_1"),
        ),
        r"one iteration of C_i_1 produces a part of C with gaps; choose a loop further out, or reorder",
    ),
    (
        layer_norm,
        after(lambda s: s.split("total_i", [None, 2]), lambda s: s.reverse_compute_at("dev", "total_i_0")),
        r"nothing inside total_i_0 produces what it reads",
    ),
    (matmul, lambda s: s.rfactor("C", "C_i"), r"rfactor C: C_i is not a reduction loop; choose"),
    (matmul, lambda s: s.rfactor("C", "Q"), r"rfactor C: Q is not around it; its loops are C_i, C_j, C_k"),
    (
        conv2d,
        after(lambda s: s.compute_at("P", "Y_v"), lambda s: s.rfactor("Y", "Y_c")),
        r"rfactor Y: it also reduces over loop Y_u, and that holds P too; use rfactor before compute_at",
    ),
    (chain, lambda s: s.rfactor("a", "a_i"), r"rfactor a: it is not a whole reduction"),
    (
        matmul,
        after(lambda s: s.decompose_reduction("C", "C_k"), lambda s: s.rfactor("C", "C_k")),
        r"use rfactor before decompose_reduction",
    ),
    (
        matmul,
        after(lambda s: s.fuse("C_j", "C_k"), lambda s: s.rfactor("C", "C_j_C_k")),
        r"C_j_C_k is not a reduction loop",
    ),
    (chain, lambda s: s.decompose_reduction("a", "a_i"), r"decompose_reduction a: it is not a reduction"),
    (
        matmul,
        after(lambda s: s.decompose_reduction("C", "C_k"), lambda s: s.decompose_reduction("C", "C_k")),
        r"decompose_reduction C: it is decomposed already",
    ),
    (
        matmul_relu,
        lambda s: s.decompose_reduction("C", "D_i"),
        r"D_i is not around it; its loops are C_i, C_j",
    ),
    (
        matmul,
        after(lambda s: s.reorder("C_k", "C_i"), lambda s: s.decompose_reduction("C", "C_i")),
        r"C_k is a reduction loop outside C_i; decompose at C_k",
    ),
    (
        matmul,
        after(lambda s: s.fuse("C_j", "C_k"), lambda s: s.decompose_reduction("C", "C_j_C_k")),
        r"C_j_C_k mixes spatial and reduction axes; do not fuse those",
    ),
    (
        two,
        after(lambda s: s.compute_at("B", "C_i"), lambda s: s.decompose_reduction("B", "C_i")),
        r"decompose_reduction B: C_i computes the same elements of it again; choose a loop inside C_i",
    ),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_refused_by_name_with_a_remedy(case: int) -> None:
    program, do, message = CASES[case]
    s = Schedule(program())
    with pytest.raises(ScheduleError, match=message) as caught:
        do(s)
    assert len(str(caught.value)) < 400


def test_gpu_axes_on_a_cpu() -> None:
    with pytest.raises(ScheduleError, match=r"bind C_i: target cpu has no blockIdx.x; use parallel"):
        Schedule(matmul(), CPU).bind("C_i", "blockIdx.x")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Step("warp", ()), r"step 0: unknown primitive 'warp'; this version knows annotate"),
        (Step("unroll", (("axis", "C_i"),)), r"step 0: step unroll takes loop, the trace gives axis"),
        (Step("unroll", (("loop", 3),)), r"step 0: unroll.loop: '3' is not a"),
        (Step("fuse", (("loops", ("C_i", 2)),)), r"step 0: fuse.loops"),
        (Step("parallel", (("loop", "C_k"),)), r"step 0: parallel C_k: block C reduces over it"),
    ],
)
def test_replay_names_the_step(step: Step, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Schedule.replay(make("matmul"), Trace((step,)))


def test_decisions_are_checked_when_the_holes_are_filled() -> None:
    s = Schedule(matmul())
    trace = Trace(
        (
            Step("split", (("factors", (None, ("?", "a"))), ("loop", "C_k"), ("tail", "guard"))),
            Step("split", (("factors", (None, ("?", "b"))), ("loop", "C_k_1"), ("tail", "guard"))),
        )
    )
    Schedule.replay(s.dag, trace)
    Schedule.replay(s.dag, trace, decisions={"a": 4, "b": 2})
    with pytest.raises(ScheduleError, match=r"step 1: split C_k_1: .* do not divide its 4 iterations"):
        Schedule.replay(s.dag, trace, decisions={"a": 4, "b": 3})


# -- races -------------------------------------------------------------------------------------

RACES: list[tuple[Callable[[], ComputeDAG], Do]] = [
    (matmul, lambda s: s.parallel(s.fuse("C_j", "C_k"))),
    (matmul, after(lambda s: s.split("C_k", [None, 2]), lambda s: s.parallel("C_k_1"))),
    (argmax, lambda s: s.parallel("V_k")),
    (
        matmul,
        after(
            lambda s: s.split("C_k", [None, 2]),
            lambda s: s.rfactor("C", "C_k_1"),
            lambda s: s.parallel("C_rf_k"),
        ),
    ),
    # the halo of one iteration is written by the next too, in a buffer that a loop further out keeps
    (
        two,
        after(lambda s: s.compute_at("B", "C_i"), lambda s: s.cache_write("C"), lambda s: s.parallel("B_r0")),
    ),
    # each iteration's own sum is the sum of all once the stage that reads it there is gone
    (
        scaled,
        after(lambda s: s.compute_at("B", "C_j"), lambda s: s.parallel("C_j"), lambda s: s.inline("C")),
    ),
]
INDEPENDENT: list[tuple[Callable[[], ComputeDAG], Do]] = [
    (matmul, lambda s: s.parallel(s.fuse("C_i", "C_j"))),
    (
        matmul,
        lambda s: s.parallel(s.fuse(*s.tile(["C_i", "C_j"], [2, 4])[:2])),
    ),
    (
        matmul,
        after(
            lambda s: s.split("C_i", [None, 2]),
            lambda s: s.reorder("C_i_1", "C_i_0"),
            lambda s: s.parallel("C_i_1"),
        ),
    ),
    (two, after(lambda s: s.compute_at("B", "C_i"), lambda s: s.parallel("C_i"))),
    (scaled, after(lambda s: s.compute_at("B", "C_j"), lambda s: s.parallel("C_i"), lambda s: s.inline("C"))),
    (matmul, after(lambda s: s.rfactor("C", "C_k"), lambda s: s.parallel("C_k"))),
    (chain, after(lambda s: s.split("a_j", [None, 4], "shift"), lambda s: s.parallel("a_j_0"))),
    (matmul, after(lambda s: s.fuse("C_i", "C_j"), lambda s: s.split("C_i_C_j", [None, 3]),
                   lambda s: s.parallel("C_i_C_j_0"))),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(RACES)))
def test_races_are_refused(case: int) -> None:
    program, do = RACES[case]
    with pytest.raises(ScheduleError, match=r"parallel .*(race on|overlapping parts)"):
        do(Schedule(program()))


@pytest.mark.parametrize("case", range(len(INDEPENDENT)))
def test_independent_iterations_are_accepted(case: int) -> None:
    program, do = INDEPENDENT[case]
    s = Schedule(program())
    do(s)
    assert "parallel" in str(s)
