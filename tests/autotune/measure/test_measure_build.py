"""Measuring with the real builder: schedules of the library, one thread and several."""

from __future__ import annotations

import sys

import pytest

from autotune import targets
from autotune.measure import Measurer
from schedules import te
from schedules.model import Trace
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="measured processes need Linux")


def matmul(m: int, n: int, k: int) -> ComputeDAG:
    a, b = te.placeholder((m, k), "float32", name="A"), te.placeholder((k, n), "float32", name="B")
    r = te.reduce_axis(k, name="k")
    return te.dag([a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")])


def blocked(dag: ComputeDAG, rows: int, columns: int, parallel: bool) -> Trace:
    s = Schedule(dag)
    i, j, k = s.loops("C")
    io, ii = s.split(i, [None, rows])
    jo, ji = s.split(j, [None, columns])
    s.reorder(io, jo, k, ii, ji)
    if parallel:
        s.parallel(io)
    return s.trace


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_schedules_of_the_library_are_measured(threads: int) -> None:
    if threads > targets.usable_cpus():
        pytest.skip("needs two CPUs")
    dag = matmul(37, 53, 41)
    traces = [Trace(), *(blocked(dag, r, c, threads > 1) for r, c in ((4, 8), (5, 7), (1, 16)))]
    with Measurer(dag, targets.detect(threads)) as m:
        got = list(m.measure(traces))
        assert {x.status for x in got} <= {"ok", "slow"}, got
        assert all(x.error is not None and x.error < 1e-4 for x in got)
        final = m.finalists([t for t, x in zip(traces, got) if x.ok])
        assert final and all(x.ok for x in final)


@pytest.mark.slow
def test_a_trace_of_another_workload_is_illegal() -> None:
    dag = matmul(8, 8, 8)
    other = te.placeholder((8,), "float32", name="X")
    foreign = Schedule(te.dag([other, te.compute((8,), lambda i: other[i] + 1.0, name="Y")]))
    foreign.vectorize(foreign.loops("Y")[0])
    with Measurer(dag, targets.detect(1)) as m:
        bad, good = m.measure([foreign.trace, Trace()])
    assert (bad.status, good.status) == ("illegal", "ok"), bad
    assert bad.reason
