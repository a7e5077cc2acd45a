"""``autotune log verify``: stored records, checked and timed again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from cli_runner import run
from fleet_cases import A, FakeSite
from log_cases import copy_of, long_sum
from log_filler import host

import autotune as at
from autotune.backends.building.generator_version import this_machine
from autotune.measure import Measurer
from autotune.measure.process import MeasureError
from autotune.measure.results import Measurement
from autotune.tuning.recheck import verify
from kernels_db.records import NewRecord
from kernels_db.store import Log
from schedules import ops
from schedules.model import Step, Target, Trace, Workload

MATMUL = {"m": 8, "n": 8, "k": 8}


def store(
    db: Path,
    trace: Trace,
    time_s: float,
    target: Target,
    op: str = "matmul",
    machine: Mapping[str, Any] = MappingProxyType({"cpu": "test"}),
) -> None:
    workload = ops.workload(op, MATMUL if op == "matmul" else {"m": 4, "n": 8})
    with Log(db) as log:
        session = log.start_run(workload, target, dict(machine), seed=0)
        log.add(NewRecord(session.uid, 0, "by hand", trace, "ok", times_s=(time_s,)))
        log.finish_run(session)


@pytest.mark.slow
def test_a_true_record_is_ok_and_a_flattering_one_is_slower(tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    store(db, Trace(), 1.0, host())
    store(db, Trace(), 1e-12, host(), "softmax")
    ran = run("log", "verify", "--db", db, "--json")
    assert ran.status == 0
    found = {r["task"].split()[0]: r for r in ran.json["records"]}
    assert {k: ran.json[k] for k in ("checked", "ok", "slower", "wrong", "failed")} == {
        "checked": 2, "ok": 1, "slower": 1, "wrong": 0, "failed": 0,
    }  # fmt: skip
    assert found["matmul"]["status"] == "ok" and 0 < found["matmul"]["time_s"] < 1
    assert "times its stored time" in found["softmax"]["reason"]


@pytest.mark.slow
def test_a_trace_that_is_not_legal_fails_with_its_reason(tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    s = at.Schedule(ops.workload("matmul", {"m": 8, "n": 8, "k": 8, "transpose_b": 1}).dag)
    s.reorder(*reversed(s.loops("c")))
    s.split(s.loops("c")[0], (2, None))
    bad = Trace((*s.trace.steps, *s.trace.steps))
    store(db, bad, 1e-3, host())
    ran = run("log", "verify", "--db", db)
    assert ran.status == 1
    assert "failed" in ran.out and "matmul" in ran.out


def test_records_for_other_machines_are_left_out(tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    store(db, Trace(), 1e-3, Target("cpu", "a64fx", "aarch64-unknown-linux-gnu", ("sve",), 1))
    with Log(db) as log:
        assert list(verify(log)) == []
    assert "none can run here" in run("log", "verify", "--db", db).out


@pytest.mark.slow
def test_what_is_found_is_noted_and_the_mark_of_an_import_is_lifted(tmp_path: Path) -> None:
    there, db = tmp_path / "there.db", tmp_path / "tuning.db"
    store(there, Trace(), 1.0, host())
    run("log", "merge", there, "--db", db)
    words = ("best", "matmul", "--shape", "m=8,n=8,k=8", "--threads", 1, "--db", db)
    listed = ("log", "list", "--db", db)
    origin = run(*words, "--json").json["origin"]
    assert origin["elsewhere"] and origin["cpu"] == "test" and origin["imported"] and not origin["verified"]
    assert "from elsewhere (test), not verified here" in run(*words).out
    assert "elsewhere: test" in run(*listed).out
    before = run("log", "stats", "--db", db, "--json").json
    run("log", "export", tmp_path / "before.jsonl", "--db", db)
    assert run("log", "verify", "--db", db).status == 0
    assert run("log", "stats", "--db", db, "--json").json == before
    run("log", "export", tmp_path / "after.jsonl", "--db", db)
    assert (tmp_path / "after.jsonl").read_bytes() == (tmp_path / "before.jsonl").read_bytes()
    origin = run(*words, "--json").json["origin"]
    assert not origin["elsewhere"] and origin["verified"]
    assert "elsewhere" not in run(*words).out and "verified here" in run(*listed).out
    assert run(*listed, "--json").json["tasks"][0]["origin"] == origin


def test_a_log_that_comes_back_is_from_here(tmp_path: Path) -> None:
    own, db = tmp_path / "own.db", tmp_path / "tuning.db"
    store(own, Trace(), 1.0, host(), machine=this_machine())
    run("log", "export", tmp_path / "own.jsonl", "--db", own)
    run("log", "import", tmp_path / "own.jsonl", "--db", db)
    words = ("best", "matmul", "--shape", "m=8,n=8,k=8", "--threads", 1, "--db", db)
    origin = run(*words, "--json").json["origin"]
    assert not origin["elsewhere"] and origin["imported"] and not origin["verified"]
    assert "elsewhere" not in run(*words).out
    assert run("log", "list", "--db", own).out.splitlines()[1].endswith(" here")
    assert run("log", "list", "--db", db).out.splitlines()[1].endswith(" here, imported")


@pytest.mark.slow
def test_what_fails_is_taken_no_longer_until_it_holds(tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    bad = at.Trace((Step("unroll", (("loop", "nowhere"),)),))
    store(db, bad, 1e-9, host())
    store(db, Trace(), 1.0, host())
    ran = run("log", "verify", "--db", db, "--json")
    assert (ran.status, ran.json["failed"]) == (1, 1)
    assert at.best("matmul", **MATMUL, threads=1, db=db).trace_json == Trace().to_json()  # without a warning
    again = run("log", "verify", "--db", db, "--json").json  # it is tried again, with what is best now
    assert (again["checked"], again["failed"], again["ok"]) == (2, 1, 1)


def test_what_measuring_could_not_find_out_is_held_against_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = tmp_path / "tuning.db"
    store(db, Trace(), 1.0, host())
    lost = Measurement("error", "building needs more memory than it may have")
    monkeypatch.setattr(Measurer, "arrivals", lambda self, traces: enumerate([lost for _ in traces]))
    ran = run("log", "verify", "--db", db, "--json")
    assert (ran.status, ran.json["checked"], ran.json["skipped"]) == (0, 0, 1)
    assert ran.json["records"][0]["reason"] == lost.reason
    assert at.best("matmul", **MATMUL, threads=1, db=db).origin.verified == {}  # type: ignore[union-attr]


def test_what_a_machine_cannot_measure_is_skipped_and_the_rest_checked(tmp_path: Path) -> None:
    """Such as arrays that do not fit in its memory. If nothing can be measured here, that is an error."""
    db = tmp_path / "tuning.db"
    store(db, Trace(), 1.0, A)
    store(db, Trace(), 1.0, A, "softmax")

    class Small(FakeSite):
        def measurer(self, workload: Workload, *_: Any, **__: Any) -> Any:
            made = super().measurer()
            if workload.op == "softmax":
                made.arrivals = refuse
            return made

    def refuse(traces: Any) -> Any:
        raise MeasureError("board-7: 3 GiB of memory are free; use smaller sizes")

    with Log(db) as log, pytest.MonkeyPatch.context() as patch:
        for site in (Small(), here := Small()):
            patch.setattr("autotune.tuning.recheck.HERE", here)
            found = {v.workload.op: v for v in verify(log, site_of=lambda _, site=site: site)}  # type: ignore[misc]
            assert (found["matmul"].status, found["softmax"].status) == ("ok", "skipped")
            assert "3 GiB of memory are free" in found["softmax"].reason
        patch.setattr(FakeSite, "measurer", lambda *_, **__: refuse(()))
        assert {v.status for v in verify(log, site_of=lambda _: FakeSite())} == {"skipped"}
        with pytest.raises(MeasureError):
            patch.setattr("autotune.tuning.recheck.HERE", here := FakeSite())
            list(verify(log, site_of=lambda _: here))


@pytest.mark.slow
def test_what_is_pinned_and_found_wrong_is_taken_no_longer(tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    bad = at.Trace((Step("unroll", (("loop", "nowhere"),)),))
    store(db, bad, 1e-9, host())
    with Log(db) as log:
        log.pin()
    store(db, Trace(), 1.0, host())
    assert run("log", "verify", "--db", db).status == 1
    with Log(db) as log:  # as a kernel would be whose schedule is legal
        (uid,) = (p.record for p in log.pins())
    for use in (at.load, at.best):
        with pytest.raises(at.KernelNotFound, match=f"pinned record {uid} cannot be used: it was found"):
            use("matmul", **MATMUL, threads=1, db=db)
    with pytest.raises(at.KernelNotFound):
        at.load("matmul", **MATMUL, threads=1, db=db, nearest=True)
    with pytest.warns(UserWarning, match="autotune log pin takes what is best now"):
        assert at.load("matmul", **MATMUL, threads=1, db=db, fallback=True).record is None
    words = ("tune", "matmul", "--shape", "m=8,n=8,k=8", "--threads", 1, "--db", db, "--frozen")
    assert run(*words).status == 1
    assert run("log", "pin", "--db", db).status == 0
    assert at.load("matmul", **MATMUL, threads=1, db=db).record.uid != uid


@pytest.mark.slow
def test_a_log_that_cannot_be_written_is_verified_too(tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    store(db, Trace(), 1.0, host())
    with Log(db, read_only=True) as log:
        assert [v.status for v in verify(log)] == ["ok"]
        assert log.origin(next(log.records())).verified == {}  # type: ignore[union-attr]


@pytest.mark.slow
def test_what_is_too_large_for_this_machine_is_skipped_and_the_rest_checked(tmp_path: Path) -> None:
    """A log from elsewhere may say anything of its workloads: their sizes, names and arithmetic."""
    db = tmp_path / "tuning.db"
    long = Workload(copy_of(10**13).dag, "softmax", (("m", 4),), 1)
    slow = Workload(ops.workload("matmul", {"m": 9000, "n": 9000, "k": 60000}).dag, "matmul", (), 1)
    renamed = Workload(copy_of(64).dag, "softmax", (("m", 4), ("n", 8)), 1)
    with Log(db) as log:
        for w in (long, slow, renamed):
            session = log.start_run(w, host(), {"cpu": "test"}, seed=0)
            log.add(NewRecord(session.uid, 0, "by hand", Trace(), "ok", times_s=(1.0,)))
        statuses = {v.workload.digest: v.status for v in verify(log)}
        assert statuses == {long.digest: "skipped", slow.digest: "skipped", renamed.digest: "ok"}
        assert log.best(long, host()) is not None  # nothing was found out about it
    ran = run("log", "verify", "--db", db, "--json")
    assert (ran.status, ran.json["checked"], ran.json["skipped"]) == (0, 1, 2)
    assert all("smaller sizes" in r["reason"] for r in ran.json["records"] if r["status"] == "skipped")


@pytest.mark.slow
def test_a_sum_without_an_end_is_skipped_and_the_rest_checked(tmp_path: Path) -> None:
    """Of few elements, so that it takes no memory: its right result alone would take hours."""
    db = tmp_path / "tuning.db"
    tasks = [long_sum(10**11), copy_of(64), long_sum(5 * 10**11, 1), long_sum(16)]
    with Log(db) as log:
        for w in tasks:
            session = log.start_run(w, host(), {"cpu": "test"}, seed=0)
            log.add(NewRecord(session.uid, 0, "by hand", Trace(), "ok", times_s=(1.0,)))
        found = {v.workload.digest: v for v in verify(log)}
    assert [found[w.digest].status for w in tasks] == ["skipped", "ok", "skipped", "ok"]
    assert all("takes about" in found[w.digest].reason for w in (tasks[0], tasks[2]))


def test_an_error_of_any_kind_belongs_to_its_record(tmp_path: Path) -> None:
    """Also where it comes while other records of the task are measured."""
    db = tmp_path / "tuning.db"
    bad = at.Trace((Step("unroll", (("loop", "nowhere"),)),))
    store(db, bad, 1e-9, A)
    store(db, Trace(), 1.0, A)
    store(db, Trace(), 1.0, A, "softmax")
    errors = (ZeroDivisionError("of nothing"), RecursionError(), KeyError("x"), OverflowError("large"))

    for error in (*errors, MemoryError(), OSError("no descriptors"), at.WorkloadError("odd")):

        def fail(trace: Trace, error: Exception = error) -> None:
            if trace == bad:
                raise error

        site = FakeSite(during=fail)
        with Log(db, read_only=True) as log:
            verdicts = list(verify(log, 9, site_of=lambda _, site=site: site))  # type: ignore[misc]
        odd = next(v for v in verdicts if v.record.time_s == 1e-9)
        assert odd.status == ("failed" if error in errors else "skipped")
        assert type(error).__name__ in odd.reason or "odd" in odd.reason
        assert [v.status for v in verdicts if v is not odd] == ["ok", "ok"]


def test_what_makes_no_sense_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error before anything is measured."""
    db = tmp_path / "tuning.db"
    store(db, Trace(), 1.0, A)
    store(db, Trace(), 1.0, A, "softmax")

    def odd(workload: Workload) -> bool:
        return 1 // (workload.op == "softmax") == 0  # raises for the others

    monkeypatch.setattr("autotune.tuning.recheck.ops.makes", odd)
    with Log(db) as log:
        found = {v.workload.op: v for v in verify(log, site_of=lambda _: FakeSite())}
    assert (found["matmul"].status, found["softmax"].status) == ("failed", "ok")
    assert "ZeroDivisionError" in found["matmul"].reason
