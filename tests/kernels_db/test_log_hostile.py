"""Logs written to do harm: none of their schedules gets past the checks to a compiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runner import run
from log_cases import copy_of, exported
from log_cases import fill as fill_copies
from log_filler import host

import autotune as at
from autotune.search.decisions import DECISIONS
from autotune.tuning import resume
from autotune.tuning.recheck import verify
from kernels_db import Log, LogError, MergeResult, NewRecord, exchange, t4, transfer
from kernels_db.exchange import line, seal
from schedules import ops
from schedules.errors import ScheduleError
from schedules.model import Step, Trace, Workload
from schedules.space import derive
from schedules.trace_names import to_canonical

SHAPE = {"m": 20, "n": 12, "k": 8}


def workload() -> Workload:
    return ops.workload("matmul", SHAPE)


def step(primitive: str, **args: Any) -> Step:
    return Step(primitive, tuple(sorted(args.items())))


def split(loop: str, *factors: int | None, tail: str = "guard") -> Step:
    return step("split", loop=loop, factors=factors, tail=tail)


HOSTILE: dict[str, list[Step]] = {
    "unknown primitive": [step("__import__", name="os")],
    "an attribute of the schedule": [step("replay", dag="x"), step("trace")],
    "a path for a loop": [step("unroll", loop="../../etc/passwd")],
    "code for a factor": [step("split", loop="c_i", factors=("__import__('os')", 4), tail="guard")],
    "a tail that is none": [split("c_i", None, 7, tail="none")],
    "threads that race on a sum": [step("parallel", loop="c_k")],
    "shifted tiles that add twice": [split("c_k", None, 3, tail="shift")],
    "factors below the extent": [split("c_i", 2, 2)],
    "a factor of nothing": [split("c_i", None, 0)],
    "a negative factor": [split("c_i", None, -5)],
    "a giant factor": [split("c_i", None, 10**40), step("unroll", loop="c_i_1")],
    "a fraction": [step("split", loop="c_i", factors=(None, 2.5), tail="guard")],
    "a hole that nobody fills": [step("split", loop="c_i", factors=(None, {"hole": "x"}), tail="guard")],
    "a buffer from nowhere": [step("cache_read", block="c", buffer="secret", scope="local")],
    "a scope from nowhere": [step("cache_write", block="c", scope="/dev/mem")],
    "computed before it is there": [
        step("cache_write", block="c", scope="local"),
        step("compute_at", block="c_local", loop="c_j"),
    ],
    "packing out of order": [
        step("cache_read", block="c", buffer="a", scope="global"),
        step("pack", buffer="a_global", tiles=(4, 4), order=(9, -1, 0, 0)),
    ],
    "a grid on a CPU": [step("bind", loop="c_i", axis="blockIdx.x")],
    "every loop unrolled a thousandfold": [
        split("c_i", None, 1 << 14),
        split("c_k", None, 1 << 14),
        *(step("unroll", loop=x) for x in ("c_i_1", "c_k_1", "c_j")),
    ],
    "two thousand steps": [split("c_i", None, 2)] * 2000,
}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What came to a compiler."""
    seen: list[str] = []

    def compile_module(text: str, *_: Any) -> bytes:
        seen.append(text)
        raise AssertionError("a hostile schedule came to the compiler")

    monkeypatch.setattr("autotune.codegen.llvm.compile.compile_module", compile_module)
    return seen


@pytest.mark.fast("every loop unrolled a thousandfold")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schedule_reaches_no_compiler(name: str, tmp_path: Path, compiled: list[str]) -> None:
    theirs, db = tmp_path / "theirs.db", tmp_path / "tuning.db"
    with Log(theirs) as log:
        made = log.start_run(workload(), host(), {"cpu": "../../bin/sh"}, seed=0)
        environment = {DECISIONS: [1] * 8, "path": "/etc/passwd"}
        sketch = derive(workload().canonical, host()).sketches[0]
        trace, _ = to_canonical(workload(), Trace(tuple(HOSTILE[name])))
        log.add(NewRecord(made.uid, 0, sketch, trace, "ok", times_s=[1e-12], environment=environment))
        log.export(tmp_path / "a.jsonl")
    with Log(db) as log:
        log.merge(tmp_path / "a.jsonl")
        space = derive(workload().canonical, host())
        assert resume.read(log, workload(), host(), space).results == ()
        for use in (at.load, at.best):
            with pytest.raises((ScheduleError, at.TraceError), match="cannot be used"):
                use("matmul", **SHAPE, threads=1, db=db)
    words = ("matmul", "--shape", "m=20,n=12,k=8", "--threads", 1, "--db", db)
    for shown in ("--ir", "--source", "--trace"):
        assert run("best", *words, shown).status == 2
    assert run("tune", *words, "--frozen").status == 1
    assert compiled == []
    with pytest.raises(AssertionError, match="came to the compiler"):  # one of our own: the test bites
        at.build(at.Schedule(workload().dag), threads=1)


