"""Floating point is computed as written: a product and a sum are fused in a reduction's update only."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from backends import results, sampled
from grid_cases import case, program
from grid_cases import sampled as sampled_on_grid
from helpers import check_compiled, host
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from random_schedules import random_schedule

from autotune.backends.building.from_trace import emit_module
from autotune.codegen.llvm.compile import assembly
from autotune.codegen.simt import cuda, nvrtc
from schedules import expr as E
from schedules import te
from schedules.errors import WorkloadError
from schedules.expr import Expr
from schedules.ir import LoweredFunc, Stmt, Store, multiply_add, walk
from schedules.ir.nest import initial
from schedules.model import Trace
from schedules.passes.lower import lower, stages
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate
from schedules.te.flops import count_flops

N = 67  # whole vectors and a rest
Tree = tuple[Any, ...]


def elementwise(inputs: int, dtype: str, *bodies: Callable[..., Expr]) -> ComputeDAG:
    """Each body of one element of every input, as an output."""
    xs = [te.placeholder((N,), dtype, f"x{n}") for n in range(inputs)]
    outs = [te.compute((N,), lambda i, f=f: f(*(x[i] for x in xs)), f"y{n}") for n, f in enumerate(bodies)]
    return te.dag([*xs, *outs])


def check(dag: ComputeDAG, data: Sequence[np.ndarray], want: Sequence[np.ndarray], **kw: bool) -> None:
    for what, got in results(dag, data, **kw):
        for name, x, y in zip(dag.outputs, got, want, strict=True):
            np.testing.assert_array_equal(x, y, err_msg=f"{name} by {what}")


def realistic(count: int, dtype: str = "float32", seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(N) * 10.0 ** rng.integers(-3, 4, N)).astype(dtype) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_are_rounded_before_they_are_summed(dtype: str) -> None:
    """What bug reports named: a sum that is 0 was -1e-8, and the root of one that is 0 was NaN."""
    dag = elementwise(
        4,
        dtype,
        lambda a, b, c, d: a * b + c * d,
        lambda re, im, *_: re * (im * -1.0) + im * re,
        lambda x, *_: te.sqrt(x * x + (x * -1.0) * x),
        lambda a, b, c, d: d + (a + b) * c,
        lambda a, b, c, d: a * b - c,
        lambda a, b, c, d: a - b * c,
    )
    a, b, c, d = data = realistic(4, dtype)
    zero = np.zeros(N, dtype)
    check(dag, data, [a * b + c * d, zero, zero, d + (a + b) * c, a * b - c, a - b * c])


def test_products_of_float16_are_rounded_to_float32() -> None:
    dag = elementwise(3, "float16", lambda a, b, c: te.cast(a * b + c, "float32"))
    data = realistic(3, "float16")
    a, b, c = (x.astype("float32") for x in data)
    check(dag, data, [a * b + c], devices=False)


@pytest.mark.slow
def test_quotients_are_no_products() -> None:
    """Division by a constant is not multiplication by its reciprocal, and roots are rounded right."""
    dag = elementwise(
        2,
        "float32",
        lambda a, b: a / 3.0,
        lambda a, b: a / b,
        lambda a, b: te.sqrt(te.abs(a)),
        lambda a, b: 1.0 / b,
    )
    a, b = data = realistic(2)
    check(dag, data, [a / np.float32(3), a / b, np.sqrt(np.abs(a)), np.float32(1) / b])


# -- any expression ------------------------------------------------------------------------------

LEAVES = st.one_of(
    st.tuples(st.just("input"), st.integers(0, 2)),
    st.tuples(st.just("const"), st.sampled_from([0.1, -1.0, 3.0, 1e-3, 0.7071])),
)


def _larger(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*", "*", "min", "max"]), inner, inner),
        st.tuples(st.just("/"), inner, inner),
        st.tuples(st.sampled_from(["sqrt", "abs"]), inner),
        st.tuples(st.just("select"), inner, inner, inner, inner),
    )


TREES = st.recursive(LEAVES, _larger, max_leaves=9)


def as_expr(t: Tree, xs: Sequence[Expr]) -> Expr:
    match t:
        case ("input", n):
            return xs[n]
        case ("const", v):
            return te.const(v, "float32")
        case ("/", a, b):  # the sign of a zero is nobody's promise in min and max
            return as_expr(a, xs) / (te.abs(as_expr(b, xs)) + 0.5)
        case ("select", a, b, c, d):
            return te.select(as_expr(a, xs) < as_expr(b, xs), as_expr(c, xs), as_expr(d, xs))
        case ("sqrt" | "abs" as f, a):
            return te.sqrt(as_expr(a, xs)) if f == "sqrt" else te.abs(as_expr(a, xs))
        case (op, a, b):
            return E.binary(op, as_expr(a, xs), as_expr(b, xs))
    raise AssertionError(t)


def by_numpy(t: Tree, xs: Sequence[np.ndarray]) -> np.ndarray:
    kids = [by_numpy(x, xs) for x in t[1:] if isinstance(x, tuple)]
    match t[0]:
        case "input":
            return xs[t[1]]
        case "const":
            return np.full(N, t[1], "float32")
        case "/":
            return kids[0] / (np.abs(kids[1]) + np.float32(0.5))
        case "select":
            return np.where(kids[0] < kids[1], kids[2], kids[3])
    known = {"+": np.add, "-": np.subtract, "*": np.multiply, "min": np.minimum, "max": np.maximum}
    found: np.ndarray = (known | {"sqrt": np.sqrt, "abs": np.abs})[t[0]](*kids)
    return found


def check_trees(trees: Sequence[Tree], **kw: bool) -> None:
    every = [("max", ("max", ("input", 0), ("input", 1)), ("input", 2)), *trees]  # so no input is idle
    dag = elementwise(3, "float32", *(lambda *xs, t=t: as_expr(t, xs) for t in every))
    data = realistic(3)
    with np.errstate(all="ignore"):
        check(dag, data, [by_numpy(t, data) for t in every], **kw)


@pytest.mark.slow
@settings(max_examples=12)
@given(st.lists(TREES, min_size=4, max_size=4))
def test_expressions_are_what_numpy_computes(trees: list[Tree]) -> None:
    check_trees(trees, devices=False)


@pytest.mark.slow
@settings(max_examples=3, phases=[Phase.generate])  # compilers of devices are slow
@given(st.lists(TREES, min_size=16, max_size=16))
def test_expressions_are_what_numpy_computes_on_devices(trees: list[Tree]) -> None:
    check_trees(trees)


# -- reductions ----------------------------------------------------------------------------------


def sums(body: Stmt) -> list[Store]:
    """Stores that add a product to what they overwrite."""
    found = [
        x for x in walk(body) if isinstance(x, Store) and isinstance(x.value, E.Binary) and x.value.op == "+"
    ]
    return [
        x
        for x in found
        if E.is_float(E.dtype_of(x.value))
        and any(y.buffer == x.buffer for y in E.loads(x.value))
        and any(isinstance(y, E.Binary) and y.op == "*" for y in E.children(x.value))
    ]


def marked(f: LoweredFunc) -> int:
    """How many updates there are, all of which code may fuse."""
    found = sums(f.body)
    assert all(multiply_add(x) is not None for x in found)
    return len(found)


@pytest.mark.parametrize("op", ["matmul", "conv2d", "norm2", "layer_norm", "attention"])
def test_lowering_keeps_updates_together(op: str) -> None:
    """In every pass: of plain loops, of each sketch, of random steps with rfactor and online."""
    dag = case(op).dag
    assert marked(lower(initial(dag)))
    for _, f in stages(initial(dag)):
        assert marked(f)
    for trace in sampled(dag):
        assert marked(lower(Schedule.replay(dag, trace, host()).nest))
    for seed in range(4):
        marked(lower(random_schedule(dag, Random(seed), 6).nest))


@pytest.mark.parametrize("op", ["matmul", "norm2"])
def test_lowering_for_grids_keeps_updates_together(op: str) -> None:
    for name, trace in sampled_on_grid(case(op).dag, 1):
        found = [x for k in program(case(op).dag, trace).kernels for x in sums(k.body)]
        assert all(multiply_add(x) is not None for x in found), name


def test_only_a_reduction_is_an_update() -> None:
    """A store into the element that it reads is none by that alone: `reuse` makes such of stages."""
    here = E.Load("c", (), "float32")
    x = E.Load("a", (), "float32")
    assert multiply_add(Store("c", (), here + x * x)) is None
    assert multiply_add(Store("c", (), here + x * x, update=True)) == (x, x, here)
    assert multiply_add(Store("c", (), x * x + here, update=True)) == (x, x, here)
    assert multiply_add(Store("c", (), here + x, update=True)) is None
    n = E.Load("n", (), "int32")
    assert multiply_add(Store("m", (), E.Load("m", (), "int32") + n * n, update=True)) is None


@pytest.mark.skipif("fma" not in host().features, reason="this CPU has no FMA")
@pytest.mark.parametrize(("op", "fused"), [("matmul", True), ("norm2", True), ("fused_multiply_add", False)])
def test_code_fuses_updates_only(op: str, fused: bool) -> None:
    dag = case(op).dag
    for trace in sampled(dag):
        text = assembly(emit_module(dag, trace, host()).text, host())
        assert ("fmadd" in text) == fused


def ptx(source: str) -> str:
    """What NVRTC makes of a source, as text."""
    library = nvrtc._library(13)
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert not library.nvrtcCreateProgram(ctypes.byref(handle), source.encode(), b"k.cu", 0, None, None)
    options = [*nvrtc.FLAGS, b"--gpu-architecture=compute_80"]
    assert not library.nvrtcCompileProgram(handle, len(options), (ctypes.c_char_p * len(options))(*options))
    assert not library.nvrtcGetPTXSize(handle, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    assert not library.nvrtcGetPTX(handle, text)
    library.nvrtcDestroyProgram(ctypes.byref(handle))
    return text.value.decode()


@pytest.mark.skipif(not nvrtc.available(), reason="needs NVRTC")
@pytest.mark.parametrize(("op", "fused"), [("matmul", True), ("norm2", True), ("fused_multiply_add", False)])
def test_cuda_fuses_updates_only(op: str, fused: bool) -> None:
    dag = case(op).dag
    for name, trace in sampled_on_grid(dag, 1):
        assert ("fma.rn.f32" in ptx(cuda.source(program(dag, trace)))) == fused, name


def test_a_reduction_of_sums_is_right() -> None:
    """Terms that are no product are rounded as they are written."""
    k = te.reduce_axis(N, "k")
    a, b = (te.placeholder((3, N), "float32", x) for x in "ab")
    dag = te.dag(
        [a, b, te.compute((3,), lambda i: te.sum(a[i, k] * b[i, k] - b[i, k] * a[i, k], axis=k), "c")]
    )
    rng = np.random.default_rng(0)
    data = [rng.standard_normal((3, N)).astype("float32") for _ in range(2)]
    zero = [np.zeros(3, "float32")]
    for trace in (Trace(()), *sampled(dag)):
        check_compiled(dag, trace, host(), data, zero)
    np.testing.assert_array_equal(evaluate(dag, data), zero)


# -- where an expression asks for it -----------------------------------------------------------


@pytest.mark.fast("float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_stated_fma_is_a_product_and_a_sum_everywhere(dtype: str) -> None:
    dag = elementwise(
        3, dtype, lambda a, b, c: te.fma(a, b, c), lambda a, b, c: te.fma(a, 2.0, te.fma(b, b, c))
    )
    data = [np.random.default_rng(n).integers(-9, 9, N).astype(dtype) for n in range(3)]
    a, b, c = data
    check(dag, data, [a * b + c, a * 2 + (b * b + c)])


def test_a_stated_fma_is_rounded_once_where_the_cpu_has_it() -> None:
    dag = elementwise(2, "float32", lambda a, b: te.fma(a, b, -(a * b)))
    a, b = realistic(2)
    exact = a.astype("f8") * b - (a * b)
    for _, (got,) in ((w, x) for w, x in results(dag, [a, b], devices=False) if "arrays at" in w):
        want = exact.astype("f4") if "fma" in host().features else np.zeros_like(a)
        np.testing.assert_array_equal(got, want)
    assert exact.any()


def test_a_stated_fma_travels_and_is_counted() -> None:
    dag = elementwise(3, "float32", lambda a, b, c: te.fma(a, b, c))
    assert ComputeDAG.from_json(dag.to_json()) == dag
    value = dag.stages[0].values[0]
    assert E.show(value) == "fma(x0[i], x1[i], x2[i])"
    assert E.substitute(value, {"i": E.Const(3)}) != value and E.rebuild(value, E.children(value)) == value
    assert count_flops(dag) == 2 * N


@pytest.mark.parametrize("parts", [(1, 2, 3), ("i", "f", "f"), ("f", "f", "d"), ("b", "f", "f")])
def test_what_is_no_floating_point_is_refused(parts: tuple[Any, ...]) -> None:
    made = {k: te.placeholder((4,), d, k) for k, d in (("f", "float32"), ("d", "float64"), ("i", "int32"))}
    with pytest.raises((WorkloadError, TypeError), match="te.fma|operands have different dtypes"):
        te.compute(
            (4,), lambda i: te.fma(*((made[p][i] if p in made else i < 2 if p == "b" else p) for p in parts))
        )
