"""How near the best known a search comes, on the machine: with no trial, after 16, after 64, or as asked.

    python benchmarks/search_quality.py ops.toml:quick --known data/cpu-znver4.jsonl.xz \
        --data data.npz --out FILE [--after 16 64 400] [--beside CHECKOUT]

``known``: measured candidates of tasks (`measured.py`); every run made here counts too. ``data``:
what `train_cost_model.py extract` made of it: "shipped" is then a model trained without the task's operator,
else it is the shipped model itself. "scratch" learns from its own trials only, the first picked by the
analytic model. A run is `autotune.tune` as it is, finalists included; what it chose is timed again in turns
with the best known, in three spells some seconds apart, of which the fastest counts. Rows that the file has
are kept, so that a run can be resumed. ``beside``: another checkout of this project, an earlier one say,
whose search runs in processes of its own; what both chose is timed in the same turns ("shipped" and "scratch"
are this one's, "shipped beside" and "scratch beside" the other's).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import train_cost_model
from measured import read

import autotune as at
from autotune import backends
from autotune.backends.building.generator_version import this_machine
from autotune.search import policies
from autotune.tuning import preparation, suites
from autotune.tuning.measured import Measured, still_offered
from cost_model import pretrained
from schedules.model import Target, Trace, Workload
from schedules.space import derive
from schedules.trace_names import to_canonical

AFTER = (16, 64)  # trials
MODELS = {"shipped": "xgb", "scratch": "scratch"}
ROUNDS, SPELLS, PAUSE_S = 10, 3, 5.0  # of the comparison: a neighbour's spell lasts seconds
ROOT = Path(__file__).resolve().parents[1]
EXPLAINED = 0.95  # of the best known's speed: what has less is kept as a whole


def first_pick(workload: Workload, target: Target, model: str, seed: int) -> tuple[Trace, float]:
    """What is chosen with no trial, and the seconds that it takes with all imported."""
    begin = time.perf_counter()
    space = derive(workload.canonical, target)
    pick = policies.create("evolutionary", space, model, seed, target=target).ask(1)[0]
    return space.trace(pick.sketch, np.array(pick.row)), time.perf_counter() - begin


def chosen(
    workload: Workload, model: str, seed: int, threads: int, db: Path, after: tuple[int, ...]
) -> list[Trace]:
    """What a run chose after each of ``after`` trials, its finalists timed; the later resumes the earlier."""
    found, before = [], 0
    for trials in after:
        result = at.tune(
            workload, threads=threads, trials=trials - before, seed=seed, db=db, model=model, budget_s=300.0
        )
        assert result.best is not None, f"{workload.op}: no candidate of {trials} was right"
        found.append(to_canonical(workload, result.best.trace)[0])
        before = trials
    return found


def best_of(known: Measured) -> Trace | None:
    """The fastest measured candidate that the space still has, None without one."""
    space = derive(known.workload.dag, known.target)
    best: tuple[float, Trace | None] = (np.inf, None)
    for i, sketch, valid in still_offered(known, space):
        times = np.where(valid, known.sketches[i].time_s, np.nan)
        if np.nanmin(times, initial=np.inf) < best[0]:
            row = known.sketches[i].rows[np.nanargmin(times)]
            best = (float(np.nanmin(times)), to_canonical(known.workload, space.trace(sketch, row))[0])
    return best[1]


def compared(workload: Workload, target: Target, traces: list[Trace]) -> list[list[float]]:
    """Seconds of each candidate in each spell, in turns; none of what failed. What shares a core halves what
    a candidate has of its caches, which costs some much and others nothing: the least counts."""
    times: list[list[float]] = [[] for _ in traces]
    with preparation.measurer(workload, target, 300.0) as measurer:
        for spell in range(SPELLS):
            time.sleep(PAUSE_S * (spell > 0))
            for each, m in zip(times, measurer.finalists(traces, rounds=ROUNDS), strict=True):
                each += [m.time_s] if m.time_s else []
    return times


@dataclass(frozen=True)
class Picks:
    """What one search chose with no trial and after each number of trials, the seconds of the first choice,
    and trials a second of the longest run."""

    traces: list[Trace]
    first_s: float
    rate: float


# {name: (task, target, seed, trials after which it chooses) -> what it chose}.
Searches = dict[str, Callable[[suites.SuiteEntry, Target, int, tuple[int, ...]], Picks]]


def searched(task: suites.SuiteEntry, target: Target, model: str, seed: int, after: tuple[int, ...]) -> Picks:
    """The search of this checkout."""
    workload = task.workload
    trace, took = first_pick(workload, target, model, seed)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        later = chosen(workload, model, seed, target.threads, Path(folder) / "t.db", after)
    return Picks([trace, *later], took, after[-1] / (time.perf_counter() - begin))


def searched_beside(
    checkout: Path,
    suite: str,
    task: suites.SuiteEntry,
    target: Target,
    model: str,
    seed: int,
    after: tuple[int, ...],
) -> Picks:
    """The search of another checkout, in a process of its own that runs this file."""
    asked = {
        "suite": suite, "digest": task.workload.digest, "threads": target.threads, "model": model,
        "seed": seed, "after": after,
    }  # fmt: skip
    paths = [str(checkout), str(checkout / "benchmarks")]
    done = subprocess.run(
        [sys.executable, __file__, "--asked", json.dumps(asked)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"},
        stdout=subprocess.PIPE, check=True, text=True,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    return Picks([Trace.from_json(t) for t in found["traces"]], found["first_s"], found["rate"])


def answer(asked: dict[str, Any]) -> str:
    """What `searched_beside` reads: the choice of the checkout on the path."""
    task = next(t for t in suites.read(asked["suite"]) if t.workload.digest == asked["digest"])
    target = backends.parse("cpu", asked["threads"])
    found = searched(task, target, asked["model"], asked["seed"], tuple(asked["after"]))
    return json.dumps(
        {"traces": [t.to_json() for t in found.traces], "first_s": found.first_s, "rate": found.rate}
    )


def one_task(
    task: suites.SuiteEntry,
    target: Target,
    best: Trace | None,
    seeds: int,
    after: tuple[int, ...],
    searches: Searches,
) -> dict[str, Any]:
    """``searches``: {name: (task, target, seed, trials) -> what it chose}, which take turns."""
    workload, counts = task.workload, (0, *after)
    picks: dict[str, dict[str, list[str]]] = {n: {str(k): [] for k in counts} for n in searches}  # digests
    rates: dict[str, list[float]] = {n: [] for n in searches}
    traces: list[Trace] = []
    seconds = []
    for seed in range(seeds):
        for name, search in searches.items():
            found = search(task, target, seed, after)
            seconds.append(found.first_s)
            rates[name].append(round(found.rate, 2))
            for trials, t in zip(counts, found.traces, strict=True):
                picks[name][str(trials)].append(t.digest)
                traces.append(t)
    distinct = list({t.digest: t for t in (best, *traces) if t is not None}.values())
    times = compared(workload, target, distinct)
    speed = {t.digest: 1.0 / min(each) if each else 0.0 for t, each in zip(distinct, times, strict=True)}
    most = max(speed.values())
    shares = {
        n: {k: [round(speed[x] / most, 4) for x in digests] for k, digests in each.items()}
        for n, each in picks.items()
    }
    return {
        "shares": shares,
        "known": round(speed[best.digest] / most, 4) if best else None,
        "first_s": max(seconds),
        "rates": rates,
        "picks": picks,
        "compared": [
            {"digest": t.digest, "times_s": each}
            | ({"trace": t.to_json()} if speed[t.digest] < EXPLAINED * most else {})
            for t, each in zip(distinct, times, strict=True)
        ],
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric mean over tasks and seeds, and the worst of all; trials a second, their geometric mean."""
    out: dict[str, Any] = {}
    for name, by_trials in rows[0]["shares"].items():
        for trials in by_trials:
            each = [x for r in rows for x in r["shares"][name][trials]]
            mean = statistics.geometric_mean(max(x, 1e-3) for x in each)
            out[f"{name} {trials}"] = {"mean": round(mean, 4), "worst": min(each)}
        if rates := [x for r in rows for x in r.get("rates", {}).get(name, ())]:
            out[f"{name} trials a second"] = round(statistics.geometric_mean(rates), 2)
    return out


