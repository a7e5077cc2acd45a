"""Measured candidates of several tasks, and two ways to split them for training and testing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_model.base import CostModelError


@dataclass(frozen=True)
class Dataset:
    """``features``: float32 [n, names]. ``throughput``: float64 [n], 0 for a failure. ``groups``: int64 [n],
    the task of each row. Raises CostModelError for shapes that do not match."""

    feature_names: tuple[str, ...]
    features: npt.NDArray[np.float32]
    throughput: npt.NDArray[np.float64]
    groups: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        n = len(self.throughput)
        if self.features.shape != (n, len(self.feature_names)) or self.groups.shape != (n,):
            raise CostModelError(
                f"features {self.features.shape}, throughput {self.throughput.shape} and groups "
                f"{self.groups.shape} do not fit {len(self.feature_names)} feature names"
            )

    def __len__(self) -> int:
        return len(self.throughput)

    @property
    def tasks(self) -> tuple[int, ...]:
        """The numbers of the tasks."""
        return tuple(int(g) for g in np.unique(self.groups))

    def take(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Dataset:
        """The given rows (indices or a mask)."""
        return Dataset(self.feature_names, self.features[rows], self.throughput[rows], self.groups[rows])

    def split_within(self, share: float = 0.8, seed: int = 0) -> tuple[Dataset, Dataset]:
        """(train, test), both with rows of every task, as after some trials of a task."""
        rng = np.random.default_rng(seed)
        train = np.zeros(len(self), dtype=bool)
        for task in self.tasks:
            rows = rng.permutation(np.flatnonzero(self.groups == task))
            train[rows[: round(share * len(rows))]] = True
        return self.take(train), self.take(~train)

    def split_by_task(self, share: float = 0.8, seed: int = 0) -> tuple[Dataset, Dataset]:
        """(train, test) without a common task, as for a task never seen."""
        tasks = np.random.default_rng(seed).permutation(np.asarray(self.tasks, dtype=np.int64))
        train = np.isin(self.groups, tasks[: round(share * len(tasks))])
        return self.take(train), self.take(~train)

    def leave_one_out(self) -> Iterator[tuple[int, Dataset, Dataset]]:
        """Each task in turn as the test set: (task, the others, the task)."""
        for task in self.tasks:
            held_out = self.groups == task
            yield task, self.take(~held_out), self.take(held_out)


def concatenate(parts: list[Dataset]) -> Dataset:
    """One dataset of several with the same features. Raises CostModelError if features differ or there is
    none."""
    if not parts or any(p.feature_names != parts[0].feature_names for p in parts):
        raise CostModelError("datasets to join must be at least one and have the same feature names")
    return Dataset(
        parts[0].feature_names,
        np.concatenate([p.features for p in parts]),
        np.concatenate([p.throughput for p in parts]),
        np.concatenate([p.groups for p in parts]),
    )
