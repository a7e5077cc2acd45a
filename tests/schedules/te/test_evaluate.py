"""The numpy evaluator against one Python loop per point."""

from __future__ import annotations

import functools
import itertools
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autotune as at
from schedules import expr as E
from schedules import te
from schedules.errors import WorkloadError
from schedules.expr import Expr
from schedules.functions import FUNCTIONS
from schedules.ir import interp
from schedules.ir.nest import initial
from schedules.schedule import Schedule
from schedules.te import contraction
from schedules.te import evaluator as evaluate_module
from schedules.te.compute_dag import Axis, ComputeDAG
from schedules.te.contraction import contract
from schedules.te.rounding import evaluate_with_bounds

small = st.integers(1, 7)


def scalar(e: E.Expr, env: dict[str, int], arrays: dict[str, Any]) -> Any:
    """One value, in Python numbers."""
    match e:
        case E.Const(value=v):
            return v
        case E.Var(name=n):
            return env[n]
        case E.Load(buffer=b, indices=ix):
            at = tuple(scalar(i, env, arrays) for i in ix)
            assert all(0 <= i < n for i, n in zip(at, np.shape(arrays[b]), strict=True)), (E.show(e), at)
            return arrays[b][at].item() if ix else arrays[b]
        case E.Select(cond=c, a=a, b=b):
            return scalar(a if scalar(c, env, arrays) else b, env, arrays)
        case E.Logic(op="not", args=args):
            return not scalar(args[0], env, arrays)
        case E.Logic(op=op, args=args):
            return (all if op == "and" else any)(scalar(x, env, arrays) for x in args)
        case E.Cast(dtype=d, a=a):
            x = scalar(a, env, arrays)
            return float(np.dtype(d).type(x)) if E.is_float(d) else int(x)
        case E.Call(fn=fn, args=args):
            return float(FUNCTIONS[fn].of(*(np.float64(scalar(a, env, arrays)) for a in args)))
        case E.Binary(op="/", a=a, b=b):
            return scalar(a, env, arrays) / scalar(b, env, arrays)
        case E.Binary(op=op, a=a, b=b) | E.Compare(op=op, a=a, b=b):
            return E.FOLD[op](scalar(a, env, arrays), scalar(b, env, arrays))
    raise AssertionError(e)


def naive(dag: ComputeDAG, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The meaning of a DAG, point by point and in order."""
    arrays: dict[str, Any] = {t.name: a for t, a in zip(dag.inputs, inputs, strict=True)}
    for s in dag.stages:
        outs = [np.zeros(t.shape, t.dtype) for t in s.outputs]
        for point in itertools.product(*(range(a.extent) for a in s.axes)):
            env = {a.var: i for a, i in zip(s.axes, point, strict=True)}
            if s.reducer is None:
                vals = [scalar(v, env, arrays) for v in s.values]
            else:
                vals = [c.value for c in s.reducer.identity]
                for r in itertools.product(*(range(a.extent) for a in s.reduce_axes)):
                    inner = env | {a.var: i for a, i in zip(s.reduce_axes, r, strict=True)}
                    new = [scalar(v, inner, arrays) for v in s.values]
                    ops = {f"x{i}": x for i, x in enumerate(vals)} | {f"y{i}": y for i, y in enumerate(new)}
                    vals = [scalar(c, {}, ops) for c in s.reducer.combine]
            for out, v in zip(outs, vals, strict=True):
                out[point] = v
        arrays |= {t.name: o for t, o in zip(s.outputs, outs, strict=True)}
    return [arrays[n] for n in dag.outputs]


def data(dag: ComputeDAG, seed: int = 0) -> list[np.ndarray]:
    """Small whole numbers, exact under any order of summation."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-8, 9, t.shape).astype(t.dtype) for t in dag.inputs]


def check(dag: ComputeDAG, seed: int = 0, rtol: float = 0) -> list[np.ndarray]:
    inputs = data(dag, seed)
    got, want = te.evaluate(dag, inputs), naive(dag, inputs)
    for t, g, w in zip(dag.outputs, got, want, strict=True):
        assert g.dtype == dag.tensors[t].dtype and g.shape == dag.tensors[t].shape
        np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol)
    return got


