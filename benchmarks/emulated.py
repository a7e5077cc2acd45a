"""How many candidates for matrix units a minute are built for the emulator, run in every order and checked.

    python benchmarks/emulated.py [--op matmul] [--shape m=128,n=128,k=64] [--dtype float16] [--seconds 30]
                                  [--processes 2] [--target h100-emulator] [--only mma]

Random candidates of the spaces of a target, of the sketches that have ``--only`` in their names.
Each is lowered, built as one object, loaded, and run in each of the three orders in which copies land, as the
tests do, in so many processes. A tuning run builds and runs as much, in one order a run. Others on the
machine lengthen the clock, hardly CPU time.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from autotune import backends
from autotune.backends.building.from_trace import grid_program
from autotune.codegen.simt import emulator
from schedules import ops
from schedules.model import Trace
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG

PARTS = ("lower", "build", "run")


def candidates(dag: ComputeDAG, target: str, only: str, seed: int) -> Iterator[Trace]:
    """Valid candidates without end, sketches in turns."""
    space, rng = derive(dag, backends.parse(target)), np.random.default_rng(seed)
    sketches = [n for n, name in enumerate(space.sketches) if only in name]
    if not sketches:
        raise SystemExit(f"no sketch has {only!r} in its name: {', '.join(space.sketches)}")
    while True:
        for number in sketches:
            rows = space.sample(number, 200, rng)
            for row in rows[space.valid(number, rows)][:1]:
                yield space.trace(number, row)


def emulate(args: argparse.Namespace, seed: int) -> Counter[str]:
    """Seconds of each part, and how many candidates there were and were wrong, until the time is over."""
    workload = ops.workload(args.op, dict(args.shape), args.dtype)
    dag, rng = workload.dag, np.random.default_rng(1)
    inputs = [rng.integers(-3, 4, t.shape).astype(t.dtype) for t in dag.inputs]
    right = ops.reference(workload, inputs)
    spent: Counter[str] = Counter()
    begun, end = sum(os.times()[:4]), time.monotonic() + args.seconds
    target = backends.parse(args.target)
    for trace in candidates(dag, args.target, args.only, seed):
        marks = [time.perf_counter()]
        program = grid_program(dag, trace, target)
        marks.append(time.perf_counter())
        obj = emulator.build(program)
        marks.append(time.perf_counter())
        for order in emulator.ORDERS:
            outputs = [np.full_like(x, -77) for x in right]
            fault = emulator.run(obj, program, [*inputs, *outputs], order=order, seed=seed)
            same = all(np.array_equal(x, y) for x, y in zip(outputs, right, strict=True))
            spent["wrong"] += bool(fault) or not same
        marks.append(time.perf_counter())
        for part, a, b in zip(PARTS, marks, marks[1:], strict=False):
            spent[part] += b - a  # type: ignore[assignment]
        spent["candidates"] += 1
        if time.monotonic() > end:
            break
    spent["CPU"] = sum(os.times()[:4]) - begun  # type: ignore[assignment]
    return spent


def shape(text: str) -> list[tuple[str, int]]:
    return [(name, int(n)) for name, n in (x.split("=") for x in text.split(","))]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--op", default="matmul")
    parser.add_argument("--shape", type=shape, default=shape("m=128,n=128,k=64"))
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--target", default="h100-emulator")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    with ProcessPoolExecutor(args.processes) as pool:
        start = time.monotonic()
        done = sum(pool.map(emulate, [args] * args.processes, range(args.processes)), Counter())
        seconds = time.monotonic() - start
    n = done["candidates"]
    parts = ", ".join(f"{part} {done[part] / n:.2f} s" for part in PARTS)
    print(f"{n / seconds * 60:.0f} candidates a minute in {args.processes} processes; each: {parts}")
    cpu = done["CPU"] / n
    print(f"each {cpu:.2f} s of a CPU, so {args.processes * 60 / cpu:.0f} a minute on so many idle ones")
    print(f"{done['wrong']} of {3 * n} runs were wrong")


if __name__ == "__main__":
    main()
