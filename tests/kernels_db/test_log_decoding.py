"""Decoding beside this process: whatever the helpers do, the items are those that decoding here gives."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from children import children
from log_cases import copy_of, exported, fill
from waiting import wait_until

from kernels_db import Log, compat, decoding, exchange, transfer
from kernels_db.decoding import Raw, decoded
from kernels_db.exchange import Item, Refused
from kernels_db.transfer import MergeTally

BAD = [b"{", b"\xff\xfe", b"[1]", b'{"type":"x"}', b"[" * 5000, b'{"type":"record","uid":NaN}']


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Raw]:
    """A log's lines with bad ones among them; nearly all of it is decoded beside, a few lines a chunk."""
    monkeypatch.setattr(decoding, "HERE", 3)
    monkeypatch.setattr(decoding, "CHUNK", 4)
    with Log(tmp_path / "a.db") as log:
        for n in range(6):
            fill(log, 8, copy_of(n + 8))
        log.export(tmp_path / "a.jsonl")
    good = list(exchange.read_lines(tmp_path / "a.jsonl"))
    mixed: list[Raw] = [*good]
    for n, bad in enumerate([*BAD, Refused("line over 1 MB"), json.dumps(compat.HEADER).encode()]):
        mixed.insert(5 * n + 2, bad)
    return mixed


def helpers_of(pid: int | None = None) -> list[psutil.Process]:
    return children("kernels_db.decoding", pid)


def told(items: Iterator[Any]) -> list[Any]:
    return [("refused", str(x)) if isinstance(x, Refused) else x for x in items]


@pytest.mark.slow
def test_helpers_say_what_decoding_here_says(lines: list[Raw]) -> None:
    here = told(decoded(lines, 1))
    assert sum(isinstance(x, tuple) for x in here) == len(BAD) + 1
    assert len(here) == len(lines) - 1  # another header is nothing
    assert told(decoded(lines, 2)) == here
    assert told(decoded(lines, 3)) == here


@pytest.mark.slow
def test_rows_of_a_database_are_decoded_beside(tmp_path: Path, lines: list[Raw]) -> None:
    with Log(tmp_path / "a.db", read_only=True) as log:
        rows = list(log._rows(MergeTally()))
    kind, row = rows[-1]  # type: ignore[misc]
    spaced = json.dumps(json.loads(row["trace"]), indent=1)  # its uid is that of the canonical text
    items = [Item(*x) for x in [*rows, (kind, row)]]  # type: ignore[misc]
    rows.append((kind, {**row, "trace": spaced, "trace_digest": "?"}))
    assert told(decoded(rows, 1)) == told(decoded(rows, 2)) == items
    for damage in (
        {"trace": "{"}, {"trace": "{\n}"}, {"trace": "\ud800"}, {"trace": None}, {"sketch": b"\xff"},
        {"sketch": "\ud800"}, {"time_s": 1e999},
    ):  # fmt: skip
        rows.append((kind, {**row, **damage}))
        rows.append((kind, row))  # in its place
    here = told(decoded(rows, 1))
    assert [x[1] for x in here if isinstance(x, tuple)] == [
        "record: damaged", "record: trace version unknown cannot be read", "record: damaged",
        "record: damaged", "record: sketch not valid", "record: sketch not valid", "record: time_s not valid",
    ]  # fmt: skip
    assert told(decoded(rows, 2)) == here


