"""Names of users' own expressions: what is shown, where one is taken, and what a log keeps of several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cli_runner import run
from log_filler import host, split_schedule

import autotune as at
from autotune import te
from autotune.run import own_names
from autotune.run.describing import describe, tune_command
from autotune.run.workloads import as_workload, named
from autotune.tuning import tuner
from kernels_db import Log, NewRecord
from schedules.model import Workload


def expression(n: int = 40) -> list[te.Tensor]:
    x, y = (te.placeholder((n,), "float32", name) for name in "xy")
    return [x, y, te.compute((n,), lambda i: x[i] * y[i] + 1.0, "z")]


def store(db: Path, name: str | None, n: int = 40, time_s: float = 1e-6) -> Workload:
    """As `tune` stores a record of the expression."""
    workload = as_workload(expression(n), {})
    workload = workload if name is None else named(workload, name)
    with Log(db) as log:
        run = log.start_run(workload, host(), {"cpu": "a test"}, seed=0)
        log.add(NewRecord(run.uid, 0, "s", split_schedule(workload), "ok", times_s=(time_s,) * 3))
        log.finish_run(run)
    return workload


@pytest.mark.slow
def test_every_command_shows_the_name_and_takes_it(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    workload = store(db, "geglu")
    (task,) = run("log", "list", "--db", db, "--json").json["tasks"]
    assert task["op"] == "geglu" and task["workload"] == workload.digest
    assert "geglu" in run("log", "list", "--db", db).out
    best = run("best", "geglu", "--db", db)
    assert best.status == 0 and best.out.startswith("geglu of z[40] float32, 1 thread")
    rows = run("bench", "geglu", "--db", db, "--duration", "1ms", "--json").json["rows"]
    assert [(r["impl"], r["op"]) for r in rows] == [("autotune", "geglu")]
    said = run("bench", "geglu", "--db", db, "--duration", "1ms", "--against", "numpy").out
    assert "numpy is left out: it has no geglu." in said
    beaten = run("bench", "geglu", "--db", db, "--duration", "1ms", "--must-beat", "numpy")
    assert beaten.status == 2 and "no peer has geglu, your own expression" in beaten.err
    shaped = run("best", "geglu", "--shape", "n=40", "--db", db)
    assert shaped.status == 2 and "geglu is your own expression; leave out all but its name" in shaped.err


def test_a_name_that_is_nearly_right_is_suggested(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    store(db, "geglu")
    store(db, None, 41)  # which is called custom
    for command in ("best", "tune", "bench", "explain"):
        ran = run(command, "gelgu", "--db", db)
        none = f"unknown operator 'gelgu', and no expression of that name in {db}"
        assert ran.status == 2 and f"{none} (did you mean 'geglu'?)" in ran.err
    assert "'customs', and no expression of that name in" in run("best", "customs", "--db", db).err
    assert "(did you mean 'matmul'?)" in run("best", "matmull", "--db", db).err
    err = run("best", "gelgu", "--db", tmp_path / "none.db").err
    assert "none.db; autotune ops lists operators" in err and "did you mean" not in err


def test_a_kernel_has_the_name_that_the_log_knows(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    store(db, "geglu")
    assert repr(at.load(expression(), threads=1, db=db)).startswith("<Kernel geglu(x: float32[40], y")
    assert at.load(expression(), threads=1, db=db).workload.digest == as_workload(expression(), {}).digest


@pytest.mark.fast("names0", "names3")
@pytest.mark.parametrize("names", [[None, "geglu"], ["geglu", None], ["geglu", "aglu"], ["aglu", "geglu"]])
def test_a_name_is_kept_whatever_the_order(tmp_path: Path, names: list[str | None]) -> None:
    """In one log, and where logs are merged."""
    one, other, both = (tmp_path / f"{x}.db" for x in "abc")
    for name in names:
        store(both, name)
    for db, name in zip((one, other), names, strict=True):
        store(db, name)
    with Log(one) as log:
        log.merge(other)
    for db in (one, both):
        (task,) = run("log", "list", "--db", db, "--json").json["tasks"]
        assert task["op"] == "geglu"


def test_of_several_expressions_one_is_named_by_its_workload(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    small, large = store(db, "geglu"), store(db, "geglu", 80)
    refused = run("best", "geglu", "--db", db)
    assert refused.status == 2 and "2 expressions are called geglu" in refused.err
    assert f"geglu:{large.digest[:6]} (z[80])" in refused.err
    found = run("best", f"geglu:{small.digest[:6]}", "--db", db)
    assert found.status == 0 and "geglu of z[40]" in found.out
    assert "unknown operator 'gaglu'" in run("best", "gaglu", "--db", db).err


def test_a_log_cannot_give_a_library_name_to_an_expression(tmp_path: Path) -> None:
    """It may come from anywhere."""
    db = tmp_path / "t.db"
    workload = replace(as_workload(expression(), {}), op="softmax")
    with Log(db) as log:
        log.start_run(workload, host(), {"cpu": "a test"}, seed=0)
    assert own_names.shown(as_workload(expression(), {}), str(db)).op == "custom"
    assert own_names.find("softmax", str(db)) is None


NO_NAMES = {
    "matmul": "'matmul' is an operator of the library; give another name",
    "custom": "'custom' is what expressions without a name are",
    "a b": "is no name; give at most 100 letters, digits",
    "7up": "is no name",
    "x" * 101: "is no name",
    3: "name=3 is no name",
}


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_no_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(at.WorkloadError, match=NO_NAMES[name]):
        at.tune(expression(), name=name, db=tmp_path / "t.db")
    with pytest.raises(at.WorkloadError, match="matmul has a name; name= is for expressions of your own"):
        at.tune("matmul", m=2, n=2, k=2, name="mine", db=tmp_path / "t.db")


def test_words_for_an_expression() -> None:
    workload = as_workload(expression(), {})
    assert describe(workload) == "the expression of z[40] float32"
    assert tune_command(workload, "t.db", 1) == "autotune.tune(the same tensors, threads=1, db='t.db')"
    workload = named(workload, "geglu")
    assert describe(workload, 2) == "geglu of z[40] float32, 2 threads"
    assert tune_command(workload, "t.db", None) == "autotune.tune(the same tensors, name='geglu', db='t.db')"


def test_tune_passes_the_name_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "tune_jobs", lambda maker, *_, **__: {None: maker.workload})
    given = at.tune(expression(), name="geglu", db=tmp_path / "t.db")
    assert given == named(as_workload(expression(), {}), "geglu")
