"""The bound of a reference: right kernels lie inside it; what leaves a term out, or adds in a poor order,
does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers import checker, host
from hypothesis import given, settings
from hypothesis import strategies as st

import autotune as at
from autotune.backends.building.from_trace import build_object
from autotune.codegen.llvm.compile import load_object
from autotune.measure import Measurer
from autotune.measure.check import Checker
from autotune.measure.inputs import Draw, Tolerance, draws, judged
from autotune.settings import SettingsError
from autotune.tuning.options import TuneOptions
from schedules import ops, te
from schedules.model import Trace
from schedules.te.compute_dag import ComputeDAG
from schedules.te.rounding import evaluate_with_bounds


def check(draw: Draw, dag: ComputeDAG, outputs: Sequence[np.ndarray]) -> str:
    return Checker(dag.outputs, draw.reference, draw.bounds).check(outputs, 0).reason


def plain(dag: ComputeDAG, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the plain loops give, compiled."""
    loaded = load_object(build_object(dag, Trace(), host()))
    outputs = [np.empty(dag.tensors[n].shape, dag.tensors[n].dtype) for n in dag.outputs]
    loaded.run([x.ctypes.data for x in (*inputs, *outputs)])
    return outputs


def elementwise(f: Callable[[te.Expr], te.Expr], n: int = 1000) -> ComputeDAG:
    a = te.placeholder((n,), name="A")
    return te.dag([a, te.compute((n,), lambda i: f(a[i]), "B")])


# -- right kernels that were refused ----------------------------------------------------------------------


def quantised(m: int = 64, n: int = 96, k: int = 512) -> ComputeDAG:
    a, b, r = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B"), te.reduce_axis(k, "r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "C")
    q = te.compute((m, n), lambda i, j: te.cast(te.floor(127.0 * c[i, j] + 0.5), "int32"), "Q")
    return te.dag([a, b, q])


def test_both_sides_of_a_step_are_right_and_nothing_else() -> None:
    dag = quantised()
    draw = draws(dag)[0]
    a, b = draw.inputs
    seen = 0
    for order in (slice(None), slice(None, None, -1)):
        c = np.add.accumulate(a[:, order].T[:, :, None] * b[order][:, None], axis=0, dtype="float32")[-1]
        q = np.floor(np.float32(127) * c + np.float32(0.5)).astype("int32")
        seen += int((q != draw.reference[0]).sum())
        assert check(draw, dag, [q]) == ""
    assert seen, "the orders fall on both sides of some step"
    for off in (2, -2):
        wrong = draw.reference[0].copy()
        wrong[3, 4] += off
        assert "1 of 6144 elements wrong, first at [3, 4]" in check(draw, dag, [wrong])
    settled = draw.bounds[0] == 0
    assert settled.mean() > 0.9  # few are near a step
    wrong = draw.reference[0] + settled
    assert f"{int(settled.sum())} of 6144 elements wrong" in check(draw, dag, [wrong.astype("int32")])


@pytest.mark.slow
def test_an_epilogue_that_quantises_can_be_measured() -> None:
    dag = quantised(256, 256, 512)
    with Measurer(dag, host()) as m:
        (got,) = m.measure([Trace()])
    assert got.status == "ok", got.reason


def test_a_sum_of_deviations_from_the_mean_is_right() -> None:
    a, k, r = te.placeholder((50, 1000), name="A"), te.reduce_axis(1000, "k"), te.reduce_axis(1000, "r")
    mean = te.compute((50,), lambda i: te.sum(a[i, k], axis=k), "S")
    rest = te.compute((50,), lambda i: te.sum(a[i, r] - mean[i] / 1000.0, axis=r), "R")
    dag = te.dag([a, rest])
    for draw in draws(dag):
        assert check(draw, dag, plain(dag, draw.inputs)) == ""
    x = draws(dag)[0].inputs[0]
    wrong = (
        (x.astype("float64") - x.astype("float64")[:, :-1].sum(1)[:, None] / 1000).sum(1).astype("float32")
    )
    assert "elements wrong" in check(judged(dag, [x]), dag, [wrong])