@settings(max_examples=20, deadline=None)
@given(m=small, n=small, k=small, dtype=st.sampled_from(["float32", "float64", "int32", "int64"]))
def test_matmul_with_epilogue(m: int, n: int, k: int, dtype: str) -> None:
    a, b = te.placeholder((m, k), dtype), te.placeholder((k, n), dtype)
    r = te.reduce_axis(k)
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r))
    d = te.compute((m, n), lambda i, j: te.maximum(c[i, j] - 3, 0))
    check(te.dag([a, b, d]), m * 100 + n)


@settings(max_examples=30, deadline=None)
@given(
    h=st.integers(1, 6), kh=st.integers(1, 3), ch=st.integers(1, 3), pad=st.integers(0, 2),
    stride=st.integers(1, 3),
    dtype=st.sampled_from(["float32", "int32"]), points=st.sampled_from([1, 7, 2**19]),
)  # fmt: skip
def test_padded_strided_window(
    h: int, kh: int, ch: int, pad: int, stride: int, dtype: str, points: int
) -> None:
    size = max(h, kh)
    x, w = te.placeholder((size, ch), dtype), te.placeholder((kh, ch), dtype)
    z = te.compute(
        (size + 2 * pad, ch),
        lambda i, c: te.select(te.all(i >= pad, i < size + pad), x[i - pad, c], 0),
    )
    r, s = te.reduce_axis(kh), te.reduce_axis(ch)
    out = (size + 2 * pad - kh) // stride + 1
    y = te.compute((out,), lambda p: te.sum(z[p * stride + r, s] * w[r, s], axis=(r, s)))
    top = te.compute((out,), lambda p: te.max(z[p * stride + r, s] + 0, axis=(r, s)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate_module, "MAX_POINTS", points)
        check(te.dag([x, w, y, top]), h)


@pytest.mark.parametrize("points", [1, 5, 64, 2**19])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_every_builtin_reduction_in_blocks(points: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate_module, "MAX_POINTS", points)
    x = te.placeholder((3, 4, 5), dtype)
    a, b = te.reduce_axis(4), te.reduce_axis(5)
    for reduce in (te.sum, te.max, te.min, te.prod):

        def body(i: E.Expr, reduce: Any = reduce) -> Any:
            return reduce(te.maximum(te.minimum(x[i, a, b], 2), -2), axis=(a, b))

        y = te.compute((3,), body)
        check(te.dag([x, y]), 3)
    z = te.compute((), lambda: te.sum(x[0, a, b], axis=(a, b)))
    check(te.dag([x, z]))


ARGMAX = te.reducer(
    lambda i, v: (-1, te.min_value(v)),
    lambda x, y: (te.select(x[1] >= y[1], x[0], y[0]), te.maximum(x[1], y[1])),
    "argmax",
)
SOFTMAX_SUM = te.reducer(
    lambda m, s: (te.min_value(m), 0),
    lambda x, y: (
        te.maximum(x[0], y[0]),
        x[1] * te.exp(x[0] - te.maximum(x[0], y[0])) + y[1] * te.exp(y[0] - te.maximum(x[0], y[0])),
    ),
    "softmax_sum",
)


@settings(max_examples=20, deadline=None)
@given(m=small, n=st.integers(1, 19), points=st.sampled_from([1, 4, 2**19]))
def test_argmax_takes_the_first_of_equals(m: int, n: int, points: int) -> None:
    x = te.placeholder((m, n), name="x")
    k = te.reduce_axis(n)
    place, value = te.compute((m,), lambda i: ARGMAX((te.cast(k, "int32"), x[i, k]), axis=k))
    dag = te.dag([x, place, value])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate_module, "MAX_POINTS", points)
        got = check(dag, n)
    np.testing.assert_array_equal(got[0], data(dag, n)[0].argmax(1))


