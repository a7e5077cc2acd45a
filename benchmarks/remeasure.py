"""Time kept candidates again: because their code or how they are timed has changed, or so that they say more.

    python benchmarks/remeasure.py benchmarks/data/cpu-znver4.jsonl.xz again.jsonl.xz --drawn 3

Candidates of each task are timed in another order each time and by new processes, and have the median of
these timings: those that were drawn at random in held-out tasks ``--drawn`` times, all others once. None is
given up. ``--above`` leaves tasks alone whose best takes less, ``--in-caches`` those that wait for memory;
what takes `LONG_S` stays, too, for the longer a run, the less one differs from the next, and so do tasks of
other CPUs. Ctrl-C keeps what is done.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from measured import read, write
from suite import commit
from train_cost_model import HELD_OUT

from autotune import backends
from autotune.backends.peaks.roofline import waits_for_memory
from autotune.tuning.measured import Measured, MeasuredSketch, still_offered
from autotune.tuning.preparation import measurer
from schedules.space import derive
from schedules.trace_names import to_canonical

BUDGET_S = 60.0  # which limits of a candidate follow from
LONG_S = 0.1


def again(task: Measured, times: int) -> Measured:
    """The task timed anew, its drawn candidates so many times; what fails now, or is in no space any more,
    stays."""
    space = derive(task.workload.dag, task.target)
    due = []  # (sketch of the file, row, trace, drawn)
    for s, k, valid in still_offered(task, space):
        sketch = task.sketches[s]
        for i in np.flatnonzero(valid & (sketch.time_s < LONG_S)):
            trace, _ = to_canonical(task.workload, space.trace(k, sketch.rows[i]))
            due.append((s, int(i), trace, bool(sketch.drawn[i])))
    found: dict[tuple[int, int], list[float]] = {}
    for seed in range(times):
        order = [j for j in np.random.default_rng(seed).permutation(len(due)) if due[j][3] or not seed]
        with measurer(task.workload, task.target, BUDGET_S) as measuring:
            for j, m in zip(order, measuring.measure([due[j][2] for j in order]), strict=True):
                if m.status == "ok" and m.time_s is not None:
                    found.setdefault(due[j][:2], []).append(m.time_s)
    return replace(task, sketches=tuple(_timed(s, n, found) for n, s in enumerate(task.sketches)))


def _timed(sketch: MeasuredSketch, number: int, found: dict[tuple[int, int], list[float]]) -> MeasuredSketch:
    time_s = sketch.time_s.copy()
    for i in range(len(time_s)):
        if new := found.get((number, i)):
            time_s[i] = np.median(new)
    return replace(sketch, time_s=time_s)


def every(tasks: list[Measured], drawn: int, above_s: float, in_caches: bool) -> Iterator[Measured]:
    here, stopped = backends.parse("cpu", 1), False
    for t in tasks:
        best_s = min(float(np.nanmin(s.time_s, initial=np.inf)) for s in t.sketches)
        left = best_s < above_s or (in_caches and waits_for_memory(t.workload.dag, t.target))
        if stopped or left or t.target.arch != here.arch:
            yield t
            continue
        begin, held_out = time.monotonic(), sum(int(s.drawn.sum()) for s in t.sketches) >= HELD_OUT
        new = t
        try:
            new = again(t, drawn if held_out else 1)
        except KeyboardInterrupt:
            stopped = True
        took = time.monotonic() - begin
        print(f"{t.workload.op} {dict(t.workload.params)}: {took:.0f} s", flush=True)
        yield new


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("measured", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--drawn", type=int, default=1, help="timings of drawn candidates of held-out tasks")
    parser.add_argument("--above", type=float, default=0.0, help="seconds that the best of a task takes")
    parser.add_argument("--in-caches", action="store_true", help="not what waits for memory")
    options = parser.parse_args()
    facts, tasks = read(options.measured)
    which = f"tasks above {options.above:g} s" + ", in caches" * options.in_caches
    said = f"{which}, drawn ones of held-out tasks {options.drawn} times, at {commit()}"
    facts = {k: v for k, v in facts.items() if k not in ("format", "version")}
    facts["timed again"] = "; ".join(filter(None, (facts.get("timed again"), said)))
    done = every(tasks, options.drawn, options.above, options.in_caches)
    print(f"{write(options.out, done, facts)} candidates")


if __name__ == "__main__":
    main()
