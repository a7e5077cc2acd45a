"""Suites: files of tasks by groups, for benchmarks and for tuning many operators.

TOML: each ``[[group]]`` has ``suite``, ``name``, ``op``, ``fields`` (parameters in order), ``shapes`` (their
values, a row a task), optionally ``fixed`` (parameters of every row, and ``layout``), ``dtype``, and
``quick``: the rows, from 0, of the quick suite. ``FILE:NAME`` picks the groups of suite NAME, the rows of
"quick", or "all".
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schedules import ops
from schedules.errors import AutotuneError
from schedules.model import Workload


class SuiteError(AutotuneError):
    """A suite file that cannot be read, or has no such suite."""


@dataclass(frozen=True)
class Task:
    """One workload of a suite, and the group whose mean it counts in."""

    suite: str
    group: str
    workload: Workload


def read(text: str) -> list[Task]:
    """The tasks of ``FILE`` or ``FILE:NAME``. Raises `SuiteError`, or `WorkloadError` for a bad shape."""
    path, name = _where(text)
    try:
        with path.open("rb") as f:
            content = tomllib.load(f)
    except OSError as err:
        raise SuiteError(f"cannot read suite {path}: {err.strerror or err}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise SuiteError(f"suite {path} is not TOML: {err}") from None
    groups = content.get("group")
    if not isinstance(groups, list) or not groups:
        raise SuiteError(f"suite {path} has no [[group]]")
    names = list(dict.fromkeys(_need(g, "suite", str, path) for g in groups))
    if name not in ("all", "quick", *names):
        raise SuiteError(f"{path} has no suite {name!r}; choose from {', '.join([*names, 'quick', 'all'])}")
    chosen = [g for g in groups if name in ("all", "quick", g["suite"])]
    return [t for g in chosen for t in _tasks(g, name == "quick", path)]


def _where(text: str) -> tuple[Path, str]:
    file, colon, name = text.rpartition(":")
    if colon and name and not Path(text).exists():
        return Path(file), name
    return Path(text), "all"


def _tasks(group: Mapping[str, Any], quick: bool, path: Path) -> list[Task]:
    op, name = _need(group, "op", str, path), _need(group, "name", str, path)
    fields, shapes = _need(group, "fields", list, path), _need(group, "shapes", list, path)
    fixed = dict(group.get("fixed", {}))
    layout = fixed.pop("layout", None)
    rows = group.get("quick", []) if quick else range(len(shapes))
    out = []
    for row in rows:
        if not isinstance(row, int) or not 0 <= row < len(shapes) or not isinstance(shapes[row], list):
            raise SuiteError(f"suite {path}, group {name}: there is no row {row!r} in its shapes")
        if len(shapes[row]) != len(fields):
            raise SuiteError(
                f"suite {path}, group {name}: row {row} has {len(shapes[row])} numbers for "
                f"{len(fields)} fields ({', '.join(map(str, fields))})"
            )
        params = dict(zip(fields, shapes[row], strict=True)) | fixed
        workload = ops.workload(op, params, group.get("dtype", "float32"), layout)
        out.append(Task(group["suite"], name, workload))
    return out


def _need(group: Any, key: str, kind: type, path: Path) -> Any:
    value = group.get(key) if isinstance(group, dict) else None
    if not isinstance(value, kind):
        raise SuiteError(f"suite {path}: a group lacks {key!r} ({kind.__name__})")
    return value
