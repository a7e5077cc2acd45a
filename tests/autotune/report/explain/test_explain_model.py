"""`at.explain` of a model: the kernels that take the time, by the records of a log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from log_filler import host
from model_cases import biased, graph_of, model_of, product
from said import said

import autotune as at
from autotune.models.in_place import context_of
from autotune.models.outline import workload_of
from autotune.models.preparation import prepared
from kernels_db.records import NewRecord
from kernels_db.store import Log
from schedules import te
from schedules.graph.graph import Group
from schedules.schedule import Schedule
from schedules.space import derive


def test_what_takes_the_time_what_bounds_it_and_what_fusing_saves(tmp_path: Path) -> None:
    x, w, v = (te.placeholder((16, 16), "float32", n) for n in "xwv")
    b = te.placeholder((16,), "float32", "b")
    y = biased(product(x, w, "xw"), b, "y")
    model = model_of(graph_of([x, w, b, v, product(y, v, "z")], {}))
    db = tmp_path / "t.db"
    with pytest.raises(
        at.KernelNotFound, match="is tuned for .* with 1 thread; tune them first: autotune tune"
    ):
        at.explain(model, threads=1, db=db)
    groups = [p for p in prepared(model).parts if isinstance(p, Group)]
    workloads = {w.digest: w for w in (workload_of(g.dag) for g in groups)}
    with Log(db) as log:
        for n, workload in enumerate(workloads.values()):
            run = log.start_run(workload, host(), {"cpu": "test"}, seed=0)
            trace = Schedule(workload.canonical).trace
            log.add(NewRecord(run.uid, 0, "by hand", trace, "ok", times_s=((n + 1) * 1e-6,)))
            log.finish_run(run)
    e = at.explain(model, threads=1, db=db)
    assert e.number("kernels", "tuned") == len(workloads) == e.number("kernels", "kernels")
    assert e.number("1", "time_s") == len(workloads) * 1e-6
    total = sum(range(len(workloads) + 1))
    assert e.number("time of kernels", "time_s") == pytest.approx(total * 1e-6)
    assert e.number("1", "share") == pytest.approx(len(workloads) / total)
    assert e.number("one stage each", "bytes") - e.number("as it is cut", "bytes") == e.number(
        "saved", "bytes"
    )
    assert e.number("saved", "bytes") == 2 * 16 * 16 * 4 * (3 - len(groups))  # written once and read once
    assert f"1 is bound by {e.number('1 is bound by', 'bound')} [estimate]" in said(e)
    assert "alone x 1" in said(e) and e.number("time of kernels", "inside") == 0


def test_times_inside_the_model_come_first(tmp_path: Path) -> None:
    """What was timed in place counts for this model only, and then the trace that was the fastest there."""
    x, w = (te.placeholder((16, 16), "float32", n) for n in "xw")
    b = te.placeholder((16,), "float32", "b")
    model = model_of(graph_of([x, w, b, biased(product(x, w, "xw"), b, "y")], {}))
    made = prepared(model)
    (workload,) = [workload_of(p.dag) for p in made.parts if isinstance(p, Group)]
    plain, split = Schedule(workload.canonical), Schedule(workload.canonical)
    split.split(split.loops(split.blocks()[0])[0], 4)
    db = tmp_path / "t.db"

    def add(context: str) -> None:
        times = {plain.trace.digest: 9e-6, split.trace.digest: 5e-6}
        told = {"model": context, "times_s": times, "chosen": split.trace.digest}
        with Log(db) as log:
            run = log.start_run(workload, host(), {"cpu": "test"}, seed=0, options={"in_place": told})
            for n, s in enumerate((plain, split)):
                log.add(NewRecord(run.uid, n, "by hand", s.trace, "ok", times_s=((n + 1) * 1e-6,)))
            log.finish_run(run)

    add("another model")
    assert at.explain(model, threads=1, db=db).number("1", "time_s") == 1e-6
    add(context_of(made.outline(lambda w: 1e-6)))
    e = at.explain(model, threads=1, db=db)
    assert (e.number("1", "time_s"), e.number("1", "inside")) == (5e-6, 1)
    assert "5 us inside the model x 1" in said(e) and "1 kernels timed inside the model, 0 alone" in said(e)


def test_the_instruction_that_adds_products_is_named(tmp_path: Path) -> None:
    a, w = te.placeholder((8, 32), "uint8", "a"), te.placeholder((32, 16), "int8", "w")
    k = te.reduce_axis(32, "k")
    y = te.compute((8, 16), lambda i, j: te.sum(te.cast(a[i, k] * w[k, j], "int32"), axis=k))
    model = model_of(graph_of([a, w, y], {}))
    (group,) = (p for p in prepared(model).parts if isinstance(p, Group))
    workload = workload_of(group.dag)
    target = replace(host(), features=(*host().features, "avx512vnni"))
    space = derive(workload.canonical, target)
    sketch = next(n for n, name in enumerate(space.sketches) if "vpdpbusd" in name)
    row = space.sample(sketch, 1, np.random.default_rng(0))[0]
    plain = Schedule(workload.canonical).trace
    for n, (trace, by) in enumerate(((plain, None), (space.trace(sketch, row), "vpdpbusd"))):
        db = tmp_path / f"{n}.db"
        with Log(db) as log:
            run = log.start_run(workload, host(), {"cpu": "test"}, seed=0)
            log.add(NewRecord(run.uid, 0, "by hand", trace, "ok", times_s=(1e-6,)))
            log.finish_run(run)
        told = said(at.explain(model, threads=1, db=db))
        assert ("1 adds products by vpdpbusd" in told) == (by is not None)