def test_what_cancels_is_right() -> None:
    dag = elementwise(lambda x: te.sigmoid(x) + te.sigmoid(-x) - 1.0)
    for draw in draws(dag):
        out = plain(dag, draw.inputs)
        assert check(draw, dag, out) == ""
        assert np.abs(out[0]).max() < 1e-6
        assert "elements wrong" in check(draw, dag, [out[0] + np.float32(1e-5)])


def quantised_then(use: str) -> ComputeDAG:
    """What integers that were rounded from a product are used for."""
    m, n, k = 12, 16, 512
    a, b, r = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B"), te.reduce_axis(k, "r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "C")
    q = te.compute((m, n), lambda i, j: te.cast(te.floor(1000.0 * c[i, j]), "int32"), "Q")
    w, p = te.placeholder((n, 5), "int32", "W"), te.reduce_axis(n, "p")
    uses = {
        "a product": lambda i, j: te.sum(q[i, p] * w[p, j], axis=p),
        "a sum": lambda i, j: te.sum(q[i, p] + w[0, j], axis=p),
        "a sum of 64 bits": lambda i, j: te.sum(
            te.cast(q[i, p], "int64") * te.cast(w[p, j], "int64"), axis=p
        ),
        "products of neighbours": lambda i, j: te.sum(q[i, p] * q[i, p] * w[p, j], axis=p),
        "what wraps": lambda i, j: te.prod(q[i, p] + w[0, j], axis=p),
    }
    return te.dag([a, b, w, te.compute((m, 5), uses[use], "S")])


USES = ("a product", "a sum", "a sum of 64 bits", "products of neighbours", "what wraps")


@pytest.mark.parametrize("use", USES)
def test_integers_hand_on_what_they_may_be_off_by(use: str) -> None:
    dag = quantised_then(use)
    for seed in range(3):
        for draw in draws(dag, seed):
            assert check(draw, dag, plain(dag, draw.inputs)) == ""
    exact = draws(dag)[1]  # whole numbers: nothing is rounded, so that nothing may be off
    wrong = exact.reference[0].copy()
    wrong[3, 2] += 1
    assert "1 of 60 elements wrong, first at [3, 2]" in check(exact, dag, [wrong])


@pytest.mark.parametrize("scale", [1e-300, 1e-60, 1e-34, 1.0, 1e39, 1e60, 1e300])
def test_bounds_of_float64_are_as_wide_as_its_values(scale: float) -> None:
    def total(terms: int) -> ComputeDAG:
        a, r = te.placeholder((32, 512), "float64", "A"), te.reduce_axis(terms, "r")
        c = te.compute((32,), lambda i: te.sum(a[i, r], axis=r), "C")
        return te.dag([a, te.compute((32,), lambda i: c[i] * te.const(scale, "float64"), "D")])

    dag, short = total(512), total(511)
    for draw in draws(dag)[:2]:
        assert check(draw, dag, plain(dag, draw.inputs)) == ""
        assert "32 of 32 elements wrong" in check(draw, dag, plain(short, draw.inputs))
        assert draw.bounds[0].dtype == np.float64 and np.isfinite(draw.bounds[0]).all()


@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-30])
def test_bounds_of_float32_do_not_vanish_among_denormals(scale: float) -> None:
    a, r = te.placeholder((32, 64), name="A"), te.reduce_axis(64, "r")
    c = te.compute((32,), lambda i: te.sum(a[i, r] * te.const(scale, "float32"), axis=r), "C")
    dag = te.dag([a, te.compute((32,), lambda i: c[i] * 1e30, "D")])
    for draw in draws(dag):
        assert check(draw, dag, plain(dag, draw.inputs)) == ""


# -- terms left out ---------------------------------------------------------------------------------------


@pytest.mark.fast(but=["33554432"])
@pytest.mark.parametrize("k", [1 << 10, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 25])
def test_a_term_left_out_of_a_sum_of_any_length_is_found(k: int) -> None:
    dag = ops.workload("reduce_sum", {"m": 1, "n": k}).dag
    whole = draws(dag)[1]
    (x,) = whole.inputs
    total = x.astype("float64").sum()
    assert check(whole, dag, [np.array([total], "float32")]) == ""
    rng = np.random.default_rng(0)
    for i in rng.integers(0, k, 40):
        assert "1 of 1 elements wrong" in check(whole, dag, [np.array([total - x[0, i]], "float32")])


