"""Bounds of extremes, and of where they stand, however this is written down."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers import host
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.backends.building.from_trace import build_object
from autotune.codegen.llvm.compile import load_object
from autotune.measure.check import Checker
from autotune.measure.inputs import Draw, draws, judged
from schedules import te
from schedules.model import Trace
from schedules.te.compute_dag import ComputeDAG

N = 40


def check(draw: Draw, dag: ComputeDAG, outputs: list[np.ndarray]) -> str:
    return Checker(dag.outputs, draw.reference, draw.bounds).check(outputs, 0).reason


def plain(dag: ComputeDAG, draw: Draw) -> list[np.ndarray]:
    loaded = load_object(build_object(dag, Trace(), host()))
    outputs = [np.empty(dag.tensors[n].shape, dag.tensors[n].dtype) for n in dag.outputs]
    loaded.run([x.ctypes.data for x in (*draw.inputs, *outputs)])
    return outputs


FORMS = ("equal", "a number for none", "at least", "the last", "not less", "neither less nor NaN")


def place_of(form: str, extreme: Callable[..., te.Reduction], steps: bool = False) -> ComputeDAG:
    """Where the greatest (or least) of a row of rounded numbers stands. ``steps``: these have few values."""
    m, k = 16, 64
    a, b, r = te.placeholder((m, k), name="A"), te.placeholder((k, N), name="B"), te.reduce_axis(k, "r")
    q, p = te.reduce_axis(N, "q"), te.reduce_axis(N, "p")
    c = te.compute((m, N), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "C")
    f = (lambda x: te.floor(x * 0.2)) if steps else (lambda x: te.tanh(x * 0.02))
    t = te.compute((m, N), lambda i, j: f(c[i, j]), "T")
    e = te.compute((m,), lambda i: extreme(t[i, q], axis=q), "E")
    here, none = te.cast(p, "int32"), te.max_value("int32")
    less = (lambda x, y: x < y) if extreme is te.max else (lambda x, y: x > y)
    at_least = (lambda x, y: x >= y) if extreme is te.max else (lambda x, y: x <= y)
    forms: dict[str, Callable[[te.Expr], te.Expr]] = {
        "equal": lambda i: te.min(te.select(te.equal(t[i, p], e[i]), here, none), axis=p),
        "a number for none": lambda i: te.min(
            te.select(te.equal(t[i, p], e[i]), here, te.const(N, "int32")), axis=p
        ),
        "at least": lambda i: te.min(te.select(at_least(t[i, p], e[i]), here, none), axis=p),
        "the last": lambda i: te.max(te.select(te.equal(t[i, p], e[i]), here, te.const(-1, "int32")), axis=p),
        "not less": lambda i: te.min(te.select(less(t[i, p], e[i]), none, here), axis=p),
        "neither less nor NaN": lambda i: te.min(
            te.select(te.any(te.not_equal(t[i, p], t[i, p]), at_least(t[i, p], e[i])), here, none), axis=p
        ),
    }
    return te.dag([a, b, te.compute((m,), forms[form], "P")])


@pytest.mark.fast(but=["equal-min", "at least-max", "the last-min", "neither less nor NaN-max"])
@pytest.mark.parametrize("extreme", [te.max, te.min])
@pytest.mark.parametrize("form", FORMS)
def test_the_place_of_an_extreme_is_that_of_an_element_near_it(
    form: str, extreme: Callable[..., te.Reduction]
) -> None:
    other = place_of(form, te.min if extreme is te.max else te.max)
    dag = place_of(form, extreme)
    for draw in draws(dag):
        assert check(draw, dag, plain(dag, draw)) == ""
    first = draws(dag)[0]
    assert "16 of 16 elements wrong" in check(first, dag, plain(other, first))
    for none in (2**31 - 1, N, -1):
        assert "16 of 16 elements wrong" in check(first, dag, [np.full(16, none, "int32")])


@pytest.mark.fast("at least")
@pytest.mark.parametrize("form", FORMS)
def test_places_of_what_a_step_decides_are_right(form: str) -> None:
    dag = place_of(form, te.max, steps=True)
    for seed in range(4):
        for draw in draws(dag, seed):
            assert check(draw, dag, plain(dag, draw)) == ""


def test_an_extreme_is_off_by_what_it_may_be_itself() -> None:
    """And not by what a smaller element may be off by."""
    a, k, r = te.placeholder((4, 6, 100), name="A"), te.reduce_axis(100, "k"), te.reduce_axis(6, "r")
    s = te.compute((4, 6), lambda i, j: te.sum(a[i, j, k], axis=k), "S")
    dag = te.dag([a, te.compute((4,), lambda i: te.max(s[i, r], axis=r), "M")])
    x = np.random.default_rng(0).random((4, 6, 100), "float32")
    x[:, 3] -= 1e6
    draw = judged(dag, [x])
    assert (draw.bounds[0] < 1e-2).all()
    assert check(draw, dag, [draw.reference[0] + np.float32(0.1)])


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["max", "min"]), st.sampled_from([0.0, 0.3, 1.0]))
def test_any_extreme_within_the_errors_of_elements_lies_inside(seed: int, op: str, open_: float) -> None:
    from schedules.te.places import Extremes
    from schedules.te.rounding_expr import ends

    rng = np.random.default_rng(seed)
    pool = np.array([-np.inf, -2.0, -1.0, 0.0, 1.0, 2.0, np.inf, np.nan])
    v = rng.choice(pool, (6, 5), p=[0.05, 0.18, 0.18, 0.18, 0.18, 0.18, 0.03, 0.02])
    e = np.where(rng.random((6, 5)) < open_, rng.choice([0.5, 1.0, 3.0, np.inf], (6, 5)), 0.0)
    e = np.where(np.isfinite(v) | np.isinf(e), e, 0)
    ufunc = np.minimum if op == "min" else np.maximum
    extremes = Extremes((6,), op)
    with np.errstate(all="ignore"):
        extremes.add((slice(None),), (1,), *ends(v, e))
        ref = ufunc.reduce(v, axis=1)
        bound = extremes.bound(ref)
        for _ in range(20):
            moved = v + np.where(e > 0, rng.uniform(-1, 1, v.shape) * np.minimum(e, 10), 0)
            moved = np.where(np.isinf(e), rng.choice(pool, v.shape), moved)
            got = ufunc.reduce(moved, axis=1)
            same = (got == ref) | (np.isnan(got) & np.isnan(ref))
            assert (same | (np.abs(got - ref) <= bound) | np.isposinf(bound)).all()
