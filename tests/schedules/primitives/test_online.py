"""Online reductions: which sums may be rescaled, that they come out right, and that nothing else is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import hypothesis.strategies as st
import numpy as np
import pytest
from grid_cases import TARGET, case, need_cxx
from helpers import check_interpreted, execute, expected, host, inputs, interpret
from hypothesis import given, settings
from programs import attended
from random_schedules import random_step

from autotune.codegen.simt import emulator
from schedules import expr as E
from schedules import te
from schedules.errors import ScheduleError
from schedules.expr import Const, Load
from schedules.ir import (
    Alloc,
    Block,
    Buffer,
    LoweredFunc,
    Stmt,
    Store,
    nbytes,
    walk,
    with_body,
)
from schedules.ir.interp import InterpError, run
from schedules.ir.nest import find_block
from schedules.model import Step, Trace
from schedules.passes.lower import stages
from schedules.passes.simt import lower_simt
from schedules.primitives import online
from schedules.rescaling import degree
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.scalars import min_value

Term = Callable[[te.Tensor, te.Tensor], object]
Arrays = list[np.ndarray]


def relative(
    term: Term, dtype: str = "float32", m: int = 3, n: int = 11, c: int = 4, scale: float = 0.3
) -> ComputeDAG:
    """A row maximum, a sum of terms of it, and a product of such terms, kept as a stage, with a matrix."""
    x, v = te.placeholder((m, n), dtype, "x"), te.placeholder((n, c), dtype, "v")
    k, r, q = (te.reduce_axis(n, name) for name in "krq")
    s = te.compute((m, n), lambda i, j: x[i, j] * te.const(scale, dtype), "s")
    top = te.compute((m,), lambda i: te.max(s[i, k], axis=k), "top")
    low = te.compute((m,), lambda i: te.sum(term(s[i, r], top[i]), axis=r), "l")
    e = te.compute((m, n), lambda i, j: term(s[i, j], top[i]), "e")
    o = te.compute((m, c), lambda i, h: te.sum(e[i, q] * v[q, h], axis=q), "o")
    dag = te.dag([x, v, te.compute((m, c), lambda i, h: o[i, h] / low[i] + top[i], "y")])
    return replace(dag, outputs=("l", "y"))


def real(dag: ComputeDAG, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=t.shape) * 3).astype(t.dtype) for t in dag.inputs]


def close(got: Arrays, want: Arrays, what: str) -> None:
    rtol, atol = (1e-11, 1e-12) if want[0].dtype == np.float64 else (1e-4, 1e-5)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=rtol, atol=atol, err_msg=what)


def check(s: Schedule, data: Arrays, *, compiled: bool = True) -> None:
    """The nest, every stage of its lowering and its code give what the unscheduled program does."""
    with np.errstate(all="ignore"):
        want = expected(s.dag, data)
        close(interpret(s.nest, s.dag, data), want, "scheduled nest")
        for title, func in stages(s.nest):
            close(interpret(func, s.dag, data), want, title)
    if compiled:
        for place, got in execute(s.dag, s.trace, host(), data).items():
            close(got, want, f"compiled, arrays at {place}")


PROPORTIONAL: dict[str, Term] = {
    "difference": lambda s, m: te.exp(s - m),
    "negated": lambda s, m: te.exp(-(m - s)),
    "half": lambda s, m: te.exp((s - m) * 0.5),
    "quotient": lambda s, m: te.exp(s / 4 - m / 4),
    "square": lambda s, m: te.exp(s - m) * te.exp(s - m) / 3,
    "times": lambda s, m: s * te.exp(s - m) - te.exp(s - m) * 2,
    "chosen": lambda s, m: te.select(s > 0, te.exp(s - m), 0),
    "negative": lambda s, m: -te.exp(s - m),
}
OTHERS: dict[str, Term] = {
    "square": lambda s, m: (s - m) * (s - m),
    "shifted twice": lambda s, m: te.exp(s - m * 2),
    "bare": lambda s, m: m * te.exp(s - m),
    "added": lambda s, m: te.exp(s - m) + 1,
    "growing": lambda s, m: te.exp(m - s),
    "sum": lambda s, m: te.exp(s + m),
    "without the element": lambda s, m: te.exp(-m),
    "other element": lambda s, m: te.exp(s * 2 - m),
    "offset": lambda s, m: te.exp(s - m + 90),
    "sigmoid": lambda s, m: te.sigmoid(s - m),
    "divided": lambda s, m: s / te.exp(s - m),
    "chosen by it": lambda s, m: te.select(s < m, te.exp(s - m), 0),
    "two powers": lambda s, m: te.exp(s - m) + te.exp((s - m) * 2),
    "rounded": lambda s, m: te.floor(te.exp(s - m)),
}


@pytest.mark.fast("negative-float64")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PROPORTIONAL)
def test_sums_of_proportional_terms(name: str, dtype: str) -> None:
    dag = relative(PROPORTIONAL[name], dtype)
    s = Schedule(dag)
    part = s.online("top", ["l", "o"], 4)
    s.compute_at("s", part)
    check(s, real(dag))


@pytest.mark.parametrize("name", OTHERS)
def test_other_terms_are_refused(name: str) -> None:
    s = Schedule(relative(OTHERS[name]))
    before = s.nest
    with pytest.raises(ScheduleError, match=r"online top: the terms of l, .*, are not proved to be products"):
        s.online("top", ["l", "o"], 4)
    assert s.nest is before


@pytest.mark.slow
@given(
    m=st.integers(1, 4), n=st.integers(1, 23), c=st.integers(1, 5), size=st.integers(1, 25),
    term=st.sampled_from(sorted(PROPORTIONAL)), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=12)
def test_any_shape_and_size(m: int, n: int, c: int, size: int, term: str, seed: int) -> None:
    s = Schedule(relative(PROPORTIONAL[term], "float64", m, n, c))
    s.online("top", ["l", "o"], size)
    check(s, real(s.dag, seed), compiled=False)


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), before=st.integers(0, 3), after=st.integers(0, 5))
@settings(max_examples=20)
def test_among_random_steps(seed: int, before: int, after: int) -> None:
    """Exact, in every form, whatever primitives come before and after."""
    rng = Random(seed)
    s = Schedule(attended())
    for _ in range(before):
        random_step(s, rng)
    if random_step(s, rng, "online", 60):
        for _ in range(after):
            random_step(s, rng)
        data = inputs(s.dag, seed)
        check_interpreted(s.nest, s.dag, data, expected(s.dag, data))


# -- infinities --------------------------------------------------------------------------------


def infinite(dag: ComputeDAG) -> Arrays:
    """Rows that begin with, end with or are nothing but -inf, and one with an infinity."""
    data = real(dag)
    x = data[0]
    x[0, :7], x[1, 5:], x[2, :] = -np.inf, -np.inf, -np.inf
    x[3, 6] = np.inf
    x[4, 2:8] = np.nan
    return data


@pytest.mark.parametrize("parts", [1, 3])
def test_a_maximum_that_lies_in_other_dimensions_is_refused(parts: int) -> None:
    """``top[i, 0]`` and ``top[0, i]``."""
    s = Schedule(relative(PROPORTIONAL["difference"]))
    s.split_dim("top", 0, parts)
    with pytest.raises(
        ScheduleError, match="online top: top does not store at its axes in order; use online"
    ):
        s.online("top", ["l"], 4)


@pytest.mark.fast("16")
@pytest.mark.parametrize("size", [1, 3, 4, 11, 16])
def test_infinities_come_out_as_without_parts(size: int) -> None:
    dag = relative(PROPORTIONAL["difference"], m=5)
    s = Schedule(dag)
    s.online("top", ["l", "o"], size)
    data = infinite(dag)
    check(s, data)
    with np.errstate(all="ignore"):
        low, y = interpret(s.nest, dag, data)
    assert np.isfinite(low[:2]).all() and np.isfinite(y[:2]).all() and np.isnan(low[2:]).all()


def test_the_lowest_numbers_are_no_infinities() -> None:
    dag = relative(PROPORTIONAL["difference"], scale=1.0)
    data = real(dag)
    data[0][:] = np.finfo(np.float32).min
    data[0][1, 8:] = np.finfo(np.float32).max
    s = Schedule(dag)
    s.online("top", ["l", "o"], 4)
    check(s, data)


# -- chains ------------------------------------------------------------------------------------


def logsumexp(dtype: str = "float64") -> ComputeDAG:
    x = te.placeholder((3, 13), dtype, "x")
    k, r = te.reduce_axis(13, "k"), te.reduce_axis(13, "r")
    m = te.compute((3,), lambda i: te.max(x[i, k], axis=k), "m")
    t = te.compute((3,), lambda i: te.sum(te.exp(x[i, r] - m[i]), axis=r), "t")
    return te.dag([x, te.compute((3,), lambda i: te.log(t[i]) + m[i], "y")])


def one_row() -> ComputeDAG:
    """No axis but the one reduced."""
    x = te.placeholder((13,), "float64", "x")
    k, r = te.reduce_axis(13, "k"), te.reduce_axis(13, "r")
    m = te.compute((), lambda: te.max(x[k], axis=k), "m")
    return te.dag([x, te.compute((), lambda: te.sum(te.exp(x[r] - m[()]), axis=r), "t")])


def mixed_scores(dtype: str = "float64") -> ComputeDAG:
    """Scores that are products, scaled, biased and masked, in stages of their own; several heads."""
    b, m, n, d = 2, 5, 9, 3
    q, k = te.placeholder((b, m, d), dtype, "q"), te.placeholder((b, n, d), dtype, "k")
    bias, v = te.placeholder((m, n), dtype, "bias"), te.placeholder((b, n, d), dtype, "v")
    z, (u, w, j) = te.reduce_axis(d, "z"), (te.reduce_axis(n, a) for a in "uwj")
    dot = te.compute((b, m, n), lambda h, i, c: te.sum(q[h, i, z] * k[h, c, z], axis=z), "dot")
    biased = te.compute((b, m, n), lambda h, i, c: te.tanh(dot[h, i, c] / 2) * 5 + bias[i, c], "biased")
    masked = te.compute(
        (b, m, n), lambda h, i, c: te.select(c <= i + 4, biased[h, i, c], te.const(-np.inf, dtype)), "masked"
    )
    top = te.compute((b, m), lambda h, i: te.max(masked[h, i, u], axis=u), "m")
    e = te.compute((b, m, n), lambda h, i, c: te.exp(masked[h, i, c] - top[h, i]), "e")
    t = te.compute((b, m), lambda h, i: te.sum(e[h, i, w], axis=w), "t")
    o = te.compute((b, m, d), lambda h, i, c: te.sum(e[h, i, j] * v[h, j, c], axis=j), "o")
    return te.dag([q, k, bias, v, te.compute((b, m, d), lambda h, i, c: o[h, i, c] / t[h, i], "y")])


def tuple_reducer() -> ComputeDAG:
    """The maximum is one result of a tuple reduction, which rescales a sum itself."""
    x, v = te.placeholder((3, 13), "float64", "x"), te.placeholder((13,), "float64", "v")
    k, r = te.reduce_axis(13, "k"), te.reduce_axis(13, "r")

    def join(a: tuple[te.Tensor, ...], b: tuple[te.Tensor, ...]) -> tuple[object, ...]:
        top = te.maximum(a[1], b[1])
        return a[0] * te.exp(a[1] - top) + b[0] * te.exp(b[1] - top), top

    both = te.reducer(lambda *_: (0, -1e30), join, "online")
    t, m = te.compute((3,), lambda i: both((te.const(1, "float64"), x[i, k]), axis=k), ("t", "m"))
    o = te.compute((3,), lambda i: te.sum(te.exp(x[i, r] - m[i]) * v[r], axis=r), "o")
    return te.dag([x, v, te.compute((3,), lambda i: o[i] / t[i], "y")])


def two_powers() -> ComputeDAG:
    """Two sums that depend on the maximum in different ways, and one that cannot be rescaled."""
    x = te.placeholder((3, 13), "float64", "x")
    k, r, q, u = (te.reduce_axis(13, n) for n in "krqu")
    m = te.compute((3,), lambda i: te.max(x[i, k], axis=k), "m")
    t = te.compute((3,), lambda i: te.sum(te.exp(x[i, r] - m[i]), axis=r), "t")
    o = te.compute((3,), lambda i: te.sum(te.exp((x[i, q] - m[i]) * 3), axis=q), "o")
    dev = te.compute((3,), lambda i: te.sum((x[i, u] - m[i]) * (x[i, u] - m[i]), axis=u), "dev")
    return te.dag([x, te.compute((3,), lambda i: t[i] + o[i] + dev[i], "y")])


@pytest.mark.fast("1-logsumexp-m-sums0", "4-logsumexp-m-sums0", "4-two_powers-m-sums4")
@pytest.mark.parametrize(
    ("program", "block", "sums"),
    [
        (logsumexp, "m", ["t"]),
        (one_row, "m", ["t"]),
        (mixed_scores, "m", ["t", "o"]),
        (tuple_reducer, "t", ["o"]),
        (two_powers, "m", ["o", "t"]),
    ],
)
@pytest.mark.parametrize("size", [1, 4, 16])
def test_chains(program: Callable[[], ComputeDAG], block: str, sums: list[str], size: int) -> None:
    s = Schedule(program())
    part = s.online(block, sums, size)
    for name in reversed(s.blocks()):  # what computes the scores follows
        if part not in s.loops(name):
            try:
                s.compute_at(name, part)
            except ScheduleError:
                continue
    check(s, real(s.dag))


def test_only_a_part_is_held() -> None:
    s = Schedule(mixed_scores())
    part = s.online("m", ["t", "o"], 4)
    for name in ("masked", "biased", "dot"):
        s.compute_at(name, part)
    func = stages(s.nest)[-1][1]
    held = {x.buffer.name: nbytes(x.buffer) for x in walk(func.body) if isinstance(x, Alloc)}
    assert held["dot"] == held["masked"] == held["e"] == 2 * 5 * 4 * 8
    assert held["o"] == 2 * 5 * 3 * 8


@pytest.mark.slow
def test_parts_inside_a_loop_over_rows_that_run_in_parallel() -> None:
    """Every row has a running maximum of its own; what is there already takes part in place."""
    s = Schedule(replace(relative(PROPORTIONAL["difference"], m=6), outputs=("y",)))
    for name in ("o", "l", "e", "top", "s"):
        s.compute_at(name, "y_i")
    part = s.online("top", ["l", "o"], 4)
    s.parallel("y_i")
    assert s.loops("o")[:2] == ["y_i", part]
    check(s, real(s.dag))


def test_a_part_travels_in_a_trace_with_its_size_open() -> None:
    s = Schedule(attended())
    s.online("top", ["total", "mix"], 4)
    assert Trace.from_json(s.trace.to_json()) == s.trace
    step = s.trace.steps[0]
    assert dict(step.args) == {"block": "top", "size": 4, "sums": ("total", "mix")}
    hole = Trace((Step("online", tuple((k, ("?", "n") if k == "size" else v) for k, v in step.args)),))
    assert "ceildiv(11, ?n)" in str(Schedule.replay(s.dag, hole))
    assert Schedule.replay(s.dag, hole, decisions={"n": 4}).nest == s.nest


# -- the algebra -------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=60)
def test_degrees_are_what_the_values_do(data: st.DataObject) -> None:
    """Another maximum changes the value as the degree says, in numbers."""
    x, v, m = (Load(n, (Const(0),), "float64") for n in "xvm")

    def draw(depth: int) -> E.Expr:
        joined = ["*", "+", "-", "/", "select"] if depth else []
        kind = data.draw(st.sampled_from(["exp", "scaled", "free", *joined]))
        number = Const(data.draw(st.sampled_from([0.5, 1.0, 2.0])), "float64")
        if kind == "exp":
            return E.Call("exp", (x - m,))
        if kind == "scaled":
            return E.Call("exp", ((x - m) * number,))
        if kind == "free":
            return data.draw(st.sampled_from([v, number, m]))
        a, b = draw(depth - 1), draw(depth - 1)
        return E.select(v < number, a, b) if kind == "select" else E.binary(kind, a, b)

    value = draw(3)
    p = degree(value, m, x, lambda e: e == m)

    def at(top: float) -> float:
        arrays = {"x": np.array([0.3]), "v": np.array([0.7]), "m": np.array([top]), "y": np.zeros(1)}
        buffers = tuple(Buffer(n, (Const(1),), "float64") for n in arrays)
        run(LoweredFunc("f", buffers, ("y",), Store("y", (Const(0),), value)), arrays)
        return float(arrays["y"][0])

    if p is not None:
        assert p > 0 and at(1.7) == pytest.approx(at(0.9) * np.exp(p * (0.9 - 1.7)), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("dtype", "found"),
    [("float32", 1.0), ("float64", 1.0), ("bfloat16", None), ("float16", None), ("int8", None)],
)
def test_what_is_rounded_to_fewer_bits_is_not_proportional(dtype: str, found: float | None) -> None:
    x, m = (Load(n, (Const(0),), "float32") for n in "xm")
    value = E.Cast(dtype, E.Call("exp", (x - m,)))
    assert degree(value, m, x, lambda e: e == m) == found


# -- mutants -----------------------------------------------------------------------------------


def without_rescaling(m: pytest.MonkeyPatch) -> None:
    real_ = online._rescaled

    def unchanged(*a: object) -> Stmt:
        return _each(real_(*a), lambda b: replace(b, values=(Const(1.0, E.dtype_of(b.values[0])),)))

    m.setattr(online, "_rescaled", unchanged)


def without_a_floor(m: pytest.MonkeyPatch) -> None:
    """-inf is subtracted while there is nothing else."""
    m.setattr(online, "min_value", lambda d: Const(-np.inf, d))


def floor_to_the_end(m: pytest.MonkeyPatch) -> None:
    """Rows of nothing but -inf come out as 0, not as NaN."""
    m.setattr(online, "limit", lambda d, sign: min_value(d))


def scaled_by_the_part(m: pytest.MonkeyPatch) -> None:
    """Terms are relative to the final maximum's buffer before it is final and floored."""
    m.setattr(online, "redirect_reads", lambda b, *a, **k: b)


