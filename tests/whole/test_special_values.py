"""NaN, infinities and signed zeros mean what numpy makes of them: in literals, in reductions whatever their
order, and in every operator."""

from __future__ import annotations

import inspect
import itertools
import math
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from backends import results
from grid_cases import SMALL, Case, emulate
from helpers import check_compiled, check_interpreted, execute, host, interpret
from hypothesis import given, settings
from hypothesis import strategies as st
from space_cases import target

from autotune.codegen.llvm.emit import emit
from autotune.measure.check import Checker
from autotune.measure.inputs import judged
from schedules import expr as E
from schedules import ops, te
from schedules.dtypes import DTYPES, FLOATS
from schedules.errors import WorkloadError
from schedules.expr import Const
from schedules.expr_json import from_json, to_json
from schedules.ir.nest import initial
from schedules.model import Workload
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate
from schedules.te.flops import count_flops

MOST = float(np.finfo(np.float32).max)
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, MOST, -MOST)
special = st.sampled_from(SPECIAL)
PLACES = {"argmax": np.argmax, "argmin": np.argmin}


def rows(n: int, dtype: str = "float32") -> np.ndarray:
    """Rows of one special value, rows of ties, rows with some at places that lanes meet in another order."""
    rng = np.random.default_rng(n)
    made = [np.full(n, v) for v in SPECIAL]
    made += [np.where(np.arange(n) % 2, -0.0, 0.0), np.where(np.arange(n) % 2, 0.0, -0.0)]
    made += [rng.choice(SPECIAL, n) for _ in range(3)]  # some NaN
    made += [rng.choice(SPECIAL[1:], n) for _ in range(3)]  # none
    for v in SPECIAL:
        row = rng.integers(-3, 3, n).astype(float)
        row[[n // 50, n // 2, n - 1]] = v
        made.append(row)
    with np.errstate(over="ignore"):
        return np.stack(made).astype(dtype)


# --- literals ---------------------------------------------------------------------------------


def test_infinity_stands_wherever_a_number_does() -> None:
    assert te.inf == math.inf and "inf" in te.__all__
    x = te.placeholder((4,), name="x")
    k = te.reduce_axis(4, "k")
    least = te.reducer((te.inf,), lambda a, b: (te.minimum(a[0], b[0]),), "least")
    values = {
        "low": te.compute((4,), lambda i: te.maximum(x[i], -te.inf)),
        "high": te.compute((4,), lambda i: te.select(x[i] < te.inf, x[i], -te.inf)),
        "sum": te.compute((4,), lambda i: x[i] + te.inf),
        "literal": te.compute((4,), lambda i: -te.inf),
        "least": te.compute((), lambda: least(x[k], axis=k)),
    }
    data = np.array([1, math.inf, -math.inf, math.nan], np.float32)
    with np.errstate(invalid="ignore"):
        summed = data + np.float32(math.inf)
    want = {
        "low": data,
        "high": np.array([1, -math.inf, -math.inf, -math.inf], np.float32),
        "sum": summed,
        "literal": np.full(4, -math.inf, np.float32),
        "least": np.array(math.nan, np.float32),
    }
    dag = te.dag([x, *values.values()])
    expected = [want[name] for name in values]
    for got, right in zip(evaluate(dag, [data]), expected, strict=True):
        np.testing.assert_array_equal(got, right)
    check_interpreted(initial(dag), dag, [data], expected)
    check_compiled(dag, Schedule(dag).trace, host(), [data], expected)
    assert te.const(-te.inf, "float16").value == -math.inf


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("value, end", [(te.inf, "max"), (-te.inf, "min"), (np.float32(te.inf), "max")])
def test_an_integer_has_no_infinity(value: float, end: str, dtype: str) -> None:
    with pytest.raises(
        WorkloadError, match=rf'not a value of {dtype}; its end is te.{end}_value\("{dtype}"\)'
    ):
        te.const(value, dtype)
    x = te.placeholder((4,), dtype, name="x")
    with pytest.raises(WorkloadError, match=rf'has no infinity; use te.{end}_value\("{dtype}"\), or'):
        te.compute((4,), lambda i: te.maximum(x[i], value))
    y = te.compute((4,), lambda i: te.select(i < value, x[i], x[i] + 4))
    (got,) = evaluate(te.dag([x, y]), [np.arange(1, 5, dtype=dtype)])
    assert got.tolist() == ([1, 2, 3, 4] if value > 0 else [5, 6, 7, 8])
    with pytest.raises(WorkloadError, match="nan is not a value of int32; choose another dtype"):
        te.const(math.nan, "int32")


def test_the_finite_ends_say_so() -> None:
    for f in (te.max_value, te.min_value):
        assert "finite" in (f.__doc__ or "") and "te.inf" in (f.__doc__ or "")


def test_literals_are_equal_where_nothing_tells_them_apart() -> None:
    zero, minus, nan = (Const(v, "float32") for v in (0.0, -0.0, math.nan))
    assert zero != minus and minus == Const(-0.0, "float32") and zero == Const(0, "float32")
    assert nan == Const(float("nan"), "float32") and hash(nan) == hash(Const(float("nan"), "float32"))
    assert nan != zero and zero != nan and zero != Const(0.0, "float64") and Const(1, "int32") != Const(1)
    assert Const(True, "bool") != Const(1) and Const(2) != Const(3) and Const(1) != 1
    made = [Const(v, d) for d in ("float32", "float64") for v in SPECIAL] + [Const(0), Const(0, "int32")]
    assert len(set(made)) == len(made)
    for a, b in itertools.product(made, repeat=2):
        assert (a == b) is (a is b)
        assert (E.Call("exp", (a,)) == E.Call("exp", (b,))) is (a is b)
    for c in made:
        assert from_json(to_json(c)) == c


@pytest.mark.parametrize("joined", ["all", "any"])
def test_conditions_that_differ_in_the_sign_of_zero_are_two(joined: str) -> None:
    """1 / 0.0 is inf and 1 / -0.0 is -inf, so one condition holds and the other does not."""
    x = te.placeholder((3,), name="x")

    def above(i: te.Tensor, zero: float) -> Any:
        return te.const(1.0, "float32") / te.const(zero, "float32") > x[i]

    both = getattr(te, joined)
    y = te.compute((3,), lambda i: te.select(both(above(i, 0.0), above(i, -0.0)), 1.0, 2.0), "y")
    dag = te.dag([x, y])
    data = [np.array([0, math.inf, -math.inf], np.float32)]
    holds = [(np.float32(s) * math.inf > data[0]) for s in (1, -1)]
    want = [np.where(np.logical_and(*holds) if joined == "all" else np.logical_or(*holds), 1, 2)]
    want = [want[0].astype(np.float32)]
    np.testing.assert_array_equal(evaluate(dag, data), want)
    check_interpreted(initial(dag), dag, data, want)
    check_compiled(dag, Schedule(dag).trace, host(), data, want)


def test_copies_of_selects_keep_the_sign_of_their_zeros() -> None:
    """Vectors of memory or a constant, which code generation remembers by the constant; in lanes and not."""
    n = 24
    x = te.placeholder((n,), name="x")

    def value(i: te.Tensor, zero: float) -> Any:
        return te.const(1.0, "float32") / te.select(te.all(i >= 8, i < 16), x[i], zero)

    a = te.compute((n,), lambda i: value(i, 0.0), "a")
    b = te.compute((n,), lambda i: value(i, -0.0), "b")
    both = te.compute((n,), lambda i: te.select(x[i] > 0, value(i, 0.0), value(i, -0.0)), "both")
    dag = te.dag([x, a, b, both])
    assert count_flops(te.dag([x, both])) == 2 * n  # two divisions of what differs
    data = [np.where(np.arange(n) % 2, 2, -2).astype(np.float32)]
    inside = (np.arange(n) >= 8) & (np.arange(n) < 16)
    with np.errstate(divide="ignore"):
        want = [np.float32(1) / np.where(inside, data[0], np.float32(z)) for z in (0.0, -0.0)]
    want.append(np.where(data[0] > 0, *want))
    np.testing.assert_array_equal(evaluate(dag, data), want)
    s = Schedule(dag)
    for name in "ab":
        _, lanes = s.split(s.loops(name)[0], (None, 8))
        s.vectorize(lanes)
    check_interpreted(s.nest, dag, data, want)
    check_compiled(dag, s.trace, host(), data, want)


def test_workloads_differ_in_the_sign_of_zero_and_not_by_nan() -> None:
    def made(v: float) -> Workload:
        x = te.placeholder((3,), name="x")
        return Workload(te.dag([x, te.compute((3,), lambda i: te.maximum(x[i], v), "y")]))

    assert made(0.0) != made(-0.0) and made(0.0).digest != made(-0.0).digest
    assert made(math.nan) == made(float("nan")) and made(math.nan).digest == made(float("nan")).digest
    assert made(math.inf) != made(MOST)


# --- reductions -------------------------------------------------------------------------------


@cache
def documented(m: int, n: int, *, value: bool = True) -> ComputeDAG:
    """The argmax of the documentation; its ``value`` may be nobody's."""
    text = (inspect.getdoc(te.reducer) or "").split("numpy has it:\n\n")[1].split("\n\nWhere")[0]
    example = textwrap.dedent(text)
    a, k = te.placeholder((m, n), name="A"), te.reduce_axis(n, "k")
    names: dict[str, Any] = {"te": te, "A": a, "k": k, "m": m}
    exec(example, names)
    return te.dag([a, names["place"], *([names["value"]] if value else [])])


def test_the_documented_argmax_is_numpys() -> None:
    n = 600
    dag = documented(2, n)
    x = np.zeros((2, n), np.float32)
    x[0] = -math.inf
    x[1, [10, 500]] = math.nan
    x[1, 175] = 5
    place, value = evaluate(dag, [x])
    assert place.tolist() == [0, 10] and value[0] == -math.inf and math.isnan(value[1])
    check_compiled(dag, Schedule(dag).trace, host(), [x], [place, value])


def test_the_documented_argmax_joins_in_any_order() -> None:
    """Every two and three of special values at two or three places, and the neutral pair."""
    reducer = documented(1, 3).stages[0].reducer
    assert reducer is not None
    ends = [(c.value, d) for c, d in zip(reducer.identity, ("int32", "float32"), strict=True)]
    pairs = [(i, v) for i in range(3) for v in SPECIAL] + [(ends[0][0], ends[1][0])]

    def join(x: tuple[Any, ...], y: tuple[Any, ...]) -> tuple[Any, ...]:
        i, u, j, v = x[0], x[1], y[0], y[1]
        dag = joined()
        args = [np.asarray(a, d) for a, d in zip((i, u, j, v), ("int32", "float32") * 2, strict=True)]
        return tuple(evaluate(dag, [np.atleast_1d(a) for a in args]))

    @cache
    def joined() -> ComputeDAG:
        n = len(pairs) ** 3
        names = [te.placeholder((n,), d, c) for c, d in zip("iujv", ("int32", "float32") * 2, strict=True)]
        operands = {"x0": names[0], "x1": names[1], "y0": names[2], "y1": names[3]}

        def value(c: E.Expr) -> Callable[[te.Tensor], E.Expr]:
            return lambda q: E.rewrite(c, lambda e: operands[e.buffer][q] if isinstance(e, E.Load) else None)

        outs = [te.compute((n,), value(c)) for c in reducer.combine]
        return te.dag([*names, *outs])

    every = list(itertools.product(pairs, repeat=3))
    a, b, c = (tuple(np.array(z) for z in zip(*(t[n] for t in every), strict=True)) for n in range(3))
    left, right, turned = join(join(a, b), c), join(a, join(b, c)), join(c, join(b, a))
    apart = ~((a[0] == b[0]) | (b[0] == c[0]) | (a[0] == c[0]))  # no place has two values
    for other in (right, turned):
        for x, y in zip(left, other, strict=True):
            np.testing.assert_array_equal(x[apart], y[apart])
            assert (np.signbit(x) == np.signbit(y))[apart & ~np.isnan(x)].all()
    alone = a[0] < 3
    neutral = join(a, tuple(np.full_like(x, e) for x, (e, _) in zip(a, ends, strict=True)))
    for x, y in zip(neutral, a, strict=True):
        np.testing.assert_array_equal(x[alone], y.astype(x.dtype)[alone])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(row=st.lists(special, min_size=1, max_size=21), dtype=st.sampled_from(FLOATS))
def test_places_and_extremes_of_any_row(row: list[float], dtype: str) -> None:
    with np.errstate(over="ignore"):
        x = np.array([row], np.float32)
        narrow = x.astype(DTYPES[dtype].numpy)
    place, value = evaluate(documented(1, len(row)), [x])
    assert place[0] == x[0].argmax()
    np.testing.assert_array_equal(value, x[0, place])
    if not math.isnan(value[0]):
        assert np.signbit(value[0]) == np.signbit(x[0, place[0]])
    for name, of in PLACES.items():
        w = ops.workload(name, {"m": 1, "n": len(row)}, dtype)
        want = [of(narrow, axis=1).astype(np.int32)]
        assert evaluate(w.dag, [narrow])[0][0] == want[0][0] == ops.reference(w, [narrow])[0][0]
        assert interpret(initial(w.dag), w.dag, [narrow])[0][0] == want[0][0]


@pytest.mark.slow
@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("n", [67, 203])
def test_the_documented_argmax_is_numpys_in_every_sketch(n: int, value: bool) -> None:
    x = rows(n)
    dag = documented(len(x), n, value=value)
    place = x.argmax(1)
    want = [place.astype(np.int32), x[np.arange(len(x)), place]][: 2 if value else 1]
    for threads in (1, 2):
        space = derive(dag, target(threads))
        for k in range(len(space.sketches)):
            some = space.sample(k, 64, np.random.default_rng(0))
            for row in some[space.valid(k, some)][:4]:
                check_compiled(dag, space.trace(k, row), space.target, [x], want)


@pytest.mark.fast("whole")
@pytest.mark.parametrize("tail", ["guard", "whole"])
def test_a_reduction_of_pairs_runs_in_lanes(tail: str) -> None:
    """By hand: partial results by lanes, of which each has temporaries of its own."""
    n = 24 if tail == "whole" else 19
    x = rows(n)[::3]
    dag = documented(len(x), n)
    s = Schedule(dag)
    name = s.blocks()[0]
    _, inner = s.split(s.loops(name)[-1], (None, 8))
    partial = s.rfactor(name, inner)
    s.vectorize(s.loops(partial)[-1])
    place = x.argmax(1)
    want = [place.astype(np.int32), x[np.arange(len(x)), place]]
    check_interpreted(s.nest, dag, [x], want)
    check_compiled(dag, s.trace, host(), [x], want)


def test_partial_pairs_are_compared_in_vectors() -> None:
    dag = documented(64, 1024)
    space = derive(dag, target())
    some = space.sample(0, 16, np.random.default_rng(0))
    trace = space.trace(0, some[space.valid(0, some)][0])
    text = emit(lower(Schedule.replay(dag, trace, space.target).nest), space.target).text
    assert "fcmp olt <8 x float>" in text and "select <8 x i1>" in text


@pytest.mark.fast("argmin-int64")
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "int64"])
@pytest.mark.parametrize("name", PLACES)
def test_places_are_numpys_in_every_sketch(name: str, dtype: str) -> None:
    n = 75
    x = rows(n, dtype) if dtype in FLOATS else np.random.default_rng(0).integers(-2, 3, (5, n)).astype(dtype)
    if dtype not in FLOATS:
        info = np.iinfo(dtype)
        x[0], x[1] = info.min, info.max
        x[2, [7, 60]], x[3, [9, 61]] = info.max, info.min
    w = ops.workload(name, {"m": len(x), "n": n}, dtype)
    want = [PLACES[name](x, axis=1).astype(np.int32)]
    check_compiled(w.dag, Schedule(w.dag).trace, host(), [x], want)
    for threads in (1, 2) if dtype == "float32" else (1,):
        space = derive(w.dag, target(threads))
        for k in range(len(space.sketches)):
            some = space.sample(k, 64, np.random.default_rng(0))
            for row in some[space.valid(k, some)][:3]:
                check_compiled(w.dag, space.trace(k, row), space.target, [x], want)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACES)
