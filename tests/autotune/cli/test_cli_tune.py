"""``autotune tune`` around a tuner that is made up: what reaches it, what is printed, which status."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cli_runner import run

import autotune as at
from autotune.cli import main
from autotune.cli.results import status
from autotune.results.tuned import Best, Progress, SuiteProgress, TuneResult
from autotune.tuning.options import TuneOptions
from kernels_db.store import Log
from schedules.model import Step, Target, Trace, Workload

PROGRESS = Progress(
    "searching", 12, {"timeout": 2}, 3, 1e-3, 1.0, 0.5, 10.0, 60.0, 100,
    pairwise=0.87, stopped_early=4, provisional=True,
)  # fmt: skip

Calls = list[tuple[Workload, Target, str, TuneOptions]]


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Calls]:
    """Puts a tuner in place that gives one answer; returns what it was called with."""

    def install(best: bool = True, stopped: str = "budget", signals: Sequence[int] = ()) -> Calls:
        calls: Calls = []

        def tune_jobs(maker: Any, place: Any, log: Log, progress: Any, **_: Any) -> dict[Target, TuneResult]:
            workload, target, options = maker.workload, place.target, maker.options
            calls.append((workload, target, str(log.path), options))
            progress(SuiteProgress(0, 1, workload, PROGRESS, None, 0, 12, 10.0, 60.0))
            for number in signals:
                with suppress(KeyboardInterrupt):  # as the tuner does
                    signal.raise_signal(number)
            trace = Trace((Step("split", (("factors", (None, 8)), ("loop", "i"))),))
            found = Best(1e-3, 0.001024, 0.5, trace, "ab12") if best else None
            result = TuneResult(
                *(workload, target, found, 12, {"timeout": 2}, 3, 10.5, options.seed, stopped),
                throttled={"HwSlowdown": 4},
                notes=("the best reaches 2% of the limit",),
                stopped_early=3,
            )
            return {target: result}

        monkeypatch.setattr("autotune.tuning.tuner.tune_jobs", tune_jobs)
        return calls

    return install


def test_options_reach_the_tuner(tuner: Callable[..., Calls], tmp_path: Path) -> None:
    calls = tuner()
    ran = run(
        *(
            "tune",
            "matmul",
            "--shape",
            "m=8,n=16,k=4",
            "--dtype",
            "float64",
            "--threads",
            "1",
            "--trials",
            "7",
        ),
        *(
            "--budget",
            "2m",
            "--search",
            "random",
            "--model",
            "random",
            "--seed",
            "5",
            "--db",
            tmp_path / "t.db",
        ),
    )
    assert ran.status == 0, ran.err
    ((workload, target, where, options),) = calls
    assert (workload.op, dict(workload.params)["n"], workload.dag.params[0].dtype) == (
        "matmul",
        16,
        "float64",
    )
    assert target.kind == "cpu" and target.threads == 1
    assert where == str(tmp_path / "t.db")
    assert options == TuneOptions(7, 120.0, "random", "random", 5)


def test_the_budget_counts_from_the_start_of_the_command(
    tuner: Callable[..., Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tuner()
    monkeypatch.setattr(sys, "argv", ["autotune", "tune", "matmul", "--shape", "m=8,n=8,k=8"])
    before = time.monotonic()
    with pytest.raises(SystemExit):
        main()
    ((_, _, _, options),) = calls
    assert options.started is not None and before <= options.started <= time.monotonic()


def test_defaults(tuner: Callable[..., Calls], own_places: Path) -> None:
    calls = tuner()
    assert run("tune", "matmul", "--shape", "m=8,n=8,k=8").status == 0
    ((_, target, where, options),) = calls
    assert options == TuneOptions(None, 60.0, "evolutionary", "xgb", 0)
    assert target.threads >= 1 and where == str(own_places / "tuning.db")


def test_json_has_what_is_promised_and_nothing_else_on_stdout(tuner: Callable[..., Calls]) -> None:
    tuner()
    ran = run("tune", "matmul", "--shape", "m=8,n=8,k=8", "--threads", "1", "--seed", "3", "--json")
    assert ran.status == 0 and ran.err == ""
    d = ran.json
    assert d["task"]["op"] == "matmul" and d["task"]["params"]["m"] == 8 and d["task"]["dtype"] == "float32"
    assert d["task"]["target"]["kind"] == "cpu" and d["task"]["target"]["threads"] == 1
    throttled = {"HwSlowdown": 4}
    counted = {"measured": 12, "failed": {"timeout": 2}, "stopped_early": 3, "resumed": 3}
    assert d["trials"] == counted | {"throttled": throttled}
    assert (
        d["best"]["time_s"] == 1e-3 and d["best"]["share_of_peak"] == 0.5 and d["best"]["record_id"] == "ab12"
    )
    assert Trace.from_json(json.dumps(d["best"]["trace"])).steps[0].primitive == "split"
    assert d["elapsed_s"] == 10.5 and d["seed"] == 3 and d["notes"] == ["the best reaches 2% of the limit"]


def test_json_has_a_number_for_each_axis(tuner: Callable[..., Calls]) -> None:
    tuner()
    ran = run("tune", "conv2d", "--shape", "h=8,w=8,ci=4,co=4,k=3,stride=2x1,padding=(1,0)", "--json")
    params = ran.json["task"]["params"]
    assert params["stride"] == [2, 1] and params["padding"] == [1, 0] and params["dilation"] == 1


def test_people_get_a_live_line_on_stderr_and_the_result_on_stdout(tuner: Callable[..., Calls]) -> None:
    tuner()
    ran = run("tune", "matmul", "--shape", "m=512,n=512,k=512", "--threads", "1")
    assert (
        "12/100 trials + 3 resumed" in ran.err and "failed: timeout 2" in ran.err and "50 s left" in ran.err
    )
    assert "268.4 GFLOP/s (50.0 % of peak), provisional" in ran.err and "4 stopped early" in ran.err
    assert "3 of them stopped early" in ran.out
    assert "matmul m=512 n=512 k=512 float32, 1 thread" in ran.out
    assert "1 ms, 268.4 GFLOP/s, 50.0 % of peak" in ran.out
    assert "throttled beside trials: HwSlowdown 4" in ran.out
    assert "note     the best reaches 2% of the limit" in ran.out
    assert "\x1b" not in ran.out + ran.err  # plain text in a pipe


def test_nothing_valid_found_is_status_1(tuner: Callable[..., Calls]) -> None:
    tuner(best=False)
    ran = run("tune", "matmul", "--shape", "m=8,n=8,k=8")
    assert ran.status == 1 and "no valid kernel found" in ran.out
    ran = run("tune", "matmul", "--shape", "m=8,n=8,k=8", "--json")
    assert ran.status == 1 and ran.json["best"] is None


def test_an_interrupted_run_prints_its_best(tuner: Callable[..., Calls]) -> None:
    tuner(stopped="interrupted")
    ran = run("tune", "matmul", "--shape", "m=8,n=8,k=8")
    assert ran.status == 0 and "interrupted; everything measured is kept" in ran.out and "ab12" in ran.out


def test_interrupted_before_there_is_a_kernel_is_status_130(tuner: Callable[..., Calls]) -> None:
    tuner(best=False, stopped="interrupted")
    ran = run("tune", "matmul", "--shape", "m=8,n=8,k=8")
    assert ran.status == 130 and "no valid kernel found" in ran.out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("best", [True, False])
def test_a_run_that_a_signal_ends_prints_its_best(
    tuner: Callable[..., Calls], number: signal.Signals, best: bool
) -> None:
    """Two signals at once are one: a supervisor may send both. The process of a test gets its handlers
    back."""
    before = [signal.signal(n, signal.SIG_DFL) for n in (signal.SIGTERM, signal.SIGHUP)]
    try:
        tuner(best=best, stopped="interrupted", signals=[number, signal.SIGHUP, signal.SIGTERM])
        ran = run("tune", "matmul", "--shape", "m=8,n=8,k=8")
    finally:
        for n, handler in zip((signal.SIGTERM, signal.SIGHUP), before, strict=True):
            signal.signal(n, handler)
    assert ran.status == 128 + number and ("ab12" in ran.out) == best
    assert "interrupted; everything measured is kept" in ran.out


@pytest.mark.parametrize(
    ("found", "stopped", "expected"),
    [
        ([True, True], "interrupted", 0),
        ([True, False], "interrupted", 1),
        ([False, False], "interrupted", 130),
        ([False, False], "budget", 1),
        ([], "budget", 0),
    ],
)
def test_the_status_of_many_tasks(found: list[bool], stopped: str, expected: int) -> None:
    results = [SimpleNamespace(best=object() if one else None) for one in found]
    assert status(results, stopped) == expected  # type: ignore[arg-type]


def test_a_log_that_cannot_be_made_is_refused(tuner: Callable[..., Calls], tmp_path: Path) -> None:
    calls = tuner()
    (tmp_path / "file").write_text("")
    ran = run("tune", "matmul", "--shape", "m=8,n=8,k=8", "--db", tmp_path / "file" / "t.db")
    assert ran.status == 2 and str(tmp_path / "file") in ran.err
    assert calls == []


def test_the_python_api_calls_the_same_tuner(tuner: Callable[..., Calls], tmp_path: Path) -> None:
    import autotune.api as api
    from schedules import te

    calls = tuner()
    seen: list[Progress] = []
    db = tmp_path / "t.db"
    result = api.tune("matmul", m=8, n=8, k=8, threads=1, trials=4, budget_s=1.0, db=db, progress=seen.append)
    assert result.best is not None and len(seen) == 1
    a = te.placeholder((7,), "float32", name="A")
    b = te.compute((7,), lambda i: a[i] + a[i], name="B")
    api.tune([a, b], threads=1, db=db, progress=seen.append)
    assert [c[0].op for c in calls] == ["matmul", "custom"]
    assert calls[0][3] == TuneOptions(4, 1.0, "evolutionary", "xgb", 0)
    assert calls[1][0].flops == 7


@pytest.mark.slow
def test_a_range_of_sizes_is_tuned(tmp_path: Path) -> None:
    db = str(tmp_path / "log.db")
    words = ("tune", "softmax", "--shape", "m=1..2,fixed,n=8", "--threads", "1", "--trials", "0", "--db", db)
    ran = run(*words, "--json")
    assert ran.status == 0 and ran.json["task"]["params"]["m"] == "1..2"
    assert [s["size"] for s in ran.json["sizes"]] == [{"m": 1}, {"m": 2}]
    assert all(s["best"]["time_s"] > 0 for s in ran.json["sizes"])
    shown = run(*words)
    assert shown.status == 0 and "softmax m=1..2 n=8 float32, 1 thread" in shown.out
    kernel = at.load("softmax", m=at.dim(1, 2), n=8, threads=1, db=db)
    assert np.allclose(kernel(np.zeros((2, 8), np.float32)), 1 / 8)
