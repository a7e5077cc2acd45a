"""Spaces of what once had no good schedule: short axes, groups, tuples, windows, joined arrays."""

from __future__ import annotations

import numpy as np
import pytest
from grid_cases import Case, emulate
from helpers import check_compiled, check_interpreted, expected, host, inputs
from space_cases import target

import autotune as at
from schedules import te
from schedules.expr import Select, loads
from schedules.expr import walk as nodes
from schedules.ir import Loop, Store, blocks, const, walk
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import DerivedSpace, derive
from schedules.te.compute_dag import ComputeDAG


def group_norm(n: int = 2, groups: int = 3, each: int = 2, h: int = 4, w: int = 7) -> ComputeDAG:
    """Channels first; without division, so that small integers are exact."""
    c = groups * each
    x, scale = te.placeholder((n, c, h, w), name="x"), te.placeholder((c,), name="scale")
    k, y, z = te.reduce_axis(each, "k"), te.reduce_axis(h, "y"), te.reduce_axis(w, "z")
    total = te.compute((n, groups), lambda i, g: te.sum(x[i, g * each + k, y, z], axis=(k, y, z)), "total")

    def body(i: te.Expr, o: te.Expr, a: te.Expr, b: te.Expr) -> te.Expr:
        return (x[i, o, a, b] - total[i, o // each]) * scale[o]

    return te.dag([x, scale, te.compute((n, c, h, w), body, "y")])


def argmax(shape: tuple[int, ...], axis: int) -> ComputeDAG:
    x, k = te.placeholder(shape, name="x"), te.reduce_axis(shape[axis], "k")
    first = te.reducer(
        lambda i, v: (te.max_value(i), -te.inf),
        lambda a, b: (
            te.select(te.any(a[1] > b[1], te.all(te.equal(a[1], b[1]), a[0] < b[0])), a[0], b[0]),
            te.maximum(a[1], b[1]),
        ),
    )
    out = tuple(n for d, n in enumerate(shape) if d != axis)
    p, v = te.compute(
        out, lambda *i: first((te.cast(k, "int32"), x[(*i[:axis], k, *i[axis:])]), axis=k), ("p", "v")
    )
    return te.dag([x, p, v])


def joined(sizes: tuple[int, ...], rows: int = 0, total: bool = False) -> ComputeDAG:
    """Arrays one after another along the last axis, or the sums of each row of that."""
    lead = (rows,) if rows else ()
    parts = [te.placeholder((*lead, n), name=f"x{k}") for k, n in enumerate(sizes)]
    ends = np.cumsum(sizes)

    def body(*i: te.Expr) -> te.Expr:
        v = parts[-1][(*i[:-1], i[-1] - int(ends[-2]))]
        for k in reversed(range(len(sizes) - 1)):
            begin = int(ends[k]) - sizes[k]
            v = te.select(i[-1] < int(ends[k]), parts[k][(*i[:-1], i[-1] - begin)], v)
        return v

    c = te.compute((*lead, int(ends[-1])), body, "c")
    if not total:
        return te.dag([*parts, c])
    r = te.reduce_axis(int(ends[-1]), "r")
    return te.dag([*parts, te.compute(lead, lambda *i: te.sum(c[(*i, r)], axis=r), "s")])


def pooled(stride: int = 2) -> ComputeDAG:
    x = te.placeholder((2, 3, 12, 40), name="x")
    r, s = te.reduce_axis(2, "r"), te.reduce_axis(2, "s")
    out = (2, 3, 6, 20)
    top = te.compute(
        out, lambda n, c, i, j: te.max(x[n, c, i * stride + r, j * stride + s], axis=(r, s)), "top"
    )
    return te.dag([x, te.compute(out, lambda *at: top[at] * 0.5, "y")])


CASES = {
    "group norm": group_norm(),
    "rows of a tuple": argmax((3, 90), 1),
    "columns of a tuple": argmax((33, 19), 0),
    "a tuple in the middle": argmax((3, 11, 5), 1),
    "one tuple": argmax((500,), 0),
    "windows with steps": pooled(),
    "joined": joined((77, 5, 102)),
    "rows joined": joined((77, 70), 2),
    "sum of joined": joined((77, 5, 102), 2, True),
}


def last_rows(space: DerivedSpace, count: int) -> list[tuple[int, np.ndarray]]:
    """Of each sketch, the rows with the largest decisions: the most vectors."""
    rng = np.random.default_rng(0)
    out = []
    for k in range(len(space.sketches)):
        rows = space.sample(k, 64, rng)
        rows = rows[space.valid(k, rows)]
        out += [(k, r) for r in rows[np.argsort(-rows.sum(axis=1), kind="stable")][:count]]
    return out


@pytest.mark.fast("group norm", "a tuple in the middle", "joined", "sum of joined")
@pytest.mark.parametrize("name", CASES)
def test_every_sketch_is_right(name: str) -> None:
    dag = CASES[name]
    space = derive(dag, target(1 + len(name) % 2))
    data = inputs(dag)
    want = expected(dag, data)
    for k, row in last_rows(space, 1):
        trace = space.trace(k, row)
        check_interpreted(Schedule.replay(dag, trace, space.target).nest, dag, data, want)
        check_compiled(dag, trace, space.target, data, want)


def test_merged_axes_on_a_gpu() -> None:
    dag = CASES["group norm"]
    data = inputs(dag)
    emulate(Case(dag, tuple(data), tuple(expected(dag, data))), 2)


def test_neighbouring_axes_are_one_where_all_stages_go_on_in_memory() -> None:
    nest = derive(group_norm(), target()).sketch(0).nest
    shapes = {b.name: tuple(const(n) for n in b.shape) for b in nest.buffers}
    assert shapes["x"] == (2, 3 * 2 * 4 * 7) and shapes["y"] == (2, 6, 28)  # of y a channel has its scale
    assert [const(n) or 0 for n in nest.buffer("x").given or ()] == [2, 6, 4, 7]
    x = te.placeholder((4, 6, 8), name="x")  # transposed: only what stays neighbours is one
    turned = te.dag([x, te.compute((6, 8, 4), lambda i, j, k: x[k, i, j] * 2.0, "y")])
    nest = derive(turned, target()).sketch(0).nest
    assert [len(b.shape) for b in nest.buffers] == [2, 2]
    x = te.placeholder((4, 8), name="x")  # windows overlap
    near = te.dag([x, te.compute((4, 7), lambda i, j: x[i, j] + x[i, j + 1], "y")])
    assert [len(b.shape) for b in derive(near, target()).sketch(0).nest.buffers] == [2, 2]


def test_a_kernel_with_merged_dimensions_takes_arrays_as_they_are_stated() -> None:
    space = derive(group_norm(), target())
    trace = space.trace(0, space.sample(0, 1, np.random.default_rng(0))[0])
    data = inputs(space.dag)
    (want,) = expected(space.dag, data)
    kernel = at.build(Schedule.replay(space.dag, trace), target=host())
    assert np.array_equal(kernel(*data), want)
    with pytest.raises(at.ArgumentError, match="x"):
        kernel(data[0].reshape(2, -1), data[1])


def test_three_axes_are_one_with_and_without_merged_dimensions() -> None:
    x, w = te.placeholder((3, 4, 5), name="x"), te.placeholder((5, 3, 4), name="w")
    dag = te.dag([x, w, te.compute((3, 4, 5), lambda i, j, k: x[i, j, k] * w[k, i, j], "y")])
    s = Schedule(dag)
    assert s.merge_axes(*s.loops("y")) == "y_i_y_j_y_k"
    data = inputs(dag)
    check_interpreted(s.nest, dag, data, expected(dag, data))
    s.merge_dims("y", 0, 3)  # in the order of memory
    check_interpreted(s.nest, dag, data, expected(dag, data))


def test_a_mean_of_a_group_is_computed_once_for_its_channels() -> None:
    space = derive(group_norm(), target())
    row = next(x for x in walk(space.sketch(0).nest.body) if isinstance(x, Loop))
    assert const(row.extent) == 2 * 3 and {"total", "y"} <= {b.name for b in blocks(row)}


def test_tuples_have_vectors_of_partial_results_and_one_vector_of_these() -> None:
    space = derive(argmax((3, 90), 1), target())
    assert space.holes(0) == ("p.chains",)
    many = {b.name for b in blocks(space.sketch(0).nest.body)}
    assert {"p", "p_rf", "p_rf_rf"} <= many
    columns = derive(argmax((33, 19), 0), target())
    for k in range(len(columns.sketches)):
        assert "p_write" in {b.name for b in blocks(columns.sketch(k).nest.body)}


def test_a_short_window_has_neighbouring_outputs_in_lanes() -> None:
    space = derive(pooled(), target())
    lanes = [x for x in walk(space.sketch(0).nest.body) if isinstance(x, Loop) and x.kind == "vectorize"]
    assert {"top", "y"} <= {b.name for x in lanes for b in blocks(x)}


def test_rows_shorter_than_a_line_are_not_streamed() -> None:
    """Each would leave the write buffers in pieces, which takes eight times as long."""

    def scaled(n: int, rows: int) -> DerivedSpace:
        x, a = te.placeholder((rows, n), name="x"), te.placeholder((rows,), name="a")
        return derive(te.dag([x, a, te.compute((rows, n), lambda i, j: x[i, j] * a[i], "y")]), target())

    assert "y.stream" not in scaled(13, 1 << 19).holes(0)
    assert "y.stream" in scaled(16, 1 << 19).holes(0)


@pytest.mark.parametrize("name", [n for n in CASES if "joined" in n])
def test_most_of_what_is_joined_is_read_without_a_choice(name: str) -> None:
    """Each array has a loop of its own, and only the vectors at two arrays' common border choose."""
    space = derive(CASES[name], target())
    trace = space.trace(0, space.sample(0, 1, np.random.default_rng(0))[0])
    nest = lower(Schedule.replay(space.dag, trace).nest)
    values = [x.value for x in walk(nest.body) if isinstance(x, Store)]
    chosen = {x.buffer for v in values for s in nodes(v) if isinstance(s, Select) for x in loads(s)}
    free = {x.buffer for v in values if not any(isinstance(s, Select) for s in nodes(v)) for x in loads(v)}
    assert set(chosen) >= {t.name for t in space.dag.inputs} and free >= {"x0", space.dag.inputs[-1].name}


def test_columns_of_a_volume_are_reused_along_channels() -> None:
    """A tile of columns, rows and planes would load each vector of the input for one use."""
    x, w = te.placeholder((4, 8, 10, 34), name="x"), te.placeholder((8, 4, 3, 3, 3), name="w")
    c, (r, s, t) = te.reduce_axis(4, "c"), (te.reduce_axis(3, n) for n in "rst")
    y = te.compute(
        (8, 6, 8, 32),
        lambda o, i, j, k: te.sum(x[c, i + r, j + s, k + t] * w[o, c, r, s, t], axis=(c, r, s, t)),
        "y",
    )
    space = derive(te.dag([x, w, y]), host())
    assert {"y.x0", "y.x2"} <= set(space.holes(0)) and "y.x1" not in space.holes(0)
