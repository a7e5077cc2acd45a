"""``autotune log`` and ``autotune best`` on a real log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import run
from log_filler import fill, host
from report_cases import add_task

from autotune.cli.results import show as print_suite
from autotune.results.tuned import SuiteResult
from autotune.run.workloads import as_workload, with_constants
from kernels_db import Log
from kernels_db.records import NewRecord
from schedules import ops, te
from schedules.model import Target, Trace, Workload

MATMUL = ("matmul", {"m": 8, "n": 8, "k": 8}, 1e-4)
SOFTMAX = ("softmax", {"m": 4, "n": 8}, 2e-6)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    path = tmp_path / "tuning.db"
    fill(path, [MATMUL, SOFTMAX])
    return path


def test_stats(db: Path) -> None:
    d = run("log", "stats", "--db", db, "--json").json
    assert {k: d[k] for k in ("workloads", "targets", "machines", "runs", "records")} == {
        "workloads": 2,
        "targets": 1,
        "machines": 1,
        "runs": 2,
        "records": 4,
    }
    assert d["by_status"] == {"ok": 2, "timeout": 2}
    text = run("log", "stats", "--db", db).out
    assert str(db) in text and "ok 2, timeout 2" in text


def test_the_database_of_the_environment_is_the_default(own_places: Path) -> None:
    fill(own_places / "tuning.db", [MATMUL])
    assert run("log", "stats", "--json").json["records"] == 2


def test_a_zero_byte_file_is_a_new_log(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    ran = run("log", "stats", "--db", tmp_path / "empty.db", "--json")
    assert ran.status == 0 and ran.json["records"] == 0
    assert run("log", "list", "--db", tmp_path / "empty.db").out == "the log has no records\n"


def test_weights_known_ahead_are_said_to_be(db: Path) -> None:
    goal, ahead = host(), with_constants(as_workload(MATMUL[0], MATMUL[1]), True)
    with Log(db) as log:
        run_of = log.start_run(ahead, goal, {"cpu": "a test"}, seed=0)
        log.add(NewRecord(run_of.uid, 0, "s", Trace(), "ok", times_s=(1e-5,) * 3))
    assert "m=8 n=8 k=8 constant b" in run("log", "list", "--db", db).out
    tasks = run("log", "list", "--db", db, "--json").json["tasks"]
    assert sorted(t["constants"] for t in tasks) == [[], [], ["b"]]


def test_list(db: Path) -> None:
    tasks = run("log", "list", "--db", db, "--json").json["tasks"]
    assert [(t["op"], t["best_time_s"], t["records"]) for t in tasks] == [
        ("matmul", 1e-4, 2),
        ("softmax", 2e-6, 2),
    ]
    assert tasks[0]["best_gflops"] == pytest.approx(2 * 8**3 / 1e-4 / 1e9)
    lines = run("log", "list", "--db", db).out.splitlines()
    assert len(lines) == 3 and "m=8 n=8 k=8" in lines[1] and "100 us" in lines[1]


def test_export_merge_export_is_the_same_file(db: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    ran = run("log", "export", first, "--db", db, "--json")
    assert ran.status == 0 and ran.json == {"path": str(first), "records": 4}
    other = tmp_path / "other.db"
    assert run("log", "import", first, "--db", other, "--json").json == {
        "new": 4,
        "known": 0,
        "refused": {},
    }
    again = run("log", "merge", first, db, "--db", other, "--json")
    assert again.status == 0 and again.json == {"new": 0, "known": 8, "refused": {}}
    run("log", "export", second, "--db", other)
    assert first.read_bytes() == second.read_bytes()


def test_export_of_the_best_leaves_failures_out(db: Path, tmp_path: Path) -> None:
    out = tmp_path / "best.jsonl"
    assert run("log", "export", out, "--top", "1", "--db", db, "--json").json["records"] == 2
    assert "timeout" not in out.read_text()


def test_bad_lines_are_refused_and_counted_with_status_1(db: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    run("log", "export", out, "--db", db)
    lines = out.read_text().splitlines()
    out.write_text("\n".join([*lines[:-1], lines[-1][:40], "[1, 2]"]) + "\n")
    ran = run("log", "import", out, "--db", tmp_path / "new.db", "--json")
    assert ran.status == 1
    assert ran.json["new"] == 3 and sum(ran.json["refused"].values()) == 2
    text = run("log", "import", out, "--db", tmp_path / "new.db")
    assert text.status == 1 and "0 new records, 3 known already, 2 lines refused" in text.out


def test_a_missing_source_is_found_before_anything_is_taken_in(db: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    ran = run("log", "merge", db, tmp_path / "absent.db", "--db", new)
    assert ran.status == 2 and "absent.db" in ran.err
    assert not new.exists()


def test_best_shows_record_schedule_loops_and_code(db: Path) -> None:
    words = ("best", "matmul", "--shape", "m=8,n=8,k=8", "--threads", "1", "--db", db)
    ran = run(*words, "--trace", "--ir", "--source")
    text = ran.err + ran.out
    assert "matmul m=8 n=8 k=8 float32, 1 thread" in text and "100 us" in text
    assert "split(" in text and "for " in text and "define void @kernel" in text
    d = run(*words, "--json", "--ir").json
    assert d["time_s"] == 1e-4 and d["task"]["target"]["arch"] == host().arch
    assert d["trace"]["steps"][0][0] == "split" and "source" not in d


@pytest.mark.slow
def test_pins_travel_in_a_lock_file(db: Path, tmp_path: Path) -> None:
    lock, other = tmp_path / "autotune.lock", tmp_path / "other.db"
    ran = run("log", "pin", lock, "--db", db, "--json")
    assert (ran.status, ran.json) == (0, {"pinned": 2, "file": str(lock)})
    lines = lock.read_text().splitlines()
    assert len(lines) == 4 and "matmul m=8 n=8 k=8 float32, 1 thread on" in "".join(lines[1:3])
    words = ("best", "matmul", "--shape", "m=8,n=8,k=8", "--threads", "1")
    pinned = run(*words, "--db", db, "--json").json
    assert pinned["pinned"] and "pinned" in run("log", "list", "--db", db).out
    missing = run("log", "pin", "--from", lock, "--db", other)
    assert missing.status == 2 and "no tuning log" in missing.err
    fill(other, [("matmul", {"m": 8, "n": 8, "k": 8}, 1e-9)])
    missing = run("log", "pin", "--from", lock, "--db", other)
    assert missing.status == 2 and "lacks 2 of the records" in missing.err and "matmul m=8" in missing.err
    run("log", "merge", db, "--db", other)
    assert run("log", "pin", "--from", lock, "--db", other).out == "2 tasks pinned\n"
    assert run(*words, "--db", other, "--json").json["record_id"] == pinned["record_id"]
    assert "pinned: autotune log pin --remove" in run(*words, "--db", other).out
    run("log", "pin", lock, "--db", db)
    assert lock.read_text().splitlines() == lines  # the same log, the same bytes
    assert run("log", "pin", lock, "--remove", "--db", db).status == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a lock file"),
        ("[]", "is not a lock file"),
        ("[" * 100_000, "is not a lock file"),
        ('{"format":"autotune-pins","version":9,"pins":[]}', "pip install --upgrade autotune-compiler"),
        ('{"format":"autotune-pins","version":1,"pins":[{"record":"../../x"}]}', "a pin is an object of"),
        ('{"format":"autotune-pins","version":1}', "is damaged"),
    ],
)
def test_a_lock_file_that_is_none(db: Path, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x.lock").write_text(text)
    ran = run("log", "pin", "--from", tmp_path / "x.lock", "--db", db)
    assert ran.status == 2 and said in ran.err
    assert run("log", "pin", "--from", tmp_path / "none.lock", "--db", db).status == 2


def test_pruning_says_what_would_go_before_it_does(db: Path) -> None:
    ran = run("log", "prune", "--keep", 1, "--db", db)
    assert "2 records and 0 runs would be removed, 2 records kept" in ran.out and "--apply" in ran.out
    assert run("log", "stats", "--db", db, "--json").json["records"] == 4
    ran = run("log", "prune", "--keep", 1, "--apply", "--db", db, "--json")
    assert ran.json == {"applied": True, "kept": 2, "removed": 2, "runs": 0}
    assert run("log", "stats", "--db", db, "--json").json["by_status"] == {"ok": 2}


def test_t4_goes_out_and_in_again_and_is_read_by_replay(db: Path, tmp_path: Path) -> None:
    out = tmp_path / "t4.json"
    assert run("log", "export", out, "--format", "t4", "--db", db, "--json").json["records"] == 4
    document = json.loads(out.read_text())
    assert document["schema_version"] == "1.0.0" and len(document["results"]) == 4
    for result in document["results"]:  # what the schema requires
        assert {"configuration", "times", "invalidity", "correctness"} <= set(result)
        assert all(isinstance(result["times"][k], float) for k in ("compilation_time", "validation"))
    assert sorted(r["invalidity"] for r in document["results"]) == ["correct"] * 2 + ["timeout"] * 2
    new = tmp_path / "new.db"
    assert run("log", "import", out, "--db", new, "--json").json == {"new": 4, "known": 0, "refused": {}}
    for log, name in ((db, "a"), (new, "b")):
        run("log", "export", tmp_path / name, "--db", log)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    document["results"][0]["autotune"]["time_s"] = 1e-12
    document["results"][1]["autotune"] = "../../etc/passwd"
    document["results"].append({"configuration": {"block": 32}, "times": {}, "invalidity": "correct"})
    out.write_text(json.dumps(document))
    ran = run("log", "import", out, "--db", tmp_path / "third.db", "--json")
    assert ran.status == 1 and ran.json["new"] == 2
    assert ran.json["refused"] == {
        "T4: a result without a schedule of autotune": 2, "record: uid does not match": 1
    }  # fmt: skip
    for bad in ('{"schema_version": "1.0.0", "results"', '{"results": 3}', '{"results":' + "[" * 100_000):
        out.write_text(bad)
        ran = run("log", "import", out, "--db", new)
        assert ran.status == 2 and "is not a T4 document" in ran.err


AUTOTUNE = [sys.executable, "-m", "autotune", "log"]


@pytest.mark.slow
def test_a_log_goes_through_a_pipe(db: Path, tmp_path: Path) -> None:
    words = [*AUTOTUNE, "export", "/dev/stdout", "--db", str(db)]
    out = subprocess.run(words, capture_output=True, timeout=60, check=True)
    run("log", "export", tmp_path / "a.jsonl", "--db", db)
    assert out.stdout == (tmp_path / "a.jsonl").read_bytes()  # and nothing else
    assert out.stderr == b"4 records written to /dev/stdout\n"
    words = [*AUTOTUNE, "import", "/dev/stdin", "--json", "--db", str(tmp_path / "new.db")]
    back = subprocess.run(words, input=out.stdout, capture_output=True, timeout=60, check=True)
    assert json.loads(back.stdout) == {"new": 4, "known": 0, "refused": {}}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["jsonl", "t4"])
def test_an_export_ends_quietly_with_its_reader(form: str, db: Path) -> None:
    read, write = os.pipe()
    words = [*AUTOTUNE, "export", "/dev/stdout", "--format", form, "--db", str(db)]
    os.close(read)
    ran = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert (ran.returncode, ran.stderr) == (1, b"")


def test_a_place_is_named_without_its_password(tmp_path: Path) -> None:
    url = "postgresql+psycopg://me:s3cret@127.0.0.1:1/db"
    for words in (("log", "stats"), ("best", "add", "--shape", "n=8"), ("doctor",)):
        ran = run(*words, "--db", url)
        assert "s3cret" not in ran.out + ran.err and ran.status != 0


def test_a_tuned_suite_says_its_log_without_the_password(capsys: pytest.CaptureFixture[str]) -> None:
    print_suite(SuiteResult((), None, 0, 1.0, 1.0, 0, "budget"), "postgresql+psycopg://me:s3cret@host/db")
    assert "host/db" in (said := capsys.readouterr().out) and "s3cret" not in said


def test_brackets_of_a_log_are_no_markup(tmp_path: Path) -> None:
    """What another log calls its machine, say, is printed as it is."""
    db = tmp_path / "t.db"
    workload = ops.workload("matmul", MATMUL[1])
    with Log(db) as log:
        made = log.start_run(workload, host(), {"cpu": "[/x] [red]5[/red]"}, seed=0)
        log.add(NewRecord(made.uid, 0, "x", Trace(), "ok", times_s=(1.0,)))
    assert "[/x] [red]5[/red]" in run("log", "list", "--db", db).out
    best = run("best", "matmul", "--shape", "m=8,n=8,k=8", "--threads", 1, "--db", db)
    assert "[/x] [red]5[/red]" in best.out


def test_an_interrupted_import_says_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a.jsonl"
    with Log(tmp_path / "a.db") as log:
        log.export(source)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Log, "merge", interrupted)
    ran = run("log", "import", str(source), "--db", str(tmp_path / "b.db"))
    assert ran.status == 130 and "what came in is kept" in ran.err


@pytest.mark.parametrize("command", ["import", "merge"])
def test_a_source_that_is_no_file_is_named_without_its_password(command: str, tmp_path: Path) -> None:
    done = run("log", command, "mysql://u:s3cret@s3cret@h/db", "--db", tmp_path / "a.db")
    assert done.status == 2 and "u:***@h/db" in done.err and "s3cret" not in done.err


@pytest.mark.slow
def test_nothing_is_written_over_a_log_or_to_a_url(tmp_path: Path) -> None:
    db, other = tmp_path / "a.db", tmp_path / "b.db"
    for path in (db, other):
        fill(path, [MATMUL])
    kept = {path: run("log", "stats", "--db", str(path)).out for path in (db, other)}
    (tmp_path / "link").symlink_to(db)
    for command in ("pin", "export"):
        for name in ("a.db", "a.db-wal", "b.db", "b.db-shm", "b.db-journal", "link"):
            ran = run("log", command, str(tmp_path / name), "--db", str(db))
            assert ran.status == 2 and "would be overwritten" in ran.err, (command, name)
        ran = run("log", command, "postgresql+psycopg://me:s3cret@h/x", "--db", str(db))
        assert ran.status == 2 and "is a URL" in ran.err and "s3cret" not in ran.err
        assert run("log", command, str(tmp_path / "new" / "file"), "--db", str(db)).status == 0
    assert kept == {path: run("log", "stats", "--db", str(path)).out for path in (db, other)}
    assert not list(Path().glob("postgresql*"))


def test_an_expression_is_listed_by_what_it_computes(tmp_path: Path) -> None:
    x = te.placeholder((8, 16), "float32", "x")
    workload = as_workload([x, te.compute((8, 16), lambda i, j: x[i, j] * 2.0, "doubled")], {})
    with Log(tmp_path / "t.db") as log:
        add_task(log, workload, 2)
    assert (
        f"custom    doubled[8, 16] {workload.digest[:12]}"
        in run("log", "list", "--db", tmp_path / "t.db").out
    )


@pytest.mark.slow
def test_names_of_a_log_move_no_cursor(tmp_path: Path) -> None:
    """Names, shapes, reasons and places of a stranger's log are shown with their control characters
    spelled."""
    evil = "x\x1b[2J\x1b]0;t\x07\r\ny\u202e\x9b31m"
    expression = te.placeholder((8, 16), "float32", "x")
    doubled = te.compute((8, 16), lambda i, j: expression[i, j] * 2.0, "y")
    strange = Workload(te.dag([expression, doubled]), evil, ((evil, evil),), 128)
    target, db = Target("cpu", "strange", threads=2, triple="strange"), tmp_path / "t.db"
    with Log(db) as log:
        add_task(log, strange, 6, reason=evil, machine={"cpu": evil}, target=target, sketch=evil)
    matmul = ("matmul", "--shape", "m=8,n=8,k=8")
    for words in (
        ("log", "list"),
        ("log", "stats"),
        ("log", "verify"),
        ("log", "pin"),
        ("log", "list", "--json"),
        ("report", "-o", tmp_path / "r.html"),
        ("explain", evil),
        ("best", evil),
        ("best", *matmul),
    ):
        found = run(*words, "--db", db)
        said = found.out + found.err
        assert not set(said) & set("\x1b\x07\r\u202e\x9b"), (words, said)
    assert "x\\x1b[2J\\x1b]0;t\\x07\\r\\ny" in run("log", "list", "--db", db).out


def test_stats_tell_machines_apart(db: Path) -> None:
    workload = ops.workload("add", {"n": 64})
    with Log(db) as log:
        for name, python, count in (("rack-7", "3.12", 2), ("rack-7", "3.13", 1), ("rack-8", "3.13", 7)):
            about = {"cpu": "a \x1b[2J processor", "name": name, "python": python}
            session = log.start_run(workload, host(), about, seed=0)
            for n in range(count):
                log.add(NewRecord(session.uid, n, "by hand", Trace(), "ok", times_s=(1e-6,)))
    found = run("log", "stats", "--db", db, "--json").json["by_machine"]
    assert [(m["name"], m["records"]) for m in found] == [("rack-8", 7), (None, 4), ("rack-7", 3)]
    assert r"machine   rack-8 (a \x1b[2J processor): 7 records" in run("log", "stats", "--db", db).out
