"""Tensor expressions: what they build, and every mistake they refuse."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from children import ROOT, python_path

import autotune as at
from autotune.targets import detect
from schedules import expr as E
from schedules import te
from schedules.errors import ScheduleError, WorkloadError
from schedules.model import Workload
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

MATMUL_DIGEST = "992fd767a0ffe67cf1810631848926fb"


def matmul(m: int = 4, n: int = 5, k: int = 6, dtype: str = "float32") -> list[te.Tensor]:
    a = te.placeholder((m, k), dtype, "A")
    b = te.placeholder((k, n), dtype, "B")
    r = te.reduce_axis(k, "k")
    return [a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "C")]


A = te.placeholder((4, 6), name="A")
N = te.placeholder((4, 6), "int32", "N")


def test_matmul_stage() -> None:
    dag = te.dag(matmul())
    (stage,) = dag.stages
    assert [t.name for t in dag.inputs] == ["A", "B"] and dag.outputs == ("C",)
    assert [(a.var, a.extent) for a in stage.axes] == [("i", 4), ("j", 5)]
    assert [(a.var, a.extent) for a in stage.reduce_axes] == [("k", 6)]
    assert E.show(stage.values[0]) == "A[i, k] * B[k, j]"
    assert stage.reducer is not None and stage.reducer.name == "sum"
    assert ComputeDAG.from_json(dag.to_json()) == dag


@pytest.mark.slow
def test_digest_is_fixed_and_the_same_in_another_process() -> None:
    assert Workload(te.dag(matmul())).digest == MATMUL_DIGEST
    code = (
        "from test_te import matmul\nfrom schedules import te\nfrom schedules.model import Workload\n"
        "print(Workload(te.dag(matmul())).digest)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
        env={"PYTHONPATH": python_path(__file__), "PYTHONHASHSEED": "7"},
    )  # fmt: skip
    assert done.stdout.strip() == MATMUL_DIGEST


def test_outputs_are_the_listed_computed_tensors() -> None:
    a, b, c = matmul()
    d = te.compute(c.shape, lambda i, j: te.maximum(c[i, j], 0.0), "D")
    e = te.compute(c.shape, lambda i, j: c[i, j] + 1, "F")
    assert te.dag([a, b, c]).outputs == ("C",)
    assert te.dag([a, b, d]).outputs == ("D",)
    assert te.dag([a, b, c, d]).outputs == ("C", "D") and te.dag([a, d, b, c]).outputs == ("D", "C")
    both = te.dag([b, a, d, e])
    assert both.outputs == ("D", "F") and [t.name for t in both.inputs] == ["B", "A"]
    assert [s.name for s in both.stages] == ["C", "D", "F"]
    assert te.dag([a, b, e, d]).outputs == ("F", "D")


def test_names_are_positional_and_unique() -> None:
    x, y = te.placeholder((3,)), te.placeholder((3,), name="I0")
    s = te.compute((3,), lambda i: x[i] + y[i])
    t = te.compute((3,), lambda i: s[i] * 2, "I0")
    u = te.compute((3,), lambda i: t[i] * 2)
    dag = te.dag([x, y, u])
    assert [p.name for p in dag.inputs] == ["I0_1", "I0"]
    assert [s.name for s in dag.stages] == ["T0", "I0_2", "T2"]


def test_axis_names_are_identifiers_and_unique_in_a_stage() -> None:
    k, other = te.reduce_axis(6, "i"), te.reduce_axis(4, "a b")
    s = te.compute((4,), lambda i: te.sum(A[i, k] + A[other, k], axis=(k, other)))
    stage = te.dag([A, s]).stages[0]
    assert [a.var for a in (*stage.axes, *stage.reduce_axes)] == ["i", "i_1", "a_b"]
    assert E.show(stage.values[0]) == "A[i, i_1] + A[a_b, i_1]"
    free = te.compute((4, 6), lambda *ix: A[ix])
    assert [a.var for a in te.dag([A, free]).stages[0].axes] == ["i0", "i1"]


def test_two_reduction_axes_of_one_name_stay_apart() -> None:
    p, q = te.reduce_axis(4, "k"), te.reduce_axis((0, 4), "k")
    s = te.compute((1,), lambda i: te.sum(te.cast(p - q, "float32"), axis=(p, q)))
    assert E.show(te.dag([s]).stages[0].values[0]) == "float32(k - k_1)"


def test_literals_take_the_tensor_dtype() -> None:
    for dtype in ("float32", "float64", "int32", "int64"):
        x = te.placeholder((3,), dtype, "x")
        y = te.compute((3,), lambda i, x=x: te.maximum(2 * x[i] + 1, 0))
        consts = [c for c in E.walk(te.dag([x, y]).stages[0].values[0]) if isinstance(c, E.Const)]
        assert y.dtype == dtype and {c.dtype for c in consts} == {dtype}
    assert te.select(A[0, 0] < 1, A[0, 0], 0) == te.select(A[0, 0] < 1.0, A[0, 0], 0.0)


def test_the_ends_of_an_integer_dtype_are_literals_of_it() -> None:
    for dtype, end in (("int32", 2**31), ("int64", 2**63)):
        x = te.placeholder((4,), dtype, "x")
        y = te.compute((4,), lambda i, x=x, n=end: te.select(x[i] < n - 1, te.maximum(x[i], -n), 0), "y")
        (got,) = te.evaluate(te.dag([x, y]), [np.array([-end, -1, 0, end - 1], dtype)])
        assert got.tolist() == [-end, -1, 0, 0]
    assert te.cast(2**70, "float64") == te.const(2.0**70, "float64")


def steps_of_a_dag(stages: int) -> int:
    """Lines of the walk from tensors to a DAG that are run for that many stages of one name, all outputs."""
    x = te.placeholder((2,), "float32", "x")
    made = [te.compute((2,), lambda i: x[i] + 1.0, "y") for _ in range(stages)]
    lines = 0

    def count(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count if frame.f_code.co_filename.endswith("tensors.py") else None

    before = sys.gettrace()
    sys.settrace(count)
    try:
        te.dag([x, *made])
    finally:
        sys.settrace(before)
    return lines


def test_the_work_for_a_dag_grows_as_it_does() -> None:
    assert steps_of_a_dag(400) < 2.2 * steps_of_a_dag(200)


def test_several_outputs() -> None:
    lo, hi = te.compute((4, 6), lambda i, j: (te.minimum(A[i, j], 0), te.maximum(A[i, j], 0)), "P")
    dag = te.dag([A, lo, hi])
    assert len(dag.stages) == 1 and dag.outputs == ("P", "P_1")
    x, y = te.compute((4, 6), lambda i, j: (A[i, j], N[i, j]), ("x", "y"))
    assert (x.dtype, y.dtype) == ("float32", "int32")
    assert te.dag([A, N, y]).outputs == ("y",)


def test_tuple_reducer_and_limits() -> None:
    argmax = te.reducer(
        lambda i, v: (-1, te.min_value(v)),
        lambda x, y: (te.select(x[1] >= y[1], x[0], y[0]), te.maximum(x[1], y[1])),
        "argmax",
    )
    k = te.reduce_axis(6, "k")
    place, value = te.compute((4,), lambda i: argmax((te.cast(k, "int64"), A[i, k]), axis=k))
    stage = te.dag([A, place, value]).stages[0]
    assert [t.dtype for t in stage.outputs] == ["int64", "float32"]
    assert stage.reducer is not None and stage.reducer.name == "argmax"
    assert stage.reducer.identity[0] == E.Const(-1, "int64")
    assert te.max_value("int32").value == 2**31 - 1 and te.min_value("int64").value == -(2**63)
    assert te.max_value("float64").value == sys.float_info.max


def test_conditions() -> None:
    i = E.Var("i")
    assert te.all() == E.TRUE and te.any() == E.FALSE
    assert te.any(i < 3, te.equal(i, 5)) == E.Logic("or", (i < 3, te.equal(i, 5)))
    assert te.logical_not(te.not_equal(i, 1)) == E.Logic("not", (E.Compare("!=", i, E.Const(1)),))
    assert te.if_then_else(i < 3, A[0, 0], 1.0) == te.select(i < 3, A[0, 0], 1.0)


def test_a_long_chain_of_stages() -> None:
    t = A
    for _ in range(1500):
        t = te.compute((4, 6), lambda i, j, t=t: t[i, j] + 1)
    assert len(te.dag([A, t]).stages) == 1500


@pytest.mark.parametrize("size", [6, 10**7])
def test_guarded_and_exact_indices_are_accepted(size: int) -> None:
    x = te.placeholder((size,), name="x")
    te.compute((size + 4,), lambda i: te.select(te.all(i >= 2, i < size + 2), x[i - 2], 0.0))
    te.compute((size,), lambda i: x[(i // 4) * 4 + i % 4])
    te.compute((size,), lambda i: te.select(i < 1, 0.0, x[i - 1]))
    te.compute((size,), lambda i: x[size - 1 - i])


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_guard_may_be_computed_with_what_axes_are_cast_to(dtype: str) -> None:
    x = te.placeholder((4,), name="x")
    two = te.const(2, dtype)
    y = te.compute((8,), lambda i: te.select(te.cast(i, dtype) * two < 8, x[i], 0.0), "y")
    dag, data = te.dag([x, y]), np.arange(1, 5, dtype=np.float32)
    want = np.r_[data, 0, 0, 0, 0]
    np.testing.assert_array_equal(te.evaluate(dag, [data])[0], want)
    np.testing.assert_array_equal(at.build(Schedule(dag), target=detect(threads=1))(data), want)
    with pytest.raises(WorkloadError, match="is 4 at i=3"):  # of another axis, which saves nothing
        te.compute((4, 6), lambda i, j: te.select(te.cast(j, dtype) < 2, A[i + 1, j], 0.0))


def test_a_literal_of_numpy_is_stated_as_that_of_python() -> None:
    ours, theirs = (te.dag([te.compute((3,), lambda i, x=x: x, "y")]) for x in (math.inf, np.float64("inf")))
    assert ComputeDAG.from_json(theirs.to_json()) == ours
    assert Workload(theirs).digest == Workload(ours).digest


K = te.reduce_axis(6, "k")
BODIES = {
    "too few indices": (
        lambda i, j: A[i],
        r"tensor A\[4, 6\] float32 has 2 dimensions but is indexed with 1",
    ),
    "past the end": (lambda i, j: A[i + 1, j], r"index 0 of A\[i \+ 1, j\] is 4 at i=3, outside 0..3"),
    "constant": (lambda i, j: A[4, j], r"is 4, outside 0..3"),
    "negative": (lambda i, j: A[i, -1], r"is -1, outside 0..5"),
    "weak guard": (lambda i, j: te.select(i >= 1, A[i - 2, j], 0), r"is -1 at i=1"),
    "wrong side": (lambda i, j: te.select(i >= 1, 0.0, A[i - 1, j]), r"is -1 at i=0"),
    "float index": (lambda i, j: A[i, 1.5], "an index is an axis or an integer"),
    "read index": (lambda i, j: A[i, A[i, j]], "or an integer that is read from tensors: compute an integer"),
    "sum plus one": (lambda i, j: te.sum(A[i, K], axis=K) + 1, "must be the whole body"),
    "one plus sum": (lambda i, j: A[i, j] + te.sum(A[i, K], axis=K), "must be the whole body"),
    "sum in max": (lambda i, j: te.maximum(te.sum(A[i, K], axis=K), 0), "must be the whole body"),
    "tuple of sums": (lambda i, j: (te.sum(A[i, K], axis=K), A[i, j]), "a tuple holds a reduction"),
    "nothing": (lambda i, j: (), "computes nothing"),
    "free axis": (lambda i, j: A[i, K], "'k' is a reduction axis and has no meaning here"),
    "no axis": (lambda i, j: te.sum(A[i, j]), "needs axis="),
    "spatial axis": (lambda i, j: te.sum(A[i, j], axis=j), "is not a reduction axis"),
    "axis twice": (lambda i, j: te.sum(A[i, K], axis=(K, K)), "stands twice"),
    "whole tensor": (lambda i, j: A, "index it with the axes"),
    "tensor operand": (lambda i, j: A[i, j] + A, "cannot be part of an expression"),
    "exp of a tensor": (lambda i, j: te.exp(A), "te.exp takes elements"),
    "exp of an int": (lambda i, j: te.exp(N[i, j]), "got dtype int32"),
    "axis as value": (lambda i, j: i, "has dtype index; convert it"),
    "== as condition": (lambda i, j: te.select(i == 0, 1.0, A[i, j]), "te.equal"),
    "chained comparison": (lambda i, j: 0 <= i < 3, "no truth value"),
    "mixed dtypes": (lambda i, j: A[i, j] + N[i, j], "different dtypes, float32 and int32"),
    "fraction of an int": (lambda i, j: N[i, j] * 1.5, "not a whole number"),
    "fraction of numpy": (lambda i, j: N[i, j] * np.float32(1.5), "not a whole number"),
    "infinity and an int": (
        lambda i, j: te.minimum(N[i, j], np.float32(np.inf)),
        "and int32 has no infinity",
    ),
    "literal too large": (
        lambda i, j: N[i, j] + (2**32 + 5),
        r"stage X: the literal 4294967301 is out of the range of int32, the dtype that it meets; "
        r'cast that first: te.cast\(x, "int64"\)',
    ),
    "bound too large": (lambda i, j: te.clip(N[i, j], 0, 2**32), "4294967296 is out of the range of int32"),
    "side too large": (lambda i, j: te.select(i < 2, N[i, j], 2**31), "2147483648 is out of the range"),
    "minimum too large": (lambda i, j: te.minimum(2**33, N[i, j]), "8589934592 is out of the range of int32"),
    "too large for int64": (
        lambda i, j: te.cast(N[i, j], "int64") - 2**70,
        r"1180591620717411303424 is out of the range of int64.* te.cast\(x, \"float64\"\)",
    ),
    "too large for a float": (lambda i, j: A[i, j] + 10**400, "0 is out of the range of float32.*te.inf"),
    "too large for an axis": (
        lambda i, j: te.cast(i + 2**70, "int64"),
        r"stage X: the literal 1180591620717411303424 is out of the range of an axis, 64 bits; compute with",
    ),
    "constant infinity": (lambda i, j: te.const(np.inf, "int32"), "inf is not a value of int32"),
    "constant too large": (lambda i, j: te.const(10**400, "float64"), "0 is not a value of float64"),
    "int division": (lambda i, j: N[i, j] / 2, "use // or te.cast"),
    "division by zero": (lambda i, j: N[i, j] // 0, "by zero"),
    "float modulo": (lambda i, j: A[i, j] % 2, "needs integers"),
    "unknown dtype": (lambda i, j: te.cast(A[i, j], "float8"), "dtype 'float8' is not one of"),
    "plain int": (lambda i, j: 0, "return an expression"),
    "too big a literal": (lambda i, j: te.const(2**40, "int32"), "is not a value of int32"),
    "too few parameters": (lambda i: A[i, 0], "2 dimensions but the function takes 1 axes"),
}


@pytest.mark.parametrize("case", BODIES)
def test_bodies_refused(case: str) -> None:
    fn, message = BODIES[case]
    with pytest.raises(WorkloadError, match=message):
        te.compute((4, 6), fn, "X")


def repeated(n: int, step: Callable[[E.Expr, E.Expr], E.Expr]) -> ComputeDAG:
    a = te.placeholder((3,), name="A")

    def value(i: E.Expr) -> E.Expr:
        x = a[i]
        for _ in range(n):
            x = step(x, a[i])
        return x

    return te.dag([a, te.compute((3,), value, "C")])


@pytest.mark.slow
@pytest.mark.usefixtures("usual_recursion")
def test_expressions_that_nest_too_deeply_are_refused() -> None:
    message = r"stage C: its expression nests more than 420 levels; split it into several stages"
    for n in (420, 900, 5000):
        with pytest.raises(WorkloadError, match=message):
            repeated(n, lambda x, a: x + a)
    with pytest.raises(WorkloadError, match="nests more than 420 levels"):  # Python gives up before
        te.compute((3,), lambda i: A[sum([te.minimum(i, 2)] * 5000, i), 0])
    dag = repeated(400, lambda x, a: x + a)
    got = at.build(Schedule(dag), target=detect(threads=1))(np.arange(3, dtype=np.float32))
    np.testing.assert_array_equal(got, np.arange(3) * 401)
    a = te.placeholder((3,), name="A")

    def chosen(i: E.Expr) -> E.Expr:
        x = a[i]
        for _ in range(400):
            x = te.select(a[2 - i] < 2, x, a[i])  # a branch, which takes more calls to compile
        return x

    dag = te.dag([a, te.compute((3,), chosen, "C")])
    with pytest.raises(ScheduleError, match="nests loops or an expression too deeply.*in several stages"):
        at.build(Schedule(dag), target=detect(threads=1))


@pytest.mark.parametrize("n", [14, 20, 100])
def test_expressions_that_are_too_large_written_out_are_refused(n: int) -> None:
    """Each step uses the one before twice: as a tree it doubles."""
    count = "131066" if n == 14 else "millions of"
    with pytest.raises(WorkloadError, match=f"stage C: .* has {count} operations .* than 65536.*a stage"):
        repeated(n, lambda x, a: (x + a / x) * 0.5)
    dag = repeated(8, lambda x, a: (x + a / x) * 0.5)
    (got,) = te.evaluate(dag, [np.array([1, 4, 9], np.float32)])
    np.testing.assert_allclose(got, [1, 2, 3])


def test_a_combine_that_is_too_large_is_refused() -> None:
    def combine(x: tuple[E.Expr, ...], y: tuple[E.Expr, ...]) -> tuple[E.Expr, ...]:
        z = x[0]
        for _ in range(20):
            z = te.maximum(z + y[0], z)
        return (z,)

    with pytest.raises(WorkloadError, match="combine of odd: .* has millions of operations"):
        te.compute((4,), lambda i: te.reducer((0,), combine, "odd")(A[i, K], axis=K))


def test_axis_of_another_stage_is_refused() -> None:
    with pytest.raises(WorkloadError, match="'i' is an axis of another stage"):
        te.compute((4,), lambda i: te.compute((6,), lambda j: A[i, j])[0])


@pytest.mark.parametrize(
    "shape, message",
    [
        ((0,), "outside 1.."),
        ((-3,), "outside"),
        ((2.5,), "not an integer"),
        ((True,), "not an"),
        ((E.wrap(0),), "extent 0 is outside 1.."),
        ((E.wrap(5) - E.wrap(7),), "extent -2 is outside"),
        ((E.wrap(2**40) + 1,), f"extent {2**40 + 1} is outside 1..{2**40}"),
    ],
)
def test_shapes_refused(shape: tuple[object, ...], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        te.placeholder(shape)  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match=message):
        te.compute(shape, lambda i: 1.0)  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match=message):
        te.reduce_axis(shape[0])  # type: ignore[arg-type]


def test_names_dtypes_and_axes_refused() -> None:
    with pytest.raises(WorkloadError, match="is not an identifier"):
        te.placeholder((3,), name="a b")
    with pytest.raises(WorkloadError, match="dtype 'float8' is not one of float16, bfloat16"):
        te.placeholder((3,), "float8")
    with pytest.raises(WorkloadError, match="no points from 4 to below 4"):
        te.reduce_axis((4, 4))
    with pytest.raises(WorkloadError, match="2 names"):
        te.compute((4, 6), lambda i, j: A[i, j], ("x", "y"))


def test_reducers_refused() -> None:
    k = te.reduce_axis(6, "k")

    def use(r: object) -> None:
        te.compute((4,), lambda i: r((A[i, k], A[i, k]), axis=k))  # type: ignore[operator]

    with pytest.raises(WorkloadError, match="identity of r has 1 values for 2"):
        use(te.reducer((0,), lambda x, y: x, "r"))
    with pytest.raises(WorkloadError, match="combine of r has 1 values for 2"):
        use(te.reducer((0, 0), lambda x, y: (x[0],), "r"))
    with pytest.raises(WorkloadError, match="nothing but its operands"):
        use(te.reducer((0, 0), lambda x, y: (x[0] + A[0, 0], x[1]), "r"))
    with pytest.raises(WorkloadError, match="must have the dtype float32"):
        use(te.reducer((0, 0), lambda x, y: (te.cast(x[0], "int32"), x[1]), "r"))
    with pytest.raises(WorkloadError, match=r"use te\.cast"):
        te.compute((4,), lambda i: te.sum(k, axis=k))


def test_dags_refused() -> None:
    a, b, c = matmul()
    with pytest.raises(WorkloadError, match=r"tensor B.* is read but not listed"):
        te.dag([a, c])
    with pytest.raises(WorkloadError, match=r"input tensor A.* is read by no listed output"):
        te.dag([a, b, c, te.placeholder((2,), name="A")])
    with pytest.raises(WorkloadError, match="listed twice"):
        te.dag([a, b, c, c])
    with pytest.raises(WorkloadError, match="hold no output"):
        te.dag([a, b])
    with pytest.raises(WorkloadError, match="item 1"):
        te.dag([a, 3, c])  # type: ignore[list-item]


def test_dtypes_of_numpy_and_torch_are_taken() -> None:
    class OfTorch:
        def __repr__(self) -> str:
            return "torch.bfloat16"

    given = [te.placeholder((2,), d).dtype for d in ("int8", np.float32, np.dtype("int64"), OfTorch())]
    assert given == ["int8", "float32", "int64", "bfloat16"]
