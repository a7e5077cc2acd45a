"""A few rows times the transpose of a larger matrix, as in a linear layer: sketches that do not pack it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import check_compiled, check_interpreted
from space_cases import target, values

from schedules import ops, te
from schedules.ir import Loop, const, walk
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.space.rules.cpu import dot_products, tiling
from schedules.te.compute_dag import ComputeDAG

LINEAR = {"transpose_b": 1}
DOTS, LANES = "c.by=dots", "c.lanes=x0"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules at reductions of tests."""
    monkeypatch.setattr(dot_products, "LONG", 16)
    monkeypatch.setattr(dot_products, "TURNED", 4)
    monkeypatch.setattr(tiling, "BLOCK_REDUCTION", 16)


def sketches(op: str, constants: tuple[str, ...] = (), **params: Any) -> set[str]:
    dag = ops.workload(op, params).dag
    dag = ComputeDAG(dag.inputs, dag.stages, dag.outputs, constants) if constants else dag
    return set(derive(dag, target(vector_bytes=64)).sketches)


@pytest.mark.parametrize(
    ("m", "offered"), [(1, {DOTS}), (2, {DOTS}), (3, {DOTS}), (4, {DOTS, LANES}), (8, {DOTS, LANES}),
                       (9, {LANES}), (128, {LANES}), (1500, {LANES}), (1501, set())],
)  # fmt: skip
def test_offered_where_rows_are_few(m: int, offered: set[str]) -> None:
    found = sketches("matmul", m=m, n=3000, k=700, **LINEAR)
    assert found & {DOTS, LANES} == offered
    assert m == 1 or any("pack" in name for name in found)


@pytest.mark.fast("8")
@pytest.mark.parametrize("n", [2, 4, 5, 7, 8])
def test_a_matrix_times_few_columns(n: int, short: None) -> None:
    """The matrix is read where it lies, once. The columns are turned before, and a tile may have all of them,
    also where their number has no divisors."""
    dag = ops.workload("matmul", {"m": 4096, "n": n, "k": 4096}).dag
    space = derive(dag, target(vector_bytes=64))
    s = space.sketches.index(DOTS)
    rows = space.sample(s, 64, np.random.default_rng(0))
    assert n in rows[:, -1]  # columns of a tile
    nest = Schedule.replay(dag, space.trace(s, rows[0]), space.target).nest
    made = {b.name: [const(e) for e in b.shape] for b in nest.buffers if b.name not in nest.params}
    assert made.keys() == {"b_global", "c_rf"} and made["b_global"] == [n, 4096]
    if n < 8:  # the estimate puts it first, for what is not tuned: columns fill no vector
        est = [_fastest(space, i) for i in range(len(space.sketches))]
        assert min(est) == est[s]


def _fastest(space: Any, s: int) -> float:
    rows = space.sample(s, 200, np.random.default_rng(1))
    found = space.features(s, rows[space.valid(s, rows)])[:, space.feature_names.index("est_time_s")]
    return float(found.min(initial=np.inf))


def test_not_offered_where_there_is_nothing_to_gain() -> None:
    here = {DOTS, LANES}
    assert not here & sketches("matmul", m=4, n=3000, k=700), "rows of the matrix are vectors of the result"
    assert not here & sketches("matmul", m=4, n=3000, k=255, **LINEAR), "a short reduction"
    assert not here & sketches("matmul", m=4, n=40, k=700, **LINEAR) - {DOTS}, "few columns"
    assert not here & sketches("matmul", ("b",), m=4, n=3000, k=700, **LINEAR), "packed once"
    assert DOTS not in sketches("matmul", m=4, n=63, k=700, transpose_a=1, **LINEAR), "none is much smaller"
    assert DOTS not in sketches("matmul", m=3000, n=4, k=700, transpose_a=1), "rows of results are vectors"


def test_not_offered_where_no_axis_of_the_reduction_can_be_cut() -> None:
    """256 steps, at most 8 along an axis, as the axes do not go on in both operands: the blocks of what is
    turned over are of parts."""
    x, w = te.placeholder((8, 8, 8, 4), name="x"), te.placeholder((64, 4, 8, 8), name="w")
    r = a, b, c = te.reduce_axis(8, "a"), te.reduce_axis(8, "b"), te.reduce_axis(4, "c")
    y = te.compute((8, 64), lambda i, j: te.sum(x[i, a, b, c] * w[j, c, b, a], axis=r), "y")
    dag, rng = te.dag([x, w, y]), np.random.default_rng(0)
    data = values(dag, rng)
    want = [np.einsum("iabc,jcba->ij", *data)]
    space = derive(dag, target())
    assert not any("lanes" in name for name in space.sketches)
    for s in range(len(space.sketches)):
        rows = space.sample(s, 64, rng)
        check_compiled(dag, space.trace(s, rows[space.valid(s, rows)][0]), space.target, data, want)


def linear(m: int, n: int, k: int) -> ComputeDAG:
    """A layer of users' own: with a bias and an activation, of three dimensions."""
    x, w = te.placeholder((1, m, k), name="x"), te.placeholder((n, k), name="w")
    bias, r = te.placeholder((n,), name="bias"), te.reduce_axis(k, "r")
    c = te.compute((1, m, n), lambda b, i, j: te.sum(x[b, i, r] * w[j, r], axis=r), "c")
    y = te.compute((1, m, n), lambda b, i, j: te.maximum(c[b, i, j] + bias[j], 0.0), "y")
    return te.dag([x, w, bias, y])


def library(op: str, **fixed: Any) -> Callable[[int, int, int], ComputeDAG]:
    return lambda m, n, k: ops.workload(op, {"m": m, "n": n, "k": k, **fixed}).dag