@pytest.mark.slow
def test_verifying_finds_them_illegal(tmp_path: Path) -> None:
    with Log(tmp_path / "tuning.db") as log:
        made = log.start_run(workload(), host(), {"cpu": "x"}, seed=0)
        for i, steps in enumerate(HOSTILE.values()):
            trace, _ = to_canonical(workload(), Trace(tuple(steps)))
            log.add(NewRecord(made.uid, i, "s", trace, "ok", times_s=[1e-9 * (i + 1)]))
        found = list(verify(log, top=100))
        assert len(found) == len(HOSTILE) and {v.status for v in found} == {"failed"}, [
            (v.record.trial, v.status, v.reason) for v in found if v.status != "failed"
        ]
        assert log.best(workload(), host()) is None


@pytest.mark.slow
def test_names_that_are_paths_are_only_text(tmp_path: Path) -> None:
    """Operators, sketches, machines and reasons may say what they like: none of it becomes a file's name."""
    with Log(tmp_path / "a.db") as log:
        fill_copies(log, 2, copy_of(8, "../../../tmp/x; rm -rf /"))
        log.export(tmp_path / "a.jsonl")
    before = sorted(tmp_path.parent.iterdir())
    assert run("log", "import", tmp_path / "a.jsonl", "--db", tmp_path / "b.db").status == 0
    for command in (["list"], ["stats"], ["pin", str(tmp_path / "x.lock")], ["verify"], ["prune", "--apply"]):
        assert run("log", *command, "--db", tmp_path / "b.db").status == 0
    assert sorted(tmp_path.parent.iterdir()) == before


def numbers(value: dict[str, Any]) -> list[dict[str, Any]]:
    giant = 10**400
    return [
        {**value, name: x}
        for name in ("trial", "time_s", "error")
        for x in (giant, -giant, 2**63, 1e308 * 10, "1e999", [giant])
    ]


def test_giant_numbers_and_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log(tmp_path / "a.db") as log:
        fill_copies(log, 3)
        lines = list(log.export_lines())
    record = json.loads(lines[-1])
    bad = []
    for value in numbers(record):
        try:
            bad.append(line(seal("record", value)))
        except ValueError:  # not even JSON
            bad.append(json.dumps(value) + "\n")
    deep = dict(record, environment={"x": None})
    for _ in range(400):
        deep["environment"] = {"x": deep["environment"]}
    bad.append(line(seal("record", deep)))
    (tmp_path / "x.jsonl").write_text("".join([*lines, *bad]))
    with Log(tmp_path / "b.db") as log:
        result = log.merge(tmp_path / "x.jsonl")
        assert result.new == 4 and sum(result.refused.values()) == len(bad)
        assert exported(log) == "".join(lines)
    # More rows than any log has: what is over the limit is counted, and not even parsed.
    monkeypatch.setattr(exchange, "MAX_ROWS", 6)
    with Log(tmp_path / "c.db") as log:
        result = log.merge(tmp_path / "x.jsonl")
        assert result.new == 2
        assert result.refused == {"more than 6 rows from one source": len(lines) - 7 + len(bad)}


def test_every_form_of_a_source_gives_as_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log(tmp_path / "a.db") as log:
        fill_copies(log, 10)
        log.export(tmp_path / "a.jsonl")
        log.export(tmp_path / "a.json", form="t4")
        objects = list(log.export_lines())[1:]
    # Lines without anything are no rows; one too long is one row, over the cap too.
    header, *lines = (tmp_path / "a.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "b.jsonl").write_text("".join([header, "\n", *lines[:-1], "\n", "x" * (3 << 20)]))
    most = len(objects) - 10
    monkeypatch.setattr(exchange, "MAX_ROWS", most)
    for source in ("a.db", "a.jsonl", "a.json", "b.jsonl"):
        with Log(tmp_path / f"{source}.into.db") as log:
            result = log.merge(tmp_path / source)
        assert result == MergeResult(1, 0, {f"more than {most} rows from one source": 10}), source


def test_a_database_is_not_read_beyond_the_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log(tmp_path / "a.db") as log:
        fill_copies(log, 10)
    read = 0
    rows = transfer.rows

    def counted(session: Any, ordered: bool) -> Any:
        nonlocal read
        for row in rows(session, ordered):
            read += 1
            yield row

    monkeypatch.setattr(transfer, "rows", counted)
    monkeypatch.setattr(exchange, "MAX_ROWS", 7)
    with Log(tmp_path / "b.db") as log:
        assert sum(log.merge(tmp_path / "a.db").refused.values()) == 15 - 7
    assert read == 7


def test_a_search_reads_only_so_much_of_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "READ", 5)
    seen = 0

    class Endless:
        def records(self, **_: Any) -> Any:
            nonlocal seen
            while True:
                seen += 1
                yield NewRecordLike(f"{seen:032x}")

    space = derive(workload().dag, host())
    earlier = resume.read(Endless(), workload(), host(), space)  # type: ignore[arg-type]
    assert seen <= 6 and earlier.trials == 5


