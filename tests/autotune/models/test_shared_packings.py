"""Kernels of programs of several sizes that read weights in one layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from open_cases import sampled
from open_graphs import inputs_at, size
from test_open_models import close
from test_tuned_open_models import model_of

import autotune as at
from autotune.backends import parse
from autotune.models import shared_packing
from autotune.models.model import Model
from autotune.models.preparation import prepared_programs
from kernels_db.records import NewRecord
from kernels_db.store import Log
from schedules.graph.graph import Graph
from schedules.model import Trace, Workload

HERE = parse("cpu", 1)
WIDE, NARROW = (3, 32, 32), (6, 32, 16)  # panels of 96 columns, as they are packed


def product(n: Any) -> Graph:
    b = cases.Builder(0)
    return b.graph(cases.dense(b, b.input("x", n, 32), 96, "up", bias=False))


@pytest.fixture(scope="module")
def model() -> Model:
    return model_of(product(size(1, 16))).with_own_sizes(n=1)


class OfTask:
    """What a layout is asked of."""

    def __init__(self, workload: Workload) -> None:
        self.workload, self.target = workload, HERE


@pytest.fixture(scope="module")
def traces(model: Model) -> list[tuple[Workload, dict[Any, Trace]]]:
    """Of the task of all sizes and of that of one: a schedule for each shape of the packed weight."""
    found = []
    for p in prepared_programs(model):
        (workload,) = p.outline(lambda w: None).tasks
        packed: dict[Any, Trace] = {}
        for trace in sampled(workload.canonical, 60, HERE):
            of: Any = OfTask(workload)
            layout = shared_packing._layouts(of, trace, [1])[1]
            packed.setdefault(layout[0][0] if layout else None, trace)
        found.append((workload, packed))
    return found


def logged(path: Path, traces: Any, times: list[dict[Any, float]]) -> Path:
    """A log with these times (seconds) of the two tasks, by the shape of the packed weight."""
    with Log(path) as log:
        for (workload, packed), each in zip(traces, times, strict=True):
            run = log.start_run(workload, HERE, {}, seed=0, options={})
            for n, (shape, time_s) in enumerate(each.items()):
                log.add(NewRecord(run.uid, n, "s", packed[shape], "ok", times_s=[time_s]))
            log.finish_run(run)
    return path


@pytest.mark.parametrize(
    ("times", "shapes"),
    [
        ([{WIDE: 1.0, NARROW: 1.02}, {NARROW: 1.0}], [NARROW, NARROW]),
        ([{WIDE: 1.0}, {NARROW: 1.0, WIDE: 1.01}], [WIDE, WIDE]),
        ([{WIDE: 1.0, NARROW: 1.02}, {NARROW: 1.0, WIDE: 1.01}], [WIDE, WIDE]),  # the least loss
        ([{WIDE: 1.0, NARROW: 1.04}, {NARROW: 1.0, WIDE: 1.05}], [WIDE, NARROW]),  # which costs too much
        ([{WIDE: 1.0, NARROW: 1.0}, {WIDE: 1.0, NARROW: 1.0}], [WIDE, WIDE]),
        ([{None: 1.0, NARROW: 1.01}, {NARROW: 1.0}], [NARROW, NARROW]),
    ],
)
def test_a_layout_of_both_is_taken_where_it_costs_little(
    model: Model, traces: Any, tmp_path: Path, times: Any, shapes: Any
) -> None:
    net = at.compile_model(model, threads=1, db=logged(tmp_path / "t.db", traces, times))
    held = [[a.shape for a in p.weights.values()] for p in net.programs]
    assert held == [[shapes[0]], [shapes[1]]]
    each = [p.weights_bytes for p in net.programs]
    assert net.weights_bytes == (each[0] if shapes[0] == shapes[1] else sum(each))
    graph = product(size(1, 16))
    for n in (1, 5, 16):
        arrays = inputs_at(graph, {"n": n})
        close(net(*arrays), evaluate(graph, arrays))
    other = {name: value + np.float32(1) for name, value in model.graph.values.items()}
    net.load_weights(other)
    assert net.weights_bytes == (each[0] if shapes[0] == shapes[1] else sum(each))


def test_what_is_pinned_stays(model: Model, traces: Any, tmp_path: Path) -> None:
    db = logged(tmp_path / "t.db", traces, [{WIDE: 1.0, NARROW: 1.01}, {NARROW: 1.0, WIDE: 1.01}])
    with Log(db) as log:
        log.pin()
    net = at.compile_model(model, threads=1, db=db)
    assert [[a.shape for a in p.weights.values()] for p in net.programs] == [[WIDE], [NARROW]]
