"""Runs searches against recorded tables instead of a machine: thousands of trials a second, always the same.

A table is one of

- an export of a log (``log export``) or the log itself: one of its tasks (`autotune.search.simulate_log`);
- a cache file of Kernel Tuner, also one that was never closed or was torn;
- T4 results, schema 1.0.0 (auto-tuning community).

Files may be packed with gzip or xz. Configurations that failed are part of the table and cost a trial.
Nothing in a file is executed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.search import policies
from autotune.search.base import Result, SearchPolicy
from autotune.search.llm import Proposing
from autotune.search.table import NO_TABLE, ReplayError, Sheet, Table, TableSpace
from kernels_db.compression import opened_text
from kernels_db.records import SHORTEST_S
from kernels_db.spool import as_file
from kernels_db.sqlite import MAGIC
from kernels_db.store import Log
from schedules.documents import Malformed, an_object, any_text, list_of, mapping_of, nullable, record

# Candidates that a search is asked for at a time.
BATCH = 8
# Largest file, unpacked (bytes).
MOST_BYTES = 1 << 30
# {unit of time: seconds}.
UNITS = {"s": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "ns": 1e-9}
Config = Mapping[str, Any]
# {key near the beginning of a torn file: what the file is}.
TORN = {'"tune_params_keys"': "a cache of Kernel Tuner", '"results"': "a document of T4 results"}
# A string or a bracket of JSON.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]')


# The used parts of a cache of Kernel Tuner. An entry has the value of each key, and ``time`` in ms or the
# failure.
_KERNEL_TUNER = record(
    {"tune_params_keys": list_of(any_text), "cache": mapping_of(an_object)},
    {"kernel_name": nullable(any_text), "device_name": nullable(any_text)},
    open_ended=True,
)
_MEASUREMENT = record(
    {}, {"name": nullable(any_text), "value": lambda x: x, "unit": nullable(any_text)}, open_ended=True
)
# A configuration of T4 results. The first of ``objectives`` is what was tuned for.
_RESULT = record(
    {},
    {
        "configuration": an_object,
        "invalidity": any_text,
        "objectives": nullable(list_of(any_text)),
        "measurements": nullable(list_of(_MEASUREMENT)),
    },
    open_ended=True,
)
_T4 = record({"results": list_of(_RESULT)}, {"metadata": an_object}, open_ended=True)


@dataclass(frozen=True)
class SimulatedRun:
    """``best_s``: the best time (seconds) after each trial, None until a candidate ran."""

    seed: int
    best_s: tuple[float | None, ...]


def replay(table: Table, search: str, model: str, trials: int, seed: int) -> SimulatedRun:
    """One search, until the trials or the table are used up."""
    policy = policies.create(search, table.space, model, seed)
    try:
        return play(table, policy, trials, seed)
    finally:
        if isinstance(policy, Proposing):
            policy.close()


def play(table: Table, policy: SearchPolicy, trials: int, seed: int, batch: int = BATCH) -> SimulatedRun:
    """Like `replay`, with a policy over the table's space, asked for ``batch`` candidates at a time."""
    best: list[float | None] = []
    while len(best) < trials:
        asked = policy.ask(min(batch, trials - len(best)))
        if not asked:
            break
        results = []
        for candidate in asked:
            t = table.space.time_s(candidate)
            before = best[-1] if best else None
            best.append(t if before is None else before if t is None else min(before, t))
            results.append(Result(candidate, 1.0 / t if t is not None and t >= SHORTEST_S else 0.0))
        policy.tell(results)
    return SimulatedRun(seed, tuple(best))


def read(path: Path, task: str | None = None) -> Table:
    """The table of a file or a pipe. ``task``: which task of a log, by number or by words of its name; None:
    the one with the most records. Raises `ReplayError`, or `LogError` for a log that cannot be read."""
    from autotune.search import simulate_log

    with as_file(path) as file:
        with opened_text(file) as f:
            head = f.read(4096)
        if head.startswith(MAGIC):
            with Log(file, read_only=True) as log:
                return simulate_log.of_log(log, task)
        document, torn = (None, "") if b'"format"' in head.split(b"\n", 1)[0] else _document(file, path)
        if document is None:
            return simulate_log.of_export(file, task)
    if task is not None:
        raise ReplayError(f"{path} is a table of one task; leave out --task")
    try:
        if "cache" in document and "tune_params_keys" in document:
            table = _of_kernel_tuner(_KERNEL_TUNER(document), path)
        elif "results" in document:
            table = _of_t4(_T4(document), path)
        else:
            raise ReplayError(
                f"{path}: {torn or 'a JSON document'}, but no table of Kernel Tuner (cache) or T4 (results)"
            )
    except Malformed as err:
        raise ReplayError(f"{path}: {err}") from None
    return replace(table, notes=(f"{path} is {torn}: what comes before is read",)) if torn else table


