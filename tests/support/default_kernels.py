"""Default kernels in the place of first picks: what a model computes, without a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune.run.kernels import default_kernel


def default_kernels(tasks: Sequence[Any], missing: Sequence[Any], wanted: Any, *_: Any) -> dict[int, Any]:
    """For `autotune.models.compiling.untuned_kernels`."""
    return {m.task: default_kernel(tasks[m.task].workload, wanted) for m in missing}
