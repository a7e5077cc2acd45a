"""What tests of GPU code share: every operator at a small odd shape, its sampled schedules, and ways to run
them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from helpers import checker, poisoned
from needs import missing

from autotune import backends
from autotune.codegen.simt import cxx, emulator
from schedules import ops, te
from schedules.ir.grid import GridProgram
from schedules.model import Trace
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.space import DerivedSpace, derive
from schedules.te.compute_dag import ComputeDAG

TARGET = backends.parse("cuda-emulator")

# Every operator of the library, at sizes that no tile divides.
SMALL: dict[str, dict[str, Any]] = {
    "add": {"n": 1003},
    "fused_multiply_add": {"n": 516},
    "permute": {"shape": (13, 22, 5), "axes": (2, 0, 1)},
    "matmul": {"m": 37, "n": 22, "k": 36},
    "batch_matmul": {"b": 2, "m": 5, "n": 6, "k": 7},
    "quantized_matmul": {"m": 9, "n": 13, "k": 20, "weight_zeros": 1},
    "quantized_conv2d": {"h": 5, "w": 6, "ci": 3, "co": 4, "k": 3, "padding": 1},
    "weight_only_matmul": {"m": 3, "n": 13, "k": 12, "group": 4},
    "matmul_bias_relu": {"m": 9, "n": 13, "k": 20},
    "matmul_bias_gelu": {"m": 5, "n": 6, "k": 7},
    "softmax": {"m": 5, "n": 70},
    "layer_norm": {"m": 6, "n": 33},
    "rms_norm": {"m": 5, "n": 64},
    "reduce_sum": {"m": 5, "n": 130},
    "argmax": {"m": 5, "n": 130},
    "argmin": {"m": 4, "n": 33},
    "norm2": {"b": 3, "m": 7, "n": 9},
    "conv1d": {"l": 9, "ci": 3, "co": 4, "k": 3, "padding": 1},
    "conv2d": {"h": 7, "w": 7, "ci": 4, "co": 6, "k": 3, "padding": 1},
    "conv2d_bias_relu": {"h": 5, "w": 6, "ci": 3, "co": 4, "k": 3, "padding": 1, "stride": 2},
    "conv2d_bn_relu": {"h": 5, "w": 6, "ci": 3, "co": 4, "k": 3},
    "conv3d": {"d": 3, "h": 4, "w": 4, "ci": 2, "co": 3, "k": 3, "padding": 1},
    "depthwise_conv2d": {"h": 6, "w": 5, "c": 7, "k": 3, "padding": 1},
    "conv2d_transpose": {"h": 4, "w": 4, "ci": 3, "co": 2, "k": 4, "stride": 2, "padding": 1},
    "capsule_conv2d": {"h": 3, "w": 3, "ci": 2, "co": 2, "k": 3, "padding": 1},
    "max_pool2d": {"h": 7, "w": 7, "c": 3, "k": 2, "stride": 2},
    "avg_pool2d": {"h": 6, "w": 6, "c": 3, "k": 3, "stride": 1, "padding": 1},
    "attention": {"heads": 2, "seq": 9, "dim": 4},
    "transpose_batch_matmul_softmax": {"seq": 5, "heads": 2, "dim": 4},
}


@dataclass(frozen=True)
class Case:
    """A workload with its inputs, and the outputs that are right."""

    dag: ComputeDAG
    inputs: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]

    def poisoned(self) -> list[np.ndarray]:
        """Outputs to write to."""
        return [poisoned(x) for x in self.expected]

    def check(self, outputs: Sequence[np.ndarray], what: str) -> None:
        verdict = checker(self.dag, self.inputs).check(outputs, 0)
        assert not verdict.reason, f"{what}: {verdict.reason}"


def need_cxx() -> None:
    """`missing` where nothing can be emulated."""
    if cxx.command() is None:
        missing("c++")


@cache
def case(op: str, dtype: str | None = None) -> Case:
    workload = ops.workload(op, SMALL[op], dtype)
    rng = np.random.default_rng(1)
    inputs = tuple(rng.integers(-3, 4, t.shape).astype(t.dtype) for t in workload.dag.inputs)
    return Case(workload.dag, inputs, tuple(ops.reference(workload, list(inputs))))


def masked_add(n: int) -> Case:
    """x + y where a mask says so, else 0."""
    x, y, mask = (te.placeholder((n,), "float32", name=c) for c in ("x", "y", "mask"))
    z = te.compute((n,), lambda i: te.select(mask[i] > 0.0, x[i] + y[i], 0.0), name="z")
    rng = np.random.default_rng(2)
    a, b, m = (rng.integers(-3, 4, n).astype("float32") for _ in range(3))
    return Case(te.dag([x, y, mask, z]), (a, b, m), (np.where(m > 0, a + b, np.float32(0)),))


@cache
def space(dag: ComputeDAG) -> DerivedSpace:
    return derive(dag, TARGET)


def sampled(dag: ComputeDAG, each: int, seed: int = 0) -> Iterator[tuple[str, Trace]]:
    """Names and traces of ``each`` valid candidates of every sketch."""
    found, rng = space(dag), np.random.default_rng(seed)
    for number, name in enumerate(found.sketches):
        rows = found.sample(number, 30 * each, rng)
        rows = rows[found.valid(number, rows)][:each]
        assert len(rows), f"sketch {name!r} has no valid candidate among {30 * each}"
        for row in rows:
            yield f"{name} {row.tolist()}", found.trace(number, row)


def program(dag: ComputeDAG, trace: Trace) -> GridProgram:
    return lower_simt(Schedule.replay(dag, trace, TARGET).nest)


def _some(c: Case, count: int) -> list[tuple[str, GridProgram]]:
    each = -(-count // len(space(c.dag).sketches))
    return [(name, program(c.dag, trace)) for name, trace in sampled(c.dag, each)][:count]


def emulate(c: Case, count: int) -> None:
    need_cxx()
    found = _some(c, count)
    obj = emulator.build(*(p for _, p in found))
    for n, (name, p) in enumerate(found):
        for order in emulator.ORDERS:
            outputs = c.poisoned()
            fault = emulator.run(obj, p, [*c.inputs, *outputs], n, order=order)
            assert fault is None, f"{name}, {order}: {fault}"
            c.check(outputs, f"{name}, {order}")


def workload_case(op: str, params: dict[str, object]) -> Case:
    workload = ops.workload(op, params)
    rng = np.random.default_rng(1)
    inputs = tuple(rng.integers(-3, 4, t.shape).astype(t.dtype) for t in workload.dag.inputs)
    return Case(workload.dag, inputs, tuple(ops.reference(workload, list(inputs))))


def turned(columns: int) -> tuple[np.ndarray, GridProgram]:
    """Rows of 64 by so many are read backwards from the memory that the threads of a block share."""
    x = te.placeholder((2, 64, columns), "float32", "x")
    s = Schedule(te.dag([x, te.compute(x.shape, lambda i, j, k: x[i, 63 - j, columns - 1 - k], "y")]))
    s.cache_read("y", "x", "shared")
    block, row, _ = s.loops("y")
    s.bind(block, "blockIdx.x")
    s.bind(row, "threadIdx.x")
    s.compute_at("x_shared", block)
    s.bind(s.loops("x_shared")[-2], "threadIdx.x")
    return np.arange(2 * 64 * columns, dtype="f4").reshape(x.shape), lower_simt(s.nest)
