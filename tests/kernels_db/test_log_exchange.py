"""Merging exports: lines that do not deserve trust."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_cases import MACHINE, TARGETS, add, copy_of, exported, fill, measured, scratch, trace

from kernels_db import Log, LogError, MergeResult, NewRecord
from kernels_db.exchange import decode, decode_own, encode, line, parse, seal
from schedules import ops
from schedules.model import Workload, canonical, digest
from schedules.te.flops import count_flops

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """A valid export: header, 1 workload, 1 target, 1 machine, 1 run, 4 records."""
    with Log(tmp_path_factory.mktemp("log") / "a.db") as log:
        fill(log, 3)
        return [x.encode() for x in log.export_lines()]


def merged_lines(folder: Path, content: list[bytes]) -> tuple[MergeResult, str]:
    path = folder / "in.jsonl"
    path.write_bytes(b"".join(content))
    with Log(folder / "into.db") as log:
        return log.merge(path), exported(log)


def changed(source: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    value = json.loads(source)
    change(value)
    if value.get("type") in ("run", "record"):
        value = seal(value["type"], value)
    return canonical(value).encode() + b"\n"


def _read_behind(dag: dict[str, Any]) -> None:
    """Make what a stage reads be read one behind."""

    def go(x: Any) -> Any:
        if isinstance(x, list) and x[:1] == ["load"]:
            return [*x[:3], *(["+", i, 1] for i in x[3:])]
        return [go(y) for y in x] if isinstance(x, list) else x

    dag["stages"][0]["values"] = go(dag["stages"][0]["values"])


def put(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda v: v.update(fields)


@pytest.mark.parametrize(
    ("index", "change", "reason"),
    [
        (1, put(op=5), "workload: op not valid"),
        (1, put(flops=-1), "workload: flops not valid"),
        (1, put(flops=2**63), "workload: flops not valid"),
        (1, put(params=[]), "workload: params not valid"),
        (1, put(digest="0" * 32), "workload: digest does not match"),
        (1, lambda v: v["definition"].update(version=3), "workload: version 3 cannot be read; update"),
        (1, lambda v: v["definition"].update(version=0), "workload: version 0 cannot be read"),
        (1, lambda v: v["definition"].update(version=True), "workload: version unknown cannot be read"),
        (1, lambda v: (v["definition"].update(version=1), v.pop("names")), "workload: digest does not match"),
        (1, put(names=[]), "workload: names not valid"),
        (1, lambda v: v["names"]["inputs"].append("D"), "workload: names not valid"),
        (1, lambda v: v["names"].update(inputs=["B"]), "workload: names not valid"),
        (1, lambda v: v["names"].update(inputs=["no name"]), "workload: names not valid"),
        (1, lambda v: v["names"].update(more=1), "workload: names not valid"),
        (1, lambda v: v["definition"].update(more=1), "workload: definition not valid"),
        (1, lambda v: v["definition"]["dag"].update(stages=[1]), "workload: definition not valid"),
        (1, lambda v: _read_behind(v["definition"]["dag"]), "workload: definition not valid"),
        (2, lambda v: v["definition"].update(threads="1"), "target: definition not valid"),
        (2, lambda v: v["definition"].pop("limits"), "target: definition not valid"),
        (3, lambda v: v["definition"].update(cores=64), "machine: digest does not match"),
        (3, put(digest="X" * 32), "machine: digest not valid"),
        (4, put(state="asleep"), "run: state not valid"),
        (4, put(seed=1.5), "run: seed not valid"),
        (4, put(seed=True), "run: seed not valid"),
        (4, put(started="2026-01-01"), "run: started not valid"),
        (4, put(target="0" * 32), "run: unknown target"),
        (5, put(run="0" * 32), "record: unknown run"),
        (5, put(workload="0" * 32), "record: not of its run"),
        (5, put(status="fine"), "record: status not valid"),
        (5, put(status=["ok"]), "record: status not valid"),
        (5, put(time_s=None), "record: ok without time_s"),
        (5, put(time_s=0.0), "record: time_s not valid"),
        (5, put(time_s=-1.0), "record: time_s not valid"),
        (5, put(time_s=1), "record: time_s not valid"),
        (5, put(times_s=[1.0] * 1001), "record: times_s not valid"),
        (5, put(error=-1.0), "record: error not valid"),
        (5, put(reason="x" * 4001), "record: reason not valid"),
        (5, put(reason="\0"), "record: reason not valid"),
        (5, put(sketch="\ud800"), "record: sketch not valid"),
        (5, put(trial=-1), "record: trial not valid"),
        (5, put(kind="best"), "record: kind not valid"),
        (5, put(surprise=1), "record: unknown field"),
        (5, lambda v: v.pop("error"), "record: error missing"),
        (5, lambda v: v["trace"].update(version=2), "record: trace version 2 cannot be read"),
        (5, lambda v: v["trace"].update(steps=[["split"]]), "record: trace not valid"),
        (5, lambda v: v["trace"].update(code="import os"), "record: trace not valid"),
        (5, lambda v: v["trace"]["steps"].extend([["a", {"x": "y" * 262_144}]]), "record: trace not valid"),
        (5, put(environment={"x": "y" * 70_000}), "record: environment not valid"),
        (5, put(type="program"), "unknown line type"),
        (5, put(type=["record"]), "unknown line type"),
    ],
)
def test_a_bad_line_is_refused_by_reason_and_the_rest_goes_in(
    tmp_path: Path, lines: list[bytes], index: int, change: Callable[[dict[str, Any]], Any], reason: str
) -> None:
    bad = changed(lines[index], change)
    result, text = merged_lines(tmp_path, [*lines[:index], bad, *lines[index:]])
    assert result == MergeResult(4, 0, {reason: 1})
    assert text.encode() == b"".join(lines)


def nested(depth: int) -> bytes:
    return b'{"type":"machine","definition":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}\n"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"{\n", "not JSON"),
        (b"\xff\xfe\n", "not JSON"),
        (b'{"type":"machine","definition":{"x":NaN}}\n', "not JSON"),
        (b"[]\n", "not a JSON object"),
        (b"null\n", "not a JSON object"),
        (b"[" * 100_000 + b"\n", "not JSON"),
        (b'{"x":' + b"9" * 5000 + b"}\n", "not JSON"),
        (
            nested(400).replace(b'{"type"', b'{"digest":"' + b"0" * 32 + b'","type"'),
            "machine: definition not valid",
        ),
        (
            b'{"type":"machine","digest":"' + b"0" * 32 + b'","definition":{"x":1e999}}\n',
            "machine: definition not valid",
        ),
        (b'{"x":"' + b"y" * (3 << 20) + b'"}\n', "line over 1 MB"),
        (b"{}\n", "unknown line type"),
        (b'{"format":"autotune-log","version":3}\n', "unknown line type"),
    ],
)
def test_a_line_that_is_no_object_is_refused(
    tmp_path: Path, lines: list[bytes], bad: bytes, reason: str
) -> None:
    result, text = merged_lines(tmp_path, [lines[0], bad, *lines[1:3], bad, *lines[3:]])
    assert result == MergeResult(4, 0, {reason: 2})
    assert text.encode() == b"".join(lines)


def test_content_without_its_uid_is_refused(tmp_path: Path, lines: list[bytes]) -> None:
    faster = canonical({**json.loads(lines[5]), "time_s": 1e-9}).encode() + b"\n"
    older = canonical({**json.loads(lines[4]), "seed": 8}).encode() + b"\n"
    result, _ = merged_lines(tmp_path, [*lines, faster, older])
    assert result == MergeResult(4, 0, {"record: uid does not match": 1, "run: uid does not match": 1})


def test_a_line_refers_only_to_lines_before_it(tmp_path: Path, lines: list[bytes]) -> None:
    result, _ = merged_lines(tmp_path, [lines[0], *reversed(lines[1:])])
    assert result == MergeResult(0, 0, {"record: unknown run": 4, "run: unknown workload": 1})


def test_a_truncated_export_gives_what_it_has(tmp_path: Path, lines: list[bytes]) -> None:
    whole = b"".join(lines)
    result, _ = merged_lines(tmp_path, [whole[:-40]])
    assert result == MergeResult(3, 0, {"not JSON": 1})


def test_unreadable_files_are_errors(tmp_path: Path, lines: list[bytes]) -> None:
    with Log(tmp_path / "a.db") as log:
        for content, message in (
            (b"\n" + b"".join(lines), "neither a tuning log nor an export"),
            (b"".join(lines[1:]), "neither a tuning log nor an export"),
            (b"\x00" * 100, "neither a tuning log nor an export"),
            (
                b'{"format":"autotune-log","version":3}\n',
                "version 3, and this autotune reads up to version 2",
            ),
            (b'{"format":"autotune-log","version":"1"}\n', "is not a number"),
            (b'{"format":"autotune-log"}\n', "is not a number"),
        ):
            (tmp_path / "x").write_bytes(content)
            with pytest.raises(LogError, match=message):
                log.merge(tmp_path / "x")
        with pytest.raises(LogError, match="is a directory"):
            log.merge(tmp_path)
        with pytest.raises(LogError, match="No such file"):
            log.merge(tmp_path / "missing")
        (tmp_path / "x").write_bytes(b"")
        assert log.merge(tmp_path / "x") == MergeResult(0, 0, {})


def test_rows_of_another_database_are_checked_like_lines(tmp_path: Path) -> None:
    with Log(tmp_path / "a.db") as log:
        made = fill(log, 5)
    import sqlite3

    con = sqlite3.connect(tmp_path / "a.db")
    con.execute("UPDATE record SET time_s = 1e-9 WHERE uid = ?", (made[0].uid,))
    con.execute("UPDATE record SET trace = '{' WHERE uid = ?", (made[1].uid,))
    con.execute("UPDATE record SET reason = x'ff00' WHERE uid = ?", (made[2].uid,))
    con.execute("UPDATE record SET environment = NULLIF('[]', '') WHERE uid = ?", (made[3].uid,))
    con.commit()
    con.close()
    with Log(tmp_path / "b.db") as log:
        result = log.merge(tmp_path / "a.db")
        assert (result.new, result.known) == (2, 0)
        assert result.refused == {
            "record: damaged": 1,
            "record: environment not valid": 1,
            "record: reason not valid": 1,
            "record: uid does not match": 1,
        }
    with Log(tmp_path / "a.db") as log, pytest.raises(LogError, match=r"record \w+ is damaged"):
        exported(log)


# -- fuzz -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log without records, to be copied."""
    path = tmp_path_factory.mktemp("log") / "empty.db"
    with Log(path):
        return path



