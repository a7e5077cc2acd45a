"""Searches against recorded tables instead of a machine: thousands of trials a second, the same every time.

A table is one of

- an export of our own log (``log export``) or the log itself: the task with the most candidates;
- a cache file of Kernel Tuner (plain or gzip), also one that was never closed;
- T4 results, schema 1.0.0 (auto-tuning community; plain or gzip).

Configurations that failed are part of the table, and cost a search its trial. Nothing of a file is executed.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autotune.search import policies
from autotune.search.base import Result, SearchPolicy
from autotune.search.table import Sheet, TableSpace
from kernels_db.store import Log
from schedules.errors import AutotuneError

BATCH = 8  # candidates that a search is asked for at a time
MOST_BYTES = 1 << 30
UNITS = {"s": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "ns": 1e-9}
Config = Mapping[str, Any]


class ReplayError(AutotuneError):
    """A file that holds no table, or a table that cannot be searched."""


@dataclass(frozen=True)
class Table:
    """A space of recorded candidates, and what it is called."""

    name: str
    space: TableSpace


@dataclass(frozen=True)
class Run:
    """``best_s``: the best time after each trial, None until one ran."""

    seed: int
    best_s: tuple[float | None, ...]


def replay(table: Table, search: str, model: str, trials: int, seed: int) -> Run:
    """One search, until the trials or the table are used up."""
    return play(table, policies.create(search, table.space, model, seed), trials, seed)


def play(table: Table, policy: SearchPolicy, trials: int, seed: int, batch: int = BATCH) -> Run:
    """The same with a policy over the table's space, asked for ``batch`` candidates at a time."""
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
            results.append(Result(candidate, 1.0 / t if t else 0.0))
        policy.tell(results)
    return Run(seed, tuple(best))


def read(path: Path) -> Table:
    """The table of a file. Raises `ReplayError`, or `LogError` for a log that cannot be read."""
    with path.open("rb") as file:
        head = file.read(16)
    if head.startswith(b"SQLite format 3"):
        with Log(path, read_only=True) as log:
            return _of_log(log)
    text = _text(path, head)
    first = text.lstrip()[:1]
    if first != "{":
        raise ReplayError(f"{path} is neither a log, nor an export, nor a table of Kernel Tuner or T4")
    try:
        document = json.loads(text)
    except ValueError:
        document = _unclosed(text)
    if document is None:
        return _of_export(path)
    if "cache" in document and "tune_params_keys" in document:
        return _of_kernel_tuner(document, path)
    if "results" in document:
        return _of_t4(document, path)
    raise ReplayError(f"{path}: a JSON document, but no table of Kernel Tuner (cache) or T4 (results)")


def _text(path: Path, head: bytes) -> str:
    opened = gzip.open(path, "rb") if head.startswith(b"\x1f\x8b") else path.open("rb")
    try:
        with opened as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, EOFError) as err:
        raise ReplayError(f"{path} cannot be read: {err}") from None
    if len(data) > MOST_BYTES:
        raise ReplayError(f"{path} is larger than {MOST_BYTES >> 20} MiB")
    return data.decode("utf-8", errors="replace")


def _unclosed(text: str) -> dict[str, Any] | None:
    """A cache that Kernel Tuner was still writing lacks its last brackets; None for anything else."""
    if '"tune_params_keys"' not in text[:100_000]:
        return None
    try:
        found: dict[str, Any] = json.loads(text.rstrip().rstrip(",") + "}}")
    except ValueError:
        return None
    return found


def _of_kernel_tuner(document: Mapping[str, Any], path: Path) -> Table:
    keys = [str(k) for k in document["tune_params_keys"]]
    entries = []
    for entry in document["cache"].values():
        t = entry.get("time")
        good = isinstance(t, (int, float)) and not isinstance(t, bool) and math.isfinite(t) and t > 0
        entries.append(({k: entry.get(k) for k in keys}, float(t) * 1e-3 if good else math.nan))
    name = f"{document.get('kernel_name', path.stem)} on {document.get('device_name', 'an unknown device')}"
    return _table(name, keys, entries, path)