def _document(file: Path, path: Path) -> tuple[dict[str, Any] | None, str]:
    """(the JSON document of a file, where it is torn). Of a torn file the whole part is kept. None for a file
    that may be an export."""
    text = _text(file)
    if text.lstrip()[:1] != "{":
        raise ReplayError(NO_TABLE.format(path))
    try:
        return json.loads(text), ""
    except RecursionError:
        raise ReplayError(f"{path} is nested too deeply") from None
    except json.JSONDecodeError as err:
        kind = next((k for k in TORN if k in text[:100_000]), None)
        if kind is None:
            return None, ""
        where = f"{TORN[kind]}, torn at line {err.lineno}"
        end, brackets = _last_entry(text[: err.pos])
        if not end:
            again = "tune again, or copy it again"
            raise ReplayError(f"{path} is {where}, with no configuration before; {again}") from None
        # A cache that Kernel Tuner is still writing lacks only its last brackets.
        return json.loads(text[:end] + brackets), where if text[end:].strip(" \t\r\n,") else ""


def _last_entry(text: str) -> tuple[int, str]:
    """(end of the last whole entry of a torn table, brackets that close the document there); 0 if there is
    none. ``text``: the beginning of a document."""
    closing: list[str] = []
    end, brackets = 0, ""
    for token in _TOKEN.finditer(text):
        if token[0] in "{[":
            closing.append("}" if token[0] == "{" else "]")
        elif token[0] in "}]":
            closing.pop()
            if len(closing) == 2:
                end, brackets = token.end(), "".join(reversed(closing))
    return end, brackets


def _text(path: Path) -> str:
    with opened_text(path) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ReplayError(f"{path} is larger than {MOST_BYTES >> 20} MiB")
    return data.decode("utf-8", errors="replace")


def _of_kernel_tuner(document: dict[str, Any], path: Path) -> Table:
    keys = document["tune_params_keys"]
    entries = [
        ({k: entry.get(k) for k in keys}, _seconds(entry.get("time"), UNITS["ms"]))
        for entry in document["cache"].values()
    ]
    kernel, device = document.get("kernel_name"), document.get("device_name")
    return _table(f"{kernel or path.stem} on {device or 'an unknown device'}", keys, entries, path)


def _of_t4(document: dict[str, Any], path: Path) -> Table:
    entries: list[tuple[Config, float]] = []
    for r in document["results"]:
        t = math.nan
        if r.get("invalidity", "correct") == "correct":
            wanted = (r.get("objectives") or ["time"])[0]
            for m in r.get("measurements") or ():
                if m.get("name") == wanted:
                    t = _seconds(m.get("value"), UNITS.get(m.get("unit") or "", UNITS["ms"]))
        entries.append((r.get("configuration", {}), t))
    keys = next((list(c) for c, _ in entries if c), [])
    return _table(str(document.get("metadata", {}).get("kernel", path.stem)), keys, entries, path)


def _seconds(value: Any, unit: float) -> float:
    """A time in seconds; NaN for anything else, such as the name of a failure."""
    number = _number(value)
    return number * unit if number is not None and not isinstance(value, bool) and number > 0 else math.nan


def _table(name: str, keys: Sequence[str], entries: Sequence[tuple[Config, float]], path: Path) -> Table:
    """Parameters of any values as columns of numbers (`_columns`), and log2 of their product, because work
    and threads of a block are products of several parameters."""
    if not entries or not keys:
        raise ReplayError(f"{path} has no configurations")
    values = {k: sorted({_plain(c.get(k)) for c, _ in entries}, key=_order) for k in keys}
    place = {k: {v: i for i, v in enumerate(values[k])} for k in keys}
    found: dict[tuple[int, ...], tuple[float, list[float]]] = {}
    for c, t in entries:
        row = tuple(place[k][_plain(c.get(k))] for k in keys)
        old = found.get(row)
        if old is None or not math.isfinite(old[0]) or t < old[0]:
            columns = [_columns(_plain(c.get(k)), place[k]) for k in keys]
            product = sum(max(log2, 0.0) for _, log2, _, _ in columns)
            found[row] = (t, [*(x for each in columns for x in each), product])
    features = np.array([x for _, x in found.values()], dtype=np.float32)
    names = [f"{k}{suffix}" for k in keys for suffix in ("", ".log2", ".place", ".odd")] + ["product.log2"]
    times = np.array([t for t, _ in found.values()])
    if not np.isfinite(times).any():
        raise ReplayError(f"{path}: none of its {len(found)} configurations ran")
    sheet = Sheet("table", tuple(keys), np.array(list(found), dtype=np.int64), times, features)
    return Table(name, TableSpace([sheet], names))


def _order(v: float | str) -> tuple[bool, float | str]:
    return isinstance(v, str), v


def _plain(v: Any) -> float | str:
    number = _number(v)
    return str(v) if number is None else number


def _number(v: Any) -> float | None:
    """A finite number of JSON as a float, else None. JSON's integers may be larger than any float."""
    try:
        number = float(v) if isinstance(v, (bool, int, float)) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _columns(v: float | str, place: Mapping[float | str, int]) -> tuple[float, float, float, float]:
    """(value, log2, rank among the values that occur, log2 without the factors of two of an integer). The
    last tells powers of two from others. -1 where there is no logarithm."""
    number = v if isinstance(v, float) else float(place[v])
    log2 = math.log2(number) if number > 0 else -1.0
    whole = int(number) if number > 0 and number.is_integer() else 0
    odd = math.log2(whole // (whole & -whole)) if whole else -1.0
    return number, log2, float(place[v]), odd
