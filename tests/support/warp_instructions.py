"""Small products of which each uses one instruction of matrix units, and one way to load each operand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from schedules import te
from schedules.dtypes import DTYPES
from schedules.instructions import INSTRUCTIONS
from schedules.ir.instruction import Instruction
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

CHUNK = 16  # bytes that are copied at a time
WARPS, BLOCKS, TURNS = 2, (2, 3), 3  # warps of a block, rows and columns of blocks, iterations of the sum


@dataclass(frozen=True)
class Use:
    """``mma`` with operands that come by ``loads``, an instruction each, or None: element by element. Where
    ``transposed``, an operand is stored the other way."""

    mma: str
    loads: tuple[str | None, str | None]
    transposed: tuple[bool, bool]

    def __str__(self) -> str:
        return " ".join([self.mma, *(x or "elements" for x in self.loads)])


def uses() -> Iterator[Use]:
    """Each product with each pair of loads that fit its operands."""
    for mma in (x for x in INSTRUCTIONS.values() if x.threads == 32 and x.name.startswith("mma")):
        dtypes = [mma.meaning.tensors[x].dtype for x in "ab"]
        for a in ("a", "a_trans", None):
            for b in ("b", "b_trans", None):
                loads = [f"ldmatrix_{d}_{x}" if x else None for d, x in zip(dtypes, (a, b), strict=True)]
                if all(x is None or x in INSTRUCTIONS for x in loads):
                    # columns of b are what lies side by side but for _trans and plain elements
                    yield Use(mma.name, (loads[0], loads[1]), (a == "a_trans", b == "b"))


def extents(mma: Instruction) -> tuple[int, int, int]:
    """Rows, columns and terms of a product by an instruction."""
    (rows, terms), (_, columns) = (mma.meaning.tensors[x].shape for x in "ab")
    return int(rows), int(columns), int(terms)


def problem(use: Use) -> ComputeDAG:
    """c[i, j] = Σ a[i, k] * b[k, j], by several blocks, warps, iterations and instructions side by side."""
    mma = INSTRUCTIONS[use.mma]
    rows, columns, terms = extents(mma)
    m, n, depth = BLOCKS[0] * WARPS * rows, BLOCKS[1] * 2 * columns, TURNS * 2 * terms
    turned = [shape[::-1] if t else shape for shape, t in zip(((m, depth), (depth, n)), use.transposed)]
    a, b = (te.placeholder(shape, mma.meaning.tensors[x].dtype, x) for shape, x in zip(turned, "ab"))
    ta, tb = use.transposed
    k = te.reduce_axis(depth, "k")
    of = te.tf32 if "tf32" in use.mma else lambda x: x
    c = te.compute(
        (m, n),
        lambda i, j: te.sum(of(a[(k, i) if ta else (i, k)]) * of(b[(j, k) if tb else (k, j)]), axis=k),
        "c",
    )
    return te.dag([a, b, c])


def numbers(dag: ComputeDAG, seed: int = 0) -> list[np.ndarray]:
    """Small integers, so that sums are exact."""
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0 if t.dtype == "uint8" else -3, 4, t.shape).astype(DTYPES[t.dtype].numpy)
        for t in dag.inputs
    ]


def schedule(use: Use) -> Schedule:
    """Two stages in shared memory, and a block of two warps, each of two instructions side by side."""
    rows, columns, terms = extents(INSTRUCTIONS[use.mma])
    s = Schedule(problem(use))
    result = s.cache_write("c", "fragment")
    for x in "ab":
        s.cache_read("c", x, "shared")
        s.cache_read("c", f"{x}_shared", "fragment")
    i, j = s.loops(result)
    bi, wi, ii = s.split(i, [None, WARPS, rows])
    bj, tj, jj = s.split(j, [None, 2, columns])
    s.reorder(bi, bj, wi, tj, ii, jj)
    block = s.fuse(bi, bj)
    s.bind(block, "blockIdx.x")
    s.bind(wi, "threadIdx.y")
    s.compute_at("c", block)
    i, j, k = s.loops("c")[1:]
    wi, ii = s.split(i, [WARPS, rows])
    tj, jj = s.split(j, [2, columns])
    ko, ki, kk = s.split(k, [None, 2, terms])
    s.reorder(ko, wi, ki, tj, ii, jj, kk)
    s.bind(wi, "threadIdx.y")
    s.decompose_reduction("c", ko)
    s.annotate(ko, "stages", 2)
    for x, load in zip("ab", use.loads, strict=True):
        s.compute_at(f"{x}_shared_fragment", ki)
        s.compute_at(f"{x}_shared", ko)
        _copied(s, f"{x}_shared", CHUNK // DTYPES[INSTRUCTIONS[use.mma].meaning.tensors[x].dtype].itemsize)
        first, _ = (own for own in s.loops(f"{x}_shared_fragment") if own not in s.loops("c"))
        if load is not None:
            s.tensorize(first, load)
    s.unroll(ki)
    s.unroll(tj)
    s.tensorize(ii, use.mma)
    return s


def _copied(s: Schedule, name: str, elements: int) -> None:
    """By all threads in the background, so many elements each at a time."""
    own = [x for x in s.loops(name) if x not in s.loops("c")]
    outer, warp, lane, v = s.split(s.fuse(*own), [None, WARPS, 32, elements])
    s.reorder(warp, lane, outer, v)
    s.bind(warp, "threadIdx.y")
    s.bind(lane, "threadIdx.x")
    s.vectorize(v)
    s.annotate(name, "async", 1)
    s.annotate(name, "swizzle", 128)
