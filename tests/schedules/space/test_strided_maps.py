"""Elementwise stages on arrays that are not row-major: rows stay rows, and transposed ones are walked in
blocks."""

from __future__ import annotations

import re

import numpy as np
import pytest
from grid_cases import TARGET, need_cxx
from helpers import check_compiled, expected, host, inputs, interpret, lies, same
from space_cases import target

from autotune.backends.building.from_trace import emit_module
from autotune.codegen.runtime.laid import laid
from autotune.run.kernels import kernel_of
from schedules import te
from schedules.model import Workload
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG

M, N = 33, 40


def added(
    x: tuple[int, int] | None, y: tuple[int, int] | None = None, out: tuple[int, int] | None = None
) -> ComputeDAG:
    """z = x + y of arrays with these strides."""
    a, b = te.placeholder((M, N), name="x", strides=x), te.placeholder((M, N), name="y", strides=y)
    dag = te.dag([a, b, te.compute((M, N), lambda i, j: a[i, j] + b[i, j], "z")])
    return te.with_strides(dag, {"z": out}) if out else dag


FLAT, ROWS, BLOCKS = ("z.vec", "z.body"), ("z.vec",), ("z.rows", "z.i.block", "z.vec", "z.j.block")
CASES = {
    "row-major": (added(None), FLAT),
    "rows with gaps": (added((N + 3, 1)), ROWS),
    "results with gaps": (added(None, None, (N + 8, 1)), ROWS),
    "one row for all": (added((0, 1)), ROWS),
    "one number a row": (added(None, (1, 0)), BLOCKS),
    "rows from the last": (added((-N, 1)), ROWS),
    "every second element": (added((2 * N, 2)), FLAT),
    "transposed": (added((1, M)), BLOCKS),
    "both transposed": (added((1, M), (1, M + 1)), BLOCKS),
    "all transposed": (added((1, M), (1, M), (1, M + 1)), ROWS),
    "results transposed": (added(None, None, (1, M)), ("z.rows", "z.j.block", "z.vec", "z.i.block")),
}
SQUARES = ("transposed", "both transposed", "results transposed")


@pytest.mark.parametrize("name", CASES)
def test_what_is_offered_follows_from_memory(name: str) -> None:
    dag, holes = CASES[name]
    space = derive(dag, target())
    assert [space.holes(k) for k in range(len(space.sketches))] == [holes]


@pytest.mark.parametrize("name", CASES)
def test_every_sketch_is_right(name: str) -> None:
    dag, _ = CASES[name]
    space, data = derive(dag, host()), inputs(dag)
    rows = space.sample(0, 40, np.random.default_rng(0))
    for n, row in enumerate(rows[space.valid(0, rows)][:4]):
        trace = space.trace(0, row)
        want = expected(dag, data)
        same(interpret(Schedule.replay(dag, trace, host()).nest, dag, data), want, name)
        if n < 2:
            check_compiled(dag, trace, host(), data, want)


@pytest.mark.parametrize("name", [name for name in CASES if name != "rows from the last"])  # refused for GPUs
def test_gpus_fetch_what_lies_side_by_side(name: str) -> None:
    """Squares cross in shared memory where an input lies across the result, and only there."""
    dag, _ = CASES[name]
    space, data = derive(dag, TARGET), inputs(dag)
    assert (space.sketches[0] == "z.by=squares") == (name in SQUARES)
    s = Schedule.replay(dag, space.trace(0, space.sample(0, 1, np.random.default_rng(0))[0]), TARGET)
    same(interpret(s.nest, dag, data), expected(dag, data), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SQUARES)
def test_squares_are_right_where_they_run(name: str) -> None:
    need_cxx()
    dag, _ = CASES[name]
    space, data = derive(dag, TARGET), inputs(dag)
    rows = space.sample(0, 20, np.random.default_rng(0))
    row = rows[space.valid(0, rows)][0]
    kernel = kernel_of(Workload(dag), TARGET, space.trace(0, row))
    given = [laid(x, lies(t)) for t, x in zip(dag.inputs, data, strict=True)]
    assert np.array_equal(kernel(*given), expected(dag, data)[0])


@pytest.mark.parametrize(
    "name", ["rows with gaps", "results with gaps", "one row for all", "rows from the last", "all transposed"]
)
def test_lanes_are_neighbours_in_memory(name: str) -> None:
    """No lane is loaded or stored alone, whatever is decided: rows need not be whole vectors."""
    dag, _ = CASES[name]
    space = derive(dag, target())
    for row in space.sample(0, 8, np.random.default_rng(0)):
        text = emit_module(dag, space.trace(0, row), target()).text
        kernel = text[: text.index("define void @kernel")]
        assert not re.search(r"(load|store) float|gather|scatter|insertelement", kernel)
