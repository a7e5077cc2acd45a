"""Progress and results in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import autotune as at
from autotune import backends
from autotune.cli.results import cells, document
from autotune.results import text
from autotune.results.tuned import (
    Best,
    Progress,
    SuiteProgress,
    SuiteResult,
    SuiteTask,
    TaskResult,
    TuneResult,
)
from schedules.model import Trace
from schedules.units import disturbed, of_peak, peak_share

MATMUL = at.ops.workload("matmul", {"m": 100, "n": 100, "k": 100})
AT_WORK = Progress("measuring", 7, {"timeout": 1}, 3, 1e-4, 20.0, 0.5, 4.0, 10.0, None, stopped_early=2)
TARGET = backends.parse("x86-64-v3", 2)
RESULT = TuneResult(
    *(MATMUL, TARGET, Best(1e-4, 20.0, 0.5, Trace(), "r"), 9, {"crash": 1}, 0, 3.0, 0, "budget"),
    stopped_early=4,
)


def alone(p: Progress) -> SuiteProgress:
    """As of a suite of one task."""
    return SuiteProgress(0, 1, MATMUL, p, p.best_time_s, 1, p.measured, p.elapsed_s, p.budget_s)


def of_task(p: Progress) -> str:
    return text.standing({"": alone(p)}, alone=True)


def test_a_time_that_was_not_measured_again_is_marked() -> None:
    lucky = of_task(replace(AT_WORK, share_of_peak=1.05, provisional=True))
    assert "best 20.0 GFLOP/s (105.0 % of peak), provisional |" in lucky
    assert "provisional" not in of_task(AT_WORK)
    of_many = SuiteProgress(0, 2, MATMUL, AT_WORK, 1e-3, 2, 14, 4.0, 10.0)
    assert "weighted 1 ms |" in text.standing({"": of_many})
    assert "weighted 1 ms, provisional |" in text.standing({"": replace(of_many, provisional=True)})


def test_a_share_that_no_machine_reaches_is_not_printed() -> None:
    """It says that the peak was disturbed, wherever it would stand."""
    lucky = of_task(replace(AT_WORK, share_of_peak=1.93))
    assert "best 20.0 GFLOP/s (peak was disturbed when measured) |" in lucky
    result = replace(RESULT, best=Best(1e-4, 20.0, 1.93, Trace(), "r"))
    assert "20.0 GFLOP/s, peak was disturbed when measured; 9 trials" in str(result)
    assert "peak disturbed" in result._repr_html_() and cells(result)[2] == "peak disturbed"
    for words in (lucky, str(result), result._repr_html_()):
        assert "193" not in words
    found = document(result, result.target)["best"]
    assert (found["share_of_peak"], found["peak_disturbed"]) == (1.93, True)  # programs have both
    assert document(RESULT, RESULT.target)["best"]["peak_disturbed"] is False


def test_a_share_of_an_instruction_s_peak_names_it() -> None:
    lucky = of_task(replace(AT_WORK, peak_of="vpdpbusd"))
    assert "best 20.0 GFLOP/s (50.0 % of the peak of vpdpbusd) |" in lucky
    result = replace(RESULT, best=Best(1e-4, 20.0, 0.5, Trace(), "r", "vpdpbusd"))
    assert "20.0 GFLOP/s, 50.0 % of the peak of vpdpbusd; 9 trials" in str(result)
    assert "50.0 % of vpdpbusd" in result._repr_html_() and cells(result)[2] == "50.0 % of vpdpbusd"
    assert document(result, result.target)["best"]["peak_of"] == "vpdpbusd"
    assert "peak_of" not in document(RESULT, RESULT.target)["best"]
    disturbed = replace(RESULT, best=Best(1e-4, 20.0, 1.93, Trace(), "r", "vpdpbusd"))
    assert "20.0 GFLOP/s, the peak of vpdpbusd was disturbed when measured; 9" in str(disturbed)
    assert cells(disturbed)[2] == "peak disturbed"


@given(st.floats(0, 1e3) | st.none())
def test_every_share_up_to_108_percent_is_printed(share: float | None) -> None:
    cell = peak_share(share)
    assert (cell == "peak disturbed") == disturbed(share) == (share is not None and share > 1.08)
    if share is not None:
        assert of_peak(share) == (f"{cell} of peak" if share <= 1.08 else "peak was disturbed when measured")


def test_what_was_stopped_early_did_not_fail() -> None:
    line = of_task(AT_WORK)
    assert "7 trials + 3 resumed | 2 stopped early | failed: timeout 1 | 6 s left" in line
    assert "9 trials, 4 stopped early, failed: crash 1, 3.0 s (budget used)" in str(RESULT)


@pytest.mark.parametrize(
    "changed, share", [({}, 0.4), ({"trials": 10}, 0.7), ({"elapsed_s": 12.0}, 1.0), ({"budget_s": 0.0}, 1.0)]
)
def test_the_share_that_is_used(changed: dict[str, float], share: float) -> None:
    assert text.share(alone(replace(AT_WORK, **changed)), alone=True) == pytest.approx(share)  # type: ignore[arg-type]


def test_results_in_a_line() -> None:
    assert str(RESULT).startswith(
        "matmul m=100 n=100 k=100 float32, 2 threads: 100 us, 20.0 GFLOP/s, 50.0 % of peak; "
    )
    nothing = replace(RESULT, best=None, error="none of 9 trials gave a kernel")
    assert ": no valid kernel found, as none of 9 trials gave a kernel; 9 trials" in str(nothing)
    task = TaskResult(SuiteTask(MATMUL, 3.0, "mine"), RESULT, 2.0)
    suite = SuiteResult((task, replace(task, result=nothing)), None, 18, 6.0, 6.0, 0, "interrupted")
    words = "1 of 2 tasks have a kernel; 18 trials, failed: crash 2, 6.0 s"
    assert str(suite) == f"{words} (interrupted; everything measured is kept)"


def test_a_task_of_a_suite_is_shown_as_its_result_is() -> None:
    task = TaskResult(SuiteTask(MATMUL, 3.0, "mine"), RESULT, 2.0)
    assert task._repr_html_() == RESULT._repr_html_() and str(task) == repr(task)


def test_machines_have_a_line_each() -> None:
    one = SuiteProgress(0, 2, MATMUL, AT_WORK, 1e-3, 2, 14, 4.0, 10.0, machine="board\n7")
    other = replace(one, number=1, elapsed_s=5.0, machine="host")
    first, second, left = text.standing({p.machine: p for p in (one, other)}, alone=True).splitlines()
    assert first.startswith(r"board\n7: measuring 1 of 2, matmul m=100 n=100 k=100 float32, best 20.0")
    assert second.startswith("host: measuring 2 of 2, ") and left == "5 s left"


def test_tables_escape_what_a_log_says() -> None:
    evil = replace(MATMUL, op="<script>alert(1)</script>", params=())
    result = replace(RESULT, workload=evil, best=None, error="<img src=x>", notes=("<b>",))
    suite = SuiteResult((TaskResult(SuiteTask(evil, 1.0, "<i>"), result, 1.0),), None, 1, 1.0, 1.0, 0, "<u>")
    for shown in (result._repr_html_(), suite._repr_html_()):
        assert "&lt;script&gt;" in shown
        for tag in ("<script", "<img", "<b>", "<i>", "<u>"):
            assert tag not in shown