def any_power(m: pytest.MonkeyPatch) -> None:
    m.setattr(online, "degree", lambda *a, **how: 1.0)


def any_reader(m: pytest.MonkeyPatch) -> None:
    m.setattr(online.Online, "_between", lambda self, nest, b, relative: ())


def battery() -> None:
    for dag, sums in (
        (relative(PROPORTIONAL["difference"], m=5), ["l", "o"]),
        (relative(PROPORTIONAL["square"], m=5), ["l", "o"]),
    ):
        for data in (real(dag), infinite(dag)):
            s = Schedule(dag)
            s.online("top", sums, 4)
            check(s, data, compiled=False)


def _each(s: Stmt, f: Callable[[Block], Block]) -> Stmt:
    return f(s) if isinstance(s, Block) else with_body(s, lambda x: _each(x, f))


@pytest.mark.slow
def test_the_battery_holds() -> None:
    battery()


@pytest.mark.fast(but=["floor_to_the_end", "any_power"])
@pytest.mark.parametrize(
    "mutant",
    [without_rescaling, without_a_floor, floor_to_the_end, scaled_by_the_part, any_power, any_reader],
    ids=lambda f: f.__name__,
)
def test_mutant_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, InterpError, ScheduleError)):
        battery()


# -- on GPUs -----------------------------------------------------------------------------------


