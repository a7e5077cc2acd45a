"""Tuning sizes that vary: which sizes are chosen, what the log has then, and what a load makes of it."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import run
from hypothesis import given
from hypothesis import strategies as st
from made_up import MadeUp
from model_cases import Made

import autotune as at
from autotune import backends
from autotune.measure.process import MeasureError
from autotune.run.dynamic_workload import as_dynamic
from autotune.settings import SettingsError
from autotune.tuning import preparation
from autotune.tuning.dynamic_tuner import Range, more_sizes, sizes_for, spread
from autotune.tuning.options import TuneOptions
from autotune.tuning.site import Here
from autotune.tuning.tuner import OneMachine, tune_jobs
from kernels_db.errors import LogError
from schedules import te
from schedules.te.dims import dim


@given(lo=st.integers(1, 300), more=st.integers(0, 5000), number=st.integers(2, 20))
def test_sizes_are_spread_between_both_ends(lo: int, more: int, number: int) -> None:
    sizes = spread(dim(lo, lo + more), number)
    assert sizes == sorted(set(sizes)) and sizes[-1] == lo + more and len(sizes) <= number
    assert sizes[0] == lo or len(sizes) == 1
    doublings = math.log2((lo + more) / lo)
    widest = max((math.log2(b / a) for a, b in itertools.pairwise(sizes)), default=0.0)
    assert widest <= max(doublings / max(min(number, 1 + math.ceil(doublings)) - 1, 1), 1.0) * 1.01 + 1 / lo


def test_a_larger_budget_tunes_more_sizes() -> None:
    m, n = dim(1, 512), dim(1, 64)
    assert sizes_for([m], TuneOptions(budget_s=1)) == [(1,), (512,)]
    assert [len(sizes_for([m], TuneOptions(budget_s=s))) for s in (20, 60, 600)] == [2, 5, 10]
    assert sizes_for([m, n], TuneOptions(budget_s=30)) == [(1, 1), (1, 64), (512, 1), (512, 64)]


def test_further_sizes_fill_the_widest_gaps_until_there_are_none() -> None:
    m = dim(2, 9)
    assert list(more_sizes([m], [(2,), (9,)])) == [(4,), (6,), (3,), (7,), (5,), (8,)]
    both = set(more_sizes([dim(1, 3), dim(1, 4)], [(1, 1), (1, 4), (3, 1), (3, 4)]))
    assert {(2, 1), (2, 4), (1, 2), (3, 2)} <= both and len(both) == 3 * 4 - 4


def scaled(m: Any) -> list[te.Tensor]:
    x = te.placeholder((m, 3), name="x")
    return [x, te.compute((m, 3), lambda i, j: x[i, j] * 2.0, "y")]


@pytest.mark.slow
def test_sizes_are_tuned_and_loaded(tmp_path: Path) -> None:
    db = tmp_path / "log.db"
    given = {"m": at.dim(1, 40, "m", open=False), "n": 8, "k": 8}
    phases = []
    result = at.tune(
        "matmul", threads=1, trials=2, budget_s=8, db=db, progress=lambda p: phases.append(p.phase), **given
    )
    assert isinstance(result, at.DynamicResult) and result.best is not None and phases
    sizes = list(result.by_size)
    assert sizes[0] == (1,) and sizes[-1] == (40,) and len(sizes) == 2
    assert all(r.best is not None for r in result.by_size.values())
    assert result.measured == sum(r.measured for r in result.by_size.values()) > len(sizes)
    assert str(result).endswith(f"{len(sizes)} sizes have a kernel")

    best = at.build(result.schedule(), threads=1)
    assert np.array_equal(best(np.ones((40, 8), np.float32), np.eye(8, dtype=np.float32)), np.ones((40, 8)))

    kernel = at.load("matmul", threads=1, db=db, **given)
    assert isinstance(kernel, at.DynamicKernel) and list(kernel.sizes) == sizes
    rng = np.random.default_rng(0)
    for m in (1, 40, 7):
        a, b = (rng.integers(-4, 5, s).astype(np.float32) for s in ((m, 8), (8, 8)))
        assert np.array_equal(kernel(a, b), a @ b)
    assert (kernel.chosen_by, kernel.at(m=1).chosen_by) == ("log", "log")
    assert kernel.at(m=7).chosen_by in ("similar_shape", "model", "default")
    # another range of the same product sees those of its sizes that are tuned
    narrower = at.load("matmul", threads=1, db=db, m=at.dim(2, 40, open=False), n=8, k=8)
    assert list(narrower.sizes) == sizes[1:]  # type: ignore[attr-defined]
    assert at.load("matmul", threads=1, db=db, m=40, n=8, k=8).chosen_by == "log"


def test_without_a_kernel_there_is_no_schedule() -> None:
    w = at.ops.workload("matmul", {"m": 2, "n": 2, "k": 2})
    result = at.TuneResult(w, backends.parse("cpu", 1), None, 3, {"crash": 3}, 0, 1.0, 0, "budget")
    with pytest.raises(at.ScheduleError, match="no valid schedule of matmul was found; give the tuning"):
        result.schedule()


def result_of(measured: int, **more: Any) -> at.TuneResult:
    w = at.ops.workload("matmul", {"m": 2, "n": 2, "k": 2})
    return at.TuneResult(
        w, backends.parse("cpu", 1), None, measured, {"crash": 1}, 5, 1.5, 0, "budget", **more
    )


def failing(monkeypatch: pytest.MonkeyPatch, sizes: set[int], error: Exception) -> list[int]:
    """Has measuring these sizes fail. Returns the sizes that are begun."""
    begun: list[int] = []
    measurer = Here.measurer

    def measurer_of_some(self: Here, workload: Any, *given: Any, **more: Any) -> Any:
        begun.append(dict(workload.params)["m"])
        if begun[-1] in sizes:
            raise error
        return measurer(self, workload, *given, **more)

    monkeypatch.setattr(Here, "measurer", measurer_of_some)
    return begun


@pytest.mark.slow
@pytest.mark.parametrize(("size", "trials"), [(1, 0), (40, 1)])
def test_a_size_that_fails_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, trials: int
) -> None:
    picked = failing(monkeypatch, {size}, MeasureError("out of memory\nand more"))
    words = (
        "tune",
        "matmul",
        "--shape",
        "m=1..40,fixed,n=8,k=8",
        "--threads",
        1,
        "--budget",
        "6s",
        "--trials",
        trials,
    )
    ran = run(*words, "--db", tmp_path / "log.db", "--json")
    assert ran.status == 1 and picked == [40, 1]
    bad, good = sorted(ran.json["sizes"], key=lambda s: s["best"] is not None)
    assert bad["size"] == {"m": size} and bad["error"] == "out of memory\nand more"
    assert bad["stopped"] == "failed" and good["trials"]["measured"] >= 1
    table = run(*words[:-1], 0, "--db", tmp_path / "log.db")
    assert table.status == 1 and "error: out of memory\n" in table.out


def test_a_size_that_is_too_large_for_the_rest_of_the_budget_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = preparation.check_feasible

    def check_less(workload: Any, budget_s: float, memory: bool = True) -> None:
        if dict(workload.params)["m"] == 40:
            raise SettingsError("it alone would use up the budget")
        check(workload, budget_s, memory)

    monkeypatch.setattr(preparation, "check_feasible", check_less)
    given = {"m": at.dim(39, 40, open=False), "n": 8, "k": 8, "threads": 1, "db": tmp_path / "t.db"}
    result = at.tune("matmul", trials=1, budget_s=90, progress=None, **given)
    assert isinstance(result, at.DynamicResult)
    ended = {s: (r.stopped, r.measured) for s, r in result.by_size.items()}
    assert ended == {(39,): ("trials", 1), (40,): ("failed", 0)}
    assert "use up the budget" in str(result.by_size[(40,)].error)


def test_sizes_without_time_are_left_out(tmp_path: Path) -> None:
    """Two have a first pick however short the budget is."""
    dynamic = as_dynamic("matmul", {"m": dim(1, 64), "n": 8, "k": 8}, "float32", None, False, None)
    assert dynamic is not None
    options = TuneOptions(budget_s=1e-3, trials=1, search="random", model="analytic")
    with at.Log(tmp_path / "t.db") as log:
        made = Range(dynamic, log, options, 1e-3, sizes=[(1,), (8,), (64,)])
        place = OneMachine(backends.parse("cpu", 1), MadeUp(lambda workload: Made()))
        (result,) = tune_jobs(made, place, log).values()
    assert len(result.by_size) == 2 and (64,) in result.by_size
    assert all(r.best is not None for r in result.by_size.values())


def test_where_no_size_can_be_tuned_the_first_error_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"n": 2, "k": 2, "threads": 1, "db": tmp_path / "t.db", "progress": None}
    more["m"] = at.dim(1, 4096, open=False)
    picked = failing(monkeypatch, {*range(1, 4097)}, MeasureError("no process can be started"))
    with pytest.raises(MeasureError, match="no process can be started"):
        at.tune("matmul", budget_s=600, **more)
    assert picked[0] == 4096
    more["m"] = at.dim(4, 5, open=False)
    with pytest.raises(MeasureError):
        at.tune("matmul", budget_s=600, **more)
    picked = failing(monkeypatch, {5}, LogError("the disk is full"))
    with pytest.raises(at.LogError, match="disk is full"):
        at.tune("matmul", budget_s=600, **more)
    assert picked == [5]


@pytest.mark.slow
def test_an_expression_gets_first_picks(tmp_path: Path) -> None:
    db = tmp_path / "log.db"
    m = at.dim(1, 9, open=False)
    with pytest.raises(at.KernelNotFound, match=r"no tuned kernel of the expression of y\[9, 3\].*d0=1\.\.9"):
        at.load(scaled(m), db=db)
    result = at.tune(scaled(m), threads=1, trials=0, budget_s=2, db=db)
    assert result.stopped == "trials" and list(result.by_size) == [(1,), (9,)]  # type: ignore[attr-defined]
    kernel = at.load(scaled(m), threads=1, db=db)
    for n in (1, 9):
        assert np.array_equal(kernel(np.ones((n, 3), np.float32)), np.full((n, 3), 2.0))
    # the same expression under a number
    assert at.load(scaled(9), threads=1, db=db).chosen_by == "log"


def test_what_does_not_tell_its_size_is_refused() -> None:
    m = dim(1, 9, "m", open=False)
    x = te.placeholder((4,), name="x")
    with pytest.raises(at.WorkloadError, match=r"no extent of an input tells the size m=1\.\.9"):
        at.tune([x, te.compute((m, 4), lambda i, j: x[j])], budget_s=1)
    with pytest.raises(at.WorkloadError, match="m=4..4 does not vary; give the number 4"):
        at.tune("matmul", m=at.dim(4, 4, open=False), n=2, k=2)
    with pytest.raises(at.WorkloadError, match="m=1..4 is a size that varies"):
        at.best("matmul", m=at.dim(1, 4, open=False), n=2, k=2)
    with pytest.raises(at.WorkloadError, match="has no parameter 'q'"):
        at.tune("matmul", q=at.dim(1, 4, open=False), n=2, k=2)
