"""Long sums are done in runs, by every schedule: nothing is lost of terms that are small beside their sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from grid_cases import case, emulate, need_cxx, program, sampled
from helpers import check_compiled, check_interpreted, execute, expected, host, inputs, interpret, same
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import PROGRAMS, make, matmul
from random_schedules import random_schedule
from space_cases import target

import autotune as at
from autotune.codegen.simt import emulator
from schedules import expr as E
from schedules import ops, te
from schedules.ir import Block, Nest, blocks
from schedules.ir.nest import initial, loops_of, vars_bound
from schedules.passes import lower, simt
from schedules.passes.partial_sums import adds, partial_sums
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.chains import CHAIN
from schedules.te.compute_dag import ComputeDAG


def longest(nest: Nest) -> int:
    """The most terms that a block which sums floating-point numbers adds to an element one after another."""
    every = blocks(nest.body)
    return max(
        (_terms(nest, b, every) for b in every if b.reducer is not None and adds(b.reducer)), default=0
    )


def _terms(nest: Nest, b: Block, every: tuple[Block, ...]) -> int:
    """Those between two first values of an element."""
    own, loops = vars_bound(b, "reduce"), loops_of(nest, b.name)
    assert b.reducer is not None
    starts = [x.name for x in every if x.writes == b.writes and x.values == b.reducer.identity]
    if starts and not b.init:
        outside = {x.var for x in loops_of(nest, starts[0])}
        loops = [x for x in loops if x.var not in outside]
    return math.prod(int(E.evaluate(x.extent, {})) for x in loops if x.var in own)


def column(n: int, dtype: str) -> ComputeDAG:
    x, k = te.placeholder((n, 1), dtype, "x"), te.reduce_axis(n, "k")
    return te.dag([x, te.compute((1,), lambda j: te.sum(x[k, j], axis=k), "y")])


def row(n: int, dtype: str) -> ComputeDAG:
    return ops.workload("reduce_sum", {"m": 1, "n": n}, dtype).dag


def dot(n: int, dtype: str) -> ComputeDAG:
    return ops.workload("matmul", {"m": 1, "n": 1, "k": n}, dtype).dag


def norm(n: int, dtype: str) -> ComputeDAG:
    return ops.workload("norm2", {"m": 4, "n": n // 4}, dtype).dag


def pool(n: int, dtype: str) -> ComputeDAG:
    k = int(n**0.5)
    return ops.workload("avg_pool2d", {"h": k, "w": k, "c": 1, "k": k}, dtype).dag


def both(n: int, dtype: str) -> ComputeDAG:
    """A sum and a maximum, reduced together."""
    x, k = te.placeholder((n,), dtype, "x"), te.reduce_axis(n, "k")
    add = te.reducer((0.0, 0.0), lambda a, b: (a[0] + b[0], te.maximum(a[1], b[1])), "add_max")
    return te.dag([x, *te.compute((1,), lambda i: add((x[k], x[k]), axis=k), "y")])


@pytest.fixture
def short(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A limit so low that small sums are long."""
    limit: int = request.param
    for module in (lower, simt):
        monkeypatch.setattr(module, "partial_sums", partial(partial_sums, limit=limit))
    return limit


