"""The contract of a cost model.

Features are float32 [candidates, features] with named columns. Throughput has any unit that is the same
within a group (a group is a task), and is 0 for a candidate that failed. Scores order the candidates of one
task, higher is better. Their unit is the model's own.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from schedules.errors import AutotuneError

Features = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float64]
# Largest file of a model (bytes).
LARGEST = 64 << 20
# Nobody is waited for, and bytes are read as they are. Systems lack some of these.
_FLAGS = ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY")


class CostModelError(AutotuneError, ValueError):
    """A model file cannot be read, or features do not fit the model."""


class CostModel(Protocol):
    """Learns from measured candidates and scores others."""

    feature_names: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether `predict` has something to say. True at once for a model that needs no data."""

    def fit(self, features: Features, throughput: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> None:
        """Learn from scratch. ``features``: [n, features]; ``throughput``: [n]; ``groups``: [n] task numbers,
        None for one task."""

    def predict(self, features: Features) -> Scores:
        """Scores [n]. Raises CostModelError if the number of columns differs."""


class Untaught:
    """What models share that learn nothing of a task."""

    feature_names: tuple[str, ...]

    @property
    def ready(self) -> bool:
        return True

    def fit(self, features: Features, throughput: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> None:
        check_features(features, self.feature_names)


@runtime_checkable
class Drafts(Protocol):
    """A model that can also score roughly and cheaply."""

    def draft(self, features: Features) -> Scores:
        """Scores [n], about those of `predict`, at a fraction of its cost."""


def check_features(features: Features, names: tuple[str, ...]) -> Features:
    """``features`` as a float32 matrix with one column a name. Raises CostModelError for another shape."""
    matrix = np.asarray(features, dtype=np.float32)
    if matrix.ndim != 2 or matrix.shape[1] != len(names):
        raise CostModelError(
            f"features have shape {matrix.shape}, the model knows {len(names)} columns: use the space that "
            "the model was made for"
        )
    return matrix


def without_infinities(matrix: Features) -> Features:
    """``matrix`` with NaN, XGBoost's missing value, in place of infinities, which it refuses."""
    ok = np.isfinite(matrix)
    return matrix if ok.all() else np.where(ok, matrix, np.float32(np.nan))


def relative_throughput(throughput: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Scores:
    """Throughput over the best of its group, in [0, 1]; all 0 in a group where nothing ran. Raises
    CostModelError for lengths that differ, and for values that are negative or not finite."""
    values = np.asarray(throughput, dtype=np.float64)
    tasks = np.zeros(len(values), np.int64) if groups is None else np.asarray(groups)
    if values.ndim != 1 or tasks.shape != values.shape:
        raise CostModelError(
            f"throughput {values.shape} and groups {tasks.shape} must be vectors of one length"
        )
    if not np.all(np.isfinite(values) & (values >= 0)):
        raise CostModelError("throughput must be finite and not negative; give a failed candidate 0")
    _, index = np.unique(tasks, return_inverse=True)
    best = np.zeros(int(index.max(initial=-1)) + 1)
    np.maximum.at(best, index, values)
    return values / np.where(best > 0, best, 1.0)[index]


def read_regular(path: Path) -> bytes:
    """The content of a regular file of at most `LARGEST` bytes. Raises OSError for a larger one, and for
    anything else: a pipe would be waited for."""
    fd = os.open(path, os.O_RDONLY | sum(getattr(os, name, 0) for name in _FLAGS))
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise OSError(errno.EFBIG, f"it is larger than {LARGEST >> 20} MiB", str(path))
    return content
