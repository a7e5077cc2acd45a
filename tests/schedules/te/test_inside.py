"""Loads stay inside their tensors: what is accepted is inside at every point, at every door."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from grid_cases import Case, emulate
from helpers import check_compiled, expected, host, inputs
from hypothesis import given, settings
from hypothesis import strategies as st

import autotune as at
from autotune import te
from autotune.targets import detect
from schedules import expr as E
from schedules import ops
from schedules.errors import WorkloadError
from schedules.expr import Compare, Const, Expr, Load, Select, Var
from schedules.ir.interp import run
from schedules.model import Workload
from schedules.schedule import Schedule
from schedules.te.compute_dag import Axis, ComputeDAG, Stage, Tensor
from schedules.te.infeasible import impossible
from schedules.te.inside import decide

N = 8
A, M = te.placeholder((N,), name="A"), te.placeholder((N,), name="M")


# --- what the issue names ---------------------------------------------------------------------


def test_a_condition_that_data_decides_guards_nothing() -> None:
    with pytest.raises(WorkloadError) as err:
        te.compute((N,), lambda i: te.select(M[i] > 0, A[i + 1], 0.0), "y")
    assert str(err.value) == (
        "stage y: index 0 of A[i + 1] cannot be proved inside 0..7 of A[8] float32: it would be 8 at i=7; "
        "0.0 < M[i] depends on more than axes, and may hold anywhere; test it in the condition too, "
        "te.select(te.all(..., 0 <= i + 1 and i + 1 < 8), ...), or cut it off with te.minimum and te.maximum"
    )


REMEDIES = {
    "in the condition": lambda i: te.select(te.all(M[i] > 0, i + 1 < N), A[i + 1], 0.0),
    "one condition in another": lambda i: te.select(i + 1 < N, te.select(M[i] > 0, A[i + 1], 0.0), 0.0),
    "on the other side": lambda i: te.select(te.any(M[i] <= 0, i + 1 >= N), 0.0, A[i + 1]),
    "cut off": lambda i: te.select(M[i] > 0, A[te.minimum(i + 1, N - 1)], 0.0),
}


@pytest.mark.parametrize("fn", REMEDIES.values(), ids=REMEDIES)
def test_each_remedy_is_taken_and_right(fn: Any) -> None:
    dag = te.dag([A, M, te.compute((N,), fn, "y")])
    a, m = np.arange(1, N + 1, dtype=np.float32), np.resize(np.array([1, -1, 1], np.float32), N)
    got = at.build(Schedule(dag), target=detect(threads=1))(a, m)
    np.testing.assert_array_equal(got, te.evaluate(dag, [a, m])[0])


BIG = 1 << 13


def test_a_large_index_that_is_not_linear_is_proved_or_refused() -> None:
    x = te.placeholder((BIG * BIG - 2,), name="x")

    def read(make: Any) -> Any:
        return te.compute((BIG, BIG), lambda i, j: make(i, j, (i * j * 7919) % (BIG * BIG - 1)), "y")

    with pytest.raises(
        WorkloadError, match="cannot be proved inside 0..67108861 .* test it in the condition"
    ):
        read(lambda i, j, f: x[f])
    read(lambda i, j, f: te.select(f < BIG * BIG - 2, x[f], 0.0))
    read(lambda i, j, f: x[te.minimum(f, BIG * BIG - 3)])
    read(lambda i, j, f: x[i * j])


def test_arithmetic_that_leaves_64_bits_is_refused() -> None:
    """``i * 2**30`` wraps to negative numbers, though 2**40 * 2**30 // 2**62 is 256 at most."""
    x = te.placeholder((257,), name="x")
    with pytest.raises(WorkloadError, match=r"i \* 1073741824 may leave 64 bits"):
        te.compute((2**40,), lambda i: x[i * 2**30 // 2**62])
    te.compute((2**32,), lambda i: x[i * 2**30 // 2**62])


# --- what must be accepted --------------------------------------------------------------------

H = 10**6
ACCEPTED = {
    "reshape": ((H, 6), lambda x, i, j: x[(i * 6 + j) // (2 * H), (i * 6 + j) % (2 * H)], (3, 2 * H)),
    "padding": ((H + 4, 2), lambda x, i, j: te.select(te.all(i >= 2, i < H + 2), x[i - 2, j], 0.0), (H, 2)),
    "the other side": (
        (H, 2),
        lambda x, i, j: te.select(te.any(i < 3, j < 1), 0.0, x[i - 3, j - 1]),
        (H - 3, 1),
    ),
    "transposed convolution": (
        (2 * H, 4),
        lambda x, i, j: te.select(te.all(te.equal((i + 1 - j) % 2, 0), i + 1 >= j, (i + 1 - j) // 2 < H),
                                  x[(i + 1 - j) // 2, 0], 0.0),
        (H, 1),
    ),
    "a select in the index": ((H, H), lambda x, i, j: x[te.select(i < j, j - i - 1, i - j), 0], (H, 1)),
    "triangle": ((H, H), lambda x, i, j: te.select(j <= i, x[i - j, 0], 0.0), (H, 1)),
    "min of both": ((H, H), lambda x, i, j: x[te.minimum(i, j), te.maximum(i, j) - te.minimum(i, j)], (H, H)),
    "groups": ((H * 8, 3), lambda x, i, j: x[i // 8 * 3 + j, i % 8], (3 * H, 8)),
    "rounded up": ((H, 4), lambda x, i, j: x[E.ceildiv(i + j, 4), 0], (H // 4 + 2, 1)),
    "wrapped": ((H, 5), lambda x, i, j: x[(i - j) % H, 0], (H, 1)),
}  # fmt: skip


@pytest.mark.parametrize("shape, fn, size", ACCEPTED.values(), ids=ACCEPTED)
def test_what_is_inside_is_proved_at_any_size(shape: Any, fn: Any, size: tuple[int, ...]) -> None:
    x = te.placeholder(size, name="x")
    decide.cache_clear()
    te.compute(shape, lambda i, j: fn(x, i, j))


def test_operators_are_proved_at_once() -> None:
    for op, sizes in {
        "conv3d": {"d": 99, "h": 231, "w": 517, "ci": 33, "co": 65, "kd": 3, "kh": 5, "kw": 7, "padding": 2},
        "conv2d_transpose": {"h": 300, "w": 500, "ci": 32, "co": 48, "k": 5, "stride": 3, "padding": 1},
        "conv2d": {"h": 999, "w": 777, "ci": 64, "co": 96, "k": 3, "groups": 2, "dilation": 3, "padding": 4},
        "max_pool2d": {"h": 999, "w": 777, "c": 64, "k": 3, "stride": 2, "padding": 1},
    }.items():  # fmt: skip
        text = ops.workload(op, sizes).json
        decide.cache_clear()
        start = time.process_time()
        Workload.from_json(text)
        assert time.process_time() - start < 0.5, op  # some 5 ms where nothing else runs


# --- the proof itself -------------------------------------------------------------------------

EXTENTS = {"i": 4, "j": 3, "k": 5}
atoms = st.one_of(st.integers(-4, 6).map(Const), st.sampled_from([Var(v) for v in EXTENTS]))


def conditions(numbers: st.SearchStrategy[Expr], data: bool) -> st.SearchStrategy[Expr]:
    simple = st.builds(E.compare, st.sampled_from(["<", "<=", "==", "!="]), numbers, numbers)
    if data:
        read = st.sampled_from(["i", "j"]).map(
            lambda v: Compare("<", Const(0.0, "float32"), Load("M", (Var(v),), "float32"))
        )
        simple = st.one_of(simple, simple, read)
    return st.recursive(
        simple,
        lambda c: st.one_of(
            st.tuples(c, c).map(lambda p: E.all_of(*p)),
            st.tuples(c, c).map(lambda p: E.any_of(*p)),
            c.map(te.logical_not),
        ),
        max_leaves=3,
    )


def numbers_of(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(E.binary, st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner),
        st.builds(E.binary, st.sampled_from(["//", "%", "ceildiv"]), inner, st.integers(1, 5)),
        st.builds(E.select, conditions(atoms, data=False), inner, inner),
    )


numbers = st.recursive(atoms, numbers_of, max_leaves=5)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(conditions(numbers, data=False), min_size=1, max_size=4))
def test_what_is_proved_impossible_holds_nowhere(conds: list[Expr]) -> None:
    if impossible(conds, {v: (0, n - 1) for v, n in EXTENTS.items()}):
        for at_ in itertools.product(*map(range, EXTENTS.values())):
            env = dict(zip(EXTENTS, at_, strict=True))
            assert not all(E.evaluate(c, env) for c in conds)


# --- brute force decides ----------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(numbers, conditions(numbers, data=True), st.booleans(), st.integers(1, 9))
def test_what_is_accepted_is_inside_and_what_is_refused_is_not_or_says_so(
    ix: Expr, guard: Expr, taken: bool, size: int
) -> None:
    """Whatever the data: of n conditions that read them, any may hold."""
    load = Load("A", (ix,), "float32")
    zero = Const(0.0, "float32")
    value = Select(guard, load, zero) if taken else Select(guard, zero, load)
    axes = tuple(Axis(v, n) for v, n in EXTENTS.items())
    inputs = (Tensor("A", (size,), "float32"), Tensor("M", (4,), "float32"))
    y = Tensor("y", tuple(EXTENTS.values()), "float32")
    leaves = any(_leaves(ix, guard, taken, size, signs) for signs in range(1 << 4))
    try:
        dag = ComputeDAG(inputs, (Stage((y,), axes, (), (value,)),), ("y",))
    except WorkloadError as err:
        assert leaves or "cannot be proved" in str(err), err
        return
    assert not leaves
    a, m = np.arange(1, size + 1, dtype=np.float32), np.array([1, -1, -1, 1], np.float32)
    want = te.evaluate(dag, [a, m])[0]
    arrays = {"A": a, "M": m, "y": np.full_like(want, np.nan)}
    run(Schedule(dag).nest, arrays)
    np.testing.assert_array_equal(arrays["y"], want)


@settings(max_examples=100, deadline=None)
@given(st.recursive(atoms, numbers_of, max_leaves=12), st.integers(1, 9))
def test_the_remedies_of_the_message_are_always_taken(ix: Expr, size: int) -> None:
    big = tuple((v, 2**40) for v in EXTENTS)
    assert decide(ix, size, big, (E.compare("<=", 0, ix), E.compare("<", ix, size))) is None
    assert decide(E.minimum(E.maximum(ix, 0), size - 1), size, big, ()) is None


def _leaves(ix: Expr, guard: Expr, taken: bool, size: int, signs: int) -> bool:
    """Whether the index is outside somewhere, where reads of M are positive as the bits of ``signs`` say."""
    grid = np.meshgrid(*map(np.arange, EXTENTS.values()), indexing="ij")
    env: dict[str, Any] = dict(zip(EXTENTS, grid, strict=True))
    positive = np.array([signs >> n & 1 for n in range(4)], dtype=bool)

    def read(x: Expr) -> Expr | None:
        if not (isinstance(x, Compare) and E.loads(x)):
            return None
        (var,) = E.variables(x)
        env[f"M_{var}"] = positive[env[var]].astype(int)
        return Compare("<", Const(0), Var(f"M_{var}"))

    holds = np.asarray(E.evaluate(E.rewrite(guard, read), env), dtype=bool) == taken
    value = np.asarray(E.evaluate(ix, env))
    return bool(np.any(holds & ((value < 0) | (value >= size))))


# --- doors ------------------------------------------------------------------------------------


def outside() -> dict[str, Any]:
    """A DAG that reads one behind its input, as JSON from a stranger."""
    x = te.placeholder((N,), name="x")
    good = te.dag([x, te.compute((N,), lambda i: x[i] + 1.0, "y")]).to_json()
    return json.loads(json.dumps(good).replace('["var", "i"]', '["+", ["var", "i"], 1]'))


def test_no_dag_reads_outside_wherever_it_comes_from() -> None:
    with pytest.raises(
        WorkloadError, match=r"stage y: index 0 of x\[i \+ 1\] is 8 at i=7, outside 0..7 of x\[8\]"
    ):
        ComputeDAG.from_json(outside())
    text = json.dumps({"version": 1, "dag": outside()})
    with pytest.raises(ValueError, match="is 8 at i=7"):
        Workload.from_json(text)


@pytest.mark.parametrize("shape", [(N + 1,), (2, N)])
def test_tensors_of_another_shape_are_no_way_out(shape: tuple[int, ...]) -> None:
    """Whatever the tensors of a DAG are by name, its own shapes count."""
    text = json.loads(json.dumps(outside()).replace(f'"x", [{N}]', f'"x", {list(shape)}'))
    if len(shape) == 1:
        assert ComputeDAG.from_json(text).inputs[0].shape == shape
    else:
        with pytest.raises(ValueError, match="does not fit"):
            ComputeDAG.from_json(text)


# --- what the code of a select loads ----------------------------------------------------------

W = 21
SELECTS: dict[str, Any] = {
    "shifted": lambda x, z, i, j: te.select(j + 1 < W, x[j + 1], z),
    "before and behind": lambda x, z, i, j: te.select(te.all(j >= i, j - i < W), x[j - i], z),
    "the same in all lanes": lambda x, z, i, j: te.select(i + j + 1 < W, x[i + 1], z),
    "on the other side": lambda x, z, i, j: te.select(i + j + 1 >= W, z, x[i + 1]),
    "both in one sum": lambda x, z, i, j: te.select(i + j + 1 < W, x[i + 1] + x[i + j + 1], z),
    "one in another": lambda x, z, i, j: te.select(j < 3, te.select(i + j + 1 < W, x[i + 1], z), x[i]),
    "every second": lambda x, z, i, j: te.select(2 * j + i < W, x[2 * j + i], z),
    "backwards": lambda x, z, i, j: te.select(j + i < W, x[W - 1 - j - i], z),
}


def select_dag(name: str, dtype: str) -> ComputeDAG:
    x = te.placeholder((W,), dtype, "x")
    value = te.cast if dtype == "float16" else lambda v, _: v
    zero = te.const(0, dtype)
    return te.dag([x, te.compute((W, W + 3), lambda i, j: value(SELECTS[name](x, zero, i, j), dtype), "C")])


@pytest.mark.fast("*-float32", "*-int64")
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "int64"])
@pytest.mark.parametrize("name", SELECTS)
def test_lanes_load_only_what_they_choose(name: str, dtype: str) -> None:
    """Arrays end, or begin, at inaccessible pages."""
    dag = select_dag(name, dtype)
    data = inputs(dag)
    want = expected(dag, data)
    np.testing.assert_array_equal(te.evaluate(dag, data)[0], want[0])
    for tail in ("guard", "shift"):
        s = Schedule(dag)
        s.vectorize(s.split("C_j", [None, 8], tail)[1])
        check_compiled(dag, s.trace, host(), data, want)


@pytest.mark.slow
def test_threads_of_a_grid_load_only_what_they_choose() -> None:
    for name in SELECTS:
        dag = select_dag(name, "float32")
        data = tuple(inputs(dag))
        emulate(Case(dag, data, tuple(expected(dag, list(data)))), 4)


@pytest.mark.parametrize(
    "index",
    [
        lambda i: i * 2**62 // 2**62,
        lambda i: te.minimum(i * 2**60 * 16, 3),
        lambda i: (i * 2**40) * (i * 2**40) % 5,
        lambda i: (i - 2**62 - 2**62 - 5) % 7,
        lambda i: i // -3 * 2**62 % 5,  # no bounds are known of it
        lambda i: i % (i - 3) * 2**62 % 5,
        lambda i: E.ceildiv(i, i - 3) * 2**62 % 5,
        lambda i: (i - 5) % (2**63 - 1) % 5,  # a step on the way to the result, in code for GPUs
        lambda i: E.ceildiv(i + (2**63 - 12), 7) % 5,
        lambda i: ((i * 2**59 - 2**62) + (i * 2**59 - 2**62)) // 3 % 5,  # in another order
    ],
)
def test_arithmetic_on_axes_stays_within_64_bits(index: Callable[[te.Expr], te.Expr]) -> None:
    a = te.placeholder((10,), name="A")
    for value in (lambda i: a[index(i)], lambda i: te.cast(index(i), "float32") + a[i]):
        with pytest.raises(
            WorkloadError, match=r"stage Y: .* may leave 64 bits, .* te\.cast\(axis, \"int64\"\)"
        ):
            te.compute((10,), value, "Y")


def test_arithmetic_that_only_seems_wide_is_taken() -> None:
    a = te.placeholder((10,), name="A")
    te.compute((10,), lambda i: a[i * 2**59 // 2**59], "Y")
    te.compute((10,), lambda i: te.select(te.cast(i % (i - 3) + 1, "float32") > 2.0, a[i], 0.0), "Y")
    te.compute((10,), lambda i: te.cast(i, "int64") * te.const(2**62, "int64"), "Y")


def test_a_guard_of_literals_is_rounded_as_kernels_round_it() -> None:
    """16777216 + 3 + 3 is 16777224 in float32: the guard holds at 6 and 7 too."""
    a = te.placeholder((6,), name="A")
    big = te.const(2.0**24, "float32")
    with pytest.raises(WorkloadError, match="is [67] at i=[67], outside 0..5"):
        te.compute(
            (8,), lambda i: te.select(te.cast(i, "float32") + 2.0**24 < (big + 3.0) + 3.0, a[i], 0.0), "Y"
        )
    wide = te.const(2**30, "int32")
    with pytest.raises(WorkloadError, match="is 7 at i=7, outside 0..5"):  # the product wraps to 0
        te.compute(
            (8,),
            lambda i: te.select(te.cast(i, "int32") * wide // wide < te.const(6, "int32"), a[i], 0.0),
            "Y",
        )


@pytest.mark.parametrize(("dtype", "near"), [("float32", 0.1 + 1e-9), ("float64", 0.1 + 1e-18)])
def test_literals_are_compared_as_kernels_round_them(dtype: str, near: float) -> None:
    """0.1 and what is nearest to it are one number of the dtype."""
    a, b = te.const(0.1, dtype), te.const(near, dtype)
    assert (a < b, a <= b, te.equal(a, b)) == (E.FALSE, E.TRUE, E.TRUE)
    huge = te.const(1e300, "float32"), te.const(2e300, "float32")
    assert te.equal(*huge) == E.TRUE  # both are infinite