@pytest.mark.slow
@pytest.mark.parametrize("short", [2, 5], indirect=True)
@pytest.mark.parametrize("first", [0, 10, pytest.param(20, marks=pytest.mark.soak)])
def test_random_schedules_mean_the_same_in_runs(first: int, short: int) -> None:
    for seed in range(first, first + 10):
        rng = Random(seed)
        dag = make(rng.choice(list(PROGRAMS)), rng.choice(("float32", "float64")))
        s = random_schedule(dag, rng, rng.randint(0, 8))
        data = inputs(dag, seed)
        want = expected(dag, data)
        runs = partial_sums(s.nest, short)
        same(interpret(runs, dag, data), want, f"seed {seed}: in runs")
        if not any(vars_bound(b, "reduce") & vars_bound(b, "spatial") for b in blocks(s.nest.body)):
            assert longest(runs) <= short, f"seed {seed}"
        check_interpreted(s.nest, dag, data, want)
        if seed % 5 == 0:
            check_compiled(dag, s.trace, host(1 + seed // 2 % 2), data, want)


@pytest.mark.fast("reduce_sum-2")
@pytest.mark.parametrize("short", [2], indirect=True)
@pytest.mark.parametrize("op", ["matmul", "layer_norm", "reduce_sum", "attention", "conv2d", "avg_pool2d"])
def test_kernels_of_gpus_mean_the_same_in_runs(op: str, short: int) -> None:
    emulate(case(op), 3)


FORMS: dict[str, Callable[[int, str], ComputeDAG]] = {
    "column": column, "row": row, "dot": dot, "norm": norm, "pool": pool, "both": both,
}  # fmt: skip
SUMS = {"norm": np.sqrt, "pool": lambda total: total / 10**6}  # what becomes of the total


def filled(dag: ComputeDAG, value: float) -> list[np.ndarray]:
    """Inputs of one value; a second operand of ones."""
    return [np.full(t.shape, 1 if n else value, t.dtype) for n, t in enumerate(dag.inputs)]


def tolerance(dtype: str) -> float:
    """A quarter of what 2^13 roundings make at worst: no more terms are added one after another."""
    return float(2**13 * np.finfo(dtype).eps / 8)


def first(out: object) -> float:
    return float(np.ravel(out[0] if isinstance(out, (tuple, list)) else out)[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("make_dag", [column, row, dot])
def test_two_to_the_25_ones_are_as_many(make_dag: Callable[[int, str], ComputeDAG]) -> None:
    dag = make_dag(1 << 25, "float32")
    assert first(at.build(Schedule(dag), threads=1)(*filled(dag, 1))) == 1 << 25


@pytest.mark.slow
def test_an_untuned_sum_of_ones_is_right(tmp_path: Path) -> None:
    workload = ops.workload("reduce_sum", {"m": 1, "n": 1 << 25})
    with pytest.warns(UserWarning, match="not tuned"):
        kernel = at.load(workload, db=tmp_path / "log.db", fallback=True)
    assert first(kernel(*filled(workload.dag, 1))) == 1 << 25


@pytest.mark.fast("column-float32", "norm-float64")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", FORMS)
def test_a_million_tenths(form: str, dtype: str) -> None:
    dag = FORMS[form](10**6, dtype)
    value = np.dtype(dtype).type(0.1)
    data = filled(dag, float(value))
    each = float(value) ** 2 if form == "norm" else float(value)
    want = SUMS.get(form, lambda total: total)(each * 10**6)
    got = [first(at.build(Schedule(dag), threads=1)(*data))]
    for threads in (1, 2):
        space, rng = derive(dag, target(threads)), np.random.default_rng(0)
        for k in range(len(space.sketches)):
            rows = space.sample(k, 60, rng)
            rows = rows[space.valid(k, rows)][:1]
            got += [
                first(next(iter(execute(dag, space.trace(k, r), target(threads), data).values())))
                for r in rows
            ]
    np.testing.assert_allclose(got, want, rtol=tolerance(dtype))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["row", "column", "norm"])
def test_a_million_tenths_on_a_gpu(form: str) -> None:
    need_cxx()
    dag = FORMS[form](10**6, "float32")
    data = filled(dag, float(np.float32(0.1)))
    each = float(np.float32(0.1)) ** (2 if form == "norm" else 1)
    want = SUMS.get(form, lambda total: total)(each * 10**6)
    programs = [program(dag, trace) for _, trace in sampled(dag, 1)][:4]
    obj = emulator.build(*programs)
    for n, p in enumerate(programs):
        out = np.full(1, np.nan, np.float32)
        assert emulator.run(obj, p, [*data, out], n) is None
        np.testing.assert_allclose(out[0], want, rtol=tolerance("float32"))


def test_sums_within_the_limit_stay_as_they_are() -> None:
    for extra in (0, 1):
        for dag in (
            matmul(m=2, n=2, k=CHAIN + extra),
            row(CHAIN + extra, "float32"),
            both(CHAIN + extra, "float32"),
        ):
            nest = initial(dag)
            assert (partial_sums(nest) == nest) == (extra == 0)
            assert longest(partial_sums(nest)) <= CHAIN


def test_only_floating_point_sums_are_cut() -> None:
    x, i = te.placeholder((50,), "float32", "x"), te.placeholder((50,), "int32", "i")
    k = te.reduce_axis(50, "k")
    for of, z in ((te.max, x), (te.min, x), (te.prod, x), (te.sum, i)):
        nest = initial(te.dag([z, te.compute((1,), lambda j, of=of, z=z: of(z[k], axis=k), "y")]))
        assert partial_sums(nest, 4) == nest
    assert partial_sums(initial(make("argmax")), 4) == initial(make("argmax"))


@pytest.mark.slow
@given(st.integers(1, 400), st.integers(2, 40), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_every_length_is_summed_whole_and_no_run_is_too_long(n: int, limit: int, tail: int) -> None:
    x, (k, r) = te.placeholder((n, tail), "float32", "x"), (te.reduce_axis(n, "k"), te.reduce_axis(tail, "r"))
    dag = te.dag([x, te.compute((1,), lambda j: te.sum(x[k, r], axis=(k, r)), "y")])
    runs = partial_sums(initial(dag), limit)
    assert longest(runs) <= limit
    data = inputs(dag, n)
    assert interpret(runs, dag, data)[0][0] == data[0].sum()
