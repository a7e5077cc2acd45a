"""How well the models of a log's runs predicted, and where the time went.

A trial of a guided search keeps what models predicted of it (`PREDICTED` in its record's environment), so
that predictions can be compared with measurements later. Figures are those of one task, averaged over tasks,
because models order the candidates of a task, not tasks.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.tuning.resume import throughput
from cost_model.metrics import pairwise_accuracy, recall_at_k, rmse, top_k

if TYPE_CHECKING:
    from kernels_db.records import Record
    from kernels_db.store import Log

# Key in the environment of a record.
PREDICTED = "predicted"
# Pairs of candidates whose throughputs differ by less (share) do not count.
GAP = 0.02
# Fewest candidates of a task that counts.
LEAST = 8
# Most trials of a task that count, the latest: the number of pairs grows with the square.
MOST = 2000
# Phases of a trial whose seconds its record has.
PHASES = ("search", "build", "check", "run")
# {model in a record: its name in reports}. They learnt from: the task's trials; other tasks only; nothing
# measured.
MEANING = {"model": "within_task", "prior": "by_task", "analytic": "analytic"}


def of_log(log: Log) -> dict[str, Any]:
    """``predictions``: {model: `of_predictions` averaged over tasks, worst pairwise accuracy, counts}.
    ``seconds``: {phase: seconds of all trials}; building overlaps with running."""
    seconds = dict.fromkeys(PHASES, 0.0)
    tasks: defaultdict[tuple[str, str], deque[Record]] = defaultdict(lambda: deque(maxlen=MOST))
    for record in log.records(kind="trial"):
        spent = record.environment.get("seconds")
        if isinstance(spent, Mapping):
            for phase in PHASES:
                seconds[phase] += _number(spent.get(phase))
        if isinstance(record.environment.get(PREDICTED), Mapping):
            tasks[record.workload, record.target].append(record)
    found: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    for records in tasks.values():
        for name, meaning in MEANING.items():
            one = of_task(records, name)
            if one is not None:
                found[meaning].append(one)
    return {
        "predictions": {meaning: _average(each) for meaning, each in found.items()},
        "seconds": {phase: round(s, 3) for phase, s in seconds.items()},
    }


def of_task(records: Iterable[Record], model: str) -> dict[str, float] | None:
    """The figures of one model on the trials of one task, with ``rmse`` of predicted against measured shares
    of the best. None if fewer than `LEAST` of the trials that it predicted ran."""
    pairs = []
    for r in records:
        score = r.environment[PREDICTED].get(model)
        reached = throughput(r.status, r.time_s)
        if reached and isinstance(score, (int, float)) and abs(score) < 1e300:
            pairs.append((float(score), reached))
    if len(pairs) < LEAST:
        return None
    predicted, fast = np.array(pairs).T
    found = of_predictions(predicted, fast)
    if model != "analytic":  # its scores are no shares of the best
        found["rmse"] = rmse(predicted, fast / fast.max())
    return found


def of_predictions(predicted: np.ndarray, throughput: np.ndarray) -> dict[str, float]:
    """``pairwise``: accuracy over pairs that differ by `GAP` or more. ``top1``, ``top5``: the best of the 1
    or 5 highest predicted over the best of all. ``recall30``: recall of the best 30. ``candidates``: their
    number."""
    return {
        "pairwise": pairwise_accuracy(predicted, throughput, GAP),
        "top1": top_k(predicted, throughput, 1),
        "top5": top_k(predicted, throughput, 5),
        "recall30": recall_at_k(predicted, throughput, 30),
        "candidates": float(len(predicted)),
    }


def _average(each: list[dict[str, float]]) -> dict[str, float | int]:
    out: dict[str, float | int] = {
        k: round(float(np.mean([x[k] for x in each])), 4) for k in each[0] if k != "candidates"
    }
    worst = round(min(x["pairwise"] for x in each), 4)
    return out | {
        "worst_pairwise": worst,
        "tasks": len(each),
        "candidates": int(sum(x["candidates"] for x in each)),
    }


def _number(x: object) -> float:
    """``x`` if it is a number of seconds, else 0. A log may hold anything, also an integer too large for a
    float."""
    return float(x) if isinstance(x, (int, float)) and not isinstance(x, bool) and 0 <= x < 1e15 else 0.0
