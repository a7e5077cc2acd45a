"""Checks the objects of another log in processes beside this one, as that takes most of a merge (ADR 15).

The first objects are decoded here, so that a small merge starts no process. Later ones go in chunks to a few
processes. Items come back in their order, so that a line still refers only to lines before it. If a process
cannot start or dies, its chunk is decoded here.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import IO, Any

from kernels_db.exchange import MALFORMED, Item, ItemType, Refused, decode, encode, parse_line, size

# (type, columns) of a row of another log.
Row = tuple[ItemType, dict[str, Any]]
# A line of an export, a row, or an object refused before it was read.
Raw = bytes | Row | Refused

# Objects decoded here before processes are started: about half a second.
HERE = 4000
# Most objects and bytes of a message; a single object may have more bytes.
CHUNK = 500
CHUNK_BYTES = 1 << 20
# Most processes: more would wait for the database.
PROCESSES = 4
# Chunks in flight, so that processes have work while the database is busy.
AHEAD = 24

# Program of a process that decodes.
_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from kernels_db.decoding import serve; "
    "serve(sys.stdin.buffer, sys.stdout.buffer)"
)


def decoded(raws: Iterable[Raw], processes: int | None = None) -> Generator[Item | Refused]:
    """The items of ``raws`` in their order. ``processes``: how many may help; None: by the number of CPUs."""
    rest = iter(raws)
    yield from _items(map(_answer, islice(rest, HERE)))
    if processes is None:
        processes = min(os.cpu_count() or 1, PROCESSES)
    if processes > 1 and sys.executable:
        yield from _decoded_beside(_chunks(rest), processes)
    yield from _items(map(_answer, rest))


def _answer(raw: Raw) -> Any:
    """The result of a raw object, as JSON: [type, columns], a reason to refuse it, or None."""
    try:
        if isinstance(raw, Refused):
            return str(raw)
        if isinstance(raw, bytes):
            item = parse_line(raw)
            return None if item is None else (item.type, item.columns)
        kind, row = raw
        try:
            return kind, decode(encode(kind, row)).columns
        except MALFORMED:
            return f"{kind}: damaged"
    except Refused as err:
        return str(err)


def _items(answers: Iterable[Any]) -> Iterator[Item | Refused]:
    for answer in answers:
        if answer is not None:
            yield Refused(answer) if isinstance(answer, str) else Item(*answer)


# -- in other processes -----------------------------------------------------------------------------------


def _decoded_beside(chunks: Iterator[list[Raw]], processes: int) -> Iterator[Item | Refused]:
    helpers = [_Helper() for _ in range(processes)]
    idle: queue.SimpleQueue[_Helper] = queue.SimpleQueue()
    for helper in helpers:
        idle.put(helper)

    def answers(chunk: list[Raw]) -> list[Any]:
        helper = idle.get()
        try:
            found = helper.ask(chunk)
        finally:
            idle.put(helper)
        return [_answer(raw) for raw in chunk] if found is None else found

    pending: deque[Future[list[Any]]] = deque()
    pool = ThreadPoolExecutor(processes)  # threads that wait for the processes
    try:
        for chunk in chunks:
            pending.append(pool.submit(answers, chunk))
            if len(pending) > AHEAD:
                yield from _items(pending.popleft().result())
        while pending:
            yield from _items(pending.popleft().result())
    finally:
        pool.shutdown(cancel_futures=True)
        for helper in helpers:
            helper.end()


def _chunks(raws: Iterator[Raw]) -> Iterator[list[Raw]]:
    chunk: list[Raw] = []
    length = 0
    for raw in raws:
        chunk.append(raw)
        if isinstance(raw, bytes):
            length += len(raw)
        elif isinstance(raw, tuple):
            length += size(raw[1])
        if len(chunk) == CHUNK or length >= CHUNK_BYTES:
            yield chunk
            chunk, length = [], 0
    if chunk:
        yield chunk


class _Helper:
    """A process that decodes, started at the first request. It ends when its input ends, so not after this
    process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._failed = False

    def ask(self, chunk: list[Raw]) -> list[Any] | None:
        """The answers to a chunk. None if the process gives none."""
        if self._failed:
            return None
        try:
            question = _question(chunk)
        except TypeError:  # a value of a type that no column has
            return None
        try:
            return self._asked(question, chunk)
        except (OSError, ValueError):
            self._failed = True
            self.end()
            return None

    def _asked(self, question: bytes, chunk: list[Raw]) -> list[Any]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(sys.path)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True,  # this process handles Ctrl-C
            )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(question)
        self._process.stdin.flush()
        return _read_answers(self._process.stdout, chunk)

    def end(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()
        self._process.wait()
        self._process = None


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """The loop of a helper: chunks in, answers out, until the input ends."""
    with suppress(OSError, ValueError):
        while True:
            sink.write(_answers([(raw, _answer(raw)) for raw in _read_question(source)]))
            sink.flush()


# A message is a line of JSON. Below it are the texts that JSON would only quote: lines of an export and
# traces of records, three quarters of a message's cost. A row that is valid is answered by true, as the asker
# has its columns.


def _question(chunk: list[Raw]) -> bytes:
    head: list[Any] = []
    texts: list[bytes] = []
    for raw in chunk:
        if isinstance(raw, bytes):
            head.append(None)
            texts.append(raw.removesuffix(b"\n"))
        elif isinstance(raw, Refused):
            head.append((None, str(raw)))
        else:
            kind, row = raw
            trace = row.get("trace")
            if isinstance(trace, str) and "\n" not in trace:
                row = {name: x for name, x in row.items() if name != "trace"}
                texts.append(trace.encode("utf-8", "surrogatepass"))
            head.append((kind, row))
    return _message(head, texts)


def _read_question(source: IO[bytes]) -> list[Raw]:
    def raw(x: Any) -> Raw:
        if x is None:
            return _read_line(source)
        kind, value = x
        if kind is None:
            return Refused(value)
        if kind == "record" and "trace" not in value:
            value["trace"] = _read_line(source).decode("utf-8", "surrogatepass")
        return kind, value

    return [raw(x) for x in json.loads(_read_line(source))]


def _answers(found: list[tuple[Raw, Any]]) -> bytes:
    answers = [True if answer == raw else answer for raw, answer in found]
    records = [x[1] for x in answers if isinstance(x, tuple) and x[0] == "record"]
    return _message(answers, [columns.pop("trace").encode() for columns in records])


def _read_answers(source: IO[bytes], chunk: list[Raw]) -> list[Any]:
    answers = json.loads(_read_line(source))
    if not isinstance(answers, list) or len(answers) != len(chunk):
        raise ValueError("not an answer")
    for n, x in enumerate(answers):
        if x is True:
            answers[n] = chunk[n]
        elif isinstance(x, list) and x[0] == "record":
            x[1]["trace"] = _read_line(source).decode()
    return answers


def _message(head: Any, texts: list[bytes]) -> bytes:
    return b"\n".join([json.dumps(head).encode(), *texts, b""])


def _read_line(source: IO[bytes]) -> bytes:
    """A line without its end. Raises ValueError if the other process has gone."""
    line = source.readline()
    if not line.endswith(b"\n"):
        raise ValueError("no whole line")
    return line[:-1]
