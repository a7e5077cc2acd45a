"""Scans with a combine of a user's own: in order, in blocks, and refused where grouping matters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import check_compiled, check_interpreted, expected, host, inputs, same
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules import te
from schedules.errors import WorkloadError
from schedules.schedule import Schedule
from schedules.space.derive import derive


def then(x: Any, y: Any) -> Any:
    """What x does, and y after it, of functions v -> a v + b."""
    return x[0] * y[0], x[1] * y[0] + y[1]


def held_matrix(x: Any, y: Any) -> Any:
    """Products of upper triangular matrices of whole numbers modulo 2**32: they do not commute."""
    return x[0] * y[0], x[0] * y[1] + x[1] * y[2], x[2] * y[2]


def last_set(x: Any, y: Any) -> Any:
    return te.select(te.not_equal(y, 0), y, x)


def recurrence(n: int, block: int | None, rows: int = 0, reverse: bool = False) -> list[Any]:
    shape = (rows, n) if rows else (n,)
    a, b = (te.placeholder(shape, name=x) for x in "ab")
    _, y = te.associative_scan(
        then, (a, b), axis=-1, reverse=reverse, identity=(1.0, 0.0), block=block, name=("p", "y")
    )
    return [a, b, y]


def small(dag: Any, seed: int) -> list[np.ndarray]:
    """Inputs of 0, 1 and -1, so that products stay whole numbers."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-1, 2, t.shape).astype(t.dtype) for t in dag.inputs]


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 13), st.one_of(st.none(), st.integers(1, 7)), st.booleans(), st.booleans(),
    st.integers(0, 2), st.integers(0, 99),
)  # fmt: skip
def test_any_combine_is_the_loop(
    n: int, block: int | None, reverse: bool, exclusive: bool, axis: int, seed: int
) -> None:
    shape = tuple(n if d == axis else 2 for d in range(3))
    xs = tuple(te.placeholder(shape, "int32", f"x{k}") for k in range(3))
    ys = te.associative_scan(
        held_matrix, xs, axis, reverse, exclusive, identity=(1, 0, 1), block=block, name=("u", "v", "w")
    )
    dag = te.dag([*xs, *ys])
    data = small(dag, seed)
    got = te.evaluate(dag, data)
    same(expected(dag, data), got, "plain loops")
    terms = [np.moveaxis(v, axis, 0) for v in data]
    order = range(n - 1, -1, -1) if reverse else range(n)
    at: Any = [np.full(terms[0][0].shape, v, "int32") for v in (1, 0, 1)]
    for t in order:
        after = held_matrix(at, [v[t] for v in terms])
        for g, want in zip(got, at if exclusive else after, strict=True):
            assert np.array_equal(np.moveaxis(g, axis, 0)[t], want)
        at = after


def test_the_carry_of_a_block_and_the_order_matter() -> None:
    """Mutants: blocks that begin anew, and blocks that are joined the other way round."""
    dag = te.dag(recurrence(12, 4))
    a, b = np.array([2, 1, 3] * 4, "f"), np.arange(12, dtype="f")
    (got,) = te.evaluate(dag, [a, b])
    y, anew = 0.0, []
    for t in range(12):
        y = a[t] * (0 if t % 4 == 0 else y) + b[t]
        anew.append(y)
    assert not np.array_equal(got, anew)
    turned = te.associative_scan(
        lambda x, y: then(y, x), tuple(te.placeholder((12,), name=n) for n in "ab"), identity=(1.0, 0.0),
        block=4,
    )[1]  # fmt: skip
    assert not np.array_equal(te.evaluate(te.dag([*te.inputs(turned), turned]), [a, b])[0], got)


def test_what_nobody_asks_for_is_not_computed() -> None:
    one, blocks = (te.dag(recurrence(12, x)) for x in (None, 4))
    assert [[o.name for o in s.outputs] for s in one.stages] == [["y"]]
    assert [o.name for s in blocks.stages for o in s.outputs] == [
        "p_fold", "y_fold", "p_total", "y_total", "y_before", "y_block", "y",
    ]  # fmt: skip


@pytest.mark.parametrize("block", [None, 3])
def test_operations_that_are_known_need_no_identity(block: int | None) -> None:
    x = te.placeholder((8,), name="x")
    dag = te.dag([x, te.associative_scan(te.maximum, x, block=block)])
    (v,) = inputs(dag)
    assert np.array_equal(te.evaluate(dag, [v])[0], np.maximum.accumulate(v))


def test_a_combine_that_keeps_the_last() -> None:
    x = te.placeholder((7,), "int32", name="x")
    dag = te.dag([x, te.associative_scan(last_set, x, identity=0, block=2)])
    (got,) = te.evaluate(dag, [np.array([0, 3, 0, 0, 5, 0, 0], "int32")])
    assert got.tolist() == [0, 3, 3, 3, 5, 5, 5]