LAYERS: dict[str, Callable[[int, int, int], ComputeDAG]] = {
    "matmul": library("matmul", **LINEAR),
    "both transposed": library("matmul", transpose_a=1, **LINEAR),
    "few columns": lambda m, n, k: library("matmul")(n, m, k),
    "with an epilogue": library("matmul_bias_relu", **LINEAR),
    "a batch": library("batch_matmul", b=2, **LINEAR),
    "of doubles": lambda m, n, k: ops.workload("matmul", {"m": m, "n": n, "k": k, **LINEAR}, "float64").dag,
    "of integers": lambda m, n, k: ops.workload("matmul", {"m": m, "n": n, "k": k, **LINEAR}, "int32").dag,
    "of halves": lambda m, n, k: ops.workload("matmul", {"m": m, "n": n, "k": k, **LINEAR}, "float16").dag,
    "users' own": linear,
}


def matrix_times_vector(m: int, k: int) -> ComputeDAG:
    a, x, r = te.placeholder((m, k), name="a"), te.placeholder((k,), name="x"), te.reduce_axis(k, "r")
    return te.dag([a, x, te.compute((m,), lambda i: te.sum(a[i, r] * x[r], axis=r), "c")])


ONE: dict[str, Callable[[int, int], ComputeDAG]] = {  # a matrix of m rows and k columns, and a vector
    "one row": lambda m, k: library("matmul", **LINEAR)(1, m, k),
    "one column": lambda m, k: library("matmul")(m, 1, k),
    "one transposed": lambda m, k: library("matmul", transpose_a=1, **LINEAR)(1, m, k),
    "with an epilogue": lambda m, k: library("matmul_bias_relu", **LINEAR)(1, m, k),
    "a batch": lambda m, k: library("batch_matmul", b=2, **LINEAR)(1, m, k),
    "a batch of one": lambda m, k: library("batch_matmul", b=1)(m, 1, k),
    "users' own": matrix_times_vector,
}


@pytest.mark.fast("both transposed-1-64")
@pytest.mark.parametrize(("threads", "vector_bytes"), [(1, 64), (2, 32), (1, 16)])
@pytest.mark.parametrize("layer", LAYERS)
def test_candidates_are_right(layer: str, threads: int, vector_bytes: int, short: None) -> None:
    """At shapes that nothing divides, and that everything does."""
    rng = np.random.default_rng(threads + vector_bytes)
    seen = set()
    shapes = ((5, 50, 67), (4, 96, 32), (17, 130, 24), (2, 101, 19), (7, 53, 41), (33, 99, 40))
    for m, n, k in shapes[: None if layer == "matmul" else 3]:
        dag = LAYERS[layer](m, n, k)
        data = values(dag, rng)
        want = _reference(dag, data)
        space = derive(dag, target(threads, vector_bytes))
        for s, name in enumerate(space.sketches):
            if "dots" not in name and "lanes" not in name:
                continue
            seen.add("dots" if "dots" in name else "lanes")
            rows = space.sample(s, 32, rng)
            for row in rows[space.valid(s, rows)][:2]:
                check_compiled(dag, space.trace(s, row), space.target, data, want)
    assert seen == {"dots", "lanes"}


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["matmul", "with an epilogue"])
def test_the_interpreter_agrees(layer: str, short: None) -> None:
    dag = LAYERS[layer](3, 35, 17)
    data = values(dag, np.random.default_rng(5))
    want = _reference(dag, data)
    space = derive(dag, target(2))
    for s, name in enumerate(space.sketches):
        if "dots" in name or "lanes" in name:
            rows = space.sample(s, 32, np.random.default_rng(s))
            trace = space.trace(s, rows[space.valid(s, rows)][0])
            check_interpreted(Schedule.replay(dag, trace, space.target).nest, dag, data, want)


def _reference(dag: ComputeDAG, data: list[np.ndarray]) -> list[np.ndarray]:
    """The product by numpy, whichever layer it is."""
    a, b, *bias = (x.astype(np.float64) for x in data)
    out = dag.tensors[dag.outputs[0]]
    if a.shape[-1] == b.shape[-2] and out.shape[-1] == b.shape[-1]:
        b = b.swapaxes(-1, -2)
    if a.shape[-1] != b.shape[-1]:
        a = a.swapaxes(-1, -2)
    c = a @ b.swapaxes(-1, -2)
    return [(np.maximum(c + bias[0], 0.0) if bias else c).astype(out.dtype)]


@pytest.mark.fast("one column-1-64")
@pytest.mark.parametrize("vector_bytes", [16, 64])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("product", ONE)
def test_a_matrix_times_a_vector_is_read_along_its_rows(
    product: str, threads: int, vector_bytes: int, short: None
) -> None:
    rng = np.random.default_rng(threads)
    for m, k in ((96, 128), (53, 41)):
        dag = ONE[product](m, k)
        space = derive(dag, target(threads, vector_bytes))
        n = next(n for n, name in enumerate(space.sketches) if DOTS in name)
        assert any(h.endswith(".lanes") for h in space.holes(n)), "sums of each row for several vectors"
        data = values(dag, rng)
        want = te.evaluate(dag, data)
        rows = space.sample(n, 32, rng)
        for row in rows[space.valid(n, rows)][:3]:
            s = Schedule.replay(dag, space.trace(n, row), space.target)
            shared = [x for x in walk(s.nest.body) if isinstance(x, Loop) and x.kind == "parallel"]
            assert threads == 1 or product == "a batch" or (const(shared[0].extent) or 0) > 1
            check_compiled(dag, s.trace, space.target, data, want)