def _of_t4(document: Mapping[str, Any], path: Path) -> Table:
    entries: list[tuple[Config, float]] = []
    keys: list[str] = []
    for r in document["results"]:
        configuration = r.get("configuration", {})
        keys = keys or [str(k) for k in configuration]
        t = math.nan
        if r.get("invalidity", "correct") == "correct":
            wanted = (r.get("objectives") or ["time"])[0]
            for m in r.get("measurements", ()):
                if m.get("name") == wanted and isinstance(m.get("value"), (int, float)):
                    t = float(m["value"]) * UNITS.get(str(m.get("unit", "ms")), 1e-3)
        entries.append((configuration, t))
    return _table(str(document.get("metadata", {}).get("kernel", path.stem)), keys, entries, path)


def _table(name: str, keys: Sequence[str], entries: Sequence[tuple[Config, float]], path: Path) -> Table:
    """Parameters of any values as columns of numbers (`_columns`), and log2 of the product of those
    numbers: work and threads of a block are products of several."""
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
    if isinstance(v, (bool, int, float)) and math.isfinite(v):
        return float(v)
    return str(v)


def _columns(v: float | str, place: Mapping[float | str, int]) -> tuple[float, float, float, float]:
    """Value, log2, place among the values that occur, and log2 of what is left of an integer without its
    factors of two, which tells powers of two apart; -1 where there is no logarithm."""
    number = v if isinstance(v, float) else float(place[v])
    log2 = math.log2(number) if number > 0 else -1.0
    whole = int(number) if number > 0 and number.is_integer() else 0
    odd = math.log2(whole // (whole & -whole)) if whole else -1.0
    return number, log2, float(place[v]), odd


def _of_export(path: Path) -> Table:
    import tempfile

    with tempfile.TemporaryDirectory() as tmp, Log(Path(tmp) / "import.db") as log:
        merged = log.merge(path)
        if not merged.new:
            raise ReplayError(f"{path} is neither a log, nor an export, nor a table of Kernel Tuner or T4")
        return _of_log(log)


def _of_log(log: Log) -> Table:
    """The task with the most candidates whose decisions are recorded."""
    from autotune.resume import DECISIONS
    from schedules.space import derive

    tasks = [(w, t, log.seen(w, t)) for w, t in log.tasks()]
    if not tasks:
        raise ReplayError(f"{log.path} has no records")
    workload_digest, target_digest, records = max(tasks, key=lambda x: len(x[2]))
    workload, target = log.workload(workload_digest), log.target(target_digest)
    space = derive(workload.dag, target)
    number = {name: i for i, name in enumerate(space.sketches)}
    best: dict[tuple[str, tuple[int, ...]], float] = {}
    for r in records:
        row = r.environment.get(DECISIONS)
        if r.sketch not in number or not isinstance(row, list) or not all(type(x) is int for x in row):
            continue
        if len(row) != len(space.holes(number[r.sketch])):
            continue
        t = r.time_s if r.status in ("ok", "slow") and r.time_s else math.nan
        key = (r.sketch, tuple(row))
        if key not in best or not best[key] < t:
            best[key] = t
    sheets = []
    for name, i in number.items():
        mine = [(row, t) for (sketch, row), t in best.items() if sketch == name]
        if mine:
            rows = np.array([row for row, _ in mine], dtype=np.int64).reshape(len(mine), -1)
            times = np.array([t for _, t in mine])
            sheets.append(Sheet(name, space.holes(i), rows, times, space.features(i, rows)))
    if not sheets:
        raise ReplayError(f"{log.path}: no record has decisions of this version's space; tune anew")
    return Table(f"{workload.op} on {target.arch}", TableSpace(sheets, space.feature_names))
