"""What the tests of the tuning log share: small workloads, targets, traces and logs of them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernels_db import Log, LogError, NewRecord, Record, lookup, store
from schedules import expr as E
from schedules import te
from schedules.model import Step, Target, Trace, Workload
from schedules.te.compute_dag import Axis, ComputeDAG, Stage, Tensor

MACHINE = {"cpu": "Test CPU", "cores": 2, "os": "Linux"}
TARGETS = (Target("cpu", "znver3", threads=1), Target("cpu", "znver3", threads=2), Target("cuda", "sm_90"))


def anywhere(_: Target) -> bool:
    """A lookup's condition: any target will do."""
    return True


def copy_of(n: int, op: str = "copy") -> Workload:
    """B[i] = A[i] for i < n."""
    a, b = Tensor("A", (n,), "float32"), Tensor("B", (n,), "float32")
    stage = Stage((b,), (Axis("i", n),), (), (E.Load("A", (E.Var("i"),), "float32"),))
    return Workload(ComputeDAG((a,), (stage,), ("B",)), op, (("n", n),), n)


def long_sum(terms: int, elements: int = 8) -> Workload:
    """B[i] = the sum of so many terms of A, which has few elements."""
    a, k = te.placeholder((elements,), name="A"), te.reduce_axis(terms, name="k")
    dag = te.dag([a, te.compute((4,), lambda i: te.sum(a[k % elements], axis=k), name="B")])
    return Workload(dag, "custom", (), 4 * terms)


def trace(i: int) -> Trace:
    return Trace((Step("split", (("factors", (i, 4)), ("loop", "i"))), Step("vectorize", (("loop", "i1"),))))


def moment(i: int) -> str:
    """The ``i``-th microsecond of 2026."""
    return f"2026-01-01T00:00:00.{i:06d}Z"


def measured(run: str, i: int, **change: Any) -> NewRecord:
    """Trial ``i``: trace ``i``, ok, made at moment ``i``, unless changed."""
    fields: dict[str, Any] = {
        "run": run,
        "trial": i,
        "sketch": "tile",
        "trace": trace(i),
        "status": "ok",
        "times_s": [1e-3 + 1e-6 * i, 2e-3, 3e-3],
        "environment": {"runtime": "1", "reference_hz": 3.5e9 + i},
        "created": moment(i),
    } | change
    return NewRecord(**fields)


def fill(log: Log, n: int, workload: Workload | None = None, target: Target = TARGETS[0]) -> list[Record]:
    """One run of ``n`` trials, every fifth a failure, and a final of trial 0."""
    run = log.start_run(workload or copy_of(8), target, MACHINE, seed=7, options={"trials": n}).uid
    made = []
    for i in range(n):
        failed: dict[str, Any] = (
            {"status": "crash", "reason": "signal 11", "times_s": ()} if i % 5 == 4 else {}
        )
        made.append(log.add(measured(run, i, **failed)))
    made.append(log.add(measured(run, 0, kind="final", created=moment(n))))
    log.finish_run(run)
    return made


def add(log: Log, what: Workload | Target) -> None:
    """Store a workload or a target without a run."""
    line = store._workload_line(what) if isinstance(what, Workload) else store._target_line(what)
    with log._write() as con:
        log._put(con, line)


def exported(log: Log) -> str:
    return "".join(log.export_lines())


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for one example of a property test (a fixture would serve all of them)."""
    folder = Path(tempfile.mkdtemp(prefix="log"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def every_way_in(path: Path | str) -> list[Callable[[], object]]:
    """Opening for writing, for reading, for loading a kernel, and as the source of a merge."""

    def merge() -> None:
        with tempfile.TemporaryDirectory() as folder, Log(Path(folder) / "x.db") as log:
            log.merge(path)

    return [
        lambda: Log(path).close(),
        lambda: Log(path, read_only=True).close(),
        lambda: lookup.best(path, copy_of(8).digest, anywhere),
        merge,
    ]


def refused(path: Path | str, message: str, ways: slice = slice(None)) -> None:
    for way in every_way_in(path)[ways]:
        with pytest.raises(LogError, match=message):
            way()
