"""Reads suites: files of tasks in groups, for benchmarks and for tuning many operators.

TOML: each ``[[group]]`` has ``suite``, ``name``, ``op``, ``fields`` (parameters in order) and ``shapes``
(their values, a row a task). Optional: ``fixed`` (parameters of every row, and ``layout``), ``dtype``,
``weights`` (how often each row's kernel runs, default 1), and ``quick`` (the rows, from 0, of the quick
suite). ``FILE:NAME`` picks the groups of suite NAME, the rows of "quick", or "all".
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from autotune.run.workloads import with_constants
from kernels_db.encoding import HEAD, foreign, refusal
from kernels_db.opening import read_regular
from schedules import ops
from schedules.errors import AutotuneError
from schedules.model import Workload

# Most tasks of a group.
MAX_TASKS = 10_000


class SuiteError(AutotuneError):
    """A suite file that cannot be read, or has no such suite.

    >>> at.tune_suite("missing.toml")
    Traceback (most recent call last):
        ...
    autotune.tuning.suites.SuiteError: cannot read suite missing.toml: No such file or directory
    """


# Largest file of a suite (bytes).
MOST_BYTES = 16 << 20


class SuiteGroup(BaseModel):
    """A ``[[group]]`` of the file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    suite: str
    name: str
    op: str
    fields: list[str] = Field(min_length=1)
    shapes: list[list[int | float | list[int]]] = Field(min_length=1, max_length=MAX_TASKS)
    fixed: dict[str, int | float | str | list[int]] = {}
    dtype: str | None = None
    weights: list[float] = []
    quick: list[int] = []

    @field_validator("fields")
    @classmethod
    def _differ(cls, fields: list[str]) -> list[str]:
        if len(set(fields)) < len(fields):
            raise ValueError("a name occurs twice")
        return fields


class SuiteFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    group: list[SuiteGroup] = Field(min_length=1)


@dataclass(frozen=True)
class SuiteEntry:
    """One workload of a suite, the group whose mean it counts in, and how often it runs."""

    suite: str
    group: str
    workload: Workload
    weight: float = 1.0


def read(text: str, constant_weights: bool = False) -> list[SuiteEntry]:
    """The tasks of ``FILE`` or ``FILE:NAME``. ``constant_weights``: tasks with weights get them as known
    ahead. Raises `SuiteError`, or `WorkloadError` for a bad shape."""
    path, name = _where(text)
    try:
        data = read_regular(path, MOST_BYTES)
        encoding = foreign(data[:HEAD])
        if encoding is not None:
            raise SuiteError(refusal(f"suite {path}", encoding))
        content = tomllib.loads(data.decode("utf-8"))
    except OSError as err:
        raise SuiteError(f"cannot read suite {path}: {err.strerror or err}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise SuiteError(f"suite {path} is not TOML: {err}") from None
    try:
        groups = SuiteFile.model_validate(content).group
    except ValidationError as err:
        first = err.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise SuiteError(f"suite {path}: {place}: {first['msg']}") from None
    names = list(dict.fromkeys(g.suite for g in groups))
    if name not in ("all", "quick", *names):
        raise SuiteError(f"{path} has no suite {name!r}; choose from {', '.join([*names, 'quick', 'all'])}")
    chosen = [g for g in groups if name in ("all", "quick", g.suite)]
    tasks = [t for g in chosen for t in _tasks(g, name == "quick", path)]
    if not constant_weights:
        return tasks
    return [
        replace(t, workload=with_constants(t.workload, ops.REGISTRY[t.workload.op].weights)) for t in tasks
    ]


def mean_over_groups(values: Iterable[tuple[Hashable, float]]) -> tuple[float, int]:
    """(geometric mean of (group, value) pairs, number of groups). Each group counts once, as the geometric
    mean of its own values."""
    groups: dict[Hashable, list[float]] = {}
    for group, value in values:
        groups.setdefault(group, []).append(value)
    return geometric_mean([geometric_mean(x) for x in groups.values()]), len(groups)


def _where(text: str) -> tuple[Path, str]:
    file, colon, name = text.rpartition(":")
    if colon and name and not Path(text).exists():
        return Path(file), name
    return Path(text), "all"


def _tasks(group: SuiteGroup, quick: bool, path: Path) -> list[SuiteEntry]:
    both = [name for name in group.fields if name in group.fixed]
    if both:
        raise SuiteError(
            f"suite {path}, group {group.name}: {both[0]} is among its fields and fixed too; drop one"
        )
    fixed: dict[str, Any] = dict(group.fixed)
    layout = fixed.pop("layout", None)
    weights = group.weights or [1.0] * len(group.shapes)
    if len(weights) != len(group.shapes) or not all(0 < w < math.inf for w in weights):
        raise SuiteError(
            f"suite {path}, group {group.name}: weights must be a positive number for each of its "
            f"{len(group.shapes)} shapes"
        )
    out = []
    for row in group.quick if quick else range(len(group.shapes)):
        if not 0 <= row < len(group.shapes):
            raise SuiteError(f"suite {path}, group {group.name}: there is no row {row} in its shapes")
        shape = group.shapes[row]
        if len(shape) != len(group.fields):
            raise SuiteError(
                f"suite {path}, group {group.name}: row {row} has {len(shape)} numbers for "
                f"{len(group.fields)} fields ({', '.join(group.fields)})"
            )
        params = dict(zip(group.fields, shape, strict=True)) | fixed
        workload = ops.workload(group.op, params, group.dtype, layout)
        out.append(SuiteEntry(group.suite, group.name, workload, weights[row]))
    return out
