"""TVM as a peer: every operator of the library, and reducers of tuples, mean the same there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needs import imported
from programs import FLOATING
from small_shapes import SMALL

from autotune.measure.compare.bench import agree, arrays_for
from autotune.measure.compare.peers import peer
from schedules import ops
from schedules.model import Workload
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate

pytestmark = pytest.mark.filterwarnings("ignore")  # what TVM warns of among itself


def computed(
    dag: ComputeDAG, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """By TVM, not tuned."""
    tvm = imported("tvm")
    from autotune.measure.compare.peers.tvm_expression import tensors

    function = tvm.te.create_prim_func(tensors(dag)).with_attr("global_symbol", "main")
    arrays: list[Any] = [tvm.runtime.tensor(a) for a in (*inputs, *outputs)]
    tvm.compile(tvm.IRModule({"main": function}), tvm.target.Target({"kind": "llvm"}))["main"](*arrays)
    return [a.numpy() for a in arrays[len(inputs) :]]


@pytest.mark.parametrize("name", sorted(ops.REGISTRY))
def test_expressions_mean_there_what_they_mean_here(name: str) -> None:
    workload = ops.workload(name, SMALL[name])
    inputs, outputs = arrays_for(workload, 0)
    agree(workload, "tvm", computed(workload.dag, inputs, outputs), ops.reference(workload, inputs))


@pytest.mark.parametrize("name", sorted(FLOATING))
def test_stages_of_all_kinds_are_converted(name: str) -> None:
    """Reducers of tuples, several outputs, guarded reads, axes fused by hand."""
    dag = FLOATING[name]("float32")
    inputs, outputs = arrays_for(Workload(dag), 0)
    for made, expected in zip(computed(dag, inputs, outputs), evaluate(dag, inputs), strict=True):
        np.testing.assert_allclose(made, expected, 1e-4, 1e-4)


@pytest.mark.soak
def test_a_tuned_kernel_is_timed_in_a_process_of_its_own_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported("tvm")
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path))
    workload = ops.workload("matmul_bias_relu", {"m": 32, "n": 48, "k": 16})
    inputs, outputs = arrays_for(workload, 0)
    for _ in range(2):  # the second finds what the first kept
        with peer("tvm").prepare(workload, inputs, outputs, 1) as prepared:
            prepared.call()
            agree(workload, "tvm", prepared.result(), ops.reference(workload, inputs))
            assert prepared.sample is not None and 0 < prepared.sample(10) < 1
        (kept,) = (tmp_path / "tvm").iterdir()
        made = kept.stat().st_mtime_ns
    assert kept.stat().st_mtime_ns == made
