"""Searches on brute-forced tables: how near the optimum they come, how often, and how bad their worst run is.

    python benchmarks/replay.py TABLE... --seeds 10 --out benchmarks/results/replay-shares.json

The tables are those of the benchmark hub for auto-tuning (github.com/AutoTuningAssociation/benchmark_hub),
kernels for GPUs with all of their configurations timed, or any other that `autotune replay` reads; search.md
says on which of them something was chosen. Searches are policies of `autotune.search` without any model but
what they learn from their own evaluations; "forest", a forest with expected improvement and nothing else;
and "kt:NAME", a strategy of Kernel Tuner, if it is installed here. Runs that the file has are kept.

A share is the optimum's time over that of the best found: 1 is the optimum, 0 says that nothing ran yet.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import forest_alone
import kernel_tuner_strategies
from suite import commit

from autotune.search import policies
from autotune.search.simulate import SimulatedRun, play, read
from autotune.search.table import Table
from autotune.targets import usable_cpus
from cost_model.xgb import prefetch

SEARCHES = ("random", "local", "evolutionary")
CHECKPOINTS = (25, 50, 100, 200, 400)  # evaluations
NEAR = 0.99  # least share of a run that is said to have found the optimum
# (table, evaluations, seed) -> a run.
Player = Callable[[Table, int, int], SimulatedRun]


def player(search: str) -> Player:
    """What runs a search by its name."""
    if search.startswith("kt:"):
        return partial(kernel_tuner_strategies.play, search.removeprefix("kt:"))
    if search == "forest":
        return lambda table, trials, seed: play(
            table, forest_alone.ForestAlone(table.space, seed), trials, seed, batch=1
        )
    return lambda table, trials, seed: play(
        table, policies.create(search, table.space, "scratch", seed), trials, seed
    )


def shares(best_s: Sequence[float | None], optimum_s: float) -> list[float]:
    """The share after each of `CHECKPOINTS`. A run that ended before one has its last best there."""
    found = [best_s[min(k, len(best_s)) - 1] if best_s else None for k in CHECKPOINTS]
    return [round(optimum_s / t, 5) if t else 0.0 for t in found]


def one_table(path: Path, searches: Sequence[str], seeds: int) -> dict[str, Any]:
    """{"table", "configurations", "ran", search: {"shares": [seed][checkpoint], "cpu_ms": an evaluation}}."""
    prefetch()
    table = read(path)
    optimum = float(table.space.times_s.min())
    out: dict[str, Any] = {
        "file": path.name, "table": table.name, "configurations": table.space.configurations,
        "ran": len(table.space.times_s),
    }  # fmt: skip
    for search in searches:
        begin, runs = time.process_time(), []
        for seed in range(seeds):
            runs.append(player(search)(table, CHECKPOINTS[-1], seed))
        count = sum(len(r.best_s) for r in runs)
        out[search] = {
            "shares": [shares(r.best_s, optimum) for r in runs],
            "cpu_ms": round(1e3 * (time.process_time() - begin) / max(count, 1), 2),
        }
    return out


def summary(rows: Sequence[dict[str, Any]], search: str) -> list[dict[str, float]]:
    """By checkpoint, over tables that have the search: ``mean``, the geometric mean over tables of the mean
    over seeds; ``near``, the part of all runs that are near the optimum; ``worst``, the worst run."""
    have = [r[search]["shares"] for r in rows if search in r]
    out = []
    for k in range(len(CHECKPOINTS)):
        each = [[run[k] for run in runs] for runs in have]
        flat = [x for runs in each for x in runs]
        out.append(
            {
                "mean": statistics.geometric_mean(max(statistics.fmean(runs), 1e-3) for runs in each),
                "near": statistics.fmean(x >= NEAR for x in flat),
                "worst": min(flat),
            }
        )
    return out


def interval(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean over seeds."""
    return 1.96 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf


def ahead(row: dict[str, Any], search: str, other: str, checkpoint: int) -> bool:
    """Whether the mean of a search is ahead by more than the 95 % interval of the difference."""
    k = CHECKPOINTS.index(checkpoint)
    a, b = ([run[k] for run in row[s]["shares"]] for s in (search, other))
    return statistics.fmean(a) - statistics.fmean(b) > math.hypot(interval(a), interval(b))


def report(rows: Sequence[dict[str, Any]], searches: Sequence[str]) -> str:
    """Two tables of Markdown: over all tables, and each table by itself after 100 evaluations."""
    head = " | ".join(f"after {k}" for k in CHECKPOINTS)
    lines = [f"| search | tables | {head} | CPU ms |", "|---" * (len(CHECKPOINTS) + 3) + "|"]
    for s in searches:
        have = [r for r in rows if s in r]
        if have:
            cells = [f"{x['mean']:.3f}, {x['near']:.0%}, {x['worst']:.2f}" for x in summary(rows, s)]
            cost = statistics.fmean(r[s]["cpu_ms"] for r in have)
            lines.append(f"| {s} | {len(have)} | " + " | ".join(cells) + f" | {cost:.1f} |")
    lines += ["", "| table | " + " | ".join(searches) + " |", "|---" * (len(searches) + 1) + "|"]
    k = CHECKPOINTS.index(100)
    for r in rows:
        means = [
            f"{statistics.fmean(run[k] for run in r[s]['shares']):.3f}" if s in r else "" for s in searches
        ]
        lines.append(f"| {r['file']} | " + " | ".join(means) + " |")
    return "\n".join(lines)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--searches", nargs="+", default=list(SEARCHES))
    parser.add_argument("--jobs", type=int, default=usable_cpus())
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    done: dict[str, Any] = {"commit": commit(), "seeds": options.seeds, "rows": []}
    if options.out and options.out.exists():
        done |= {"rows": json.loads(options.out.read_text())["rows"]}
    rows = {r["file"]: r for r in done["rows"]}
    left = {f: [s for s in options.searches if s not in rows.get(f.name, ())] for f in options.files}
    work = [f for f in options.files if left[f]]
    with ProcessPoolExecutor(options.jobs) as pool:
        found = pool.map(one_table, work, [left[f] for f in work], [options.seeds] * len(work))
        for row in found:
            rows[row["file"]] = rows.get(row["file"], {}) | row
            done["rows"] = list(rows.values())
            print(row["file"], {s: x["cpu_ms"] for s, x in row.items() if isinstance(x, dict)}, flush=True)
            if options.out:
                options.out.write_text(json.dumps(done) + "\n")
    print(report(done["rows"], options.searches))


if __name__ == "__main__":
    main()
