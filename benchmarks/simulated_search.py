"""Searches of loop-nest spaces without a machine: times come from trees that learnt a task's candidates.

    python benchmarks/simulated_search.py data/cpu-znver4.jsonl.xz --out FILE [--beside FILE]

Two searches differ by less than two runs on a busy machine do. So their trials are not timed here: for each
task, boosted trees are fitted to all of its measured candidates (some hundred), and stand for the machine,
without noise. Everything else is as in tuning: the space, its sampling and mutation, the models, rounds of
`ROUND`. "shipped" begins with the shipped model, which has seen these tasks, "scratch" with nothing.
``beside``: what this script wrote with another checkout of the project; a share is of the best that any run
of either found.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measured import read

from autotune.search import policies
from autotune.search.base import Result
from autotune.search.columns import compile_columns
from autotune.search.evolutionary import model_features, model_matrix
from autotune.tuning.measured import Measured, still_offered
from cost_model.xgb import XGBModel
from schedules.space import DerivedSpace, derive
from schedules.space.base import Candidate

ROUND = 16
AFTER = (1, 16, 64, 128, 400)
MODELS = {"shipped": "xgb", "scratch": "scratch"}
FEWEST = 100  # candidates that trees learn a task from
LEAST = 1e-3  # throughput over the best: trees may predict less than nothing


class Machine:
    """What stands for the machine: throughput of candidates of one task, about 1 for the best measured."""

    def __init__(self, known: Measured, space: DerivedSpace) -> None:
        self._space = space
        matrices, times = [], []
        for i, sketch, valid in still_offered(known, space):
            matrices.append(model_matrix(space, sketch, known.sketches[i].rows[valid]))
            times.append(known.sketches[i].time_s[valid])
        time_s = np.concatenate(times)
        throughput = np.where(np.isfinite(time_s), 1.0 / time_s, 0.0)
        self._trees = XGBModel(model_features(space), models=2, trees=300, depth=6)
        self._trees.fit(np.concatenate(matrices), throughput)

    def run(self, candidates: Sequence[Candidate]) -> list[Result]:
        rows = [model_matrix(self._space, c.sketch, np.array([c.row])) for c in candidates]
        speed = np.maximum(self._trees.predict_spread(np.concatenate(rows))[0], LEAST)
        return [Result(c, float(x)) for c, x in zip(candidates, speed, strict=True)]


def best_after(
    space: DerivedSpace, known: Measured, machine: Machine, model: str, seed: int, after: Sequence[int]
) -> dict[str, Any]:
    """{"best": throughput of the best after each number of trials, "cpu_ms": of searching, a trial}."""
    policy = policies.create("evolutionary", space, model, seed, target=known.target)
    best: list[float] = []
    spent = 0.0
    while len(best) < after[-1]:
        begin = time.process_time()
        asked = policy.ask(min(ROUND, after[-1] - len(best)) if best else 1)
        spent += time.process_time() - begin
        if not asked:
            break
        told = machine.run(asked)
        begin = time.process_time()
        policy.tell(told)
        spent += time.process_time() - begin
        for r in told:
            best.append(max(r.throughput, best[-1] if best else 0.0))
    return {
        "best": [round(best[min(k, len(best)) - 1], 5) for k in after],
        "cpu_ms": round(1e3 * spent / len(best), 2),
    }


def one_task(
    known: Measured, seeds: int, models: Sequence[str], after: Sequence[int]
) -> dict[str, Any] | None:
    """The runs of one task; None if too few of its candidates are still in its space."""
    space = derive(known.workload.dag, known.target, compile_columns)
    if sum(valid.sum() for _, _, valid in still_offered(known, space)) < FEWEST:
        return None
    machine = Machine(known, space)
    return {
        m: [best_after(space, known, machine, MODELS[m], seed, after) for seed in range(seeds)]
        for m in models
    }


def report(
    rows: Sequence[dict[str, Any]], after: Sequence[int], beside: Sequence[dict[str, Any]] = ()
) -> str:
    """Shares of the best found, geometric mean over tasks and seeds (worst), and CPU time of searching."""
    both = {"this": {r["task"]: r for r in rows}, "beside": {r["task"]: r for r in beside}}
    tasks = [t for t in both["this"] if not beside or t in both["beside"]]
    models = [m for m in MODELS if m in rows[0]]
    best = {
        t: max(x["best"][-1] for each in both.values() if t in each for m in models for x in each[t][m])
        for t in tasks
    }
    lines = [f"{len(tasks)} tasks; after {', '.join(map(str, after))} trials"]
    for model in models:
        for name, each in both.items():
            if each:
                runs = [(t, x) for t in tasks for x in each[t][model]]
                columns = [[x["best"][k] / best[t] for t, x in runs] for k in range(len(after))]
                shares = [f"{statistics.geometric_mean(c):.4f} ({min(c):.2f})" for c in columns]
                cpu = statistics.fmean(x["cpu_ms"] for _, x in runs)
                lines.append(f"{model:8} {name:7} {'  '.join(shares)}  {cpu:.1f} ms of CPU a trial")
    return "\n".join(lines)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("known", type=Path)
    parser.add_argument("--ops", nargs="+", help="only tasks of these operators")
    parser.add_argument("--most", type=int, default=1, help="tasks of each operator, the best known")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--after", type=int, nargs="+", default=list(AFTER), help="trials, ascending")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--beside", type=Path)
    options = parser.parse_args()
    by_op: dict[str, list[Measured]] = {}
    for m in read(options.known)[1]:
        by_op.setdefault(m.workload.op, []).append(m)
    done = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    for op, tasks in by_op.items():
        tasks.sort(key=lambda m: -sum(len(s.rows) for s in m.sketches))
        for known in tasks[: options.most] if not options.ops or op in options.ops else ():
            name = f"{op} {dict(known.workload.params)}"
            if name not in [r["task"] for r in done]:
                row = one_task(known, options.seeds, options.models, options.after)
                if row is None:
                    print(f"{name}: too few candidates")
                    continue
                done.append({"task": name, **row})
                document = {"seeds": options.seeds, "after": options.after, "rows": done}
                options.out.write_text(json.dumps(document) + "\n")
                print(done[-1]["task"], flush=True)
    beside = json.loads(options.beside.read_text())["rows"] if options.beside else []
    print(report(done, options.after, beside))


if __name__ == "__main__":
    main()
