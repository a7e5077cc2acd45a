"""Outputs in the memory of inputs: what is proved holds, in the interpreter and compiled."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import random_schedule, small

import autotune as at
from autotune.errors import ArgumentError
from schedules import te
from schedules.errors import ScheduleError
from schedules.expr import Compare, Expr, Var
from schedules.ir import Loop, LoweredFunc, Stmt, with_body
from schedules.ir import in_place as proof
from schedules.ir.exprs import substitute
from schedules.ir.in_place import Lies, conflict, in_place
from schedules.ir.interp import run
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.strides import row_major
from schedules.te.compute_dag import ComputeDAG
from schedules.te.infeasible import impossible

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 13)
DTYPE = "float32"
# What makes a program: (it, the shape of x, by how much y begins later in it).
Program = Callable[[Random], tuple[ComputeDAG, tuple[int, ...], tuple[int, ...]]]


def stencil(rng: Random) -> tuple[ComputeDAG, tuple[int, ...], tuple[int, ...]]:
    """A program that reads neighbours: (it, the shape of x, by how much y begins later in it)."""
    rank = rng.choice((1, 1, 2))
    shape = tuple(rng.choice(EXTENTS) for _ in range(rank))
    border = rng.choice(("clamp", "copy", "inside"))
    pad = 2 if border == "inside" else 0
    reach = rng.choice(((0, 1, 2), (0, -1, -2), (0,), (-1, 0, 1)))
    at_ = [tuple(rng.choice(reach) for _ in shape) for _ in range(rng.choice((1, 2, 3)))]
    whole = tuple(n + 2 * pad for n in shape)
    x = te.placeholder(whole, DTYPE, "x")

    def value(*ix: te.Var) -> te.Expr:
        out: te.Expr | None = None
        for k, d in enumerate(at_):
            place = [
                i + o + pad if pad else te.minimum(te.maximum(i + o, 0), n - 1)
                for i, o, n in zip(ix, d, shape, strict=True)
            ]
            term = x[tuple(place)] * float(k + 1)
            out = term if out is None else out + term
        assert out is not None
        if border == "copy":
            first = ix[0]
            return te.select((first >= 1) & (first < shape[0] - 1), out, x[ix])
        return out

    stages = [x]
    if rng.random() < 0.3:
        t = te.compute(shape, value, "t")
        y = te.compute(shape, lambda *ix: t[ix] + 1.0, "y")
        stages += [t, y]
    elif rng.random() < 0.3:
        k = te.reduce_axis(2, "k")
        y = te.compute(shape, lambda *ix: te.sum(value(*ix) + te.cast(k, DTYPE), axis=k), "y")
        stages.append(y)
    else:
        stages.append(te.compute(shape, value, "y"))
    dag = te.dag([x, stages[-1]])
    return te.with_strides(dag, {"y": row_major(whole)}) if pad else dag, whole, (pad,) * rank


def recurrence(rng: Random) -> tuple[ComputeDAG, tuple[int, ...], tuple[int, ...]]:
    """A scan along one or two axes, or a sum over a triangle, that reads neighbours: as of `stencil`."""
    n, m = rng.choice(EXTENTS), rng.choice(EXTENTS)
    x = te.placeholder((n, m), DTYPE, "x")
    d = [(rng.choice((-1, 0, 1)), rng.choice((-1, 0, 1))) for _ in range(rng.choice((1, 2)))]

    def read(i: te.Expr, j: te.Expr) -> te.Expr:
        at_ = [
            x[te.minimum(te.maximum(i + a, 0), n - 1), te.minimum(te.maximum(j + b, 0), m - 1)] for a, b in d
        ]
        return at_[0] if len(at_) == 1 else at_[0] + at_[1]

    if rng.random() < 0.4:
        k = te.reduce_axis((0, rng.choice((1, 2))), "k")
        y = te.compute((n, m), lambda i, j: te.sum(read(i, j) + te.cast(k, DTYPE), axis=k), "y")
        return te.dag([x, y]), (n, m), (0, 0)
    both = rng.random() < 0.5

    def step(y: te.Tensor, i: te.Expr, j: te.Expr) -> te.Expr:
        old = te.maximum(y[i - 1, j], y[i, j - 1]) if both else y[i - 1, j]
        return te.maximum(old * 0.5, read(i, j))

    y = te.scan((n, m), step, init=lambda i, j: 0.0, axis=(0, 1) if both else 0, name="y")
    return te.dag([x, y]), (n, m), (0, 0)


def backwards(func: LoweredFunc) -> LoweredFunc:
    """The program with every parallel loop run from its end: its iterations have no order."""

    def go(s: Stmt) -> Stmt:
        s = with_body(s, go)
        if isinstance(s, Loop) and s.kind == "parallel":
            return Loop(s.var, s.extent, substitute(s.body, {s.var: s.extent - 1 - Var(s.var)}), s.kind)
        return s

    return LoweredFunc(func.name, func.params, func.outputs, go(func.body))


def results(
    func: LoweredFunc, x: np.ndarray, shape: tuple[int, ...], skip: tuple[int, ...], shared: bool
) -> np.ndarray:
    x = x.copy()
    inside = tuple(slice(s, s + n) for s, n in zip(skip, shape, strict=True))
    y = (x if shared else np.full_like(x, np.nan))[inside]
    run(func, {"x": x, "y": y})
    return y.copy()


def holds(rng: Random, threads: int, program: Program = stencil) -> str:
    """ "proved", "refused" or "" for a random program and schedule. AssertionError where what is proved is
    wrong."""
    dag, whole, skip = program(rng)
    try:
        s = random_schedule(dag, rng, rng.choice((0, 1, 2, 3, 4)))
    except ScheduleError:  # the order of a scan is looked at when a step is applied
        return ""
    if not small(s.nest):
        return ""
    shape, func = dag.params[-1].shape, lower(s.nest)
    elements = sum(a * b for a, b in zip(skip, row_major(whole), strict=True))
    if conflict(func, Lies("y", "x", elements), threads) is not None:
        return "refused"
    x = np.random.default_rng(rng.randrange(99)).integers(1, 50, whole).astype(DTYPE)
    apart = results(func, x, shape, skip, False)
    assert np.array_equal(results(func, x, shape, skip, True), apart)
    if threads > 1:
        assert np.array_equal(results(backwards(func), x, shape, skip, True), apart)
    return "proved"


@settings(max_examples=40)
@given(rng=st.randoms(use_true_random=False), threads=st.sampled_from((1, 2)))
def test_what_is_proved_holds(rng: Random, threads: int) -> None:
    holds(rng, threads)


@pytest.mark.slow
def test_what_is_proved_holds_of_many() -> None:
    found = [holds(Random(n), 1 + n % 2) for n in range(1500)]
    assert found.count("proved") > 2 * found.count("refused") > 200


@pytest.mark.slow
def test_what_is_proved_holds_of_recurrences() -> None:
    found = [holds(Random(n), 1 + n % 2, recurrence) for n in range(600)]
    assert found.count("proved") > 100 < found.count("refused")


@pytest.mark.slow
def test_code_in_place_gives_the_same_bits() -> None:
    """Compiled for both, a kernel gives the same in place as apart, or refuses by name."""
    ran = refused = 0
    for n in range(150):
        rng = Random(n)
        dag, whole, skip = stencil(rng)
        s = random_schedule(dag, rng, rng.choice((1, 2, 3, 4)))
        if not small(s.nest):
            continue
        kernel = at.build(s, threads=1)
        x = np.random.default_rng(n).standard_normal(whole).astype(DTYPE)
        inside = x[tuple(slice(b, b + m) for b, m in zip(skip, dag.params[-1].shape, strict=True))]
        want = kernel(x)
        for _ in range(2):  # the second call finds the code
            y = x.copy()
            out = y[tuple(slice(b, b + m) for b, m in zip(skip, inside.shape, strict=True))]
            try:
                assert kernel(y, out=out) is out
            except ArgumentError as err:
                assert "output 'y' shares memory with input 'x': " in str(err)
                refused += 1
                break
            assert np.array_equal(out, want)
            ran += 1
    assert ran > 100 and refused > 10


def _as_serial(order: Any, loop: Loop, unit: bool) -> str:
    return "serial"


def _nothing_seen(order: Any, store: Any, load: Any) -> None:
    return None


def _conditions_turned(conds: list[Expr], ranges: Any) -> bool:
    return impossible([Compare(c.op, c.b, c.a) if isinstance(c, Compare) else c for c in conds], ranges)


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "nothing is looked at": (proof._Order, "conflict", _nothing_seen),
    "parallel loops run in order": (proof._Order, "kind", _as_serial),
    "conditions are turned round": (proof, "impossible", _conditions_turned),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_an_element_that_is_read_after_it_was_overwritten_is_caught(
    mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, name, changed = MUTANTS[mutant]
    monkeypatch.setattr(of, name, changed)
    with pytest.raises(AssertionError):
        for n in range(2000):
            holds(Random(n), 2)


def test_the_pair_of_accesses_is_named() -> None:
    x = te.placeholder((9,), DTYPE, "x")
    y = te.compute((9,), lambda i: x[i] + x[te.maximum(i - 1, 0)], "y")
    s = Schedule(te.dag([x, y]))
    wrong = conflict(lower(s.nest), Lies("y", "x"), 1)
    assert str(wrong) == (
        "y[y_i] is written before x[max(y_i - 1, 0)] is read in a later iteration of loop y_i, and both may "
        "be one element"
    )
    with pytest.raises(
        ScheduleError, match=r"output 'y' cannot lie in the memory of input 'x': y\[y_i\] is writ"
    ):
        in_place(lower(s.nest), [Lies("y", "x")], 1)
