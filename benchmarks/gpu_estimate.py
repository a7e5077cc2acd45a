"""How well the estimate orders what a GPU has timed: needs no GPU, but the trials of one.

    python benchmarks/gpu_estimate.py benchmarks/data/cuda-h100.jsonl.xz

An export of a log (`autotune log export`, compressed). Every trial's trace is replayed, its kernels analysed
and estimated, for the target that it ran on; of each task: the pairs of candidates more than 5 % apart that
the estimate orders as the clock did, and how near the best of all comes the best of its first eight. Which
trials there are was mostly decided by earlier estimates: what this says is meant for comparing two of them.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from schedules.ir import Nest
from schedules.model import Target, Trace, canonical
from schedules.schedule import Schedule
from schedules.space.estimate.gpu.features import GPU_FORMULAS
from schedules.te.compute_dag import ComputeDAG

APART = 0.05  # of the logarithm of a time: candidates nearer than that count as equals
FIRST = 8


@dataclass(frozen=True)
class Task:
    """``measured`` and ``estimated``: seconds of each trial, [n]."""

    name: str
    measured: np.ndarray
    estimated: np.ndarray

    def pairs(self) -> float:
        """The share of pairs that are ordered right; those estimated the same count half."""
        y, e = np.log(self.measured), self.estimated
        i, j = np.triu_indices(len(y), 1)
        far = np.abs(y[i] - y[j]) > APART
        right = np.where(e[i] == e[j], 0.5, (y[i] < y[j]) == (e[i] < e[j]))
        return float(right[far].mean()) if far.any() else float("nan")

    def first(self, n: int) -> float:
        """The best of all over the best of the first ``n`` by the estimate."""
        order = np.argsort(self.estimated, kind="stable")[:n]
        return float(self.measured.min() / self.measured[order].min())


def estimate(nest: Nest, target: Target) -> float:
    """Seconds that a nest without holes takes, by the estimate."""
    features = GPU_FORMULAS.of(nest, target).features(np.zeros((1, 0), np.int64))[0]
    return float(features[GPU_FORMULAS.feature_names.index("est_time_s")])


def tasks(path: Path, every: int = 1) -> Iterator[Task]:
    """The tasks of an export, of the trials every so many one."""
    workloads, targets = {}, {}
    trials = defaultdict(list)
    with lzma.open(path, "rt") as lines:
        for x in map(json.loads, lines):
            if x.get("type") == "workload":
                workloads[x["digest"]] = x
            elif x.get("type") == "target":
                targets[x["digest"]] = Target.from_json(canonical(x["definition"]))
            elif x.get("type") == "record" and x["kind"] == "trial" and x["status"] in ("ok", "slow"):
                trials[x["workload"], x["target"]].append(x)
    for (digest, target), found in trials.items():
        w = workloads[digest]
        dag = ComputeDAG.from_json(w["definition"]["dag"])  # as it was then: operators change
        chosen, t = found[::every], targets[target]
        traces = [Trace.from_json(canonical(x["trace"])) for x in chosen]
        estimates = [estimate(Schedule.replay(dag, trace, t).nest, t) for trace in traces]
        name = " ".join([w["op"], *(f"{k}={v}" for k, v in w["params"].items())])
        yield Task(name, np.array([x["time_s"] for x in chosen]), np.array(estimates))


def summary(found: Sequence[Task], n: int = FIRST) -> tuple[float, float]:
    """Means over tasks: of pairs, and (geometric) of the best of the first ``n``."""
    return float(np.nanmean([t.pairs() for t in found])), geometric_mean(t.first(n) for t in found)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("log", type=Path)
    o = p.parse_args()
    print(f"| task | trials | pairs | best of the first {FIRST} | estimate ÷ time of the best |")
    print("|---" * 5 + "|")
    found = [t for t in tasks(o.log) if len(t.measured) > FIRST]
    for t in found:
        ratio = t.estimated[np.argmin(t.measured)] / t.measured.min()
        print(f"| {t.name} | {len(t.measured)} | {t.pairs():.2f} | {t.first(FIRST):.2f} | {ratio:.2f} |")
    pairs, first = summary(found)
    print(f"\n{len(found)} tasks: pairs {pairs:.3f}, first {FIRST} {first:.3f}")


if __name__ == "__main__":
    main()
