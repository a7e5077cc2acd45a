"""``copy`` and ``pickle`` of what users hold: itself, a whole copy, or a refusal; never a broken one."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autotune as at
from autotune import te
from autotune.backends import parse
from autotune.results.tuned import TuneResult
from autotune.run.kernels import default_kernel
from schedules.model import Trace, Workload

WAYS: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy]
A = te.placeholder((8, 8), "float32", "A")
B = te.compute((8, 8), lambda i, j: A[i, j] * 2.0, "B")
WORKLOAD = Workload(te.dag([A, B]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("target", ["cpu", "cuda-emulator"])
def test_a_kernel_is_its_own_copy(
    way: Callable[[Any], Any], target: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if target != "cpu":
        from grid_cases import need_cxx

        need_cxx()
    kernel = default_kernel(WORKLOAD, parse(target, 1 if target == "cpu" else None))
    assert way(kernel) is kernel and way({"k": [kernel]})["k"][0] is kernel
    x = np.ones((8, 8), np.float32)
    assert (kernel(x) == 2).all()
    for other in (pickle.loads(pickle.dumps(kernel)), pickle.loads(pickle.dumps([kernel], protocol=0))[0]):
        assert type(other) is type(kernel) and other is not kernel
        assert (other(x) == 2).all()
    del kernel
    gc.collect()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("way", WAYS)
def test_a_schedule_and_its_copy_go_their_own_ways(way: Callable[[Any], Any]) -> None:
    s = at.Schedule([A, B])
    s.split("B_j", (None, 4))
    other = way(s)
    assert other is not s and other.trace == s.trace and str(other) == str(s)
    other.vectorize("B_j_1")
    assert len(other.trace.steps) == 2 and len(s.trace.steps) == 1
    s.unroll("B_j_1")
    assert Trace.from_json(other.trace.to_json()) == other.trace
    assert at.Schedule.replay(s.dag, other.trace).nest == other.nest


@pytest.mark.parametrize("way", WAYS)
def test_tensors_and_expressions_keep_their_identity(way: Callable[[Any], Any]) -> None:
    k = te.reduce_axis(8, "k")
    read = A[k, k]
    assert way(A) is A and way(B) is B and way(read) is read and way(k) is k
    assert te.dag([A, way(B)]) == te.dag(way([A, B])) == WORKLOAD.dag


@pytest.mark.parametrize("way", [*WAYS, lambda x: pickle.loads(pickle.dumps(x))])
def test_values_are_copied_whole(way: Callable[[Any], Any]) -> None:
    target = parse("cpu", 1)
    trace = at.Schedule([A, B]).trace
    result = TuneResult(WORKLOAD, target, None, 3, {"crash": 1}, 0, 1.0, 0, "budget", notes=("far",))
    for value in (WORKLOAD, target, trace, result):
        assert way(value) == value and way(value).__class__ is value.__class__
    assert te.dag(way([A, B])) == WORKLOAD.dag


@pytest.mark.parametrize("way", [*WAYS, pickle.dumps])
def test_a_log_is_opened_again(way: Callable[[Any], Any], tmp_path: Path) -> None:
    with at.Log(tmp_path / "t.db") as log:
        with pytest.raises(
            TypeError, match=r"the log .*t\.db can be neither copied nor pickled: .*; open it"
        ):
            way(log)
        assert log.tasks() == []
