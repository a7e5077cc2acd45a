"""What a user gets shows itself in a line, schedules as their loop nests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import autotune as at
from schedules.model import Trace

LONGEST = 200


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    db = tmp_path_factory.mktemp("log") / "t.db"
    sizes = {"m": 16, "n": 16, "k": 16}
    every: list[Any] = []
    result = at.tune("matmul", **sizes, threads=1, trials=2, budget_s=120, db=db, progress=every.append)
    suite: list[Any] = []
    many = at.tune_suite(
        [at.ops.workload("matmul", sizes)], threads=1, trials=1, budget_s=120, db=db, progress=suite.append
    )
    kernel = at.load("matmul", **sizes, threads=1, db=db)
    with at.Log(db) as log:
        record = log.best(kernel.workload, kernel.target)
        objects = {"log": log, "record": record}
    schedule = result.schedule()
    return objects | {
        "result": result, "best": result.best, "trials": result.trials, "progress": every[-1],
        "suite": many, "task": many.tasks[0], "suite task": many.tasks[0].task, "suite progress": suite[-1],
        "kernel": kernel, "workload": kernel.workload, "target": kernel.target, "trace": kernel.trace,
        "schedule": schedule, "dag": schedule.dag, "nest": schedule.nest,
    }  # fmt: skip


@pytest.mark.slow
def test_reprs_are_a_short_line(shown: dict[str, Any]) -> None:
    for name, x in shown.items():
        line = repr(x)
        assert len(line) <= LONGEST and "\n" not in line and " object at " not in line, (name, line)
        assert type(x).__name__ in line, (name, line)


def test_results_print_in_a_line(shown: dict[str, Any]) -> None:
    for name in ("result", "suite"):
        assert len(str(shown[name])) <= LONGEST and "\n" not in str(shown[name])


def test_a_schedule_prints_its_loop_nest(shown: dict[str, Any]) -> None:
    nest = str(shown["schedule"])
    assert "for " in nest and len(nest.splitlines()) > 5
    html = shown["schedule"]._repr_html_()
    assert (html.startswith("<pre>") and "&lt;" in html) or "<" not in nest
    assert "loop nest" in shown["result"]._repr_html_()


def test_a_trace_prints_a_step_a_line(shown: dict[str, Any], tmp_path: Path) -> None:
    lines = str(shown["trace"]).splitlines()
    assert len(lines) == len(shown["trace"].steps)
    text = '{"steps": [["split", {"factors": [null, 8], "loop": "<i>"}]], "version": 1}'
    trace = Trace.from_json(text)
    assert str(trace) == "split(factors=[None, 8], loop='<i>')"
    assert trace._repr_html_() == "<pre>split(factors=[None, 8], loop=&#x27;&lt;i&gt;&#x27;)</pre>"
