"""How well the registers that NVRTC gives kernels are foretold: no GPU is needed.

    python benchmarks/registers.py [--target h100] [--candidates 120] [--out FILE]

Random candidates of a few tasks are compiled. What the compiler tells of 16, 32 and 64 of them corrects what
the space counts (`cost_model/register_model.py`), which is compared with what it tells of the others: the
rank correlation, and the mean error in doublings, of registers needed (given and spilled), over a few draws.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from autotune import backends
from autotune.backends.building.from_trace import build_object
from autotune.backends.drivers.protocol import facts
from autotune.codegen.grid_code import GridCode
from autotune.search.evolutionary import model_features, model_matrix
from cost_model.register_model import WORD, RegisterModel
from schedules import ops
from schedules.model import Target
from schedules.space import derive
from schedules.space.estimate.gpu.rates import GpuRates

TASKS: dict[str, dict[str, Any]] = {
    "matmul": {"m": 1024, "n": 1024, "k": 1024},
    "conv2d": {"h": 56, "w": 56, "ci": 64, "co": 64, "k": 3, "padding": 1},
    "softmax": {"m": 4096, "n": 1024},
    "attention": {"heads": 12, "seq": 128, "dim": 64},
}
LEARNT = (0, 16, 32, 64)
DRAWS = 8


def told(op: str, target: Target, count: int) -> tuple[tuple[str, ...], np.ndarray, list[dict[str, int]]]:
    """Names of features, the features of random candidates, and what the compiler tells of each."""
    space, rng = derive(ops.workload(op, TASKS[op]).dag, target), np.random.default_rng(0)
    matrices, found = [], []
    for s in range(len(space.sketches)):
        rows = space.sample(s, 40 * count, rng)
        rows = rows[space.valid(s, rows)][: count // len(space.sketches)]
        matrices.append(model_matrix(space, s, rows))
        for row in rows:
            found.append(facts(GridCode.from_bytes(build_object(space.dag, space.trace(s, row), target))))
    return model_features(space), np.concatenate(matrices), found


def judged(
    names: tuple[str, ...], features: np.ndarray, found: list[dict[str, int]], machine: GpuRates
) -> list[dict[str, float]]:
    """Rank correlation and mean error in doublings, by how many were learnt from."""
    demand = np.array([f["registers"] + f["spill_bytes"] / WORD for f in found])
    rows = []
    for count in LEARNT:
        scores = []
        for draw in range(DRAWS):
            order = np.random.default_rng(draw).permutation(len(found))
            model, others = RegisterModel(names, machine), order[LEARNT[-1] :]
            model.learn(features[order[:count]], [found[i] for i in order[:count]])
            columns = model.columns(features[others]).astype(np.float64)
            guess = columns[:, 0] + columns[:, 1] / WORD
            ranks = [np.argsort(np.argsort(x, kind="stable")) for x in (guess, demand[others])]
            error = np.abs(np.log2(guess / demand[others])).mean()
            scores.append((np.corrcoef(*ranks)[0, 1], error))
        rank, error = np.mean(scores, axis=0)
        rows.append({"learnt": count, "rank": round(float(rank), 3), "doublings": round(float(error), 3)})
    return rows


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--target", default="h100")
    p.add_argument("--candidates", type=int, default=120)
    p.add_argument("--out", type=Path, default=Path("benchmarks/results/registers.json"))
    o = p.parse_args()
    target = backends.parse(o.target)
    result: dict[str, Any] = {"target": o.target, "candidates": o.candidates, "tasks": {}}
    for op in TASKS:
        names, features, found = told(op, target, o.candidates)
        spilling = sum(f["spill_bytes"] > 0 for f in found) / len(found)
        rows = judged(names, features, found, GpuRates.of(target))
        result["tasks"][op] = {"params": TASKS[op], "spilling": round(spilling, 3), "rows": rows}
        print(op, f"{spilling:.0%} spill", *(f"{r['learnt']}: {r['rank']} {r['doublings']}" for r in rows))
        o.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
