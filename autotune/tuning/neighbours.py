"""What other tasks of the log teach: measured candidates of expressions of the same structure at similar
sizes, whoever stated them.

Targets of the same kind count, those of other machines too. What is learnt is an order of candidates, and the
features describe each machine's own caches and registers.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from autotune.search.decisions import learnable
from autotune.search.evolutionary import model_features, model_matrix
from autotune.tuning import resume
from autotune.tuning.options import TuneOptions
from cost_model.dataset import Dataset
from cost_model.models import kind as model_kind
from kernels_db.errors import LogError
from schedules.model import Target, Workload
from schedules.space.base import Space
from schedules.te.structure import distance, structure

if TYPE_CHECKING:
    from kernels_db.store import Log

# Most tasks that are learnt from.
TASKS = 3
# Rows of each task, half of them its best.
ROWS = 200
# Largest distance of a task that is learnt from (doublings of all extents together).
FARTHEST = 8.0
# Distance that another target adds (doublings).
ELSEWHERE = 2.0


def neighbours(
    log: Log, workload: Workload, target: Target, space: Space, options: TuneOptions
) -> Dataset | None:
    """Candidates of the nearest tasks, with the features that a search of ``space`` uses; None where there
    are none, or the search learns nothing. What cannot be read of other tasks is passed over."""
    if not options.needs_xgboost or not model_kind(options.guide).experienced:
        return None
    here = (workload.digest, target.digest)
    names = model_features(space)
    own = structure(workload.dag)

    @cache
    def apart(digest: str) -> float:
        try:
            return distance(own, structure(log.workload(digest).dag))
        except Exception:  # damaged, or of a newer version: a log may hold any expression
            return math.inf

    @cache
    def kind(digest: str) -> str:
        try:
            return log.target(digest).kind
        except LogError:
            return ""

    found: list[tuple[float, str, str]] = []
    for w, t in log.tasks():
        d = apart(w) + ELSEWHERE * (t != target.digest)
        if (w, t) != here and d <= FARTHEST and kind(t) == target.kind:
            found.append((d, w, t))
    parts = [p for _, w, t in sorted(found)[:TASKS] if (p := _rows(log, w, t, space, names)) is not None]
    if not parts:
        return None
    groups = np.concatenate([np.full(len(y), g) for g, (_, y) in enumerate(parts)])
    features, throughput = (np.concatenate([p[i] for p in parts]) for i in (0, 1))
    return Dataset(names, features, throughput, groups)


def _rows(
    log: Log, workload: str, target: str, space: Space, names: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray] | None:
    """(columns ``names``, throughput) of a task's candidates: the best, and others evenly."""
    from schedules.space import derive

    try:
        other = derive(learnable(log.workload(workload)), log.target(target))
        if other.feature_names != space.feature_names:
            return None
        earlier = resume.read(log, workload, target, other, most=2 * ROWS)
    except Exception:  # another's task: a log may hold any expression
        return None
    results = sorted(earlier.results, key=lambda r: -r.throughput)
    half = ROWS // 2
    rest = results[half:]
    chosen = results[:half] + rest[:: max(1, len(rest) // half)][:half]
    features, throughput = [], []
    for s, name in enumerate(other.sketches):
        mine = [r for r in chosen if r.candidate.sketch == s]
        if mine:
            rows = np.array([r.candidate.row for r in mine], dtype=np.int64).reshape(len(mine), -1)
            same = space.sketches.index(name) if name in space.sketches else -1
            features.append(model_matrix(other, s, rows, names, same))
            throughput += [r.throughput for r in mine]
    if not features:
        return None
    return np.concatenate(features), np.array(throughput)
