"""Draws show what is left out of extremes over several axes and of long products."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers import host

from autotune.backends.building.from_trace import build_object
from autotune.codegen.llvm.compile import load_object
from autotune.measure.check import Checker
from autotune.measure.inputs import Draw, draws, judged
from schedules import te
from schedules.model import Trace
from schedules.te.compute_dag import ComputeDAG


def runner(dag: ComputeDAG) -> Callable[[Draw], list[np.ndarray]]:
    """The plain loops, on the inputs of a draw."""
    loaded = load_object(build_object(dag, Trace(), host()))

    def run(draw: Draw) -> list[np.ndarray]:
        outputs = [np.empty(dag.tensors[n].shape, dag.tensors[n].dtype) for n in dag.outputs]
        loaded.run([x.ctypes.data for x in (*draw.inputs, *outputs)])
        return outputs

    return run


def is_seen(right: ComputeDAG, wrong: ComputeDAG, seed: int = 0) -> bool:
    """Whether a draw tells the wrong one; the right one passes all."""
    run, run_wrong = runner(right), runner(wrong)
    found = False
    for draw in draws(right, seed):
        judge = Checker(right.outputs, draw.reference, draw.bounds)
        assert judge.check(run(draw), 0).reason == ""
        found = found or judge.check(run_wrong(draw), 0).reason != ""
    return found


def extreme(op: str, channels: int, less: tuple[int, int] = (0, 0), first: bool = False) -> ComputeDAG:
    """Of planes of 14 x 15, but for some rows or columns: the last, or the first."""
    a = te.placeholder((channels, 14, 15), name="A")
    r, q = te.reduce_axis(14 - less[0], "r"), te.reduce_axis(15 - less[1], "q")
    i0, j0 = less if first else (0, 0)
    f = {"max": te.max, "min": te.min}[op]
    return te.dag([a, te.compute((channels,), lambda c: f(a[c, r + i0, q + j0], axis=(r, q)), "B")])


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("less", [(1, 0), (0, 1), (2, 0), (0, 3)])
@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize("op", ["max", "min"])
def test_an_end_of_either_axis_left_out_of_an_extreme_is_found(
    op: str, channels: int, less: tuple[int, int], first: bool
) -> None:
    assert is_seen(extreme(op, channels), extreme(op, channels, less, first))


@pytest.mark.parametrize("less", [(1, 0), (0, 1)])
def test_a_tap_left_out_of_a_pool_is_found(less: tuple[int, int]) -> None:
    def pool(less: tuple[int, int]) -> ComputeDAG:
        a = te.placeholder((4, 12, 12), name="A")
        r, q = te.reduce_axis(3 - less[0], "r"), te.reduce_axis(3 - less[1], "q")
        return te.dag(
            [a, te.compute((4, 10, 10), lambda c, i, j: te.max(a[c, i + r, j + q], axis=(r, q)), "B")]
        )

    assert is_seen(pool((0, 0)), pool(less))


@pytest.mark.parametrize("rows", [1, 6])
def test_a_column_left_out_of_the_extremes_of_a_product_is_found(rows: int) -> None:
    def dag(columns: int) -> ComputeDAG:
        a, b = te.placeholder((rows, 64), name="A"), te.placeholder((64, 30), name="B")
        k, r = te.reduce_axis(64, "k"), te.reduce_axis(columns, "r")
        c = te.compute((rows, 30), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "C")
        m = te.compute((rows,), lambda i: te.max(c[i, r], axis=r), "M")
        least = te.compute((rows,), lambda i: te.min(c[i, r], axis=r), "L")
        return te.dag([a, b, m, least])

    assert is_seen(dag(30), dag(29))


@pytest.mark.fast("1000-*-True")
@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("less", [1, 2, 4, 8, 16, 64])
@pytest.mark.parametrize("n", [200, 1000, 4000])
def test_factors_side_by_side_left_out_of_a_product_are_found(n: int, less: int, by_rows: bool) -> None:
    def dag(terms: int) -> ComputeDAG:
        a, r = te.placeholder((1, n) if by_rows else (n, 1), name="A"), te.reduce_axis(terms, "r")
        return te.dag(
            [a, te.compute((1,), lambda i: te.prod(a[i, r] if by_rows else a[r, i], axis=r), "B")]
        )

    for seed in range(4):
        assert is_seen(dag(n), dag(n - less), seed)


@pytest.mark.parametrize("axes", ["r", "q", "rq"])
def test_products_along_any_axes_stay_numbers(axes: str) -> None:
    a = te.placeholder((300, 500), name="A")
    r, q = te.reduce_axis(300, "r"), te.reduce_axis(500, "q")
    shape, f = {
        "r": ((500,), lambda j: te.prod(a[r, j], axis=r)),
        "q": ((300,), lambda i: te.prod(a[i, q], axis=q)),
        "rq": ((1,), lambda z: te.prod(a[r, q], axis=(r, q))),
    }[axes]
    draw = draws(te.dag([a, te.compute(shape, f, "B")]))[2]
    assert (np.abs(draw.reference[0]) > 2**-5).all() and (np.abs(draw.reference[0]) < 2**5).all()
    assert (draw.bounds[0] < 0.1 * np.abs(draw.reference[0])).all()


def of_factors(n: int, f: Callable[[te.Expr], te.Expr]) -> ComputeDAG:
    a, r = te.placeholder((4, n), name="A"), te.reduce_axis(n, "r")
    return te.dag([a, te.compute((4,), lambda i: te.prod(f(a[i, r]), axis=r), "B")])


FACTORS: dict[str, tuple[Callable[[te.Expr], te.Expr], Callable[[np.ndarray], np.ndarray]]] = {
    "themselves": (lambda x: x, lambda x: x),
    "squares": (lambda x: x * x, np.square),
    "whole": (lambda x: te.floor(x), np.floor),
    "inverses": (lambda x: 1.0 / te.floor(x), lambda x: np.float32(1) / np.floor(x)),
}


@pytest.mark.parametrize("f", FACTORS)
@pytest.mark.parametrize("n", [24, 200, 1000, 4000, 30000])
def test_products_by_any_lanes_are_right(n: int, f: str) -> None:
    """Parts of them may overflow, or vanish, where the whole does neither."""
    of, numpy_of = FACTORS[f]
    dag = of_factors(n, of)
    for seed in range(3):
        for draw in draws(dag, seed):
            with np.errstate(all="ignore"):
                x = numpy_of(draw.inputs[0])
                for lanes in (1, 2, 8, 64):
                    padded = np.ones((4, -(-n // lanes) * lanes), "float32")
                    padded[:, :n] = x
                    parts = np.multiply.accumulate(padded.reshape(4, -1, lanes), axis=1)[:, -1]
                    got = np.multiply.accumulate(parts, axis=1)[:, -1]
                    judge = Checker(dag.outputs, draw.reference, draw.bounds)
                    assert judge.check([got], 0).reason == "", lanes


@pytest.mark.parametrize("n", [24, 1000, 1 << 18])
def test_one_factor_left_out_of_a_long_product_is_found(n: int) -> None:
    dag = of_factors(n, lambda x: x)
    draw = draws(dag)[2]
    judge = Checker(dag.outputs, draw.reference, draw.bounds)
    x = draw.inputs[0].astype("float64")
    for k in np.random.default_rng(0).integers(0, n, 40):
        short = (x.prod(1) / x[:, k]).astype("float32")
        assert "4 of 4 elements wrong" in judge.check([short], 0).reason


def test_a_sum_may_overflow_on_the_way() -> None:
    a, r = te.placeholder((3, 4), name="A"), te.reduce_axis(4, "r")
    b, q = te.placeholder((4, 1), name="B"), te.reduce_axis(4, "q")
    sums = te.compute((3,), lambda i: te.sum(te.abs(a[i, r]) * a[i, r], axis=r), "S")
    products = te.compute((3, 1), lambda i, j: te.sum(a[i, q] * b[q, j], axis=q), "P")
    dag = te.dag([a, b, sums, products])
    x = np.array([[1.5, -1.5, 1.5, -1.5], [1.5, 1.5, 1.5, 1.5], [0.1, -0.1, 0.1, -0.1]], "float32") * 1e19
    draw = judged(dag, [x, np.full((4, 1), 1.5e19, "float32")])
    judge = Checker(dag.outputs, draw.reference, draw.bounds)
    inf = np.inf
    for first in (0.0, inf, -inf, np.nan):
        got = np.array([first, inf, 0], "float32")
        assert judge.check([got, got[:, None]], 0).reason == ""
    for wrong in ([0, inf, inf], [0, 0, 0], [0, -inf, 0]):
        got = np.array(wrong, "float32")
        assert "S: 1 of 3 elements wrong" in judge.check([got, got[:, None]], 0).reason


def test_a_mask_that_hides_all_of_a_short_row_is_denied() -> None:
    """A softmax of one element of which a random mask hides it is NaN."""
    x, mask = te.placeholder((1,), name="x"), te.placeholder((1,), "bool", "mask")
    r = te.reduce_axis(1, "r")
    seen = te.compute((1,), lambda i: te.select(mask[i], x[i], -te.inf), "seen")
    top = te.compute((1,), lambda i: te.max(seen[r], axis=r), "top")
    y = te.compute((1,), lambda i: te.exp(seen[i] - top[i]), "y")
    for seed in range(4):
        (first, *_) = draws(te.dag([x, mask, y]), seed)
        assert first.inputs[1].all() and first.nan_share == 0.0