def test_places_are_numpys_on_a_grid(name: str) -> None:
    x = rows(130)
    w = ops.workload(name, {"m": len(x), "n": 130})
    emulate(Case(w.dag, (x,), (PLACES[name](x, axis=1).astype(np.int32),)), 6)


@pytest.mark.slow
def test_the_documented_argmax_is_numpys_on_a_grid() -> None:
    x = rows(130)
    place = x.argmax(1)
    want = (place.astype(np.int32), x[np.arange(len(x)), place])
    emulate(Case(documented(len(x), 130), (x,), want), 4)
    emulate(Case(documented(len(x), 130, value=False), (x,), want[:1]), 4)


REDUCTIONS: dict[str, tuple[Callable[..., te.Reduction], Any]] = {
    "max": (te.max, np.max),
    "min": (te.min, np.min),
    "sum": (te.sum, np.sum),
    "prod": (te.prod, np.prod),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_special_values_are_numpys(name: str) -> None:
    """In every sketch, along memory and across it. (Which zero is the larger is open.)"""
    of, numpys = REDUCTIONS[name]
    x = rows(75)

    def reduced(shape: tuple[int, ...], axis: int) -> ComputeDAG:
        a, k = te.placeholder(shape, name="A"), te.reduce_axis(75, "k")
        return te.dag([a, te.compute((len(x),), lambda i: of(a[i, k] if axis else a[k, i], axis=k), "y")])

    for axis in (1, 0):
        data = np.ascontiguousarray(x if axis else x.T)
        dag = reduced(data.shape, axis)
        with np.errstate(all="ignore"):
            want = [numpys(data, axis=axis)]
        # finite sums and products near the end are infinite in some orders
        ends = np.isfinite(x).all(1) & (np.abs(x) == MOST).any(1)
        sure = ~ends if name in ("sum", "prod") else np.full(len(x), True)
        space = derive(dag, target())
        for s in range(len(space.sketches)):
            some = space.sample(s, 64, np.random.default_rng(0))
            for row in some[space.valid(s, some)][:2]:
                for got in execute(dag, space.trace(s, row), space.target, [data]).values():
                    np.testing.assert_array_equal(got[0][sure], want[0][sure])


# --- operators --------------------------------------------------------------------------------


def kinds(x: np.ndarray) -> np.ndarray:
    """Of each element: finite, an infinity, NaN."""
    return np.where(np.isnan(x), 2, np.where(np.isinf(x), np.sign(x), 0))


def one_special(dag: ComputeDAG) -> list[list[np.ndarray]]:
    """Inputs with one infinity or NaN in one of them: at its first place, at its last, somewhere."""
    out = []
    rng = np.random.default_rng(0)
    for n, t in enumerate(dag.inputs):
        if not np.issubdtype(np.dtype(t.dtype), np.floating):
            continue  # codes have neither
        size = math.prod(t.shape)
        for value, at in itertools.product((math.inf, math.nan), (0, size - 1, int(rng.integers(size)))):
            data = [rng.standard_normal(x.shape).astype(x.dtype) for x in dag.inputs]
            data[n].flat[at] = value
            out.append(data)
    return out


OPERATORS = [
    (n, layout) for n in SMALL if "float32" in ops.get(n).dtypes for layout in ops.get(n).layouts or (None,)
]
ODD: list[tuple[str, str | None, dict[str, int]]] = [
    ("conv2d_transpose", layout, p)
    for layout in ("NHWC", "NCHW")
    for p in (
        {"h": 4, "w": 4, "ci": 3, "co": 8, "k": 3, "stride": 2},
        {"h": 3, "w": 2, "ci": 2, "co": 3, "kh": 2, "kw": 5, "stride": 3, "padding": 2},
        {"h": 2, "w": 3, "ci": 2, "co": 1, "k": 1, "stride": 3},
        {"h": 3, "w": 4, "ci": 2, "co": 3, "k": 5, "padding": 1},  # a reduction over taps
    )
]


@pytest.mark.fast("add-*", "permute-*", "matmul-*", "softmax-*", "reduce_sum-*", "arg*", "norm2-*")
@pytest.mark.parametrize("name, layout, params", [(n, x, SMALL[n]) for n, x in OPERATORS] + ODD)
def test_expression_reference_and_loops_agree_on_what_is_finite(
    name: str, layout: str | None, params: dict[str, Any]
) -> None:
    w = ops.workload(name, params, "float32", layout)
    trace = Schedule(w.dag).trace
    for data in one_special(w.dag):
        with np.errstate(all="ignore"):
            want = ops.reference(w, data)[0]
        found = {"expression": evaluate(w.dag, data), **execute(w.dag, trace, host(), data)}
        for what, got in found.items():
            np.testing.assert_array_equal(kinds(got[0]), kinds(want), what)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_transposed_convolution_multiplies_no_zero_of_its_own(layout: str) -> None:
    """In every sketch. One infinite element reaches 9 outputs of 8 channels, one weight those of its tap."""
    params = {"h": 4, "w": 4, "ci": 3, "co": 8, "k": 3, "stride": 2}
    w = ops.workload("conv2d_transpose", params, layout=layout)
    data = [np.ones(t.shape, np.float32) for t in w.dag.inputs]
    element, weight = ([x.copy() for x in data] for _ in range(2))
    element[0].flat[0] = weight[1].flat[0] = math.inf
    for arrays, bad in ((element, 72), (weight, 16)):
        want = ops.reference(w, arrays)
        assert want[0].size == 648 and (~np.isfinite(want[0])).sum() == bad
        np.testing.assert_array_equal(evaluate(w.dag, arrays), want)
        space = derive(w.dag, target())
        for k in range(len(space.sketches)):
            some = space.sample(k, 64, np.random.default_rng(0))
            for row in some[space.valid(k, some)][:2]:
                check_compiled(w.dag, space.trace(k, row), space.target, arrays, want)
        emulate(Case(w.dag, tuple(arrays), tuple(want)), 2)


@pytest.mark.fast("erf-float64")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fn", ["exp", "log", "sqrt", "tanh", "erf", "sigmoid"])
def test_functions_at_the_ends_of_their_range(fn: str, dtype: str) -> None:
    """Denormals among them: sigmoid had none on GPUs."""
    span = 300 if dtype == "float32" else 2000
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 1e-40, -1e-40, 3e38, -3e38, 88.7, 88.8, -103, -104]
    near = np.random.default_rng(0).standard_normal(500) * 1e-3
    points = np.concatenate([np.linspace(-span, span, 1000), np.linspace(-110, -80, 500), near, ends])
    a = points.astype(dtype)
    x = te.placeholder(a.shape, dtype, "x")
    dag = te.dag([x, te.compute(a.shape, lambda i: getattr(te, fn)(x[i]), "y")])
    right = judged(dag, [a])
    for name, outputs in results(dag, [a]):
        reason = Checker(dag.outputs, right.reference, right.bounds).check(outputs, 0).reason
        assert not reason, f"{name}: {reason}"
