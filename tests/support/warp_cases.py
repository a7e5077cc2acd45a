"""Products by instructions of warps, scheduled by hand: of every dtype, in every layout of their operands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schedules import te
from schedules.instructions import INSTRUCTIONS
from schedules.ir.grid import GridProgram
from schedules.ir.interp import run
from schedules.ir.interp_grid import run_grid
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG


@dataclass(frozen=True)
class WarpCase:
    """``y[i, j] = c[i, j] * 2 + bias[j]``, where ``c[i, j] += a[i, k] * b[k, j]`` by ``product``. ``loads``:
    the instructions that read the fragments of a and b; None: plain loads. ``turned``: the operands that are
    stored transposed. ``warps`` times ``tile`` rows and columns are a block's. ``lanes``: threads of a row
    that copy. ``crossed``: what reads the sums counts warps by columns, which is wrong."""

    product: str
    loads: tuple[str | None, str | None] = (None, None)
    turned: str = ""
    size: tuple[int, int, int] = (32, 32, 64)
    tile: tuple[int, int] = (16, 16)
    warps: tuple[int, int] = (2, 2)
    depth: int = 32
    stages: int = 0
    lanes: int = 32
    crossed: bool = False

    @property
    def terms(self) -> int:
        """Steps of the sum of one instruction."""
        return INSTRUCTIONS[self.product].iterations["k"]

    def dag(self) -> ComputeDAG:
        m, n, k = self.size
        dtypes = {x.name: x.dtype for x in INSTRUCTIONS[self.product].meaning.inputs}
        a = te.placeholder((k, m) if "a" in self.turned else (m, k), dtypes["a"], "a")
        b = te.placeholder((n, k) if "b" in self.turned else (k, n), dtypes["b"], "b")
        bias = te.placeholder((n,), INSTRUCTIONS[self.product].result.dtype, "bias")
        r = te.reduce_axis(k, "r")

        def term(i: te.Expr, j: te.Expr) -> te.Expr:
            x = a[r, i] if "a" in self.turned else a[i, r]
            y = b[j, r] if "b" in self.turned else b[r, j]
            return te.tf32(x) * te.tf32(y) if self.product == TF32 else x * y

        c = te.compute((m, n), lambda i, j: te.sum(term(i, j), axis=r), "c")
        y = te.compute((m, n), lambda i, j: c[i, j] * 2 + bias[j], "y")
        return te.dag([a, b, bias, y])

    def schedule(self) -> Schedule:
        s = Schedule(self.dag())
        s.set_scope("c", "fragment")
        (wm, wn), (down, across) = self.tile, self.warps
        rows, columns = down * wm, across * wn
        tiles = {"a": [rows, self.depth], "b": [self.depth, columns]}
        for x, tile in tiles.items():
            s.pack(s.cache_read("c", x, "shared"), tile[::-1] if x in self.turned else tile, [])
            s.cache_read("c", f"{x}_shared", "fragment")
        i, j = s.loops("y")
        bi, wi, ti = s.split(i, [None, down, wm])
        bj, wj, tj = s.split(j, [None, across, wn])
        s.reorder(bi, bj, wi, wj, ti, tj)
        s.bind(bi, "blockIdx.y")
        s.bind(bj, "blockIdx.x")
        if self.crossed:
            s.reorder(wj, wi)
        s.bind(s.fuse(*((wj, wi) if self.crossed else (wi, wj))), "threadIdx.y")
        s.compute_at("c", bj)
        i, j, k = s.loops("c")[2:]
        wi, ti, ii = s.split(i, [down, wm // 16, 16])
        wj, tj, jj = s.split(j, [across, wn // 8, 8])
        ko, ki, kk = s.split(k, [None, self.depth // self.terms, self.terms])
        s.reorder(ko, wi, wj, ki, ti, tj, ii, jj, kk)
        s.bind(s.fuse(wi, wj), "threadIdx.y")
        s.decompose_reduction("c", ko)
        if self.stages:
            s.annotate(ko, "stages", self.stages)
        for x, load in zip("ab", self.loads, strict=True):
            s.compute_at(f"{x}_shared_fragment", ki)
            s.compute_at(f"{x}_shared", ko)
            self._copy(s, f"{x}_shared", down * across)
            if load is not None:
                self._load(s, f"{x}_shared_fragment", load)
        s.tensorize(ii, self.product)
        return s

    def _copy(self, s: Schedule, name: str, warps: int) -> None:
        outer, warp, lane, v = s.split(s.fuse(*_own(s, name)), [None, warps, self.lanes, 8])
        s.reorder(warp, lane, outer, v)
        s.bind(warp, "threadIdx.y")
        s.bind(lane, "threadIdx.x")
        s.unroll(outer)
        s.vectorize(v)
        if self.stages:
            s.annotate(name, "async", 1)
            s.annotate(name, "swizzle", 128)

    def _load(self, s: Schedule, name: str, load: str) -> None:
        shape = INSTRUCTIONS[load].result.shape
        (ro, ri), (co, ci) = (s.split(x, [None, n]) for x, n in zip(_own(s, name), shape, strict=True))
        s.reorder(ro, co, ri, ci)
        s.tensorize(ri, load)

    def inputs(self, seed: int = 0) -> list[np.ndarray]:
        """Small whole numbers, whose sums are exact in any order."""
        rng = np.random.default_rng(seed)
        dag = self.dag()
        least = [0 if x.dtype == "uint8" else -3 for x in dag.inputs]
        found = [
            rng.integers(lo, 4, x.shape).astype(x.dtype) for lo, x in zip(least, dag.inputs, strict=True)
        ]
        if self.product == TF32:  # what is rounded away
            found[0] += np.float32(2**-12) * np.sign(found[0])
        return found

    def expected(self, inputs: list[np.ndarray]) -> np.ndarray:
        a, b, bias = (np.rint(x.astype("float64")) for x in inputs)
        a, b = (x.T if name in self.turned else x for name, x in (("a", a), ("b", b)))
        return (a @ b * 2 + bias).astype(inputs[2].dtype)

    def named(self, inputs: list[np.ndarray]) -> dict[str, np.ndarray]:
        out = np.full(self.size[:2], 77, inputs[2].dtype)
        return dict(zip(("a", "b", "bias", "y"), (*inputs, out), strict=True))

    def by_loops(self, s: Schedule) -> np.ndarray:
        """What the serial interpreter makes of a schedule."""
        arrays = self.named(self.inputs())
        run(lower(s.nest), arrays)
        return arrays["y"]

    def by_grid(self, p: GridProgram, **how: object) -> np.ndarray:
        """What the interpreter of grids makes of a program."""
        arrays = self.named(self.inputs())
        run_grid(p, arrays, **how)  # type: ignore[arg-type]
        return arrays["y"]


def _own(s: Schedule, name: str) -> list[str]:
    """The loops that only this block is in."""
    shared = {x for b in s.blocks() if b != name for x in s.loops(b)}
    return [x for x in s.loops(name) if x not in shared]


F16, BF16 = "mma_m16n8k16_float32_float16", "mma_m16n8k16_float32_bfloat16"
INT8, TF32 = "mma_m16n8k32_int32_{}_{}", "mma_m16n8k8_float32_tf32"
CASES = {
    "f16": WarpCase(F16, ("ldmatrix_float16_a", "ldmatrix_float16_b_trans")),
    "f16, a turned": WarpCase(F16, ("ldmatrix_float16_a_trans", "ldmatrix_float16_b_trans"), "a"),
    "f16, b turned": WarpCase(F16, ("ldmatrix_float16_a", "ldmatrix_float16_b"), "b"),
    "f16, plain loads": WarpCase(F16),
    "f16, tails": WarpCase(F16, ("ldmatrix_float16_a", "ldmatrix_float16_b_trans"), size=(33, 18, 40)),
    "f16, stages": WarpCase(
        F16, ("ldmatrix_float16_a", "ldmatrix_float16_b_trans"), "", (40, 24, 96), (32, 16), (1, 2), 16, 3
    ),
    "bf16": WarpCase(BF16, ("ldmatrix_bfloat16_a", "ldmatrix_bfloat16_b_trans")),
    "bf16, both turned": WarpCase(BF16, ("ldmatrix_bfloat16_a_trans", "ldmatrix_bfloat16_b"), "ab"),
    "tf32": WarpCase(TF32, ("ldmatrix_float32_a", None)),
    "tf32, tails": WarpCase(TF32, ("ldmatrix_float32_a", None), size=(17, 40, 23)),
    "tf32, b turned": WarpCase(TF32, ("ldmatrix_float32_a", "ldmatrix_float32_b"), "b"),
    **{
        f"{a} {b}": WarpCase(INT8.format(a, b), (f"ldmatrix_{a}_a", f"ldmatrix_{b}_b"), "b")
        for a in ("int8", "uint8")
        for b in ("int8", "uint8")
    },
    "int8, plain loads": WarpCase(INT8.format("int8", "int8"), ("ldmatrix_int8_a", None)),
}