@pytest.mark.fast("local")
@pytest.mark.parametrize("scope", ["local", "shared"])
def test_a_block_of_threads_walks_its_rows_in_parts(scope: str) -> None:
    """By hand: a thread a row, what a part holds in its registers or in shared memory."""
    need_cxx()
    c = case("attention")
    s = Schedule(c.dag, TARGET)
    rows, _ = s.split("y_i", (None, 4))
    block = s.fuse("y_z", "y_h", rows)
    s.bind(block, "blockIdx.x")
    for name in ("inv_sum", "mixed", "row_sum", "e", "row_max", "scores", "dot"):
        s.compute_at(name, block)
    part = s.online("row_max", ["row_sum", "mixed"], 3)
    for name in ("scores", "dot"):
        s.compute_at(name, part)
    for name in s.blocks():
        b = find_block(s.nest, name)
        row = b.binds[next(n for n, i in enumerate(b.iters) if i.var == "i")]
        (thread,) = E.variables(row) - {block}
        s.bind(thread, "threadIdx.x")
    for b in s.nest.buffers:
        if b.name not in s.nest.params:
            s.set_scope(b.name, scope)
    p = lower_simt(s.nest)
    obj = emulator.build(p)
    outputs = c.poisoned()
    assert emulator.run(obj, p, [*c.inputs, *outputs], 0) is None
    c.check(outputs, scope)
