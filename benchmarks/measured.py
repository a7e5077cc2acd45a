"""Measured candidates of many tasks in one small file: what the shipped cost model is trained on.

    python benchmarks/measured.py data.db benchmarks/data/cpu-znver4.jsonl.xz

A tuning log keeps every trial; this keeps of each candidate its decisions, the median of its timings and
whether it was drawn at random, small enough to be committed, so that the model can be made again. Lines of
JSON, compressed: first the commit that measured, then a task each, its target with it.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from suite import commit

from autotune.tuning.measured import Measured, MeasuredSketch, measured
from kernels_db.exchange import named_text
from kernels_db.store import Log
from schedules.model import Target, Workload
from schedules.space import derive

DIGITS = 4  # of a time; it repeats to a percent


def of_log(log: Log) -> Iterator[Measured]:
    """Everything in a log that this version's spaces still have, the median timing of each candidate."""
    for w, t in log.tasks():
        workload, target = log.workload(w), log.target(t)
        workload = replace(workload, dag=workload.canonical)
        random = {r.uid for r in log.runs(workload=w, target=t) if r.options.get("search") == "random"}
        space = derive(workload.dag, target)
        found = measured(workload, target, space, log.seen(w, t), frozenset(random))
        if found.sketches:
            yield found


def write(path: Path, tasks: Iterable[Measured], facts: Mapping[str, Any]) -> int:
    """Write the file; how many candidates it holds. ``facts``: more to say of them all."""
    count = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", encoding="utf-8") as file:
        print(json.dumps({"format": "measured candidates", "version": 1, **facts}), file=file)
        for t in tasks:
            count += sum(len(s.rows) for s in t.sketches)
            print(json.dumps(_document(t), separators=(",", ":")), file=file)
    return count


def read(path: Path) -> tuple[dict[str, Any], list[Measured]]:
    """What `write` was given, in its order."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        facts = json.loads(next(file))
        return facts, [_task(json.loads(line)) for line in file]


def _document(t: Measured) -> dict[str, Any]:
    return {
        "op": t.workload.op,
        "params": dict(t.workload.params),
        "flops": t.workload.flops,
        "workload": named_text(t.workload.dag),
        "target": t.target.json,
        "sketches": [
            {
                "name": s.name,
                "holes": s.holes,
                "rows": s.rows.T.tolist(),  # a list for each hole: smaller
                "time_s": [None if math.isnan(x) else float(f"{x:.{DIGITS}g}") for x in s.time_s.tolist()],
                "drawn": s.drawn.astype(int).tolist(),
            }
            for s in t.sketches
        ],
    }


def _task(v: Mapping[str, Any]) -> Measured:
    sketches = []
    for s in v["sketches"]:
        times = np.array([math.nan if x is None else x for x in s["time_s"]])
        rows = np.array(s["rows"], dtype=np.int64).reshape(len(s["holes"]), len(times)).T
        sketches.append(
            MeasuredSketch(s["name"], tuple(s["holes"]), rows, times, np.array(s["drawn"], dtype=bool))
        )
    workload = Workload.from_json(v["workload"], v["op"], v["params"], v["flops"])
    return Measured(workload, Target.from_json(v["target"]), tuple(sketches))


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("db", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    with Log(options.db, read_only=True) as log:
        count = write(options.out, of_log(log), {"commit": commit()})
    print(f"{options.out}: {count} candidates, {options.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
