"""Random operators, shapes, sketches and decisions for GPUs, emulated against numpy and compiled by NVRTC.

A quick part runs by default; ``-m fuzz`` runs hundreds. A failure prints the line that repeats it.
"""

from __future__ import annotations

import math
import traceback

import numpy as np
import pytest
from grid_cases import TARGET, need_cxx, program
from helpers import poisoned
from space_cases import random_case
from test_fuzz_operators import Wrong, sweep

from autotune.codegen.simt import cuda, emulator, nvrtc
from schedules.model import Trace
from schedules.space import derive

SEED = 1
PER_CASE = 4  # candidates of one workload
BIG = 20  # about the largest extents
MOST_THREADS = 1 << 18  # of a grid: each is a fiber


def emulated(seed: int, n: int) -> int:
    """Emulate candidates of workload ``n``, and compile the first; how many. Raises `Wrong`."""
    rng = np.random.default_rng([seed, n])
    case = random_case(rng, BIG)
    what = case.label
    try:
        space = derive(case.dag, TARGET)
        found = []
        for k in (rng.permutation(len(space.sketches)).tolist() * PER_CASE)[: 4 * PER_CASE]:
            rows = space.sample(k, 64, rng)
            rows = rows[space.valid(k, rows)]
            what = f"{case.label}, sketch {space.sketches[k]!r}"
            if not np.isfinite(space.features(k, rows)).all():
                raise Wrong("features that are not finite")
            for row in rows[:1]:
                what = f"{case.label}, sketch {space.sketches[k]!r} {row.tolist()}"
                p = program(case.dag, Trace.from_json(space.trace(k, row).to_json()))
                fibers = sum(math.prod(x.grid) * x.threads for x in p.kernels)
                if len(found) < PER_CASE and fibers < MOST_THREADS:
                    found.append((what, p))
        if not found:
            return 0
        obj = emulator.build(*(p for _, p in found))
        for number, (label, p) in enumerate(found):
            what = label
            outs = [poisoned(w) for w in case.want]
            fault = emulator.run(obj, p, [*case.inputs, *outs], number)
            if fault or (fault := case.compare(outs)):
                raise Wrong(fault)
        if nvrtc.available():
            what, p = found[0]
            nvrtc.compile_cubin(cuda.source(p), "sm_80")
    except Exception as err:
        raise Wrong(f"{what}: {err}\n{traceback.format_exc()}") from err
    return len(found)


def _check(seed: int, wanted: int) -> None:
    need_cxx()
    count, failures = sweep(emulated, seed, 0, wanted)
    assert not failures, f"{len(failures)} failures in {count} candidates:\n" + "\n\n".join(failures)


@pytest.mark.slow
def test_a_few_random_candidates_are_right() -> None:
    _check(SEED, 20)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100, 103))
def test_random_candidates_are_right(seed: int) -> None:
    _check(seed, 200)
