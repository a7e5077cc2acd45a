"""Checking what another log says, beside this process: it is most of what a merge takes.

The first objects are decoded here, so that a small merge starts nothing. Those after them go, in chunks, to a
few processes that do nothing but decode; the items come back in their order, so that a line still refers only
to lines before it. A process that cannot start or dies costs speed alone: its chunk is decoded here.
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

Row = tuple[ItemType, dict[str, Any]]  # of a table of another log
Raw = bytes | Row | Refused  # a line of an export, a row, or what was refused unread

HERE = 4000  # objects decoded without a process: about half a second
CHUNK = 500  # objects a message,
CHUNK_BYTES = 1 << 20  # and bytes, unless a single one has more
PROCESSES = 4  # more would wait for the database
AHEAD = 24  # chunks, so that a process finds one when it is done, though the database be busy meanwhile

_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from kernels_db.decoding import serve; "
    "serve(sys.stdin.buffer, sys.stdout.buffer)"
)


def decoded(raws: Iterable[Raw], processes: int | None = None) -> Generator[Item | Refused]:
    """The items of ``raws`` in their order. ``processes``: how many may help; None: by the machine."""
    rest = iter(raws)
    yield from _items(map(_answer, islice(rest, HERE)))
    if processes is None:
        processes = min(os.cpu_count() or 1, PROCESSES)
    if processes > 1 and sys.executable:
        yield from _decoded_beside(_chunks(rest), processes)
    yield from _items(map(_answer, rest))


def _answer(raw: Raw) -> Any:
    """What becomes of a raw object, as JSON: [type, columns], a reason for refusing it, or None."""
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
    """A process that decodes, started when it is first asked. It ends when its input does, so it does not
    outlive this one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._failed = False

    def ask(self, chunk: list[Raw]) -> list[Any] | None:
        """The answers to a chunk; None if the process has none."""
        if self._failed:
            return None
        try:
            question = _question(chunk)
        except TypeError:  # a value that no column of ours has
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
                start_new_session=True,  # Ctrl-C is for this process to answer
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
    """What a helper does: chunks in, answers out, until there are no more."""
    with suppress(OSError, ValueError):
        while True:
            sink.write(_answers([(raw, _answer(raw)) for raw in _read_question(source)]))
            sink.flush()


# A message is a line of JSON, and below it what would only be quoted in it: the lines of an export, and the
# traces of records. That is three quarters of what a message costs. The columns of a row that is as it should
# be are not told to whoever asked, who has them: the answer is true.


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
    """A line without its end. Raises ValueError where the other process has gone."""
    line = source.readline()
    if not line.endswith(b"\n"):
        raise ValueError("no whole line")
    return line[:-1]
