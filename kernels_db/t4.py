"""Reads and writes T4, the open auto-tuning results format of Kernel Tuner and others, version 1.0.0.

https://github.com/KernelTuner/kernel_tuner/tree/master/kernel_tuner/schema/T4: a JSON document whose results
each have a configuration, times, an invalidity and a correctness. Ours also carry the record, and the
metadata holds what it refers to, so that nothing is lost. Results of other tools name parameters of kernels
that we do not have: they are refused as records, but `autotune replay` searches such a table.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Generator, Iterable, Iterator
from itertools import groupby, repeat
from pathlib import Path
from typing import IO, Any

from kernels_db.compression import opened_text
from kernels_db.errors import LogError
from kernels_db.exchange import Item, Refused, capped, decode
from kernels_db.sqlite import explain
from schedules.model import canonical

# Version of T4 that is written and read.
SCHEMA_VERSION = "1.0.0"
# Key of our additions to the schema.
OURS = "autotune"
# {part of a document: reason to refuse it}.
_NOT_OURS = {"metadata": "T4: metadata not valid", "results": "T4: a result without a schedule of autotune"}
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
# Characters read at a time.
PIECE = 64 << 10
# Longest result (characters). Parsed it takes some thirty times as much memory.
MAX_VALUE = 4 << 20
# {status of a record: T4's invalidity}.
INVALIDITY = {
    "ok": "correct",
    "illegal": "constraints",
    "compile_error": "compile",
    "wrong_result": "correctness",
    "out_of_bounds": "correctness",
    "crash": "runtime",
    "timeout": "timeout",
    "slow": "timeout",
    "error": "runtime",
}


def document(objects: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    """The text of a document, in pieces, from exchange objects in the order of an export."""
    referred: list[dict[str, Any]] = []
    separator = ""
    head = f'{{"schema_version":"{SCHEMA_VERSION}","metadata":'
    for kind, value in objects:
        if kind == "record":
            if not separator:
                yield f'{head}{canonical({OURS: referred})},"results":['
            yield separator + "\n" + canonical(_result(value))
            separator = ","
        elif kind != "header":
            referred.append(value)
    yield "\n]}\n" if separator else f'{head}{canonical({OURS: referred})},"results":[]}}\n'


def _result(record: dict[str, Any]) -> dict[str, Any]:
    decisions = record["environment"].get("decisions")
    seconds = record["environment"].get("seconds")
    holes = decisions if isinstance(decisions, list) else []
    spent = seconds if isinstance(seconds, dict) else {}
    seconds_a_run = [] if record["time_s"] is None else [record["time_s"]]
    return {
        "timestamp": record["created"],
        "configuration": {"sketch": record["sketch"], **{f"hole{i}": v for i, v in enumerate(holes)}},
        "objectives": ["time"],
        "times": {
            "compilation_time": _ms(spent.get("build")),
            "runtimes": [t * 1e3 for t in record["times_s"]],
            "framework": 0.0,
            "search_algorithm": 0.0,
            "validation": _ms(spent.get("check")),
        },
        "invalidity": INVALIDITY[record["status"]],
        "correctness": 1.0 if record["status"] == "ok" else 0.0,
        "measurements": [{"name": "time", "value": t * 1e3, "unit": "ms"} for t in seconds_a_run],
        OURS: record,
    }


def _ms(seconds: Any) -> float:
    return seconds * 1e3 if isinstance(seconds, (int, float)) else 0.0


def is_t4(path: Path) -> bool:
    """Whether a file looks like one document of this format. Raises `LogError`."""
    try:
        with opened_text(path) as f:
            head = f.read(4096).lstrip()
    except OSError as err:
        raise explain(err, path) from None
    first = head.split(b"\n", 1)[0]
    return head.startswith(b"{") and b'"format"' not in first and any(
        key in head for key in (b'"schema_version"', b'"results"')
    )


def read(path: Path) -> Generator[Item | Refused]:
    """The items of a document; a `Refused` for each that is not a record of ours. Raises `LogError` before
    the first item if the file is no such document."""
    order = [kind for kind, _ in groupby(kind for kind, _ in _values(path))]
    # Records must come after what they refer to, whatever the order of the document.
    late = order[:2] == ["results", "metadata"]
    passes = (("metadata",), ("results",)) if late else (("metadata", "results"),)
    for found in capped(value for kinds in passes for value in _values(path) if value[0] in kinds):
        yield found if isinstance(found, Refused) else _item(*found)


def _item(kind: str, value: Any) -> Item | Refused:
    if kind == "results":
        value = value.get(OURS) if isinstance(value, dict) else None
    if not isinstance(value, dict):
        return Refused(_NOT_OURS[kind])
    try:
        return decode(value)
    except Refused as err:
        return err


# -- a document in pieces: whole, it would take some thirty times its size in memory ----------------------


def _values(path: Path) -> Iterator[tuple[str, Any]]:
    """("results" or "metadata", value) of each result and of our part of the metadata, in the order of the
    document. Raises `LogError` if it is not one."""
    try:
        with opened_text(path) as packed, io.TextIOWrapper(packed, encoding="utf-8") as f:
            yield from _parts(_Pieces(f))
    except OSError as err:
        raise explain(err, path) from None
    except (ValueError, RecursionError):
        raise LogError(
            f"{path} is not a T4 document: it is not JSON with a list of results, each below "
            f"{MAX_VALUE >> 20} MB, or it was torn; write or copy it again"
        ) from None


def _parts(document: _Pieces) -> Iterator[tuple[str, Any]]:
    results = False
    for key in document.members():
        if key == "results":
            results = True
            yield from zip(repeat("results"), document.elements())
        elif key == "metadata" and document.peek() == "{":
            for name in document.members():
                if name == OURS and document.peek() == "[":
                    yield from zip(repeat("metadata"), document.elements())
                else:
                    document.value()
        else:
            document.value()
    if document.peek() or not results:
        raise ValueError


class _Pieces:
    """JSON of which only the requested value is in memory. Every method raises ValueError if the text is
    something else."""

    def __init__(self, f: IO[str]) -> None:
        self._f = f
        self._text = ""
        self._at = 0

    def peek(self) -> str:
        """The next character, spaces skipped; empty at the end."""
        following = self._text[self._at : self._at + 1]
        if following > " ":
            return following  # the usual case
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = self._at if space is None else space.end()
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def members(self) -> Iterator[Any]:
        """The keys of an object. The value must be read before the next key is requested."""
        for _ in self._each("{", "}"):
            key = self.value()
            self._take(":")
            yield key

    def elements(self) -> Iterator[Any]:
        return (self.value() for _ in self._each("[", "]"))

    def value(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError:
                if not self._more():
                    raise
                continue
            # A number may continue in the next piece, also after "e+".
            length, last = end - self._at, end + 2 >= len(self._text)
            if not last or not self._more():
                self._at += length
                return value

    def _each(self, opening: str, closing: str) -> Iterator[None]:
        self._take(opening)
        if self.peek() != closing:
            yield
            while self.peek() == ",":
                self._at += 1
                yield
        self._take(closing)

    def _take(self, wanted: str) -> None:
        if self.peek() != wanted:
            raise ValueError
        self._at += 1

    def _more(self) -> bool:
        """Read as much again as is left, so that a long value is not parsed again for every piece. Returns
        whether there was more."""
        left = self._text[self._at :]
        if len(left) > MAX_VALUE:
            raise ValueError
        more = self._f.read(max(PIECE, len(left)))
        self._text, self._at = left + more, 0
        return bool(more)