@pytest.mark.parametrize("k", [64, 4096, 1 << 18])
def test_a_term_left_out_of_a_product_is_found(k: int) -> None:
    dag = ops.workload("matmul", {"m": 3, "n": 4, "k": k}).dag
    whole = draws(dag)[1]
    a, b = (x.astype("float64") for x in whole.inputs)
    assert check(whole, dag, [(a @ b).astype("float32")]) == ""
    for i in np.random.default_rng(0).integers(0, k, 40):
        short = (a @ b - np.outer(a[:, i], b[i])).astype("float32")
        assert "12 of 12 elements wrong" in check(whole, dag, [short])


@pytest.mark.slow
def test_a_term_left_out_of_a_sum_that_is_rounded_is_found_by_few_numbers() -> None:
    """The root of a sum of a million squares hides one; of sixty it does not."""
    n = 1 << 20
    dag = ops.workload("norm2", {"b": 1, "m": 1, "n": n}).dag
    drawn = draws(dag)
    x = drawn[2].inputs[0].astype("float64")
    (at,) = np.nonzero(x.reshape(-1))
    assert 20 < len(at) < 300 and {0, n - 1} <= set(at.tolist())
    for i in at:
        short = np.sqrt(np.square(x).sum() - x.reshape(-1)[i] ** 2)
        assert "1 of 1 elements wrong" in check(drawn[2], dag, [np.array([short], "float32")])


REDUCTIONS = {
    "max": te.max, "min": te.min, "prod": te.prod,
    "absmax": te.reducer((0.0,), lambda a, b: (te.maximum(te.abs(a[0]), te.abs(b[0])),), "absmax"),
}  # fmt: skip


@pytest.mark.fast("absmax-*", "max-7-*", "prod-7-3")
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("n", [7, 200, 5000])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_an_element_left_out_at_an_end_is_found(op: str, n: int, m: int) -> None:
    """Of any reduction; of a product, any element."""

    def reduced(first: int, terms: int, dtype: str) -> ComputeDAG:
        a, r = te.placeholder((m, n), dtype, "A"), te.reduce_axis(terms, "r")
        f = REDUCTIONS[op]
        if op == "absmax":
            return te.dag([a, te.compute((m,), lambda i: f((a[i, r + first],), axis=r), "B")])
        return te.dag([a, te.compute((m,), lambda i: f(a[i, r + first], axis=r), "B")])

    for dtype in ("float32", "int32") if op != "absmax" else ("float32",):
        dag = reduced(0, n, dtype)
        checks = draws(dag)
        for draw in checks:
            assert check(draw, dag, plain(dag, draw.inputs)) == ""
        for short in (reduced(0, n - 1, dtype), reduced(1, n - 1, dtype)):
            assert any(check(d, dag, plain(short, d.inputs)) for d in checks), dtype
        if op == "prod":
            x = checks[-1].inputs[0]
            for k in range(n):
                assert check(checks[-1], dag, [np.delete(x, k, 1).prod(1, dtype=dtype)])


def place_of(extreme: Callable[..., te.Reduction]) -> ComputeDAG:
    """The place of an extreme of what is rounded."""
    m, n, k = 16, 100, 64
    a, b, r = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B"), te.reduce_axis(k, "r")
    q, p = te.reduce_axis(n, "q"), te.reduce_axis(n, "p")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "C")
    t = te.compute((m, n), lambda i, j: te.tanh(c[i, j] * 0.02), "T")
    e = te.compute((m,), lambda i: extreme(t[i, q], axis=q), "E")
    none = te.max_value("int32")
    return te.dag(
        [
            a,
            b,
            te.compute(
                (m,),
                lambda i: te.min(te.select(te.equal(t[i, p], e[i]), te.cast(p, "int32"), none), axis=p),
                "P",
            ),
        ]
    )


