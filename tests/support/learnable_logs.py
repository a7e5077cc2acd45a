"""Small tuning logs to learn from: random candidates of tiny products, timed by a formula of features."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from space_cases import target

from autotune.search.decisions import DECISIONS
from autotune.search.policies import create
from kernels_db import Log, NewRecord
from schedules import ops
from schedules.model import Target, Workload
from schedules.space import derive

# What a time depends on: not what the analytic estimate says.
COLUMN = "block0.outer"
MACHINE = {"cpu": "Test CPU", "cpus": 2}
SIZES = ((32, 48, 16), (48, 32, 64), (64, 64, 32), (16, 96, 48))


def matmul(size: tuple[int, int, int]) -> Workload:
    return ops.workload("matmul", dict(zip("mnk", size, strict=True)))


def seconds(space: Any, sketch: int, rows: np.ndarray) -> np.ndarray:
    """The more iterations are outside of the tile, the longer; every candidate differs a little."""
    outer = space.features(sketch, rows)[:, space.feature_names.index(COLUMN)].astype(float)
    return 1e-6 * (1.0 + outer + 1e-3 * (rows.sum(axis=1) % 97))


def fill(
    path: Path,
    sizes: tuple[tuple[int, int, int], ...] = SIZES,
    n: int = 24,
    machine: dict[str, Any] = MACHINE,
    on: Target | None = None,
    seed: int = 1,
    factor: float = 1.0,
) -> Path:
    """A log of ``n`` candidates of each size, of which the first fails and the second is given up."""
    with Log(path) as log:
        for size in sizes:
            workload, goal = matmul(size), on or target()
            space = derive(workload.canonical, goal)
            run = log.start_run(workload, goal, machine, seed=0, options={"search": "random"})
            for i, c in enumerate(create("random", space, seed=seed).ask(n)):
                row = np.array(c.row, dtype=np.int64)
                time_s = factor * float(seconds(space, c.sketch, row[None])[0])
                status = {0: "compile_error", 1: "slow"}.get(i, "ok")
                log.add(
                    NewRecord(
                        *(run.uid, i, space.sketches[c.sketch], space.trace(c.sketch, row), status),
                        times_s=() if i == 0 else (time_s,),
                        environment={DECISIONS: list(c.row)},
                    )
                )
            log.finish_run(run)
    return path


if __name__ == "__main__":
    fill(Path(sys.argv[1]))