leaf = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(("ok", "0" * 32, "", 2**64, -1, 1e-300, "2026-01-01T00:00:00.000000Z", "inf"))
)
anything = st.recursive(
    leaf,
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for k, v in items for p in places(v, (*path, k)))]


@st.composite
def mutated(draw: st.DrawFn, source: bytes) -> bytes:
    """A line with one value of it replaced, removed or resealed, or with bytes changed."""
    if draw(st.integers(0, 3)) == 0:
        data = bytearray(source)
        for _ in range(draw(st.integers(1, 3))):
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        return bytes(data[: draw(st.integers(1, len(data)))]) + b"\n"
    value = json.loads(source)
    *path, last = draw(st.sampled_from(places(value)[1:]))
    home = value
    for key in path:
        home = home[key]
    if draw(st.integers(0, 3)) == 0:
        del home[last]
    else:
        home[last] = draw(anything)
    if draw(st.booleans()):  # as a forger would, so that the checks behind the digests are met
        if value.get("type") in ("run", "record"):
            value = seal(value["type"], value)
        elif "definition" in value:
            value["digest"] = digest(canonical(value["definition"]))
    return canonical(value).encode() + b"\n"


@pytest.mark.fuzz
def test_ten_thousand_mutated_lines(tmp_path: Path, lines: list[bytes]) -> None:
    """Each is taken or refused with a reason; no part of a record enters; what was there stays as it was."""
    seen = 0

    @settings(max_examples=1250, deadline=None, suppress_health_check=list(HealthCheck), derandomize=False)
    @given(data=st.data())
    def eight(data: st.DataObject) -> None:
        nonlocal seen
        bad = [data.draw(mutated(lines[data.draw(st.integers(1, len(lines) - 1))])) for _ in range(8)]
        seen += len(bad)
        (tmp_path / "in.jsonl").write_bytes(b"".join([lines[0], *bad]))
        records = log.stats()["records"]
        result = log.merge(tmp_path / "in.jsonl")
        assert log.stats()["records"] == records + result.new
        assert all(reason and len(reason) < 100 for reason in result.refused)

    with Log(tmp_path / "into.db") as log:
        (tmp_path / "first.jsonl").write_bytes(b"".join(lines))
        log.merge(tmp_path / "first.jsonl")
        first = {x for x in exported(log).splitlines() if '"type":"record"' in x}
        eight()
        assert seen >= 10_000
        assert first <= set(exported(log).splitlines())
        with Log(tmp_path / "again.db") as again:
            assert again.merge(tmp_path / "into.db").refused == {}
            assert exported(again) == exported(log)


