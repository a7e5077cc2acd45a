"""What several rows share, as the mean of a group of channels, is computed once, whatever lies between."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from helpers import check_compiled, check_interpreted, expected, inputs
from hypothesis import given, settings
from hypothesis import strategies as st
from space_cases import target

from schedules import te
from schedules.ir import Block, Loop, Nest, blocks, const, walk
from schedules.ir.nest import loops_of
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG

SIZES = st.integers(1, 4)


def groups_first(n: int, groups: int, each: int, pixels: int) -> ComputeDAG:
    """The mean of a group, a map, stands between the sum of its channels and those who read it. Divisors
    are powers of two, so that small integers are exact."""
    x = te.placeholder((n, groups * each, pixels), name="x")
    k, p = te.reduce_axis(each, "k"), te.reduce_axis(pixels, "p")
    total = te.compute((n, groups), lambda i, g: te.sum(x[i, g * each + k, p], axis=(k, p)), "total")
    mean = te.compute((n, groups), lambda i, g: total[i, g] / 8.0, "mean")
    m, q = te.reduce_axis(each, "m"), te.reduce_axis(pixels, "q")
    most = te.compute(
        (n, groups), lambda i, g: te.max(x[i, g * each + m, q] - mean[i, g], axis=(m, q)), "most"
    )
    half = te.compute((n, groups), lambda i, g: most[i, g] / 2.0, "half")
    y = te.compute(x.shape, lambda i, c, a: (x[i, c, a] - mean[i, c // each]) * half[i, c // each], "y")
    return te.dag([x, y])


def groups_last(n: int, groups: int, each: int, pixels: int, top: bool) -> ComputeDAG:
    """The same with channels last. ``top``: of what comes out, only the maximum of each pixel."""
    x = te.placeholder((n, pixels, groups, each), name="x")
    k, p = te.reduce_axis(each, "k"), te.reduce_axis(pixels, "p")
    total = te.compute((n, groups), lambda i, g: te.sum(x[i, p, g, k], axis=(p, k)), "total")
    mean = te.compute((n, groups), lambda i, g: total[i, g] / 8.0, "mean")
    m, q = te.reduce_axis(each, "m"), te.reduce_axis(pixels, "q")
    both = te.reducer((0.0, -te.inf), lambda a, b: (a[0] + b[0], te.maximum(a[1], b[1])), "both")

    def of_both(i: te.Expr, g: te.Expr) -> te.Reduction:
        d = x[i, q, g, m] - mean[i, g]
        return both((d, d), axis=(q, m))

    off, most = te.compute((n, groups), of_both, ("off", "most"))

    def value(i: te.Expr, a: te.Expr, g: te.Expr, c: te.Expr) -> te.Expr:
        return (x[i, a, g, c] - mean[i, g] - off[i, g] / 4.0) * (most[i, g] / 2.0)

    if not top:
        return te.dag([x, te.compute(x.shape, value, "y")])
    r, s = te.reduce_axis(groups, "r"), te.reduce_axis(each, "s")
    return te.dag([x, te.compute((n, pixels), lambda i, a: te.max(value(i, a, r, s), axis=(r, s)), "y")])


def check(dag: ComputeDAG, seed: int = 0, *, threads: int = 1, compiled: bool = False) -> None:
    """A drawn sketch gives what the expression means."""
    space = derive(dag, target(threads))
    data = inputs(dag)
    want = expected(dag, data)
    rng = np.random.default_rng(seed)
    k = int(rng.integers(len(space.sketches)))
    trace = space.trace(k, space.sample(k, 1, rng)[0])
    if compiled:
        check_compiled(dag, trace, space.target, data, want)
    else:
        check_interpreted(Schedule.replay(dag, trace, space.target).nest, dag, data, want)


def steps(nest: Nest, b: Block) -> float:
    """How often a block runs, per point of its own; lengths with a hole count once."""
    own = prod(const(i.extent) or 1 for i in b.iters)
    return prod(const(x.extent) or 1 for x in loops_of(nest, b.name)) / own


@pytest.mark.soak
@settings(max_examples=20, deadline=None)
@given(SIZES, SIZES, SIZES, st.sampled_from([1, 3, 17]), st.integers(0, 99))
def test_any_groups_of_channels(n: int, groups: int, each: int, pixels: int, seed: int) -> None:
    check(groups_first(n, groups, each, pixels), seed)


@pytest.mark.soak
@settings(max_examples=20, deadline=None)
@given(SIZES, SIZES, SIZES, st.sampled_from([1, 3, 17]), st.integers(0, 99), st.booleans())
def test_any_groups_of_channels_that_lie_last(
    n: int, groups: int, each: int, pixels: int, seed: int, top: bool
) -> None:
    check(groups_last(n, groups, each, pixels, top), seed)


def test_groups_are_right_when_interpreted() -> None:
    check(groups_first(2, 2, 2, 3))
    check(groups_last(1, 2, 2, 9, True))


@pytest.mark.parametrize(
    ("dag", "threads"),
    [
        (groups_first(2, 3, 4, 33), 1),
        (groups_last(2, 3, 5, 21, False), 2),
        (groups_last(1, 4, 3, 40, True), 1),
    ],
    ids=["channels first", "channels last", "maximum"],
)
def test_groups_are_right_when_compiled(dag: ComputeDAG, threads: int) -> None:
    check(dag, threads=threads, compiled=True)


def test_a_mean_that_is_a_map_of_a_sum_is_computed_once_for_its_channels() -> None:
    nest = derive(groups_first(2, 3, 4, 64), target()).sketch(0).nest
    row = next(x for x in walk(nest.body) if isinstance(x, Loop))
    assert const(row.extent) == 2 * 3 and {"total", "mean", "most", "y"} <= {b.name for b in blocks(row)}


@settings(max_examples=4, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 3, 16]), st.sampled_from([50, 400]))
def test_rows_compute_nothing_again_that_many_share(n: int, groups: int, each: int, pixels: int) -> None:
    """The mean of an image is none of the stages of a pixel."""
    space = derive(groups_last(n, groups, each, pixels, True), target())
    for k in range(len(space.sketches)):
        nest = space.sketch(k).nest
        assert all(steps(nest, b) <= 8 for b in blocks(nest.body)), space.sketches[k]


def shares(n: int, bins: int) -> list[ComputeDAG]:
    """Sums over all samples for each bin, of what depends on no bin: a part of the largest sample, the places
    of samples, weights, and what is summed of them in two stages."""
    data, radius, k = (
        te.placeholder((n,), name="data"),
        te.placeholder((n,), name="radius"),
        te.reduce_axis(n),
    )
    high = te.compute((), lambda: te.max(radius[k], axis=k), "high")
    place = te.compute((n,), lambda q: te.cast(radius[q] / high[()] * float(bins), "int32"), "place")
    at = te.compute(
        (bins,),
        lambda i: te.sum(te.select(te.equal(place[k], te.cast(i, "int32")), data[k], 0.0), axis=k),
        "at",
    )
    rows = te.placeholder((bins, n), name="rows")
    weight = te.compute((n,), lambda q: te.exp(data[q] - high[()]), "weight")
    y = te.compute((bins,), lambda i: te.max(rows[i, k] * weight[k], axis=k), "y")
    z = te.compute((bins, n), lambda i, q: te.exp(rows[i, q]) / y[i] + weight[q], "z")
    return [te.dag([data, radius, at]), te.dag([rows, data, radius, y]), te.dag([rows, data, radius, z])]


@pytest.mark.parametrize("threads", [1, 4])
def test_rows_compute_nothing_again_however_tiles_are_decided(threads: int) -> None:
    """Lengths that wait for a decision hide nothing: what depends on no bin is made once."""
    rng = np.random.default_rng(0)
    for dag in shares(4000, 50):
        space = derive(dag, target(threads))
        for k in range(len(space.sketches)):
            for row in space.sample(k, 4, rng):
                nest = Schedule.replay(space.dag, space.trace(k, row)).nest
                assert all(steps(nest, b) < 2 for b in blocks(nest.body)), space.sketches[k]


def test_what_depends_on_no_row_is_right() -> None:
    for n, dag in enumerate(shares(7, 3)):
        check(dag, n)
    check(shares(7, 3)[0], compiled=True)


def test_what_a_row_reduction_reads_of_few_is_kept_where_it_is_costly() -> None:
    x, v = te.placeholder((2, 50, 16), name="x"), te.placeholder((2, 16), name="v")
    root = te.compute((2, 16), lambda i, c: 1.0 / te.sqrt(v[i, c]), "root")
    r = te.reduce_axis(16, "r")
    y = te.compute((2, 50), lambda i, a: te.max(x[i, a, r] * root[i, r], axis=r), "y")
    nest = derive(te.dag([x, v, y]), target()).sketch(0).nest
    assert "root" in {b.name for b in blocks(nest.body)}
    flat = te.placeholder((800,), name="flat")  # as many points, of fewer axes
    e = te.compute((800,), lambda i: te.sqrt(flat[i]), "e")
    y = te.compute((50,), lambda i: te.max(e[i * 16 + r], axis=r), "y")
    nest = derive(te.dag([flat, y]), target()).sketch(0).nest
    assert "e" not in {b.name for b in blocks(nest.body)}


def lanes(nest: Nest, block: str) -> int:
    inner = loops_of(nest, block)[-1]
    return const(inner.extent) or 0 if inner.kind == "vectorize" else 1


def test_interleaved_rows_are_summed_in_lanes() -> None:
    space = derive(groups_last(2, 8, 3, 500, False), target())
    names = {b.name for b in blocks(space.sketch(0).nest.body)}
    assert {"total_rf", "off_rf"} <= names
    nest = Schedule.replay(space.dag, space.trace(0, space.sample(0, 1, np.random.default_rng(0))[0])).nest
    assert min(lanes(nest, "total_rf"), lanes(nest, "off_rf")) >= 8
    apart = derive(groups_last(2, 8, 32, 500, False), target())  # runs as long as vectors
    assert "total_rf_write" not in {b.name for b in blocks(apart.sketch(0).nest.body)}


@pytest.mark.slow
def test_interleaved_rows_may_be_parts_of_one_dimension() -> None:
    x = te.placeholder((2, 100, 24), name="x")
    p, k = te.reduce_axis(100, "p"), te.reduce_axis(3, "k")
    dag = te.dag([x, te.compute((2, 8), lambda i, g: te.sum(x[i, p, g * 3 + k], axis=(p, k)), "y")])
    assert "y_rf" in {b.name for b in blocks(derive(dag, target()).sketch(0).nest.body)}
    check(dag)
    check(dag, compiled=True)
    gaps = te.dag([x, te.compute((2, 6), lambda i, g: te.sum(x[i, p, g * 4 + k], axis=(p, k)), "y")])
    assert "y_rf" not in {b.name for b in blocks(derive(gaps, target()).sketch(0).nest.body)}
    check(gaps)


def test_functions_of_several_short_rows_are_computed_together() -> None:
    x, w = te.placeholder((40, 16, 4), name="x"), te.placeholder((16,), name="w")
    e = te.compute((40, 16, 4), lambda i, j, k: te.tanh(x[i, j, k]), "e")
    j, k = te.reduce_axis(16, "j"), te.reduce_axis(4, "k")
    top = te.compute((40,), lambda i: te.max(e[i, j, k], axis=(j, k)), "top")
    u, v = te.reduce_axis(16, "u"), te.reduce_axis(4, "v")  # of one axis each there would be a weight
    y = te.compute((40,), lambda i: te.sum(e[i, u, v] - w[u] - top[i], axis=(u, v)), "y")
    space = derive(te.dag([x, w, y]), target())
    trace = space.trace(0, space.sample(0, 1, np.random.default_rng(0))[0])
    assert lanes(Schedule.replay(space.dag, trace).nest, "e") >= 8


def test_short_rows_with_an_axis_of_one_have_a_sketch() -> None:
    x, w = te.placeholder((6, 5, 4, 1), name="x"), te.placeholder((5,), name="w")
    e = te.compute((6, 5, 4, 1), lambda i, j, k, o: te.sqrt(x[i, j, k, o]), "e")
    j, k = te.reduce_axis(5, "j"), te.reduce_axis(4, "k")
    top = te.compute((6,), lambda i: te.max(e[i, j, k, 0], axis=(j, k)), "top")
    u, v = te.reduce_axis(5, "u"), te.reduce_axis(4, "v")
    y = te.compute((6,), lambda i: te.max(e[i, u, v, 0] - w[u] - top[i], axis=(u, v)), "y")
    dag = te.dag([x, w, y])
    check(dag, compiled=True)