class NewRecordLike:
    """What `resume.read` looks at of a record."""

    kind, status, time_s, sketch, environment = "trial", "ok", 1.0, "nowhere", {}

    def __init__(self, digest: str) -> None:
        self.trace_digest = digest


@pytest.mark.slow
def test_a_bomb_of_rows_costs_no_memory(tmp_path: Path) -> None:
    """Two hundred thousand lines of rubbish: refused one by one, without being kept."""
    import tracemalloc

    path = tmp_path / "x.jsonl"
    path.write_text('{"format":"autotune-log","version":1}\n' + '{"type":"record"}\n[]\n' * 100_000)
    with Log(tmp_path / "b.db") as log:
        tracemalloc.start()
        result = log.merge(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert result.refused == {"not a JSON object": 100_000, "record: uid missing": 100_000}
    assert peak < 8 << 20


@pytest.mark.slow
def test_a_document_of_many_small_results_costs_no_memory(tmp_path: Path) -> None:
    """As one value it would take thirty times its size."""
    import tracemalloc

    path = tmp_path / "x.json"
    path.write_text('{"schema_version":"1.0.0","results":[' + '{"":1}, ' * 60_000 + "1]}")
    with Log(tmp_path / "b.db") as log:
        tracemalloc.start()
        result = log.merge(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert result.refused == {"T4: a result without a schedule of autotune": 60_001}
    assert peak < 4 << 20


def test_a_document_is_read_alike_in_pieces_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log(tmp_path / "a.db") as log:
        fill_copies(log, 3)
        log.export(tmp_path / "a.json", form="t4")
        whole = exported(log)
    document = json.loads((tmp_path / "a.json").read_text())
    results, metadata = document["results"], document["metadata"]
    metadata["of others"] = [-12.5e-3, {"x": [None, "\u00e9 \U0001f600"]}, 10**30]
    for i, text in enumerate((
        json.dumps({**document, "more": 12.5e-3, "last": 1}),
        json.dumps({"results": results, "metadata": metadata}, indent=3),
        json.dumps({"schema_version": 1, "metadata": metadata, "results": results}, ensure_ascii=False),
    )):  # fmt: skip
        for piece in (1, 7, 64 << 10):
            monkeypatch.setattr(t4, "PIECE", piece)
            (tmp_path / "x.json").write_text(text, encoding="utf-8")
            with Log(tmp_path / f"{i}-{piece}.db") as log:
                assert log.merge(tmp_path / "x.json") == MergeResult(4, 0, {})
                assert exported(log) == whole


BROKEN = {
    "cut": lambda text: text[:-5],
    "more after the end": lambda text: text + "{}",
    "a comma too many": lambda text: text.replace("\n]}", ",\n]}"),
    "no comma": lambda text: text.replace("},\n{", "}\n{"),
    "no list": lambda text: '{"schema_version":"1.0.0","results":{}}',
    "no results": lambda text: '{"schema_version":"1.0.0"}',
    "a giant result": lambda text: text.replace("\n]}", ',"' + "x" * (9 << 20) + '"]}'),
    "deep": lambda text: text.replace("\n]}", "," + "[" * 100_000),
    "a giant number": lambda text: text.replace("\n]}", "," + "1" * 100_000 + "\n]}"),
    "no text": lambda text: text.replace("\n]}", ',"\udc80"\n]}'),
}


@pytest.mark.parametrize("name", BROKEN)
def test_nothing_of_a_broken_document_is_taken(name: str, tmp_path: Path) -> None:
    with Log(tmp_path / "a.db") as log:
        fill_copies(log, 3)
        log.export(tmp_path / "a.json", form="t4")
    text = BROKEN[name]((tmp_path / "a.json").read_text())
    (tmp_path / "x.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with Log(tmp_path / "b.db") as log:
        with pytest.raises(LogError, match="is not a T4 document: it is not JSON with a list of results"):
            log.merge(tmp_path / "x.json")
        assert log.stats()["workloads"] == 0
