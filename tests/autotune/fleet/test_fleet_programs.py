"""Models and ranges of sizes on a fleet: what is tuned for which target, and not again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from fleet_cases import A, B, FakeSite, Rack
from model_cases import each_stage, layers, model_of
from needs import imported

import autotune as at
from autotune.models import preparation
from autotune.models.tuning import tune_model
from autotune.results.tuned import Best, DynamicResult, SuiteTask, TaskResult
from autotune.run.dynamic_workload import DynamicWorkload, as_dynamic
from autotune.tuning.dynamic_tuner import tune_range
from autotune.tuning.makers import with_error
from autotune.tuning.options import TuneOptions
from autotune.tuning.request import TuneRequest
from schedules.model import Target, Trace

imported("distributed")


@pytest.fixture(autouse=True)
def one_group_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "cut", each_stage)


def tuned_there(
    there: Rack, dynamic: DynamicWorkload, log: at.Log, options: TuneOptions
) -> Mapping[Target, DynamicResult]:
    asked = TuneRequest.of(options, None, None, log.path, there.address)
    return tune_range(dynamic, asked, log)


@pytest.mark.slow
def test_a_model_is_tuned_for_two_targets_and_not_again(there: Rack, tmp_path: Path) -> None:
    there.add("one", A)
    graph, _ = layers(4)
    db = tmp_path / "t.db"
    first = tune_model(model_of(graph), fleet=there.address, db=db, trials=2, search="random")
    assert list(first.by_target) == ["kind-a"] and first.target == A
    assert (first.measured, first.skipped, first.stopped) == (4, 0, "trials")
    assert [t.task.weight for t in first.tasks] == [4, 4] and first.in_place == ()

    there.add("two", B)
    both = tune_model(model_of(graph), fleet=there.address, db=db, trials=2, search="random")
    assert list(both.by_target) == ["kind-a", "kind-b"] and both.target is None
    assert (both.measured, both.skipped, both.stopped) == (4, 2, "trials")
    old, new = both.by_target["kind-a"], both.by_target["kind-b"]
    assert (old.measured, old.skipped, old.stopped) == (0, 2, "tuned")
    assert (new.measured, new.skipped, new.stopped) == (4, 0, "trials")
    assert {t.result.target for t in new.tasks} == {B} and len(both.tasks) == 4
    assert old.weighted_s == first.weighted_s and both.weighted_s == old.weighted_s + new.weighted_s

    again = tune_model(model_of(graph), fleet=there.address, target=["kind-b"], db=db, trials=2)
    assert (again.measured, again.skipped, again.stopped) == (0, 2, "tuned") and again.target == B


@pytest.mark.slow
def test_each_target_of_a_model_has_the_whole_budget(there: Rack, tmp_path: Path) -> None:
    there.add("one", A)
    there.add("two", B)
    graph, _ = layers(1)
    result = tune_model(
        model_of(graph), fleet=there.address, db=tmp_path / "t.db", budget_s=5, search="random"
    )
    assert {r.budget_s for r in result.by_target.values()} == {5.0} and result.budget_s == 5.0
    with at.Log(tmp_path / "t.db") as log:
        assert {r.options["share_s"] for r in log.runs()} == {2.5}


@pytest.mark.slow
def test_a_range_of_sizes_is_tuned_for_two_targets(there: Rack, tmp_path: Path) -> None:
    there.add("one", A)
    there.add("two", B)
    dynamic = as_dynamic("matmul", {"m": at.dim(1, 64), "n": 32, "k": 32}, "float32", None, False, None)
    assert dynamic is not None
    options = TuneOptions(trials=2, budget_s=40.0, search="random")
    with at.Log(tmp_path / "t.db") as log:
        found = tuned_there(there, dynamic, log, options)
    assert list(found) == [A, B]
    for target, result in found.items():
        assert isinstance(result, DynamicResult)
        assert list(result.by_size) == [(1,), (8,), (64,)] and result.measured == 6
        assert {r.target for r in result.by_size.values()} == {target}
        assert dict(result.workload.params)["m"] == 64

    tuned = at.tune(
        "matmul", m=at.dim(1, 64, open=False), n=32, k=32, fleet=there.address, db=tmp_path / "t.db",
        trials=2, budget_s=40.0, search="random",
    )  # fmt: skip
    assert isinstance(tuned, at.FleetResult) and list(tuned.by_target) == ["kind-a", "kind-b"]
    assert tuned.measured == 12
    assert all(isinstance(r, DynamicResult) for r in tuned.by_target.values())
    each = [r for one in tuned.by_target.values() for r in one.parts]
    assert list(tuned.parts) == each and len(each) == 6
    assert tuned.resumed == sum(r.resumed for r in each) and tuned.resumed > 0
    shown = tuned._repr_html_()
    assert shown.count("<td>kind-a</td>") == shown.count("<td>kind-b</td>") == 3
    assert tuned.report(tmp_path / "report.html").tasks == 6


def test_a_size_that_is_too_large_for_the_budget_costs_the_others_nothing(
    there: Rack, tmp_path: Path
) -> None:
    there.add("one", A)
    options = TuneOptions(trials=2, budget_s=5.0, search="random")

    def tuned(least: int, log: at.Log) -> DynamicResult:
        sizes = {"m": at.dim(least, 1 << 20, open=False), "n": 1 << 10, "k": 1 << 10}
        dynamic = as_dynamic("matmul", sizes, "float32", None, False, None)
        assert dynamic is not None
        (result,) = tuned_there(there, dynamic, log, options).values()
        assert isinstance(result, DynamicResult)
        return result

    with at.Log(tmp_path / "t.db") as log:
        small, large = tuned(1, log).by_size.values()
        assert small.measured == 2 and small.error is None
        assert (large.stopped, large.measured) == ("failed", 0) and "use up the budget" in str(large.error)
        with pytest.raises(at.SettingsError, match="use up the budget of 5 s"):
            tuned(1 << 19, log)


def test_an_error_beside_a_kernel_is_a_note() -> None:
    """A result has an error where it has no kernel, and else none."""
    workload = at.ops.workload("add", {"n": 64})
    none = at.TuneResult(workload, A, None, 0, {}, 0, 1.0, 0, "failed", error="no trial was made")
    some = replace(none, best=Best(1e-3, 1.0, None, Trace(), "0"), error=None, notes=("it is small",))
    gone = "no worker of the fleet offers kind-a any more"
    assert with_error(TaskResult(SuiteTask(workload), none, 1.0, gone)).error == gone
    assert with_error(TaskResult(SuiteTask(workload), none, 1.0)).error == "no trial was made"
    found = with_error(TaskResult(SuiteTask(workload), some, 1.0, gone))
    assert found.error is None and found.notes == ("it is small", f"it ended early: {gone}")


def test_a_size_that_fails_is_told_of_its_own(there: Rack, tmp_path: Path) -> None:
    def during(trace: Trace) -> None:
        raise RuntimeError("no memory")

    there.add("one", A, site=FakeSite(during=during))
    dynamic = as_dynamic("matmul", {"m": at.dim(1, 4), "n": 8, "k": 8}, "float32", None, False, None)
    assert dynamic is not None
    options = TuneOptions(trials=2, budget_s=20.0, search="random")
    with at.Log(tmp_path / "t.db") as log:
        (result,) = tuned_there(there, dynamic, log, options).values()
    assert isinstance(result, DynamicResult) and result.best is None
    assert all("no memory" in str(r.error) for r in result.by_size.values())
