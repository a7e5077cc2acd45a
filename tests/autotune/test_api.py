"""Keywords of the Python interface: two forms of a budget, and what is said of keywords that do not exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import autotune as at
from autotune.run.workloads import as_workload, with_constants

SHAPE: dict[str, Any] = {"m": 8, "n": 8, "k": 8, "threads": 1}
te = at.te
X = te.placeholder((4,), "float32", name="x")
PROGRAM = [X, te.compute((4,), lambda i: X[i] * 2.0, name="y")]


class Ran(Exception):
    """Carries the options that a run was started with."""


def matmul(*names: str) -> list[Any]:
    """A product of inputs of these names."""
    a, b = (te.placeholder((8, 8), "float32", name=n) for n in names)
    r = te.reduce_axis(8, "r")
    return [a, b, te.compute((8, 8), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "y")]


@pytest.fixture
def constants(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, ...]]]:
    """The constants of the tasks that `tune_suite` is given."""

    def run(maker: Any, *_: Any, **__: Any) -> None:
        raise Ran([t.workload.dag.constants for t in maker.tasks])

    monkeypatch.setattr("autotune.tuning.tuner.tune_jobs", run)

    def of(programs: Any, which: Any) -> list[tuple[str, ...]]:
        with pytest.raises(Ran) as ran:
            at.tune_suite(programs, constant_weights=which, threads=1)
        found: list[tuple[str, ...]] = ran.value.args[0]
        return found

    return of


def test_each_task_of_a_suite_has_constants_of_its_own(
    constants: Callable[..., list[tuple[str, ...]]], tmp_path: Path
) -> None:
    library = at.ops.workload("matmul", {"m": 8, "n": 8, "k": 8})
    stated = with_constants(as_workload(matmul("x", "w"), {}), ["w"])
    programs = [library, matmul("x", "w"), stated, matmul("p", "q")]
    assert constants(programs, [True, ("w",), False, "q"]) == [("b",), ("w",), ("w",), ("q",)]
    assert constants(programs, [False, [], True, ("q", "p")]) == [(), (), ("w",), ("p", "q")]
    assert constants(programs, False) == [(), (), ("w",), ()]
    assert constants([library, stated], True) == [("b",), ("w",)]
    file = tmp_path / "s.toml"
    file.write_text(
        '[[group]]\nsuite = "s"\nname = "g"\nop = "matmul"\nfields = ["m", "n", "k"]\n'
        "shapes = [[8, 8, 8], [8, 8, 16]]\n"
    )
    assert constants(file, [False, True]) == [(), ("b",)] and constants(file, True) == [("b",), ("b",)]


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ([True], r"constant_weights: 1 entries for 2 tasks; give True or False, or a list"),
        ("w", r"constant_weights: 'w' for 2 tasks; give True or False, or a list that has"),
        (None, r"constant_weights: None for 2 tasks"),
        ([False, ("v",)], r"task 1 \(custom\): constant_weights: 'v' is not an input; the inputs are x, w"),
        ([False, 3], r"task 1 \(custom\): constant_weights: 3 is no name of an input, True or False"),
        ([False, [True]], r"task 1 \(custom\): constant_weights: \[True\] is no name of an input"),
        (True, r"task 1 \(custom\): the expression has no weights of its own .* name the inputs that are"),
    ],
)
def test_wrong_constants_of_a_suite_name_the_task(which: Any, message: str) -> None:
    library = at.ops.workload("matmul", {"m": 8, "n": 8, "k": 8})
    with pytest.raises(at.WorkloadError, match=message):
        at.tune_suite([library, matmul("x", "w")], constant_weights=which)


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., float]:
    """The seconds that `tune` and `tune_suite` are given by some keywords."""

    def run(maker: Any, *_: Any, **__: Any) -> None:
        raise Ran(maker.options)

    monkeypatch.setattr("autotune.tuning.tuner.tune_jobs", run)

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
        "out_dtype; load also takes dtype, layout, constant_weights, strides, target, threads, db, fallback",
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
        "(did you mean 'cuda'?); or give a target's JSON file",
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
