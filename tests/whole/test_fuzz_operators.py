"""Random operators, shapes, sketches and decisions, compiled and interpreted, against numpy.

A quick part runs by default; ``-m fuzz`` runs thousands. A failure prints the line that repeats it. Compiled
kernels run in a forked child, so that one which crashes is reported like any other.
"""

from __future__ import annotations

import ctypes
import json
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from helpers import poisoned
from space_cases import Case, random_case, target

from autotune.backends.building.from_trace import emit_module
from autotune.codegen.llvm.compile import compile_module, load_object
from autotune.measure.arena import Arena, KernelParam
from schedules.ir import interp
from schedules.model import Trace
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import DerivedSpace, derive
from schedules.space.estimate.counting import number
from schedules.space.holes import Columns
from schedules.space.rules.cpu import packed_operands, row_parts, tiling

SEED = 1
PER_CASE = 4  # candidates of one workload
BIG, SMALL = 48, 9  # about the largest extents, compiled and interpreted
MOST_INSTANCES = 2500  # block instances that the interpreter is given


class Wrong(AssertionError):
    """A candidate gave a wrong result; the message says which and how."""


def drawn(seed: int, n: int, big: int) -> tuple[Case, DerivedSpace, np.random.Generator]:
    """Workload ``n`` and its space on a random target."""
    rng = np.random.default_rng([seed, n])
    case = random_case(rng, big)
    t = target(int(rng.choice((1, 2))), int(rng.choice((16, 32, 32, 64))))
    try:
        with _small_as_large():
            return case, derive(case.dag, t), rng
    except Exception as err:
        raise Wrong(f"{case.label}: derive: {err!r}\n{traceback.format_exc()}") from err


@contextmanager
def _small_as_large() -> Iterator[None]:
    """Packed operands, blocked and unrolled reductions at the small extents of these tests, too."""
    with pytest.MonkeyPatch.context() as m:
        for name, value in (("BLOCK_REDUCTION", 2), ("BLOCK_PACKED", 2), ("STEPS", (1, 2, 3))):
            m.setattr(tiling, name, value)
        m.setattr(tiling, "REDUCTION_BLOCKS", (6, 12))
        m.setattr(packed_operands, "TOO_SMALL_TO_PACK", 0)
        m.setattr(row_parts, "PARTS", (1, 2))
        m.setattr(row_parts, "TILE", 1 << 30)
        yield


def candidates(
    case: Case, space: DerivedSpace, rng: np.random.Generator, most: int | None = None
) -> Iterator[tuple[str, Trace]]:
    """Up to `PER_CASE` valid decisions of random sketches, at most ``most`` block instances each."""
    found = 0
    order = rng.permutation(len(space.sketches)).tolist()
    for k in order * PER_CASE:
        rows = space.sample(k, 64, rng)
        ok = space.valid(k, rows)
        if most is not None:
            env = Columns(zip(space.holes(k), rows.T, strict=True))
            ok &= sum(number(b.instances, env) for b in space.sketch(k).estimate.facts) <= most
        if not np.isfinite(space.features(k, rows)).all():
            raise Wrong(f"{case.label}: sketch {space.sketches[k]!r} has features that are not finite")
        if not ok.any():
            continue
        row = rows[ok][0]
        what = f"{case.label}, {space.target.threads} threads, sketch {space.sketches[k]!r} {row.tolist()}"
        yield what, space.trace(k, row)
        found += 1
        if found == PER_CASE:
            return
    if not found and most is None:
        raise Wrong(f"{case.label}: no sketch of {space.sketches} has a valid row")


def compiled(seed: int, n: int) -> int:
    """Compile and run candidates of workload ``n`` on guarded arrays; how many. Raises `Wrong`."""
    case, space, rng = drawn(seed, n, BIG)
    arena = Arena([KernelParam(t.name, t.shape, t.dtype) for t in case.dag.params], case.inputs)
    arena.fill_outputs()
    count = 0
    try:
        for what, trace in candidates(case, space, rng):
            try:
                wrong = _run(case, space, trace, arena)
            except Exception as err:
                raise Wrong(f"{what}: {err!r}\n{traceback.format_exc()}") from err
            if wrong:
                raise Wrong(f"{what}: {wrong}")
            count += 1
    finally:
        arena.close()
    return count


