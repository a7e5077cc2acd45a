"""Train the shipped cost model and judge it, on the data of `dataset.py` that `measured.py` keeps.

    python benchmarks/train_cost_model.py extract benchmarks/data/cpu-znver*.jsonl.xz --out data.npz
    python benchmarks/train_cost_model.py train data.npz --out cost_model/data/cpu-vector64.json
    python benchmarks/train_cost_model.py judge data.npz --out benchmarks/results/cost-model-znver5.json

So are made the models of the Zens (``cpu-vector64``) and, of ``cpu-graniterapids``, that of Intel's servers
(``cpu-intel-server``). ``judge`` judges what ``--cpu`` measured (default: this one), and asks no model about
a task that it has seen on any CPU (``by_task``: 8 folds of tasks), and none about an operator that it has
seen (``by_operator``). Judged are ranking (pairs of the random candidates that differ by 2 % or more) and
searches, replayed on the measured tables with the models that have not seen the operator.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from measured import read as read_measured

from autotune import backends
from autotune.search.base import SearchPolicy
from autotune.search.evolutionary import EvolutionarySearch, EvolutionOptions, model_features, model_matrix
from autotune.search.random import RandomSearch
from autotune.search.simulate import play
from autotune.search.table import Sheet, Table, TableSpace
from autotune.tuning.measured import Measured, data_of, still_offered
from cost_model import pretrained, training
from cost_model.analytic import AnalyticModel
from cost_model.library import xgboost
from cost_model.metrics import pairwise_accuracy, top_k
from cost_model.xgb import XGBModel
from schedules.model import Target
from schedules.space import derive

LEAST = 30  # candidates of a task to learn from
HELD_OUT = 200  # random candidates that a task needs to be judged
FOLDS, PARTS = 8, 5  # of all tasks; of the candidates of one
ROUND = 16  # candidates that a search is asked for at a time, as in tuning
AFTER = (1, 4, 8, 16, 32, 64)
ARRAYS = ("features", "time_s", "drawn", "sketch", "rows", "reference")  # of a `TaskData`


@dataclass(frozen=True, eq=False)
class TaskData(training.TaskData):
    """What a table of a task needs beside what is learnt from: whether each candidate was drawn at random,
    its sketch and decisions. ``name`` and ``workload`` are the same on every CPU."""

    op: str
    params: dict[str, Any]
    drawn: np.ndarray
    sketch: np.ndarray
    rows: np.ndarray  # padded with -1
    holes: list[list[str]]

    @property
    def cpu(self) -> str:
        """The one that measured it."""
        return self.target.arch


def extract(measured: Sequence[Path], out: Path) -> None:
    """Features of measured candidates by this version's formulas, of those that its spaces still have."""
    facts, found = [], []
    for path in measured:
        said, candidates = read_measured(path)
        facts.append(said | {"data": path.name, "cpus": sorted({m.target.arch for m in candidates})})
        found += candidates
    with ProcessPoolExecutor() as pool:
        tasks = [t for t in pool.map(of_task, found, chunksize=4) if t is not None]
    heads = [
        {"op": t.op, "params": t.params, "target": t.target.json, "names": t.feature_names, "holes": t.holes}
        for t in tasks
    ]
    arrays = {f"{i}.{k}": getattr(t, k) for i, t in enumerate(tasks) for k in ARRAYS}
    np.savez_compressed(out, heads=json.dumps(heads), facts=json.dumps(facts), **arrays)
    print(f"{len(tasks)} tasks, {sum(len(t.time_s) for t in tasks)} candidates")


