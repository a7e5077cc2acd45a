"""Cumulative sums and products are right wherever those in order are numbers: what a part of an axis has
alone may be beyond its dtype."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product
from typing import Any

import numpy as np
import pytest
from backends import sampled
from graph_meaning import evaluate
from grid_cases import TARGET
from helpers import execute, host, interpret
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import imported

import autotune as at
from autotune.models.operators.reduction import cumulative
from autotune.models.torch_import import import_torch
from schedules import te
from schedules.dtypes import DTYPES
from schedules.ir.nest import initial
from schedules.model import Trace
from schedules.passes.lower import lower
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG

Array = np.ndarray


def dag_of(
    shape: Sequence[int], dtype: str, fold: str, axis: int, exclusive: bool, backwards: bool
) -> ComputeDAG:
    x = te.placeholder(shape, dtype, "x")
    return te.dag([x, cumulative(x, axis, exclusive, backwards, getattr(te, fold))])


def in_order(x: Array, fold: str, axis: int, exclusive: bool, backwards: bool, wide: type) -> Array:
    y = np.moveaxis(x, axis, 0).astype(wide)
    y = y[::-1] if backwards else y
    ufunc = np.multiply if fold == "prod" else np.add
    with np.errstate(all="ignore"):
        out = ufunc.accumulate(y, axis=0, dtype=wide)
        if exclusive:
            out = np.concatenate([np.full_like(out[:1], float(fold == "prod")), out[:-1]])
        return np.moveaxis(out[::-1] if backwards else out, 0, axis).astype(x.dtype)


def walk(rng: np.random.Generator, shape: Sequence[int], axis: int, largest: int, step: int) -> Array:
    """Factors, powers of 2 of either sign, whose products up to each are at most 2^largest or its inverse."""
    to = np.moveaxis(np.zeros(shape, np.int64), axis, 0)
    at = np.zeros(to.shape[1:], np.int64)
    for n in range(len(to)):
        move = rng.integers(-step, step, at.shape, endpoint=True)
        if rng.random() < 0.5:  # far, in one direction
            move = np.where(n // 20 % 2, step, -step) + 0 * move
        to[n], at = np.clip(at + move, -largest, largest) - at, np.clip(at + move, -largest, largest)
    return np.moveaxis(np.ldexp(rng.choice([-1.0, 1.0], to.shape), to.astype(np.int32)), 0, axis)


LIMITS = {"float16": (12, 9), "float32": (125, 120), "float64": (1000, 1000)}  # of products, of a factor


@pytest.mark.fast(but=["float16-prod", "float32-prod"])
@pytest.mark.parametrize("fold", ["prod", "sum"])
@pytest.mark.parametrize("dtype", LIMITS)
@settings(deadline=None, max_examples=8)
@given(
    n=st.integers(1, 700), axis=st.integers(0, 2), exclusive=st.booleans(), backwards=st.booleans(),
    seed=st.integers(0, 2**32),
)  # fmt: skip
def test_any_axis(
    fold: str, dtype: str, n: int, axis: int, exclusive: bool, backwards: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = [2, 3, 2]
    shape[axis] = n
    x = walk(rng, shape, axis, *LIMITS[dtype])
    x = np.flip(x, axis) if backwards else x
    if fold == "sum":  # whole numbers, which are exact in any order
        x = rng.integers(-60, 60, shape)
    x = np.ascontiguousarray(x.astype(DTYPES[dtype].numpy))
    dag = dag_of(shape, dtype, fold, axis, exclusive, backwards)
    (got,) = te.evaluate(dag, [x])
    np.testing.assert_array_equal(got, in_order(x, fold, axis, exclusive, backwards, np.longdouble))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "exclusive", "backwards"), [("float32", False, False), ("float64", True, True)]
)
def test_products_of_parts_beyond_the_dtype_in_kernels(dtype: str, exclusive: bool, backwards: bool) -> None:
    x = walk(np.random.default_rng(1), (3, 90), 1, *LIMITS[dtype])
    x[2, 40] = 0
    x = np.ascontiguousarray((np.flip(x, 1) if backwards else x).astype(dtype))
    want = in_order(x, "prod", 1, exclusive, backwards, np.longdouble)
    assert np.isfinite(want).all()
    dag = dag_of(x.shape, dtype, "prod", 1, exclusive, backwards)
    assert_same = np.testing.assert_array_equal
    assert_same(interpret(lower(initial(dag)), dag, [x])[0], want)
    for trace in (Trace(()), *islice(sampled(dag), 2)):
        for got in execute(dag, trace, host(), [x]).values():
            assert_same(got[0], want, err_msg=str(trace))


@pytest.mark.parametrize("fold", ["prod", "sum"])
def test_special_values_change_what_follows_them_only(fold: str) -> None:
    x = np.full((6, 200), 1.5, "float32")
    x[0, 70], x[1, 70], x[2, 3], x[2, 150], x[4, 199], x[5, 100:102] = (
        np.inf,
        np.nan,
        np.inf,
        0,
        -np.inf,
        -0.0,
    )
    x[3, :10], x[3, 64:80], x[3, 80:] = (1e-30, 1e30, 1) if fold == "prod" else (-3e38, 3e38, 0)
    (got,) = te.evaluate(dag_of(x.shape, "float32", fold, 1, False, False), [x])
    want = in_order(x, fold, 1, False, False, np.float64)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_array_equal(np.signbit(got[[4, 5]]), np.signbit(want[[4, 5]]))


def test_whole_numbers_wrap_as_in_order() -> None:
    x = np.random.default_rng(0).integers(-9, 9, (2, 300), np.int64)
    for fold in ("prod", "sum"):
        (got,) = te.evaluate(dag_of(x.shape, "int64", fold, 1, False, False), [x])
        np.testing.assert_array_equal(got, in_order(x, fold, 1, False, False, np.int64))


# --- in models --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
def test_onnx_has_the_same(op: str) -> None:
    """Every direction, with and without the element itself, floats and whole numbers."""
    onnx, reference = imported("onnx"), imported("onnx.reference")
    for axis, reverse, exclusive, elem in product((0, -1), (0, 1), (0, 1), ("FLOAT", "INT32", "INT64")):
        made = onnx.helper.make_node(op, ["x", "axis"], ["y"], reverse=reverse, exclusive=exclusive)
        kind = getattr(onnx.TensorProto, elem)
        port = [onnx.helper.make_tensor_value_info(n, kind, [4, 37]) for n in "xy"]
        known = onnx.numpy_helper.from_array(np.array(axis), "axis")
        graph = onnx.helper.make_graph([made], "g", port[:1], port[1:], [known])
        opset = 14 if op == "CumSum" else 26
        net = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
        values = np.random.default_rng(1 + axis).integers(1 if op == "CumSum" else -1, 3, (4, 37))
        x = values.astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
        (got,) = evaluate(at.import_onnx(net.SerializeToString()).graph, [x])
        if op == "CumSum":
            (want,) = ran(net, {"x": x})
        else:
            (want,) = reference.ReferenceEvaluator(net).run(None, {"x": x})
        np.testing.assert_array_equal(got, want, err_msg=f"{axis} {reverse} {exclusive} {elem}")


def ran(net: Any, given: dict[str, Any]) -> list[Any]:
    runtime = imported("onnxruntime")
    net.ir_version = 7
    session = runtime.InferenceSession(net.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, given))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*not tuned")
def test_a_size_along_the_axis_may_be_open() -> None:
    torch = imported("torch")

    class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x.cumsum(0), x.cumprod(0), *x.cummax(0), *x.cummin(0), x.logcumsumexp(0)

    n = torch.export.Dim("n", max=64)
    program = torch.export.export(Net(), (torch.ones(7, 3),), dynamic_shapes=({0: n},))
    net = at.compile_model(import_torch(program), threads=1, fallback=True)
    for rows in (1, 2, 5, 33, 64):
        x = torch.from_numpy(np.random.default_rng(rows).integers(-2, 3, (rows, 3)).astype("float32"))
        for got, want in zip(net(x.numpy()), Net()(x), strict=True):
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5)


@pytest.mark.slow
def test_the_length_of_an_axis_has_no_limit() -> None:
    """A row of 5000 elements, whose places and logarithms were sums over all of them."""
    torch = imported("torch")

    class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return *x.cummax(1), x.logcumsumexp(1)

    x = torch.randn(2, 5000, generator=torch.Generator().manual_seed(0))
    got = evaluate(import_torch(torch.export.export(Net(), (x,))).graph, [x.numpy()])
    for a, b in zip(got, Net()(x), strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-5)


def test_gpus_run_them_too() -> None:
    dag = dag_of((5, 90), "float32", "sum", 1, False, False)
    assert derive(dag, TARGET).sketches
