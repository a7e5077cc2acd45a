"""Searches on brute-forced tables: the best found over the optimum, and after how many evaluations.

    python benchmarks/replay.py cachefiles/*/*.json.gz --seeds 20 --out benchmarks/results/replay.json

The tables are those of the benchmark hub for auto-tuning (github.com/AutoTuningAssociation/benchmark_hub),
kernels for GPUs with all of their configurations timed, or any other that `autotune replay` reads; README.md
says on which of them something was chosen. "evolutionary" begins without any model and learns from its own
evaluations.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from suite import commit

from autotune.search.recorded import Table
from autotune.search.simulate import read, replay
from autotune.targets import usable_cpus

SEARCHES = ("random", "local", "evolutionary")
CHECKPOINTS = (25, 50, 100)  # evaluations


def over_optimum(table: Table, search: str, seeds: int) -> np.ndarray:
    """Best time found over the least of the table: [seeds, checkpoints]; infinite where nothing ran yet."""
    optimum = float(table.space.times_s.min())
    runs = [replay(table, search, "scratch", CHECKPOINTS[-1], seed).best_s for seed in range(seeds)]
    return np.array([[(best[k - 1] or np.inf) / optimum for k in CHECKPOINTS] for best in runs])


def interval(values: np.ndarray) -> float:
    """Half of the 95 % interval of the mean over seeds."""
    return float(1.96 * values.std(axis=0, ddof=1) / np.sqrt(len(values)))


def one_table(path: Path, seeds: int) -> dict[str, Any]:
    table = read(path)
    row: dict[str, Any] = {
        "file": path.name, "table": table.name, "configurations": table.space.configurations,
        "ran": len(table.space.times_s),
    }  # fmt: skip
    for search in SEARCHES:
        found = over_optimum(table, search, seeds)
        row[search] = {
            str(k): {
                "geomean": float(np.exp(np.log(x).mean())), "mean": float(x.mean()), "ci95": interval(x),
                "median": float(np.median(x)), "worst": float(x.max()),
            }
            for k, x in zip(CHECKPOINTS, found.T, strict=True)
        }  # fmt: skip
    return row


def report(rows: list[dict[str, Any]]) -> str:
    lines = ["| table | configurations | " + " | ".join(SEARCHES) + " |", "|---" * (2 + len(SEARCHES)) + "|"]
    last = str(CHECKPOINTS[-1])
    for r in rows:
        found = [r[s][last] for s in SEARCHES]
        figures = [f"{x['mean']:.3f} ± {x['ci95']:.3f} ({x['median']:.3f})" for x in found]
        lines.append(f"| {r['file']} | {r['configurations']:,} | " + " | ".join(figures) + " |")
    return "\n".join(lines)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    done = {"commit": commit(), "seeds": options.seeds, "rows": []}
    with ProcessPoolExecutor(usable_cpus()) as pool:
        for row in pool.map(partial(one_table, seeds=options.seeds), options.files):
            done["rows"].append(row)
            print(report([row]).splitlines()[-1], flush=True)
            if options.out:
                options.out.write_text(json.dumps(done, indent=1) + "\n")
    print(report(done["rows"]))


if __name__ == "__main__":
    main()