@pytest.mark.slow
@settings(max_examples=50, deadline=None, suppress_health_check=SLOW)
@given(data=st.data())
def test_mutated_lines_are_refused_or_well_formed(
    empty: Path, lines: list[bytes], data: st.DataObject
) -> None:
    content = list(lines)
    for i in data.draw(st.lists(st.integers(1, len(lines) - 1), min_size=1, max_size=4)):
        content.insert(data.draw(st.integers(1, len(content))), data.draw(mutated(lines[i])))
    with scratch() as folder:
        shutil.copy(empty, folder / "into.db")
        shutil.copy(empty, folder / "again.db")
        result, text = merged_lines(folder, content)
        assert result.new >= 4  # the good lines
        assert len(result.refused) <= sum(result.refused.values()) < 100
        # Whatever was taken is well-formed: it survives another journey whole, and can be read.
        (folder / "out.jsonl").write_text(text)
        with Log(folder / "again.db") as again:
            assert again.merge(folder / "out.jsonl") == MergeResult(result.new, 0, {})
            assert exported(again) == text
            for w, t in again.tasks():
                again.workload(w), again.target(t)
                assert all(r.trace.digest == r.trace_digest for r in again.top_k(w, t, 99))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(value=st.dictionaries(st.sampled_from(("type", "uid", "digest", "definition", "trace")), anything))
