"""Operators of the library and a model as code for ARM, which qemu runs: their references' results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
import qemu
from graph_memory import run_in_memory
from small_shapes import FORMS, SMALL

from autotune.backends.building.from_trace import emit_module
from autotune.codegen.runtime.laid import laid
from autotune.measure.check import Checker
from autotune.measure.inputs import draws
from autotune.models.outline import outline
from schedules import ops
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition
from schedules.model import Trace
from schedules.space import derive
from schedules.strides import MemoryLayout
from schedules.te.compute_dag import ComputeDAG

pytestmark = pytest.mark.slow
# Beside small ones: several vectors in a row, and tails.
ODD: list[tuple[str, dict[str, object]]] = [
    ("matmul", {"m": 13, "n": 37, "k": 19}),
    ("conv2d", {"h": 9, "w": 11, "ci": 5, "co": 21, "k": 3, "padding": 1}),
    ("softmax", {"m": 7, "n": 53}),
    ("matmul_bias_gelu", {"m": 3, "n": 35, "k": 17}),
    ("quantized_matmul", {"m": 9, "n": 23, "k": 45}),
    ("weight_only_matmul", {"m": 3, "n": 19, "k": 64, "group": 32}),
]
SHAPES = [*SMALL.items(), *FORMS, *ODD]


def traces(dag: ComputeDAG, most: int) -> list[Trace]:
    """The plain loops, and a sample of each of the first sketches."""
    space = derive(dag, qemu.TARGET)
    found = [Trace()]
    for sketch in range(len(space.sketches)):
        rows = space.sample(sketch, 4, np.random.default_rng(sketch))
        rows = rows[space.valid(sketch, rows)]
        found += [space.trace(sketch, rows[0])] if len(rows) else []
    return found[:most]


def executed(dag: ComputeDAG, trace: Trace, inputs: Sequence[Any], where: Path) -> list[np.ndarray]:
    """The outputs of a trace, by its code."""
    module = emit_module(dag, trace, qemu.TARGET)
    outs = [dag.tensors[n] for n in dag.outputs]
    given = [laid(x, MemoryLayout(t.shape, t.strides)) for x, t in zip(inputs, dag.inputs, strict=True)]
    arrays = [*given, *(np.full(t.shape, 77, t.dtype) for t in outs)]
    return qemu.run(module.text, arrays, module.scratch_bytes, where)[-len(outs) :]


@pytest.mark.parametrize("op, params", SHAPES, ids=[f"{op}-{n}" for n, (op, _) in enumerate(SHAPES)])
def test_results_are_those_of_the_reference(op: str, params: dict[str, object], tmp_path: Path) -> None:
    """As measuring checks them: in float32 two samples beside the plain loops; in others a sample."""
    dtypes = ops.get(op).dtypes
    usual = "float32" if "float32" in dtypes else dtypes[0]
    others = [d for d in dtypes if d != usual] if SMALL.get(op) is params else []
    for n, dtype in enumerate((usual, *others)):
        dag = ops.workload(op, params, dtype=dtype).dag
        found = draws(dag)
        draw = found[n % len(found[:2])]
        check = Checker(dag.outputs, draw.reference, draw.bounds)
        some = traces(dag, 3)
        for trace in some if dtype == usual else [some[-1 - n % (len(some) - 1)] if some[1:] else some[0]]:
            verdict = check.check(executed(dag, trace, draw.inputs, tmp_path), 0)
            assert verdict.reason == "", f"{dtype}: {verdict.reason}\n{trace.to_json()}"


@pytest.mark.parametrize("net", ["residual_net", "transformer"])
def test_a_models_kernels_in_turn(net: str, tmp_path: Path) -> None:
    graph = optimize(getattr(cases, net)())
    ol = outline(graph, partition(graph))
    inputs = cases.inputs_of(graph)

    def one(dag: ComputeDAG, given: Sequence[Any]) -> Sequence[Any]:
        plain = replace(dag, constants=())  # weights come as they are
        return executed(plain, traces(plain, 3)[-1], given, tmp_path)

    want = run_in_memory(ol, graph.values, inputs)
    got = run_in_memory(ol, graph.values, inputs, evaluate=one)
    for g, w in zip(got, want, strict=True):
        scale = np.sqrt(np.mean(np.square(w)))
        np.testing.assert_allclose(g / scale, w / scale, rtol=0, atol=1e-5)
