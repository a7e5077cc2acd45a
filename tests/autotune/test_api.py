"""Keywords of the Python interface: two forms of a budget, and what is said of keywords that do not exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import autotune as at
from autotune.tuning.options import TuneOptions

SHAPE: dict[str, Any] = {"m": 8, "n": 8, "k": 8, "threads": 1}
te = at.te
X = te.placeholder((4,), "float32", name="x")
PROGRAM = [X, te.compute((4,), lambda i: X[i] * 2.0, name="y")]


class Ran(Exception):
    """Carries the options that a run was started with."""


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., float]:
    """The seconds that `tune` and `tune_suite` are given by some keywords."""

    def run(task: Any, goal: Any, log: Any, options: TuneOptions, *rest: Any) -> None:
        raise Ran(options)

    monkeypatch.setattr("autotune.tuning.tuner.tune", run)
    monkeypatch.setattr("autotune.tuning.suite_tuner.tune_suite", run)

    def seconds(**budget: Any) -> float:
        found = []
        for call in (
            lambda: at.tune("matmul", **SHAPE, **budget),
            lambda: at.tune_suite([PROGRAM], **budget),
        ):
            with pytest.raises(Ran) as ran:
                call()
            found.append(ran.value.args[0].budget_s)
        assert found[0] == found[1]
        return float(found[0])

    return seconds


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, 60),
        ({"budget_s": 5}, 5),
        ({"budget": "90s"}, 90),
        ({"budget": "2m"}, 120),
        ({"budget": 1.5}, 1.5),
    ],
)
def test_a_budget_is_seconds_or_what_the_command_line_takes(
    given: dict[str, Any], seconds: float, tuned: Callable[..., float]
) -> None:
    assert tuned(**given) == seconds


CASES: list[tuple[Callable[[], object], type[at.AutotuneError], str]] = [
    (
        lambda: at.tune("matmul", **SHAPE, budget="5s", budget_s=5),
        at.SettingsError,
        "budget='5s' and budget_s=5 are both given; give one of them",
    ),
    (
        lambda: at.tune("matmul", **SHAPE, budget="soon"),
        at.SettingsError,
        "'soon' is not a duration; write it as",
    ),
    (
        lambda: at.tune_suite([PROGRAM], budget="0s"),
        at.SettingsError,
        "'0s' is zero; give a duration above zero",
    ),
    (
        lambda: at.tune("matmul", **SHAPE, budget=-1),
        at.SettingsError,
        "the budget is -1; it must be a positive",
    ),
    (
        lambda: at.tune("matmul", **SHAPE, budget_s="60s"),  # type: ignore[arg-type]
        at.SettingsError,
        "the budget is '60s', text; give seconds, or budget='60s'",
    ),
    (
        lambda: at.tune("matmul", **SHAPE, trial=3),
        at.WorkloadError,
        "matmul has no parameter 'trial' (did you mean 'trials'?); its parameters are m, n, k, ",
    ),
    (lambda: at.tune("matmul", M=8, n=8, k=8), at.WorkloadError, "no parameter 'M' (did you mean 'm'?)"),
    (lambda: at.load("matmul", **SHAPE, nearst=True), at.WorkloadError, "(did you mean 'nearest'?)"),
    (lambda: at.best("matmul", **SHAPE, layuot="x"), at.WorkloadError, "(did you mean 'layout'?)"),
    (
        lambda: at.load("matmul", **SHAPE, zzz=3),
        at.WorkloadError,
        "out_dtype; load also takes dtype, layout, constant_weights, target, threads, db, fallback",
    ),
    (
        lambda: at.tune(PROGRAM, trails=3),
        at.WorkloadError,
        "trails= given with tensors (did you mean 'trials'?)",
    ),
    (lambda: at.tune("matmul", **SHAPE, dtype="flaot32"), at.WorkloadError, "(did you mean 'float32'?)"),
    (
        lambda: at.tune("matmul", **SHAPE, search="evolution"),
        at.SettingsError,
        "(did you mean 'evolutionary'?)",
    ),
    (
        lambda: at.tune("matmul", **SHAPE, target="cudaa"),
        at.TargetError,
        "(did you mean 'cuda'?); known: cpu, ",
    ),
    (
        lambda: at.tune("conv2d", h=8, w=8, ci=4, co=4, k=3, layout="NWHC"),
        at.WorkloadError,
        "layout 'NWHC' is not one of NHWC, NCHW (did you mean 'NHWC'?)",
    ),
    (lambda: at.build(PROGRAM), at.ScheduleError, "build takes a Schedule, not a list"),  # type: ignore[arg-type]
    (lambda: at.load("matmul", **SHAPE, budget="2s"), at.WorkloadError, "'budget'; its parameters are m, n"),
    (lambda: at.Trace.from_json(3), at.TraceError, "malformed trace: the JSON object must be str"),  # type: ignore[arg-type]
    (lambda: at.Log(3), at.LogError, "the database is 3; give a path or a database URL"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "error", "message"), CASES, ids=[m for _, _, m in CASES])
def test_a_keyword_or_value_that_does_not_exist_is_answered_with_the_closest(
    call: Callable[[], object], error: type[at.AutotuneError], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()