@pytest.mark.slow
def test_a_helper_that_dies_costs_nothing_but_speed(
    lines: list[Raw], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = told(decoded(lines, 1))
    items = decoded(lines, 2)
    got = [next(items) for _ in range(8)]
    helpers = helpers_of()
    assert helpers
    for helper in helpers:
        helper.kill()
    assert told(iter([*got, *items])) == here
    monkeypatch.setattr(decoding, "_BOOT", "print('not an answer')")
    assert told(decoded(lines, 2)) == here
    for nothing in ("/nowhere/python", "", None):
        monkeypatch.setattr(sys, "executable", nothing)
        assert told(decoded(lines, 2)) == here


@pytest.mark.slow
def test_helpers_end_with_the_items(lines: list[Raw]) -> None:
    items = decoded(lines, 2)
    for _ in range(8):
        next(items)
    helpers = helpers_of()
    assert helpers
    items.close()
    assert not [p for p in helpers if p.is_running()]


@pytest.mark.slow
def test_an_interrupted_merge_leaves_no_helper_and_whole_batches(
    tmp_path: Path, lines: list[Raw], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "BATCH", 8)
    put, batches = transfer.put, 0

    def interrupted(*args: Any) -> None:
        nonlocal batches
        put(*args)
        batches += 1
        if batches == 5:
            assert helpers_of()
            raise KeyboardInterrupt

    monkeypatch.setattr(transfer, "put", interrupted)
    with Log(tmp_path / "b.db") as log:
        with pytest.raises(KeyboardInterrupt):
            log.merge(tmp_path / "a.jsonl")
        assert not helpers_of()
        monkeypatch.setattr(transfer, "put", put)
        kept = log.stats()["records"]
        result = log.merge(tmp_path / "a.jsonl")
        assert kept == result.known > 0 and result.new > 0


def test_a_row_that_is_as_it_should_be_is_not_told_back(tmp_path: Path, lines: list[Raw]) -> None:
    with Log(tmp_path / "a.db", read_only=True) as log:
        rows = list(log._rows(MergeTally()))
    kind, row = rows[-1]  # type: ignore[misc]
    rows.append((kind, {**row, "trace_digest": "?"}))
    sink = io.BytesIO()
    decoding.serve(io.BytesIO(decoding._question(rows)), sink)
    *same, other = json.loads(sink.getvalue().splitlines()[0])
    assert same == [True] * (len(rows) - 1)
    assert other[1]["trace_digest"] == row["trace_digest"]


def test_a_message_is_short_however_long_the_rows() -> None:
    rows: list[Raw] = [("record", {"trace": "x" * (decoding.CHUNK_BYTES // 2), "time_s": None})] * 7
    assert [len(c) for c in decoding._chunks(iter(rows))] == [2, 2, 2, 1]


def test_a_transaction_is_short_however_long_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "BATCH_TEXT", 100)
    monkeypatch.setattr(transfer, "BATCH", 4)
    items = [Item("record", {"uid": str(n), "trace": "x" * (60 if n < 4 else 1)}) for n in range(13)]
    assert [len(b) for b in transfer.batches(items, MergeTally())] == [2, 2, 4, 4, 1]


def test_a_merge_writes_back_more_at_once_than_others(tmp_path: Path) -> None:
    found = []
    with Log(tmp_path / "a.db") as log:
        for access in ("bulk", "change", "add", "bulk"):
            with log._write(access) as con:  # type: ignore[arg-type]
                ask = con.exec_driver_sql
                pages, size = ask("PRAGMA wal_autocheckpoint").scalar(), ask("PRAGMA page_size").scalar()
                found.append(pages * size >> 20)
    assert found == [512, 64, 64, 512]  # MB


@pytest.mark.slow
def test_helpers_end_with_a_merge_that_is_killed(tmp_path: Path, lines: list[Raw]) -> None:
    program = textwrap.dedent(f"""
        from pathlib import Path
        from kernels_db import decoding, exchange
        decoding.HERE, decoding.CHUNK = 3, 4
        items = decoding.decoded(exchange.read_lines(Path({str(tmp_path / "a.jsonl")!r})), 2)
        for _ in range(8):
            next(items)
        print("decoding", flush=True)
        input()
    """)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as merging:
        assert merging.stdout is not None
        assert merging.stdout.readline() == b"decoding\n"
        helpers = helpers_of(merging.pid)
        assert helpers
        os.kill(merging.pid, signal.SIGKILL)
    wait_until(lambda: not [p for p in helpers if p.is_running()])


@pytest.mark.slow
def test_a_merge_with_helpers_makes_the_same_log(tmp_path: Path, lines: list[Raw]) -> None:
    with Log(tmp_path / "b.db") as log, Log(tmp_path / "c.db") as other, Log(tmp_path / "a.db") as source:
        assert log.merge(tmp_path / "a.jsonl").refused == {}
        assert other.merge(tmp_path / "a.db").new == log.stats()["records"]
        assert exported(log) == exported(other) == exported(source)