def test_the_place_of_an_extreme_is_that_of_an_element_near_it() -> None:
    dag, other = place_of(te.max), place_of(te.min)
    draw = draws(dag)[0]
    assert check(draw, dag, plain(dag, draw.inputs)) == ""
    assert "16 of 16 elements wrong" in check(draw, dag, plain(other, draw.inputs))
    assert "16 of 16 elements wrong" in check(draw, dag, [np.full(16, 2**31 - 1, "int32")])
    assert (draw.bounds[0] == 0).mean() > 0.8  # few have a rival


def test_a_place_that_need_not_be_there_may_be_none() -> None:
    a, p, k = te.placeholder((8, 50), name="A"), te.reduce_axis(50, "p"), te.reduce_axis(50, "k")
    mean = te.compute((8,), lambda i: te.sum(a[i, k], axis=k), "S")
    half = te.compute((8,), lambda i: mean[i] / 50.0, "M")
    none = te.max_value("int32")
    first = te.compute(
        (8,), lambda i: te.min(te.select(te.equal(a[i, p], half[i]), te.cast(p, "int32"), none), axis=p), "P"
    )
    dag = te.dag([a, first])
    x = np.full((8, 50), 0.1, "float32")  # whose mean is 0.1 or near it
    draw = judged(dag, [x])
    for right in (np.zeros(8, "int32"), np.full(8, 2**31 - 1, "int32")):
        assert check(draw, dag, [right]) == ""


def test_adding_all_terms_one_after_another_is_refused() -> None:
    n = 10**6
    dag = ops.workload("reduce_sum", {"m": 1, "n": n}).dag
    steady = draws(dag)[-1]
    (x,) = steady.inputs
    assert np.unique(x).size == 1
    one_by_one = np.add.accumulate(x[0], dtype="float32")[-1:]
    assert abs(float(one_by_one[0]) - 1e5) > 900
    assert "1 of 1 elements wrong" in check(steady, dag, [one_by_one])
    parts = np.add.accumulate(x.reshape(250, 4000), axis=1, dtype="float32")[:, -1]
    assert check(steady, dag, [np.add.accumulate(parts, dtype="float32")[-1:]]) == ""


