"""Which runs of a log go on, and which were killed before they could say so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_runner import run
from log_cases import TARGETS, copy_of

from autotune.tuning import run_state
from autotune.tuning.options import TuneOptions
from autotune.tuning.run_records import run_options
from kernels_db import Log, NewRecord
from kernels_db.records import Run
from schedules.model import Trace

WORKLOAD, TARGET = copy_of(64), TARGETS[0]
HERE = run_state.own_process()
needs_proc = pytest.mark.skipif(HERE is None, reason="the system does not tell when a process began")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "t.db") as opened:
        yield opened


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def made(began_s: float, options: Mapping[str, Any], state: str = "running") -> Run:
    return Run("u", "w", "t", "m", 0, options, ago(began_s), None, state)


@needs_proc
def test_a_run_of_this_process_goes_on_however_long_it_is_silent(log: Log) -> None:
    run_ = log.start_run(WORKLOAD, TARGET, {}, seed=0, options=run_options(TuneOptions(budget_s=1.0)))
    assert run_state.state_of(replace(run_, started=ago(1e6)), ago(1e6)) == "running"


@needs_proc
def test_a_run_whose_process_is_gone_was_killed(log: Log) -> None:
    """At once: its budget is not waited for."""
    code = "from autotune.tuning.run_state import own_process as own; import json; print(json.dumps(own()))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    import json

    options = run_options(TuneOptions(budget_s=1e6)) | {run_state.PROCESS: json.loads(told)}
    run_ = log.start_run(WORKLOAD, TARGET, {}, seed=0, options=options)
    assert run_state.state_of(run_, run_.started) == run_state.KILLED
    assert run_state.states(log) == {run_state.KILLED: 1}


@needs_proc
@pytest.mark.parametrize(
    "wrong",
    [
        {"began": 1},
        {"began": None},
        {"pid": 2**31, "began": None},
        {"pid": -1},
        {"pid": 0},
        {"pid": 2**70},
        {"pid": "1"},
        {"pid": True},
    ],
)
def test_the_number_of_another_process_is_not_taken_for_it(wrong: dict[str, object]) -> None:
    """Numbers are given again; and a log may come from anywhere."""
    assert HERE is not None
    options = {"process": HERE | wrong, "budget_s": 1e6}
    assert run_state.state_of(made(0.0, options), ago(0.0)) == run_state.KILLED


@pytest.mark.parametrize(
    ("began_s", "last_s", "budget_s", "goes_on"),
    [
        (10.0, 5.0, 60.0, True),
        (10.0, 10.0, None, True),
        (5000.0, 4000.0, 4900.0, True),  # its budget is not long over
        (5000.0, 100.0, 60.0, True),  # a trial just now
        (5000.0, 4000.0, 60.0, False),
        (5000.0, 4000.0, None, False),
        (5000.0, 4000.0, "endless", False),
        (5000.0, 4000.0, 1e300, False),
        (5000.0, 4000.0, [1], False),
    ],
)
@pytest.mark.parametrize("process", [{}, {"process": {"where": "another machine", "pid": 1, "began": 2}}])
def test_elsewhere_silence_tells(
    began_s: float, last_s: float, budget_s: Any, goes_on: bool, process: dict[str, Any]
) -> None:
    state = run_state.state_of(made(began_s, {"budget_s": budget_s} | process), ago(last_s))
    assert state == ("running" if goes_on else run_state.KILLED)


@pytest.mark.parametrize("state", ["done", "interrupted", "failed"])
def test_a_run_that_was_closed_is_in_the_state_that_it_said(state: str) -> None:
    assert run_state.state_of(made(1e6, {}, state), ago(1e6)) == state


@pytest.mark.slow
@needs_proc
def test_the_command_line_tells_them_apart(log: Log) -> None:
    assert HERE is not None
    for began, state in ((HERE["began"], None), (1, None), (1, None), (1, "interrupted"), (1, "done")):
        options = {"process": HERE | {"began": began}, "budget_s": 60.0}
        made = log.start_run(WORKLOAD, TARGET, {}, seed=0, options=options)
        log.add(NewRecord(made.uid, 0, "s", Trace(), "ok", times_s=(1e-5,)))
        if state is not None:
            log.finish_run(made, state)
    told = {"done": 1, "interrupted": 1, "killed": 2, "running": 1}
    assert run("log", "stats", "--db", log.path, "--json").json["runs_by_state"] == told
    assert "killed 2, done 1, interrupted 1, running 1" in run("log", "stats", "--db", log.path).out
    (task,) = run("log", "list", "--db", log.path, "--json").json["tasks"]
    assert task["open_runs"] == {"killed": 2, "running": 1}
    assert "open runs: killed 2, running 1" in run("log", "list", "--db", log.path).out


def test_the_last_sign_of_life_is_the_last_record(log: Log) -> None:
    made = log.start_run(WORKLOAD, TARGET, {}, seed=0)
    assert log.open_runs() == [(made, made.started)]
    last = log.add(NewRecord(made.uid, 0, "s", Trace(), "ok", times_s=(1e-5,)))
    assert log.open_runs() == [(made, last.created)]
    log.finish_run(made)
    assert log.open_runs() == [] and log.runs_by_state() == {"done": 1}


def test_what_names_a_process_names_nothing_else() -> None:
    """Logs are given away."""
    if HERE is not None:
        assert set(HERE) == {"where", "pid", "began"} and HERE["pid"] == os.getpid()
        assert len(str(HERE["where"])) == 16 and os.uname().nodename not in str(HERE)
