"""Products that read through a shuffle, a reshape or a partition in windows, and products of groups: no step
of a sum divides, and no tile lies in two groups."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import hypothesis.strategies as st
import numpy as np
import pytest
from helpers import check_compiled, expected, inputs, interpret, same
from hypothesis import given, settings
from space_cases import target

from schedules import expr as E
from schedules import te
from schedules.expr import Binary, Expr
from schedules.ir import blocks
from schedules.ir.nest import reads
from schedules.schedule import Schedule
from schedules.space import DerivedSpace, derive
from schedules.te.compute_dag import ComputeDAG


def grouped(
    groups: int, depth: int, each: int, pixels: int, shuffled: int = 1, after: bool = False
) -> ComputeDAG:
    """A convolution of 1×1 in groups, after a shuffle of channels."""
    channels = groups * depth
    x, w = te.placeholder((channels, pixels), name="x"), te.placeholder((groups * each, depth), name="w")
    c = te.reduce_axis(depth, "c")

    def value(o: Expr, p: Expr) -> te.Reduction:
        at = o // each * depth + c
        return te.sum(x[at % shuffled * (channels // shuffled) + at // shuffled, p] * w[o, c], axis=c)

    y = te.compute((groups * each, pixels), value, "y")
    if after:  # in another order
        b = te.placeholder((groups * each,), name="b")
        return te.dag([x, w, b, te.compute((pixels, groups * each), lambda p, o: y[o, p] + b[o], "z")])
    return te.dag([x, w, y])


def summed(outer: int, inner: int, columns: int = 6) -> ComputeDAG:
    """A product whose sum goes through a transpose."""
    n = outer * inner
    x, w = te.placeholder((5, n), name="x"), te.placeholder((n, columns), name="w")
    k = te.reduce_axis(n, "k")
    return te.dag(
        [
            x,
            w,
            te.compute(
                (5, columns), lambda i, j: te.sum(x[i, k % inner * outer + k // inner] * w[k, j], axis=k), "y"
            ),
        ]
    )


def windows(side: int, window: int, depth: int = 5, columns: int = 9, roll: int = 0) -> ComputeDAG:
    """A product of the rows of windows of an image, which may be rolled before."""
    size, taps = side * window, window * window
    x, w = te.placeholder((size, size, depth), name="x"), te.placeholder((depth, columns), name="w")
    k = te.reduce_axis(depth, "k")

    def value(i: Expr, j: Expr, o: Expr) -> te.Reduction:
        row, column = i // side * window + j // window, i % side * window + j % window
        if roll:
            row, column = (row + roll) % size, (column + roll) % size
        return te.sum(x[row, column, k] * w[k, o], axis=k)

    return te.dag([x, w, te.compute((side * side, taps, columns), value, "y")])


def reshaped(rows: int = 6, long: int = 10, columns: int = 8) -> ComputeDAG:
    """A product of a transpose that was cut in rows of another length."""
    x, w = te.placeholder((rows, long), name="x"), te.placeholder((rows * 2, columns), name="w")
    k = te.reduce_axis(rows * 2, "k")

    def value(i: Expr, j: Expr) -> te.Reduction:
        at = i * (rows * 2) + k
        return te.sum(x[at % rows, at // rows] * w[k, j], axis=k)

    return te.dag([x, w, te.compute((long // 2, columns), value, "y")])


CASES: dict[str, Callable[[], ComputeDAG]] = {
    "groups": lambda: grouped(3, 5, 8, 11),
    "groups, then a bias in another order": lambda: grouped(2, 5, 12, 10, after=True),
    "groups of shuffled channels": lambda: grouped(3, 5, 8, 9, shuffled=3),
    "groups of shuffled channels, then a bias": lambda: grouped(3, 4, 8, 9, shuffled=2, after=True),
    "a divided sum": lambda: summed(5, 3),
    "windows": lambda: windows(2, 3),
    "rolled windows": lambda: windows(2, 3, roll=2),
    "another length": reshaped,
}


def check(dag: ComputeDAG, threads: int = 1, compiled: bool = False) -> DerivedSpace:
    """Every sketch is right at one of its rows."""
    space = derive(dag, target(threads))
    data = inputs(dag)
    want = expected(dag, data)
    rng = np.random.default_rng(0)
    for k in range(len(space.sketches)):
        some = space.sample(k, 16, rng)
        for row in some[space.valid(k, some)][:1]:
            trace = space.trace(k, row)
            same(
                interpret(Schedule.replay(dag, trace, space.target).nest, dag, data), want, space.sketches[k]
            )
            if compiled:
                check_compiled(dag, trace, space.target, data, want)
    return space


def divides(space: DerivedSpace, sketch: int) -> bool:
    """Whether a sum of a sketch divides an axis that it sums."""
    for b in blocks(space.sketch(sketch).nest.body):
        summed_ = {i.var for i in b.iters if i.kind == "reduce"}
        for e in (e for x in reads(b) for i in x.indices for e in E.walk(i)):
            if isinstance(e, Binary) and e.op in ("//", "%") and E.variables(e) & summed_:
                return True
    return False


@pytest.mark.fast("groups", "a divided sum", "another length")
@pytest.mark.parametrize("name", CASES)
def test_every_sketch_is_right(name: str) -> None:
    check(CASES[name](), 1 + len(name) % 2, compiled=True)


@pytest.mark.parametrize("name", CASES)
def test_some_sketch_divides_at_no_step(name: str) -> None:
    space = derive(CASES[name](), target())
    assert not all(divides(space, k) for k in range(len(space.sketches)))


def test_a_sum_is_split_where_it_is_divided() -> None:
    space = derive(summed(5, 3), target())
    assert not any(divides(space, k) for k in range(len(space.sketches)))
    assert not any("copy" in name for name in space.sketches)


def test_a_copy_is_as_large_as_what_is_read() -> None:
    space = derive(grouped(3, 40, 16, 64, shuffled=3), target())
    copied = [k for k, name in enumerate(space.sketches) if "y.x=copy" in name]
    assert copied and len(copied) < len(space.sketches)
    held = {
        prod(int(n.value) for n in b.shape)
        for k in copied
        for b in space.sketch(k).nest.buffers
        if "_view_" in b.name
    }
    assert held == {3 * 40 * 64}


@pytest.mark.parametrize("after", [False, True])
def test_groups_are_an_axis_of_their_own(after: bool) -> None:
    space = derive(grouped(3, 5, 20, 64, after=after), target())
    for k in range(len(space.sketches)):
        nest = space.sketch(k).nest
        (out,) = (b for b in nest.buffers if b.name == ("z" if after else "y"))
        assert (3, 20) in {tuple(int(n.value) for n in out.shape[d : d + 2]) for d in range(2)}


def test_few_channels_of_a_group_stay_side_by_side() -> None:
    """Lanes of a vector take several groups."""
    nest = derive(grouped(16, 3, 2, 5), target()).sketch(0).nest
    assert [int(n.value) for n in next(b for b in nest.buffers if b.name == "y").shape] == [32, 5]


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_views_of_views_keep_their_meaning(data: st.DataObject) -> None:
    """A product that reads through random reshapes and transposes."""
    shape = data.draw(st.lists(st.integers(2, 4), min_size=2, max_size=3), label="shape")
    x = te.placeholder(tuple(shape), name="x")
    size = prod(shape)
    rows = data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]), label="rows")
    view = x
    for n in range(data.draw(st.integers(1, 3), label="views")):
        order = data.draw(st.permutations(range(len(view.shape))))
        turned = tuple(view.shape[d] for d in order)
        old = view

        def moved(*at: Expr, old: te.Tensor = old, order: list[int] = order) -> Expr:
            return old[tuple(at[order.index(d)] for d in range(len(order)))]

        view = te.compute(turned, moved, f"turned{n}")
        flat = data.draw(st.sampled_from([m for m in range(2, size + 1) if size % m == 0]))
        old, shape_ = view, (size // flat, flat)

        def cut(i: Expr, j: Expr, old: te.Tensor = old, flat: int = flat) -> Expr:
            at, index = i * flat + j, []
            for extent in reversed(old.shape):
                index.append(at % extent)
                at = at // extent
            return old[tuple(reversed(index))]

        view = te.compute(shape_, cut, f"cut{n}")
    columns, k = data.draw(st.sampled_from([1, 4, 9]), label="columns"), te.reduce_axis(size // rows, "k")
    w = te.placeholder((size // rows, columns), name="w")
    flat = view.shape[1]

    def value(i: Expr, j: Expr) -> te.Reduction:
        at = i * (size // rows) + k
        return te.sum(view[at // flat, at % flat] * w[k, j], axis=k)

    check(te.dag([x, w, te.compute((rows, columns), value, "y")]))