def of_task(measured: Measured) -> TaskData | None:
    """None where fewer than `LEAST` of the candidates are left."""
    space = derive(measured.workload.dag, measured.target)
    learnt = data_of(measured, space, LEAST)
    if learnt is None:
        return None
    kept = []
    for i, s, valid in still_offered(measured, space):
        sketch = measured.sketches[i]
        kept.append((s, sketch.rows[valid], sketch.drawn[valid]))
    width = max(rows.shape[1] for _, rows, _ in kept)
    name = f"{measured.workload.op} {dict(measured.workload.params)}"
    return TaskData(
        **{f.name: getattr(learnt, f.name) for f in fields(training.TaskData)}
        | {"name": name, "workload": name},
        op=measured.workload.op,
        params=dict(measured.workload.params),
        drawn=np.concatenate([drawn for _, _, drawn in kept]),
        sketch=np.concatenate([np.full(len(x), s) for s, x, _ in kept]),
        rows=np.concatenate(
            [np.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=-1) for _, x, _ in kept]
        ),
        holes=[list(space.holes(s)) for s in range(len(space.sketches))],
    )


def read(path: Path) -> list[TaskData]:
    with np.load(path) as file:
        heads = json.loads(str(file["heads"]))
        return [
            TaskData(
                name=(name := f"{h['op']} {h['params']}"),
                workload=name,
                target=Target.from_json(h["target"]),
                feature_names=tuple(h["names"]),
                op=h["op"],
                params=h["params"],
                holes=h["holes"],
                **{k: file[f"{i}.{k}"] for k in ARRAYS},
            )
            for i, h in enumerate(heads)
        ]


def facts_of(path: Path) -> list[dict[str, Any]]:
    """Where the candidates are from: of each file its name, the commit that measured them, the CPUs."""
    with np.load(path) as file:
        found: list[dict[str, Any]] = json.loads(str(file["facts"]))
    return found


# -- training ---------------------------------------------------------------------------------------


def train(tasks: Sequence[TaskData], seed: int = 0) -> list[Any]:
    """A bag of boosters on what candidates are worth, as ``autotune train`` makes it."""
    return training.boosters(training.rows_of(tasks, tasks[0].feature_names), seed)


def encode(bag: list[Any]) -> list[str]:
    """Boosters as text: UBJ, deflated, in base64, without the numbers that only training needs."""
    out = []
    for m in bag:
        made = json.loads(m.save_raw("json"))
        for tree in made["learner"]["gradient_booster"]["model"]["trees"]:
            for name in ("base_weights", "loss_changes", "sum_hessian"):
                tree[name] = [0.0] * len(tree[name])
        lean = xgboost().Booster({"nthread": 1})
        lean.load_model(bytearray(json.dumps(made), "utf-8"))
        out.append(base64.b64encode(zlib.compress(bytes(lean.save_raw("ubj")), 9)).decode("ascii"))
    return out


