"""Chains of numbers: the values and the bounds of steps that are evaluated one by one."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules import expr as E
from schedules import te
from schedules.te import evaluator, number_chains, rounding
from schedules.te.compute_dag import ComputeDAG
from schedules.te.rounding import Bounded, evaluate_with_bounds

N = 19


def random_chain(rng: Random, n: int = N) -> ComputeDAG:
    """One or two stages a step, of operations of all kinds on inputs and earlier steps."""
    dtype, reverse = rng.choice(("float32", "float64")), rng.random() < 0.4
    a, b = (te.placeholder((n,), dtype, name) for name in "ab")
    k = te.placeholder((n,), "int32", "k")
    y = te.state((n,), dtype, name="y", reverse=reverse, init=rng.choice((0.0, 0.5, 3.0)))
    sign = 1 if reverse else -1

    def term(i: Any, depth: int, more: list[Any]) -> Any:
        if depth == 0 or rng.random() < 0.15:
            before = a[te.maximum(i - 2, 0)] if rng.random() < 0.5 else te.select(i >= 2, a[i - 2], b[i])
            return rng.choice(
                (a[i], b[i], before, te.cast(k[i], dtype), te.cast(i, dtype), te.const(1.5, dtype),
                 y[i + sign], y[i + sign], y[i + 2 * sign], *(x[i] for x in more))
            )  # fmt: skip
        one, other = term(i, depth - 1, more), term(i, depth - 1, more)
        kind = rng.choice(
            ("+", "+", "-", "*", "*", "/", "min", "max", "select", "early", "call", "cast", "same")
        )
        match kind:
            case "+":
                return one + other
            case "-":
                return one - other
            case "*":
                return one * other
            case "/":
                return one / other
            case "min" | "max":
                return (te.minimum if kind == "min" else te.maximum)(one, other)
            case "select":
                return te.select(te.all(one < other, other > 0.0), one, other)
            case "early":
                return te.select(k[i] > 0, one, other)
            case "call":
                return rng.choice((te.tanh, te.floor, te.sqrt, te.abs))(one)
            case "same":
                return te.select(te.isnan(one), other, one)
        return te.cast(te.cast(one, rng.choice(("int32", "float32", "float16"))), dtype)

    made: list[Any] = []
    if rng.random() < 0.4:
        made.append(te.compute((n,), lambda i: term(i, 2, []), "m"))
    out = te.scan(y, te.compute((n,), lambda i: term(i, rng.choice((1, 2, 3)), made) * 0.5, "y"))
    return te.dag([*te.inputs(out), out])


def inputs_of(dag: ComputeDAG, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    whole = rng.random() < 0.3
    of: dict[str, Any] = {t.name: rng.integers(-3, 4, t.shape) for t in dag.inputs}
    more = {} if whole else {t.name: rng.standard_normal(t.shape) for t in dag.inputs if t.name != "k"}
    return [np.asarray((of | more)[t.name], t.dtype) for t in dag.inputs]


def one_by_one(dag: ComputeDAG, inputs: list[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> Bounded:
    with monkeypatch.context() as m:
        m.setattr(rounding, "run_chain", lambda *_: None)
        return evaluate_with_bounds(dag, inputs)


@given(st.integers(0, 10**9))
@settings(max_examples=20, deadline=None)
def test_some_chains_are_what_steps_one_by_one_are(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@given(st.integers(0, 10**9))
@settings(max_examples=400, deadline=None)
def test_chains_are_what_steps_one_by_one_are(seed: int) -> None:
    check(seed)


def check(seed: int) -> None:
    dag = random_chain(Random(seed))
    inputs = inputs_of(dag, seed)
    with pytest.MonkeyPatch.context() as m:
        m.setattr(number_chains, "STEPS", 7)
        got = evaluate_with_bounds(dag, inputs)
        plain = te.evaluate(dag, inputs)[0]
        want = one_by_one(dag, inputs, m)
        m.setattr(evaluator, "run_chain", lambda *_: None)
        np.testing.assert_array_equal(plain, te.evaluate(dag, inputs)[0])
    np.testing.assert_array_equal(got.values, want.values)
    # An error of 0 is none here. Else it is one of 0 if the tensor has errors elsewhere: then infinite
    # numbers are uncertain, and roots of squares too.
    (value,), (own,), (bound,) = got.values, got.bounds, want.bounds
    assert (own <= bound * 1.0001 + 1e-37).all()
    if not any(isinstance(x, E.Call) for s in dag.stages for x in E.walk(s.values[0])):
        assert ((own >= bound * 0.9999 - 1e-37) | ~np.isfinite(value)).all()


def test_a_chain_is_long_and_quick() -> None:
    """A million steps take seconds; one by one each takes a tenth of a millisecond."""
    n = 20_000
    x, y = te.placeholder((n,), "float32", "x"), te.state((n,), "float32", name="y", init=0.0)
    out = te.scan(y, te.compute((n,), lambda i: y[i - 1] * 0.5 + te.tanh(x[i]), "y"))
    data = np.random.default_rng(0).standard_normal(n).astype("float32")
    begin = time.thread_time()
    got = evaluate_with_bounds(te.dag([x, out]), [data])
    assert time.thread_time() - begin < 25e-6 * n
    want = np.zeros(n + 1)
    for i in range(n):
        want[i + 1] = want[i] * 0.5 + np.tanh(np.float64(data[i]))
    np.testing.assert_allclose(got.values[0], want[1:], rtol=1e-6)
    assert got.bounds[0].max() < 1e-5


def test_what_is_called_while_a_chain_runs_may_end_it() -> None:
    n, calls = 3 * number_chains.STEPS, list[int]()
    x, y = te.placeholder((n,), "float32", "x"), te.state((n,), "float32", name="y", init=0.0)
    out = te.scan(y, te.compute((n,), lambda i: y[i - 1] * 0.5 + x[i], "y"))

    def waiting() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_with_bounds(te.dag([x, out]), [np.zeros(n, "float32")], waiting=waiting)