def _run(case: Case, space: DerivedSpace, trace: Trace, arena: Arena) -> str:
    module = emit_module(case.dag, Trace.from_json(trace.to_json()), space.target)
    loaded = load_object(compile_module(module.text, space.target))
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)(loaded.address)
    for n, place in enumerate(arena.placements):
        arena.poison(place, n)
        where = "end" if place.name != "begin" else "begin"
        scratch = arena.scratch.open(loaded.scratch_bytes, where) if loaded.scratch_bytes else 0
        kernel(ctypes.addressof(place.pointers), scratch, space.target.threads)
        if arena.scratch.overrun(loaded.scratch_bytes, where):
            return f"arrays at {place.name}: wrote past its scratch memory"
        wrong = case.compare(place.outputs)
        if wrong:
            return f"arrays at {place.name}: {wrong}"
    return ""


def interpreted(seed: int, n: int) -> int:
    """Interpret candidates of a small workload ``n``, scheduled and lowered; how many. Raises `Wrong`."""
    case, space, rng = drawn(seed, n, SMALL)
    count = 0
    for what, trace in candidates(case, space, rng, MOST_INSTANCES):
        stage = "replay"
        try:
            nest = Schedule.replay(case.dag, Trace.from_json(trace.to_json()), space.target).nest
            stage = "lower"
            func = lower(nest)
            for title, program in (("scheduled", nest), ("lowered", func)):
                stage = title
                arrays = {t.name: x for t, x in zip(case.dag.inputs, case.inputs, strict=True)}
                outs = [poisoned(w) for w in case.want]
                interp.run(program, arrays | dict(zip(case.dag.outputs, outs, strict=True)))
                wrong = case.compare(outs)
                if wrong:
                    raise Wrong(wrong)
        except Exception as err:
            raise Wrong(f"{what}: {stage}: {err!r}\n{traceback.format_exc()}") from err
        count += 1
    return count


def sweep(run: Callable[[int, int], int], seed: int, start: int, wanted: int) -> tuple[int, list[str]]:
    """``run`` over workloads from ``start`` until ``wanted`` candidates are through, in forked children;
    their number and the failures."""
    n, count, failures = start, 0, []
    while count < wanted and len(failures) < 10:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            _report(run, seed, n, wanted - count, write)
        os.close(write)
        begun, ended = n - 1, True
        with os.fdopen(read) as lines:
            for line in lines:
                begun, done, wrong = json.loads(line)
                ended = done is not None
                count += done or 0
                if wrong:
                    failures.append(f"{_repeat(run, seed, begun)}\n{wrong}")
        _, status = os.waitpid(child, 0)
        if not ended or os.waitstatus_to_exitcode(status) != 0:
            code = os.waitstatus_to_exitcode(status)
            failures.append(f"{_repeat(run, seed, begun)}\nthe process ended with status {code}")
        n = begun + 1
    return count, failures


def _report(run: Callable[[int, int], int], seed: int, n: int, wanted: int, write: int) -> None:
    """In the child: a line before and after each workload. Ends the process."""
    try:
        count = 0
        last = n + 100  # a fresh process now and then: compiled code stays mapped in the old one
        while count < wanted and n < last:
            os.write(write, (json.dumps([n, None, ""]) + "\n").encode())
            try:
                done, wrong = run(seed, n), ""
            except Exception as err:
                done, wrong = 0, str(err)
            count += done
            os.write(write, (json.dumps([n, done, wrong]) + "\n").encode())
            n += 1
    finally:
        os._exit(0)


def _repeat(run: Callable[[int, int], int], seed: int, n: int) -> str:
    return f'PYTHONPATH=.:tests python -c "import {run.__module__} as f; f.{run.__name__}({seed}, {n})"'


def _check(run: Callable[[int, int], int], seed: int, wanted: int) -> None:
    count, failures = sweep(run, seed, 0, wanted)
    assert not failures, f"{len(failures)} failures in {count} candidates:\n" + "\n\n".join(failures)
    assert count >= wanted


@pytest.mark.slow
@pytest.mark.parametrize("run", [compiled, interpreted])
def test_a_few_random_candidates_are_right(run: Callable[[int, int], int]) -> None:
    _check(run, SEED, 60)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100, 104))
@pytest.mark.parametrize("run", [compiled, interpreted])
def test_random_candidates_are_right(run: Callable[[int, int], int], seed: int) -> None:
    _check(run, seed, 550)