# -- any order of any expression --------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 3000),
    st.sampled_from(["normal", "positive", "equal", "huge", "tiny"]),
    st.integers(0, 2**31),
)
def test_a_sum_in_any_order_lies_inside(m: int, k: int, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((m, k)).astype("float32")
    x = {
        "normal": x,
        "positive": np.abs(x),
        "equal": np.full_like(x, rng.random()),
        "huge": x * np.float32(1e36),
        "tiny": x * np.float32(1e-38),
    }[kind]
    dag = ops.workload("reduce_sum", {"m": m, "n": k}).dag
    draw = judged(dag, [x], steady=kind == "equal")
    with np.errstate(over="ignore", invalid="ignore"):
        for order in (slice(None), slice(None, None, -1), rng.permutation(k)):
            total = np.add.accumulate(x[:, order], axis=1, dtype="float32")[:, -1]
            assert check(draw, dag, [total]) == ""
        assert check(draw, dag, [x.sum(1, dtype="float32")]) == ""


@pytest.mark.fast(but=["transpose_batch_matmul_softmax"])
@pytest.mark.parametrize("op", ["softmax", "layer_norm", "rms_norm", "transpose_batch_matmul_softmax"])
def test_sums_of_few_values_may_be_off_to_one_side(op: str) -> None:
    """Of draws with few different numbers, what each term is rounded by is the same time after time."""
    sizes = {"seq": 1024, "heads": 1, "dim": 2} if op.startswith("transpose") else {"m": 16, "n": 2048}
    dag = ops.workload(op, sizes).dag
    for draw in draws(dag):
        assert check(draw, dag, plain(dag, draw.inputs)) == ""


OPERATORS: dict[str, dict[str, int]] = {
    "matmul": {"m": 5, "n": 7, "k": 301},
    "softmax": {"m": 9, "n": 130},
    "layer_norm": {"m": 7, "n": 33},
    "rms_norm": {"m": 7, "n": 33},
    "norm2": {"b": 2, "m": 7, "n": 9},
    "attention": {"heads": 2, "seq": 33, "dim": 8},
    "matmul_bias_gelu": {"m": 9, "n": 8, "k": 70},
    "avg_pool2d": {"h": 6, "w": 6, "c": 3, "k": 3, "padding": 1},
    "conv2d_bn_relu": {"h": 5, "w": 6, "ci": 3, "co": 4, "k": 3},
    "transpose_batch_matmul_softmax": {"seq": 9, "heads": 2, "dim": 4},
}


@pytest.mark.parametrize("op", OPERATORS)
def test_plain_loops_lie_inside_on_every_draw_and_near_misses_do_not(op: str) -> None:
    dag = ops.workload(op, OPERATORS[op]).dag
    for draw in draws(dag):
        out = plain(dag, draw.inputs)
        assert check(draw, dag, out) == ""
        assert check(draw, dag, [x * np.float32(1.01) + np.float32(1e-3) for x in out])


def test_the_reference_is_that_of_the_library() -> None:
    for op, params in OPERATORS.items():
        w = ops.workload(op, params)
        draw = draws(w.dag)[0]
        assert check(draw, w.dag, ops.reference(w, draw.inputs)) == "", op


# -- conditions, integers, what is no number --------------------------------------------------------------


def test_a_comparison_that_may_go_either_way_leaves_both_values() -> None:
    a, k = te.placeholder((3, 100), name="A"), te.reduce_axis(100, "k")
    s = te.compute((3,), lambda i: te.sum(a[i, k], axis=k), "S")
    dag = te.dag([a, te.compute((3,), lambda i: te.select(s[i] > 10.0, 7.0, -1.0), "B")])
    x = np.full((3, 100), 0.1, "float32")  # about 10
    x[1] = 0.2
    found = evaluate_with_bounds(dag, [x])
    assert [bool(b > 0) for b in found.bounds[0]] == [True, False, True]
    assert not checker(dag, [x]).check([np.array([7, 7, -1], "float32")], 0).reason
    assert "first at [1]" in checker(dag, [x]).check([np.array([7, -1, -1], "float32")], 0).reason


def test_exact_arithmetic_has_no_bound() -> None:
    dag = ops.workload("matmul_bias_relu", {"m": 6, "n": 5, "k": 40}).dag
    draw = draws(dag)[1]
    assert not draw.bounds[0].any()
    off = draw.reference[0].copy()
    off[2, 2] = np.nextafter(off[2, 2], np.float32(np.inf))
    assert "1 of 30 elements wrong" in check(draw, dag, [off])


def test_a_result_that_is_a_float32_by_chance_is_rounded_if_its_operands_are_off() -> None:
    """1 + 2⁻²⁴ rounds to 1, and adding 2⁻²⁴ once more again: two roundings, where 1 + 2⁻²³ needs none."""
    half = np.float32(2.0**-24)
    x = te.placeholder((2,), "float32", "x")
    dag = te.dag([x, te.compute((2,), lambda i: (x[i] + float(half)) + float(half), "y")])
    found = evaluate_with_bounds(dag, [np.array([1.0, 2.0], np.float32)])
    right = (np.array([1.0, 2.0], np.float32) + half) + half
    assert right[0] == 1.0 and found.values[0][0] == 1 + 2.0**-23
    assert (np.abs(right - found.values[0]) <= found.bounds[0]).all()


def test_infinities_and_nan_stand_where_the_reference_has_them() -> None:
    dag = ops.workload("softmax", {"m": 4, "n": 6}).dag
    x = np.zeros((4, 6), "float32")
    x[0] = -np.inf
    x[1, 2] = np.nan
    x[2, 3] = np.inf
    x[3, :5] = -np.inf
    draw = judged(dag, [x])
    with np.errstate(invalid="ignore"):
        right = np.exp(x - x.max(1, keepdims=True))
        right /= right.sum(1, keepdims=True)
    assert check(draw, dag, [right]) == ""
    wrong = right.copy()
    wrong[0] = 0
    assert "6 of 24 elements wrong, first at [0, 0]" in check(draw, dag, [wrong])


def test_near_overflow_infinity_is_right_and_far_from_it_is_not() -> None:
    dag = elementwise(lambda x: te.exp(x), 4)
    x = np.array([88.722839, 50, 200, -200], "float32")
    draw = judged(dag, [x])
    assert check(draw, dag, [np.array([np.inf, np.exp(np.float32(50)), np.inf, 0], "float32")]) == ""
    assert "first at [1]" in check(draw, dag, [np.array([3.4e38, np.inf, np.inf, 0], "float32")])
    assert "first at [2]" in check(
        draw, dag, [np.array([3.4e38, np.exp(np.float32(50)), 3e38, 0], "float32")]
    )


def test_a_stated_tolerance_takes_the_place_of_the_bound() -> None:
    dag = elementwise(lambda x: x * 2.0, 10)
    draw = judged(dag, [np.arange(1, 11, dtype="float32")])
    off = draw.reference[0] * np.float32(1.01)
    assert "10 of 10" in check(draw, dag, [off])
    assert check(draw.within(Tolerance(rtol=0.02)), dag, [off]) == ""
    assert check(draw.within(Tolerance(atol=0.3)), dag, [off]) == ""
    assert "8 of 10" in check(draw.within(Tolerance(atol=0.05)), dag, [off])


@pytest.mark.slow
def test_a_stated_tolerance_reaches_the_trials(tmp_path: Path) -> None:
    """What was wrong within the bound of rounding is tried again where the user allows more."""
    a, k = te.placeholder((8, 40), name="A"), te.reduce_axis(40, "k")
    program = [a, te.compute((8,), lambda i: te.sum(a[i, k], axis=k), "B")]
    stated = TuneOptions(rtol=1e-2)
    assert stated.tolerance == Tolerance(1e-2, 0.0) and TuneOptions().tolerance is None
    for what in ({"rtol": -1.0}, {"atol": float("nan")}, {"rtol": "much"}):
        with pytest.raises(SettingsError, match=r"[ra]tol is .*; it must be a finite number of at least 0"):
            TuneOptions(**what)  # type: ignore[arg-type]
    db = tmp_path / "tuning.db"
    refused = at.tune(program, trials=3, rtol=0, threads=1, db=db)  # no sum of floats is exact in any order
    accepted = at.tune(program, trials=3, rtol=1e-3, atol=1e-4, threads=1, db=db)
    assert refused.failed.get("wrong_result") and accepted.best is not None
    assert not accepted.failed


def masked(rows: int, length: int, how: str) -> ComputeDAG:
    """Sums over the rows that a position lets through, which are no numbers where it hides all of them."""
    x = te.placeholder((rows, length), name="x")
    one = how == "one"
    place = te.placeholder((1 if one else rows,), "int64", "place")
    step = te.placeholder((length,), "int64", "step")
    k, m = te.reduce_axis(length, "k"), te.reduce_axis(length, "m")

    def score(i: te.Expr, t: te.Expr) -> te.Expr:
        at_ = step[t] if how == "numbers" else te.cast(t, "int64")
        return te.select(at_ <= place[0 if one else i], x[i, t], float("-inf"))

    scores = te.compute((rows, length), score, "scores")
    most = te.compute((rows,), lambda i: te.max(scores[i, m], axis=m), "most")
    weighed = te.compute(
        (rows,), lambda i: te.sum(te.exp(scores[i, k] - most[i]) * x[i, k], axis=k), "weighed"
    )
    return te.dag([x, place, step, weighed] if how == "numbers" else [x, place, weighed])


@pytest.mark.parametrize("how", ["one", "each", "numbers"])
@pytest.mark.parametrize("length", [1, 2, 64])
def test_positions_of_masks_hide_neither_all_nor_most(how: str, length: int) -> None:
    for seed in range(8):
        first, *_ = draws(masked(3, length, how), seed)
        assert first.nan_share <= 0.1
        inputs = dict(zip(("x", "place", "step"), first.inputs, strict=False))
        if how == "one":
            assert length // 2 <= inputs["place"].item() < length
        elif how == "each":
            assert 0 <= inputs["place"].min() and inputs["place"].max() < length