def document(bag: list[Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {"feature_names": list(names), "models": encode(bag)}


# -- judging ----------------------------------------------------------------------------------------


def table(t: TaskData) -> Table:
    sheets = []
    for s in np.unique(t.sketch):
        mine = t.sketch == s
        holes = tuple(t.holes[s])
        rows, first = np.unique(t.rows[mine][:, : len(holes)], axis=0, return_index=True)
        sheets.append(Sheet(f"sketch {s}", holes, rows, t.time_s[mine][first], t.features[mine][first]))
    return Table(t.op, TableSpace(sheets, t.feature_names))


def columns(t: TaskData) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """What a model of a search of this task sees: names, its candidates, and its random sample, of which only
    the features are known."""
    space = table(t).space
    names = model_features(space)
    seen = np.empty((len(t.rows), len(names)), dtype=np.float32)
    for i, s in enumerate(np.unique(t.sketch)):
        mine = t.sketch == s
        seen[mine] = model_matrix(space, i, t.rows[mine][:, : len(t.holes[s])])
    reference = np.full((len(t.reference), len(names)), np.nan, dtype=np.float32)
    reference[:, : len(t.feature_names)] = t.reference
    return names, seen, reference


def ranking(scores: np.ndarray, t: TaskData) -> dict[str, float]:
    ok = t.drawn & np.isfinite(t.time_s)
    return {
        "pairwise": pairwise_accuracy(scores[ok], t.throughput[ok], 0.02),
        "top1": top_k(scores[t.drawn], t.throughput[t.drawn], 1),
        "top8": top_k(scores[t.drawn], t.throughput[t.drawn], 8),
    }


def raw_holes(t: TaskData) -> np.ndarray:
    """Decisions in place of features: a column for each hole of each sketch."""
    width = t.rows.shape[1]
    out = np.full((len(t.rows), len(t.holes) * width + 1), np.nan, dtype=np.float32)
    for s in range(len(t.holes)):
        mine = t.sketch == s
        out[mine, s * width : (s + 1) * width] = np.where(t.rows[mine] >= 0, t.rows[mine], np.nan)
    out[:, -1] = t.sketch
    return out


def within(t: TaskData, doc: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Four fifths of the task's own candidates to learn from, judged on the others: the mean over the fifths,
    for a single pick of a single fifth says little."""
    ok = np.random.default_rng(0).permutation(np.flatnonzero(t.drawn & np.isfinite(t.time_s)))
    names, features, reference = columns(t)
    prior = pretrained.Prior(names, reference, doc)
    holes = raw_holes(t)
    models: dict[str, tuple[Callable[[], XGBModel], np.ndarray]] = {
        "shipped": (lambda: XGBModel(names, prior=prior, trees=200), features),
        "scratch": (lambda: XGBModel(names, trees=200), features),
        "raw holes": (lambda: XGBModel(tuple(map(str, range(holes.shape[1]))), trees=200), holes),
    }
    out = {}
    for name, (make, x) in models.items():
        found = []
        for part in range(PARTS):
            asked, model = ok[part::PARTS], make()
            known = np.setdiff1d(ok, asked)
            model.fit(x[known], t.throughput[known])
            p, y = model.predict(x[asked]), t.throughput[asked]
            found.append([pairwise_accuracy(p, y, 0.02), top_k(p, y, 1), top_k(p, y, 8)])
        out[name] = dict(zip(("pairwise", "top1", "top8"), np.mean(found, axis=0).tolist(), strict=True))
    return out


def folds(tasks: Sequence[TaskData]) -> list[int]:
    """Which of `FOLDS` parts each is of; a task is in one, whichever CPUs have measured it."""
    names = list(dict.fromkeys(t.name for t in tasks))
    mixed = np.random.default_rng(0).permutation(len(names))
    of_name = {names[i]: k % FOLDS for k, i in enumerate(mixed)}
    return [of_name[t.name] for t in tasks]


def judge(tasks: list[TaskData], cpu: str, seeds: int, trials: int) -> dict[str, Any]:
    fold = folds(tasks)
    judged = [i for i, t in enumerate(tasks) if t.cpu == cpu and t.drawn.sum() >= HELD_OUT]
    unseen: dict[int, dict[str, Any]] = {}
    for k in range(FOLDS):
        if asked := [i for i in judged if fold[i] == k]:
            doc = document(
                train([t for t, f in zip(tasks, fold, strict=True) if f != k]), tasks[0].feature_names
            )
            unseen |= dict.fromkeys(asked, doc)
    rows = []
    for op in sorted({tasks[i].op for i in judged}):
        doc = document(train([t for t in tasks if t.op != op]), tasks[0].feature_names)
        for i in (i for i in judged if tasks[i].op == op):
            t, begin = tasks[i], time.perf_counter()
            names, features, reference = columns(t)
            near = pretrained.Prior(names, reference, unseen[i])
            prior = pretrained.Prior(names, reference, doc)
            ranked = {
                "by_task": ranking(near.learned(features), t),
                "by_task, with the estimate": ranking(near.predict(features), t),
                "by_operator": ranking(prior.learned(features), t),
                "by_operator, with the estimate": ranking(prior.predict(features), t),
                "analytic": ranking(AnalyticModel(names).predict(features), t),
                "random": ranking(np.random.default_rng(0).random(len(features)), t),
            }
            row = {
                "op": t.op,
                "params": t.params,
                "candidates": len(t.time_s),
                "drawn": int(t.drawn.sum()),
                "unseen": ranked,
                "within_task": within(t, unseen[i]),
            }
            if not any(r["op"] == op for r in rows):  # one of each operator: it takes long
                row["search"] = searches(t, prior, seeds, trials)
            rows.append(row)
            means = {k: [round(x, 3) for x in v["mean"]] for k, v in row.get("search", {}).items()}
            took = time.perf_counter() - begin
            print(f"{t.name}: {ranked['by_task']} {means} in {took:.0f} s", flush=True)
    return {"tasks": rows, "summary": summary(rows)}


def searches(t: TaskData, prior: pretrained.Prior, seeds: int, trials: int) -> dict[str, Any]:
    """Share of the best known after so many trials, a list for each seed."""
    recorded = table(t)
    space, best = recorded.space, float(recorded.space.times_s.min())
    names = model_features(space)
    small = EvolutionOptions(population=256, generations=2)  # the table has hundreds of rows
    makers: dict[str, Callable[[int], SearchPolicy]] = {
        "random": lambda seed: RandomSearch(space, seed),
        "analytic": lambda seed: EvolutionarySearch(space, AnalyticModel(names), seed, small),
        "scratch": lambda seed: EvolutionarySearch(space, XGBModel(names, seed), seed, small),
        "shipped": lambda seed: EvolutionarySearch(space, XGBModel(names, seed, prior=prior), seed, small),
    }
    out = {}
    for name, make in makers.items():
        shares = []
        for seed in range(seeds):
            run = play(recorded, make(seed), trials, seed, ROUND).best_s
            reached = [run[min(k, len(run)) - 1] for k in AFTER if k <= trials]
            shares.append([best / x if x else 0.0 for x in reached])
        out[name] = {"mean": np.mean(shares, axis=0).tolist(), "seeds": shares}
    return out


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over tasks of rankings; of searches the geometric mean over tasks for every seed, then the mean
    over seeds with its 95 % interval."""
    out: dict[str, Any] = {"unseen": {}, "within_task": {}, "search": {}}
    for kind in ("unseen", "within_task"):
        for name in rows[0][kind]:
            each = {k: [r[kind][name][k] for r in rows] for k in rows[0][kind][name]}
            out[kind][name] = {k: {"mean": float(np.mean(v)), "worst": min(v)} for k, v in each.items()}
    searched = [r["search"] for r in rows if "search" in r]
    for name in searched[0]:
        shares = np.array([s[name]["seeds"] for s in searched])  # [tasks, seeds, after]
        by_seed = np.exp(np.log(np.maximum(shares, 1e-3)).mean(axis=0))
        half = 1.96 * by_seed.std(axis=0, ddof=min(1, len(by_seed) - 1)) / math.sqrt(len(by_seed))
        out["search"][name] = {
            str(k): {
                "mean": round(float(m), 4),
                "ci95": round(float(h), 4),
                "worst_task": round(float(w), 4),
            }
            for k, m, h, w in zip(AFTER, by_seed.mean(axis=0), half, shares.mean(axis=1).min(axis=0))
        }
    return out


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("command", choices=("extract", "train", "judge"))
    parser.add_argument("data", type=Path, nargs="+", help="of extract: one file or more")
    parser.add_argument("--cpu", default=backends.parse("cpu", 1).arch, help="whose candidates are judged")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=64)
    options = parser.parse_args()
    if options.command == "extract":
        extract(options.data, options.out)
        return
    if len(options.data) > 1:
        parser.error(f"{options.command} takes one file: extract makes it of several")
    data = options.data[0]
    tasks = read(data)
    if options.command == "train":
        provenance = {
            "made_by": "benchmarks/train_cost_model.py train",
            "measured": facts_of(data),
            "candidates": sum(len(t.time_s) for t in tasks),
            "tasks": list(dict.fromkeys(t.name for t in tasks)),
        }
        found = document(train(tasks), tasks[0].feature_names)
        found |= {"kind": "pretrained", "version": 2, "provenance": provenance}
        options.out.write_text(json.dumps(found, sort_keys=True), encoding="utf-8")
        print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB")
    else:
        found = judge(tasks, options.cpu, options.seeds, options.trials)
        found |= {"cpu": options.cpu, "data": facts_of(data), "seeds": options.seeds}
        options.out.write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(found["summary"], indent=1))


if __name__ == "__main__":
    main()
