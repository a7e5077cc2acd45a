"""Reductions of tuples whose components are each reduced on their own: in lanes and by threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grid_cases import Case, emulate, program, sampled
from helpers import check_compiled, check_interpreted, expected, host, inputs
from hypothesis import given, settings
from hypothesis import strategies as st
from space_cases import target

from schedules import te
from schedules.dtypes import DTYPES, is_storage
from schedules.ir import AllReduce, Loop, walk
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG

OPS: dict[str, tuple[int, Any]] = {
    "+": (0, lambda a, b: a + b),
    "*": (1, lambda a, b: a * b),
    "min": (2**20, te.minimum),
    "max": (-(2**20), te.maximum),
}


def together(ops: tuple[str, ...], n: int = 37, dtype: str = "float32") -> ComputeDAG:
    """Rows of ones and zeros reduced by several operations at once, and a stage of all results."""
    x, k = te.placeholder((3, n), dtype, "x"), te.reduce_axis(n, "k")
    each = te.reducer(
        [OPS[o][0] for o in ops],
        lambda a, b: tuple(OPS[o][1](p, q) for o, p, q in zip(ops, a, b, strict=True)),
    )
    results = te.compute(
        (3,), lambda i: each((x[i, k],) * len(ops), axis=k), [f"r{j}" for j in range(len(ops))]
    )

    def all_of(i: Any, j: Any) -> Any:
        out = x[i, j]
        for r in results:
            out = out + r[i]
        return out

    return te.dag([x, te.compute((3, n), all_of, "y")])


def data_of(dag: ComputeDAG) -> tuple[list[np.ndarray], list[np.ndarray]]:
    data = [np.sign(x) for x in inputs(dag)]
    return data, expected(dag, data)


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(sorted(OPS)), min_size=2, max_size=3),
    st.integers(17, 90),
    st.sampled_from([d for d in DTYPES if not is_storage(d)]),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=6, deadline=None)
def test_every_sketch_is_right(ops: list[str], n: int, dtype: str, seed: int) -> None:
    dag = together(tuple(ops), n, dtype)
    data, want = data_of(dag)
    found, rng = derive(dag, target()), np.random.default_rng(seed)
    rows = found.sample(0, 60, rng)
    for row in rows[found.valid(0, rows)][:1]:
        trace = found.trace(0, row)
        check_interpreted(Schedule.replay(dag, trace, target()).nest, dag, data, want)
        check_compiled(dag, trace, host(), data, want)


def test_partial_results_and_their_total_are_in_lanes() -> None:
    dag = together(("+", "max"), 512)
    found = derive(dag, target())
    rows = found.sample(0, 60, np.random.default_rng(0))
    nest = Schedule.replay(dag, found.trace(0, rows[found.valid(0, rows)][0]), target()).nest
    loops = [x for x in walk(lower(nest).body) if isinstance(x, Loop) and x.var.startswith("r0")]
    inner = [x for x in loops if not any(isinstance(y, Loop) for y in walk(x.body))]
    assert inner and all(x.kind == "vectorize" for x in inner)


@pytest.mark.fast("+ +")
@pytest.mark.parametrize("ops", [("+", "+"), ("+", "max"), ("min", "*", "max")], ids=" ".join)
def test_threads_reduce_one_component_after_another(ops: tuple[str, ...]) -> None:
    dag = together(ops)
    data, want = data_of(dag)
    kernels = [k for _, trace in sampled(dag, 4) for k in program(dag, trace).kernels]
    found = [[x.op for x in walk(k.body) if isinstance(x, AllReduce)] for k in kernels]
    assert list(ops) in found
    emulate(Case(dag, tuple(data), tuple(want)), 3)