@pytest.mark.parametrize("block", [None, 4])
def test_gradient_and_tangents(block: int | None) -> None:
    a, b, y = recurrence(10, block)
    g = te.placeholder((10,), name="g")
    da, db = te.gradient(y, [a, b], g)
    rng = np.random.default_rng(0)
    A, B, G = (rng.integers(-2, 3, 10).astype("f") / 2 for _ in range(3))
    ga, gb = te.evaluate(te.dag([a, b, g, da, db]), [A, B, G])
    Y, want_a, want_b, s = np.zeros(11, "f"), np.zeros(10, "f"), np.zeros(10, "f"), np.float32(0)
    for t in range(10):
        Y[t + 1] = A[t] * Y[t] + B[t]
    for t in range(9, -1, -1):
        s = G[t] + (A[t + 1] * s if t < 9 else 0)
        want_b[t], want_a[t] = s, s * Y[t]
    np.testing.assert_allclose(ga, want_a, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gb, want_b, rtol=1e-5, atol=1e-5)
    ta = te.placeholder((10,), name="ta")
    (pushed,) = te.jvp(y, [a], [ta])
    (dy,) = te.evaluate(te.dag([a, b, ta, pushed]), [A, B, G])
    np.testing.assert_allclose(dy, _pushed(A, Y, G), rtol=1e-4, atol=1e-4)


def _pushed(a: np.ndarray, y: np.ndarray, da: np.ndarray) -> np.ndarray:
    out, s = np.zeros(10, "f"), np.float32(0)
    for t in range(10):
        s = a[t] * s + da[t] * y[t]
        out[t] = s
    return out


X = te.placeholder((6,), name="x")
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a difference": (
        lambda: te.associative_scan(lambda x, y: x - y, X, identity=0.0),
        r"te.associative_scan depends on grouping: a = .*, b = .*, c = .*: .*; what must be done step by "
        "step is te.scan",
    ),
    "a mean": (
        lambda: te.associative_scan(lambda x, y: (x + y) * 0.5, X, identity=0.0), "depends on grouping: a = "
    ),
    "no identity": (
        lambda: te.associative_scan(last_set, X), "none of .* say with identity= what changes nothing"
    ),
    "a wrong identity": (
        lambda: te.associative_scan(lambda x, y: x * y, X, identity=0.0),
        "a joined with the identity before it gives|gives .* but joined with the identity before it 0",
    ),
    "numbers": (lambda: te.associative_scan(te.maximum, 3), "takes a tensor, got 3; of elements make one"),
    "no tensors": (lambda: te.associative_scan(te.maximum, ()), "takes tensors of one shape, got none"),
    "unlike shapes": (
        lambda: te.associative_scan(then, (X, te.placeholder((5,))), identity=(1.0, 0.0)),
        r"takes tensors of one shape, got \[6\] and \[5\]",
    ),
    "too many values": (
        lambda: te.associative_scan(lambda x, y: (x, y), X, identity=0.0),
        "combine of associative_scan has 2 values for 1",
    ),
    "another axis": (
        lambda: te.associative_scan(te.maximum, X, axis=1), "axis=1 is outside the 1 dimensions"
    ),
    "no block": (lambda: te.associative_scan(te.maximum, X, block=0), "block=0 is no number of elements"),
    "a tuple of tensors": (lambda: te.cumsum((X, X)), "te.cumsum takes a tensor, got "),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(WorkloadError, match=message):
        make()


def test_lanes_that_are_done_twice_in_a_step_keep_what_they_read() -> None:
    """Tiles that are moved inwards between loops of steps: the memory of a step is overwritten too soon."""
    b = te.placeholder((10, 8), name="b")
    y = te.scan((10, 8), lambda y, i, t: y[i, t - 1] + b[i, t], init=0.0, axis=1, name="y")
    dag = te.dag([b, te.compute((10,), lambda i: y[i, 7], name="z")])
    s = Schedule(dag)
    _, row, lane = s.split("y_i", [None, 3, 4], "shift")
    step, column = s.split("y_t", [None, 4])
    s.reorder("y_i_0", step, row, column, lane)
    data = inputs(dag)
    check_interpreted(s.nest, dag, data, te.evaluate(dag, data))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "block", "rows"), [(1024, 32, 0), (16 * 33, 16, 0), (700, 32, 0), (48, None, 37), (64, 16, 5)]
)
@pytest.mark.parametrize("reverse", [False, True])
def test_blocks_compiled(n: int, block: int | None, rows: int, reverse: bool) -> None:
    dag, target = te.dag(recurrence(n, block, rows, reverse)), host(1)
    data = small(dag, n)
    data[0] = np.abs(data[0]) * np.where(np.arange(n) % 9 == 0, 0, 1).astype("f")
    want, space = te.evaluate(dag, data), derive(dag, target)
    for k in range(len(space.sketches)):
        rows_ = space.sample(k, 4, np.random.default_rng(k))
        for row in rows_[space.valid(k, rows_)]:
            check_compiled(dag, Schedule.replay(dag, space.trace(k, row), target).trace, target, data, want)