def searches_of(suite: str, beside: Path | None, models: Sequence[str]) -> Searches:
    """The searches that are compared, by name."""
    out: Searches = {}
    for name in models:
        out[name] = lambda task, target, seed, after, m=MODELS[name]: searched(task, target, m, seed, after)
        if beside is not None:
            out[f"{name} beside"] = lambda task, target, seed, after, m=MODELS[name]: searched_beside(
                beside, suite, task, target, m, seed, after
            )
            # Both in processes of their own, which have the same to import.
            out[name] = lambda task, target, seed, after, m=MODELS[name]: searched_beside(
                ROOT, suite, task, target, m, seed, after
            )
    return out


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("suite", nargs="?", help="FILE[:NAME]")
    parser.add_argument("--known", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--after", type=int, nargs="+", default=list(AFTER))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--beside", type=Path, help="another checkout")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--asked", help=argparse.SUPPRESS)  # by `searched_beside`
    options = parser.parse_args()
    if options.asked:
        print(answer(json.loads(options.asked)))
        return
    if not (options.suite and options.known and options.out):
        parser.error("a suite, --known and --out are needed")
    if options.beside and options.data:
        parser.error("a model without the task's operator (--data) is of one checkout: leave out --beside")
    target = backends.parse("cpu", options.threads)
    tasks = train_cost_model.read(options.data) if options.data else []
    known = {(m.workload.digest, m.target.digest): m for m in read(options.known)[1]}
    without: dict[str, dict[str, Any]] = {}  # by operator: the model that has not seen it
    done: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {"rows": []}
    done |= {"machine": this_machine(), "seeds": options.seeds, "held_out": bool(tasks)}
    have = [r["task"] for r in done["rows"]]
    searches = searches_of(options.suite, options.beside and options.beside.resolve(), options.models)
    for task in suites.read(options.suite):
        w = task.workload
        name = f"{w.op} {dict(w.params)}"
        if name in have:
            continue
        if tasks and w.op not in without:
            others = [t for t in tasks if t.op != w.op]
            without[w.op] = train_cost_model.document(train_cost_model.train(others), others[0].feature_names)
        document = without.get(w.op) or pretrained.shipped(target)
        with patch.object(pretrained, "shipped", lambda target=None, document=document: document):
            measured_before = known.get((w.digest, target.digest))
            best = best_of(measured_before) if measured_before is not None else None
            row = one_task(task, target, best, options.seeds, tuple(options.after), searches)
        done["rows"].append({"task": name, **row})
        print(name, json.dumps(row), flush=True)
        done["summary"] = summary(done["rows"])
        options.out.write_text(json.dumps(done, indent=1) + "\n")
    print(json.dumps(done["summary"], indent=1))


if __name__ == "__main__":
    main()