def test_decode_refuses_or_inverts_encode(value: dict[str, Any]) -> None:
    from kernels_db.exchange import Refused

    try:
        item = decode(parse(line(value).encode()))
    except Refused:
        return
    assert decode(encode(item.type, item.columns)) == item


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
seconds = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
nested = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda x: st.lists(x, max_size=3) | st.dictionaries(words | st.just("trace"), x, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_record_of_our_own_has_the_uid_of_its_text(lines: list[bytes], data: st.DataObject) -> None:
    value = json.loads(lines[5])
    value |= {
        "sketch": data.draw(words),
        "reason": data.draw(words),
        "time_s": data.draw(seconds),
        "times_s": data.draw(st.lists(seconds, max_size=4)),
        "error": data.draw(st.none() | seconds),
        "trial": data.draw(st.integers(0, 2**63 - 1)),
        "environment": data.draw(st.dictionaries(words, nested, max_size=3)),
        "trace": {"version": 1, "steps": [[data.draw(words), {"x": data.draw(nested)}]]},
    }
    sealed = seal("record", value)
    del value["uid"]
    assert sealed["uid"] == digest(canonical(value))
    assert decode_own(value) == decode(parse(line(sealed).encode())).columns


def test_encode_inverts_decode(lines: list[bytes]) -> None:
    for source in lines[1:]:
        item = decode(parse(source))
        assert line(encode(item.type, item.columns)).encode() == source


def test_the_uid_covers_every_field(lines: list[bytes]) -> None:
    value = json.loads(lines[5])
    changes = {"trial": 99, "sketch": "other", "time_s": 9.0, "times_s": [9.0], "reason": "x", "error": 1.0}
    uids = {seal("record", {**value, k: v})["uid"] for k, v in changes.items()} | {value["uid"]}
    assert len(uids) == len(changes) + 1
    assert isinstance(NewRecord("r", 0, "s", trace(0), "ok").columns()["created"], str)


def test_nothing_is_taken_from_the_future(tmp_path: Path) -> None:
    """A record from the end of time would be the newest of its trace for ever."""
    with Log(tmp_path / "a.db") as log, Log(tmp_path / "b.db") as other:
        fill(log, 3)
        objects = [json.loads(x) for x in log.export_lines()]
        late = "8999-12-31T23:59:59.999999Z"
        changes: list[tuple[Literal["run", "record"], str]]
        changes = [("run", "ended"), ("run", "started"), ("record", "created")]
        for kind, name in changes:
            changed = [seal(kind, x | {name: late}) if x.get("type") == kind else x for x in objects]
            (tmp_path / "late.jsonl").write_text("".join(map(line, changed)))
            refused = other.merge(tmp_path / "late.jsonl").refused
            assert refused[f"{kind}: more than a year from now"] == (4 if kind == "record" else 1)
        assert other.stats()["records"] == 0
        run = other.start_run(copy_of(8), TARGETS[0], MACHINE, seed=0).uid
        assert other.add(measured(run, 0, created=None)).created < "8"


@pytest.mark.slow
def test_an_untrue_description_of_a_workload_loses_to_a_true_one(tmp_path: Path) -> None:
    """Its name, parameters and arithmetic are outside its digest, so another log may say anything."""
    true = ops.workload("matmul", {"m": 8, "n": 9, "k": 7})
    plain = Workload(true.dag, flops=count_flops(true.dag))
    lies = [
        Workload(true.dag, "zzz", (("x", 1),), 2**62),
        Workload(true.dag, "matmul", (("k", 9), ("m", 9), ("n", 9)), true.flops),
        Workload(true.dag, "matmul", true.params, 2**62),
        Workload(true.dag, "softmax", true.params, true.flops),
        Workload(true.dag, "matmul", (("k", "7"), ("m", None), ("n", True)), true.flops),
        Workload(true.dag, flops=2**62),
    ]
    for n, order in enumerate([[*lies, plain, true], [true, plain, *lies], [plain, *lies, true, *lies]]):
        with Log(tmp_path / f"{n}.db") as log:
            for i, w in enumerate(order):
                with Log(tmp_path / f"{n}.{i}.db") as other:
                    add(other, w)
                    other.export(tmp_path / "w.jsonl")
                log.merge(tmp_path / "w.jsonl")
            kept = log.workload(true.digest)
            assert (kept.op, kept.params, kept.flops) == (true.op, true.params, true.flops)
    with Log(tmp_path / "mine.db") as log:  # a user's own expression
        for w in (plain, *lies[:1], lies[-1]):
            add(log, w)
        assert log.workload(true.digest).op == "custom"
        assert log.workload(true.digest).flops == plain.flops
