"""Measured candidates of several tasks."""

from __future__ import annotations

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