def test_online_softmax() -> None:
    m, n = 5, 37
    x = te.placeholder((m, n), "float64", "x")
    k = te.reduce_axis(n)
    top, total = te.compute((m,), lambda i: SOFTMAX_SUM((x[i, k], te.const(1, "float64")), axis=k))
    y = te.compute((m, n), lambda i, j: te.exp(x[i, j] - top[i]) / total[i])
    dag = te.dag([x, y])
    got = check(dag, rtol=1e-12)
    e = np.exp(data(dag)[0] - data(dag)[0].max(1, keepdims=True))
    np.testing.assert_allclose(got[0], e / e.sum(1, keepdims=True), rtol=1e-12)


def test_mean_and_variance_by_one_pass() -> None:
    def combine(x: Any, y: Any) -> Any:
        n = x[0] + y[0]
        d = y[1] - x[1]
        safe = te.maximum(n, 1.0)
        return n, x[1] + d * y[0] / safe, x[2] + y[2] + d * d * x[0] * y[0] / safe

    welford = te.reducer((0, 0, 0), combine, "welford")
    x = te.placeholder((4, 33), "float64", "x")
    k = te.reduce_axis(33)
    one, zero = te.const(1, "float64"), te.const(0, "float64")
    n, mean, m2 = te.compute((4,), lambda i: welford((one, x[i, k], zero), axis=k))
    a = np.random.default_rng(0).standard_normal((4, 33))
    got = te.evaluate(te.dag([x, n, mean, m2]), [a])
    np.testing.assert_allclose(got[1], a.mean(1), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(got[2] / got[0], a.var(1), rtol=1e-12)


def test_functions_and_casts() -> None:
    x = te.placeholder((40,), "float64", "x")
    fns: dict[Callable[..., E.Expr], Callable[[float], float]] = {
        te.exp: math.exp, te.tanh: math.tanh, te.erf: math.erf, te.abs: abs, te.floor: math.floor,
        te.log: lambda v: math.log(v) if v > 0 else math.nan,
        te.sqrt: lambda v: math.sqrt(v) if v >= 0 else math.nan,
        te.sigmoid: lambda v: 1 / (1 + math.exp(-v)), te.expm1: math.expm1, te.ceil: math.ceil,
        te.sin: math.sin, te.cos: math.cos, te.tan: math.tan, te.round: round,
    }  # fmt: skip
    outs = te.compute((40,), lambda i: tuple(f(x[i]) for f in fns) + (te.cast(x[i] * 1.5, "int32"),))
    a = np.linspace(-4, 5, 40)
    with np.errstate(all="ignore"):
        got = te.evaluate(te.dag([x, *outs]), [a])
    for (f, meaning), g in zip(fns.items(), got, strict=False):
        want = [meaning(v) for v in a.tolist()]
        np.testing.assert_allclose(g, want, rtol=1e-14, err_msg=f.__name__)
    assert got[-1].dtype == np.int32 and got[-1].tolist() == [math.trunc(v * 1.5) for v in a.tolist()]


def test_int_arithmetic_rounds_down_and_wraps() -> None:
    x = te.placeholder((9,), "int32", "x")
    y = te.compute((9,), lambda i: (x[i] // 4, x[i] % 4, te.abs(x[i])))
    a = np.arange(-4, 5, dtype=np.int32)
    got = te.evaluate(te.dag([x, *y]), [a])
    assert got[0].tolist() == [v // 4 for v in range(-4, 5)] and got[1].tolist() == [
        v % 4 for v in range(-4, 5)
    ]
    assert got[2].tolist() == [abs(v) for v in range(-4, 5)]
    k, r = te.reduce_axis(9), te.reduce_axis(9)
    plain = te.compute((1,), lambda i: te.sum(x[k], axis=k))
    squares = te.compute((1,), lambda i: te.sum((x[r] + 1) * x[r], axis=r))
    got = te.evaluate(te.dag([x, plain, squares]), [np.full(9, 2**30 + 1, np.int32)])
    for g, total in zip(got, (9 * (2**30 + 1), 9 * (2**30 + 1) * (2**30 + 2)), strict=True):
        assert g[0] == (total + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_a_sign_turns_with_zeros_too(dtype: str) -> None:
    """1 / -x tells the zeros apart."""
    x = te.placeholder((5,), dtype, "x")
    y = te.compute((5,), lambda i: -x[i], "y")
    z = te.compute((5,), lambda i: 1.0 / te.cast(te.cast(-x[i], "float32"), "float64"), "z")
    data = np.array([0, 1, -2, 3, 0], dtype)
    if dtype != "int32":
        data[-1] = -0.0
    dag = te.dag([x, y, z])
    with np.errstate(divide="ignore"):
        want = [(-data).astype(y.dtype), 1 / (-data).astype(np.float64)]
        arrays = {"x": data, "y": np.empty_like(want[0]), "z": np.empty_like(want[1])}
        interp.run(initial(dag), arrays)
    for got in (te.evaluate(dag, [data]), [arrays["y"], arrays["z"]], at.build(Schedule(dag))(data)):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(np.signbit(a), np.signbit(b))


def test_float32_sums_are_accumulated_in_float64() -> None:
    n = 20_000
    x = te.placeholder((n,), name="x")
    k, r = te.reduce_axis(n), te.reduce_axis(n)
    a = np.random.default_rng(1).standard_normal(n).astype(np.float32)
    s = te.compute((1,), lambda i: te.sum(x[k], axis=k))
    q = te.compute((1,), lambda i: te.sum(x[r] * x[r] + 0, axis=r))
    got = te.evaluate(te.dag([x, s, q]), [a])
    assert got[0][0] == np.float32(math.fsum(a.tolist()))
    assert got[1][0] == np.float32(math.fsum(v * v for v in a.astype(np.float64).tolist()))


def test_the_side_that_is_not_taken_may_lie_out_of_bounds() -> None:
    x = te.placeholder((5,), "int32", "x")
    y = te.compute((9,), lambda i: te.select(te.equal(i % 2, 0), x[i // 2], -x[(i - 1) // 2]))
    assert te.evaluate(te.dag([x, y]), [np.arange(5, dtype=np.int32)])[0].tolist() == [
        0,
        0,
        1,
        -1,
        2,
        -2,
        3,
        -3,
        4,
    ]


def test_contraction_equals_plain_evaluation() -> None:
    """The fast path, on its own, for batches, grouped channels, diagonals and unshared sums."""
    x, w = te.placeholder((2, 7, 6), "float64", "x"), te.placeholder((6, 3, 2), "float64", "w")
    c, r, q = te.reduce_axis(2, "c"), te.reduce_axis(3, "r"), te.reduce_axis(6, "q")
    bodies = {
        (2, 3, 6): lambda n, p, o: te.sum(x[n, p * 2 + r, (o // 2) * 2 + c] * w[o, r, c], axis=(r, c)),
        (2, 6): lambda n, o: te.sum(x[n, o, o] * w[o, r, c], axis=(r, c)),
        (2, 2): lambda n, o: te.sum(x[n, 6, q] * w[q, r, o], axis=(q, r)),
        (6,): lambda i: te.sum(x[c, i, q] * x[c, i + 1, q] * w[i, r, 0], axis=(c, q, r)),
        (7, 7): lambda i, j: te.sum(x[c, i, q] * x[c, j, q], axis=(c, q)),
        (2, 5): lambda n, j: te.sum(x[n, 3, q] * x[n, 2, q], axis=q),
    }
    for shape, fn in bodies.items():
        dag = te.dag(
            [*([x, w] if shape in ((2, 3, 6), (2, 6), (2, 2), (6,)) else [x]), te.compute(shape, fn, "y")]
        )
        arrays = {t.name: a for t, a in zip(dag.inputs, data(dag), strict=True)}
        fast = contract(dag.stages[0], arrays)
        assert fast is not None, shape
        np.testing.assert_array_equal(fast, naive(dag, data(dag))[0], err_msg=str(shape))


def test_blocks_cover_the_domain_in_order() -> None:
    axes = [Axis("i", 3), Axis("j", 5), Axis("k", 2)]
    for limit in (1, 2, 3, 7, 10, 11, 30, 100):
        seen = []
        for block in evaluate_module.blocks(axes, limit):
            assert math.prod(hi - lo for lo, hi in block) <= limit
            seen += list(itertools.product(*(range(*b) for b in block)))
        assert seen == list(itertools.product(range(3), range(5), range(2)))


def test_inputs_are_checked() -> None:
    x = te.placeholder((3,), name="x")
    dag = te.dag([x, te.compute((3,), lambda i: x[i] + 1)])
    with pytest.raises(WorkloadError, match=r"0 arrays given for 1 inputs \(x\)"):
        te.evaluate(dag, [])
    with pytest.raises(WorkloadError, match=r"input x has shape \[4\] float32"):
        te.evaluate(dag, [np.zeros(4, np.float32)])
    with pytest.raises(WorkloadError, match="float64; the operator needs"):
        te.evaluate(dag, [np.zeros(3)])


def test_products_of_more_factors_than_numpy_takes() -> None:
    """numpy's einsum has 32 or 64 arguments at most."""
    xs = [te.placeholder((3,), "float32", f"x{n}") for n in range(70)]
    k = te.reduce_axis(3, "k")
    y = te.compute((), lambda: te.sum(functools.reduce(lambda a, b: a * b, (x[k] for x in xs)), axis=k), "y")
    arrays = [np.array([1, -1, 2], np.float32), *[np.array([1, 1, 1], np.float32)] * 69]
    np.testing.assert_array_equal(te.evaluate(te.dag([*xs, y]), arrays)[0], 2.0)
    (found,) = evaluate_with_bounds(te.dag([*xs, y]), arrays).values
    assert found == 2


@pytest.mark.parametrize(("groups", "each", "depth", "shuffled"), [(3, 4, 5, 3), (2, 6, 4, 2), (4, 3, 3, 1)])
def test_groups_are_summed_a_group_at_a_time(
    monkeypatch: pytest.MonkeyPatch, groups: int, each: int, depth: int, shuffled: int
) -> None:
    """Not an output channel at a time, which takes as long as all else."""
    channels = groups * depth
    x, w = te.placeholder((channels, 7), name="x"), te.placeholder((groups * each, depth), name="w")
    c = te.reduce_axis(depth, "c")

    def value(o: Expr, p: Expr) -> te.Reduction:
        at = o // each * depth + c
        return te.sum(x[at % shuffled * (channels // shuffled) + at // shuffled, p] * w[o, c], axis=c)

    dag = te.dag([x, w, te.compute((groups * each, 7), value, "y")])
    a = np.arange(channels * 7, dtype=np.float32).reshape(channels, 7) % 5
    b = np.arange(groups * each * depth, dtype=np.float32).reshape(-1, depth) % 5
    order = [k % shuffled * (channels // shuffled) + k // shuffled for k in range(channels)]
    parts = zip(np.split(a[order], groups), np.split(b, groups), strict=True)
    monkeypatch.setattr(contraction, "MAX_CALLS", groups * depth)
    assert contraction.is_contracted(dag.stages[0])
    assert np.array_equal(te.evaluate(dag, [a, b])[0], np.concatenate([v @ u for u, v in parts]))


def test_a_dtype_of_another_library_is_known_without_it() -> None:
    code = (
        "import sys, numpy as np; from schedules import te; x = te.placeholder((3,), 'float32', 'x');"
        "y = te.compute((3,), lambda i: te.cast(te.cast(x[i], 'bfloat16'), 'float32') + te.cast("
        "te.const(1.0, 'float8_e5m2'), 'float32'), 'y'); assert 'ml_dtypes' not in sys.modules;"
        "from schedules.te.rounding import evaluate_with_bounds as b; a = [np.array([1, 2, 257], 'float32')];"
        "print(te.evaluate(te.dag([x, y]), a)[0].tolist(), b(te.dag([x, y]), a).values[0].tolist())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[2.0, 3.0, 257.0] [2.0, 3.0, 257.0]"
