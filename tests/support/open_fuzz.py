"""Random programs with open sizes, scheduled at random, against the evaluator: by the interpreter, and
compiled between inaccessible pages.

    python tests/support/open_fuzz.py FIRST LAST [compiled]

tries seeds, and prints what was tried and what is wrong."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from time import process_time

import numpy as np
from dag_mutant_runs import apart
from helpers import host
from open_cases import OpenCode, laid
from random_open import open_inputs, random_open
from random_schedules import random_schedule
from space_cases import target

from autotune.backends.building.from_trace import programs
from autotune.codegen.runtime.open_signature import open_text, open_text_of
from schedules import te
from schedules.errors import AutotuneError, ScheduleError
from schedules.ir import LoweredFunc
from schedules.ir.interp import InterpError, run
from schedules.model import Target, Trace
from schedules.space.derive import derive
from schedules.te.compute_dag import ComputeDAG
from schedules.te.open_sizes import at

# Instructions of matrices and of products of few bits, whatever CPU this is.
FEATURES = ("amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512vnni")
SIZES = 5  # of a schedule


def machine(rng: Random) -> Target:
    found = target(rng.choice((1, 1, 2)), rng.choice((16, 32, 64)))
    return replace(found, features=FEATURES) if rng.random() < 0.4 else found


def schedules(dag: ComputeDAG, rng: Random) -> Iterator[tuple[str, Trace, Target | None]]:
    """A few schedules: of random primitives, and of the space."""
    for _ in range(2):
        yield "random", random_schedule(dag.largest, rng, rng.randint(2, 9)).trace, None
    if rng.random() < 0.3:
        own = machine(rng)
        space = derive(dag, own)
        for k in rng.sample(range(len(space.sketches)), min(3, len(space.sketches))):
            rows = space.sample(k, 16, np.random.default_rng(rng.randrange(1 << 30)))
            for row in rows[space.valid(k, rows)][:1]:
                yield "of the space", space.trace(k, row), own


def sizes_tried(dag: ComputeDAG, rng: Random) -> Iterator[dict[str, int]]:
    assert dag.open is not None
    every = dag.open.ranges
    yield {n: most for n, (_, most) in every.items()}
    yield {n: least for n, (least, _) in every.items()}
    for _ in range(SIZES - 2):
        yield {n: rng.randint(*r) for n, r in every.items()}


def wrong_by_interpreter(dag: ComputeDAG, func: LoweredFunc, sizes: Mapping[str, int], seed: int) -> str:
    """What is wrong at sizes; empty if nothing is."""
    here = at(dag, sizes)
    data = open_inputs(here, seed)
    arrays = {t.name: laid(t, dag.tensors[t.name], x) for t, x in zip(here.inputs, data, strict=True)}
    kept = {name: a.copy() for name, a in arrays.items()}
    outs = {n: laid(here.tensors[n], dag.tensors[n]) for n in here.outputs}
    try:
        run(func, arrays | outs, sizes=sizes)
    except InterpError as err:
        return str(err)
    if any(not np.array_equal(kept[n], arrays[n]) for n in kept):
        return "an input is written"
    return different(list(outs.values()), te.evaluate(here, data))


def different(got: list[np.ndarray], want: list[np.ndarray]) -> str:
    for n, (g, w) in enumerate(zip(got, want, strict=True)):
        if not np.array_equal(g, w):
            x = tuple(int(i) for i in np.argwhere(g != w)[0])
            return f"output {n}: {int((g != w).sum())} of {w.size} wrong, {g[x]} for {w[x]} at {x}"
    return ""


def wrong_compiled(dag: ComputeDAG, trace: Trace, on: Target, every: list[dict[str, int]], seed: int) -> str:
    try:
        func, _ = programs(dag, trace, on)
    except AutotuneError as err:
        return f"refused: {err}"
    code = OpenCode(func, on)
    for sizes in every:
        here = at(dag, sizes)
        data = open_inputs(here, seed)
        for place, got in code.outputs(dag, sizes, data).items():
            if what := different(got, te.evaluate(here, data)):
                return f"{sizes}, arrays at {place}: {what}"
    return ""


def tried(seed: int, compiled: bool = False) -> tuple[Counter[str], list[str]]:
    """What was tried of a seed, and what is wrong."""
    rng = Random(seed)
    dag = random_open(rng)
    count, wrong = Counter(programs=1), []
    for kind, trace, on in schedules(dag, rng):
        count["schedules"] += 1
        try:
            func, _ = programs(dag, trace, on or target())
        except ScheduleError as err:
            count[f"refused, {kind}: {str(err)[:150]}"] += 1
            continue
        count[kind] += 1
        if open_text(func.params, func.sizes) != open_text_of(dag):
            wrong.append(f"seed {seed}, {kind}: the signature is not what loading expects")
        every = list(sizes_tried(dag, rng))
        for sizes in every:
            count["cases"] += 1
            if what := wrong_by_interpreter(dag, func, sizes, seed):
                wrong.append(f"seed {seed}, {kind}, {sizes}: {what}")
                break
        if compiled:
            count["compiled"] += 1
            here = host(on.threads if on is not None else 1)
            if what := apart(lambda t=trace, h=here, e=every: wrong_compiled(dag, t, h, e, seed)):
                wrong.append(f"seed {seed}, {kind}, compiled: {what}")
    return count, wrong


def main(first: int, last: int, compiled: bool) -> None:
    warnings.simplefilter("ignore")
    total: Counter[str] = Counter()
    start = process_time()
    for seed in range(first, last):
        try:
            count, wrong = tried(seed, compiled)
        except Exception as err:  # a fault of the program: told, and the next seed is tried
            count, wrong = Counter(faults=1), [f"seed {seed}: {type(err).__name__}: {err}"]
        total += count
        for line in wrong:
            print(line, flush=True)
    print(dict(total), f"{process_time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), "compiled" in sys.argv)
