"""Operators of ONNX as ONNX Runtime has them, where ONNX leaves a choice or its own cases are few."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_models as nets
import pytest
from graph_meaning import evaluate
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from needs import imported

import autotune as at

onnx, runtime = imported("onnx"), imported("onnxruntime")
from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

runtime.set_default_logger_severity(4)
small = st.integers(1, 6)
quick = settings(deadline=None, max_examples=25)


def ran(net: Any, given: dict[str, Any]) -> list[Any]:
    """What ONNX Runtime gives."""
    net.ir_version = 7
    session = runtime.InferenceSession(net.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, given))


def alike(net: Any, given: dict[str, Any], rtol: float = 0) -> None:
    got = evaluate(at.import_onnx(net).graph, list(given.values()))
    for have, want in zip(got, ran(net, given), strict=True):
        assert (have.shape, have.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(have, want, rtol=rtol, atol=rtol)


def whole(data: st.DataObject, *shape: int) -> np.ndarray:
    return nets.whole(np.random.default_rng(data.draw(st.integers(0, 9))), *shape)


# --- quantization -----------------------------------------------------------------------------


def dynamic(n: tuple[int, ...]) -> Any:
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])
    net = nets.model([node], [nets.value("x", n)], ["y", "scale", "zero"], opset=17)
    for port, elem in zip(
        net.graph.output, (TensorProto.UINT8, TensorProto.FLOAT, TensorProto.UINT8), strict=True
    ):
        port.type.tensor_type.elem_type = elem
    return net


@pytest.mark.parametrize(
    "x",
    [[0.0] * 4, [-0.0, 0.0], [1e-45, 0.0], [1e-40, 0.0], [3.0, 3.0], [-3.0], [np.inf, 0.0], [1e-38, -1e-38]],
)
def test_ranges_that_are_nothing_or_nearly(x: list[float]) -> None:
    """Of zeros the scale is 1. ONNX's own evaluator has 1/255, and the formula alone 0."""
    alike(dynamic((len(x),)), {"x": np.array(x, np.float32)})


@quick
@given(st.lists(st.floats(-(2.0**20), 2.0**20, width=32), min_size=1, max_size=12))
def test_any_range_is_quantized(x: list[float]) -> None:
    alike(dynamic((len(x),)), {"x": np.array(x, np.float32)})


def test_a_number_is_quantized() -> None:
    alike(dynamic(()), {"x": np.array(2.0, np.float32)})


# --- resizing before version 11 ---------------------------------------------------------------


@quick
@given(st.data())
def test_resizing_by_scales(data: st.DataObject) -> None:
    op, opset = data.draw(st.sampled_from([("Upsample", 7), ("Upsample", 9), ("Resize", 10)]))
    mode = data.draw(st.sampled_from(["nearest", "linear"]))
    grow, shrink = [1.0, 1.25, 1.5, 2.0, 3.0, 2.3], [0.5, 0.6, 0.75, 0.3]
    by = [data.draw(st.sampled_from(grow + shrink * (op == "Resize"))) for _ in range(2)]
    h, w = data.draw(small), data.draw(small)
    assume(h * by[0] >= 1 and w * by[1] >= 1)
    scales = np.array([1, 1, *by], np.float32)
    port = nets.value("x", [2, 3, h, w])
    if opset == 7:
        net = nets.one(op, [port], opset=opset, mode=mode, scales=[float(s) for s in scales])
    else:
        net = nets.one(op, [port], {"s": scales}, opset=opset, mode=mode)
    alike(net, {"x": whole(data, 2, 3, h, w)}, rtol=1e-5)


@pytest.mark.parametrize("scales", [[1.0, 2.0], [1.0, 1.0, 0.0, 1.0], [1.0, 1.0, float("nan"), 1.0]])
def test_scales_that_are_none_are_refused(scales: list[float]) -> None:
    net = nets.one("Resize", [nets.value("x", [1, 1, 2, 2])], {"s": np.array(scales, np.float32)}, opset=10)
    with pytest.raises(at.ModelError, match=r"node n0 \(Resize\): .*scales"):
        at.import_onnx(net)


@quick
@given(st.data())
def test_parts_of_images_that_reach_beyond_them(data: st.DataObject) -> None:
    """As ONNX's own evaluator has them: ONNX Runtime takes no part along an axis whose extent stays."""
    mode = data.draw(st.sampled_from(["linear", "cubic"]))
    size, out = ([1, 2, *(data.draw(small) for _ in range(2))] for _ in range(2))
    low, high = (
        [data.draw(st.sampled_from(ends)) for _ in range(2)] for ends in ((0, 0.25, -0.25), (1, 1.25, 0.5))
    )
    known = {"roi": np.array([0, 0, *low, 1, 1, *high], np.float32), "sizes": np.array(out, np.int64)}
    node = helper.make_node(
        "Resize", ["x", "roi", "", "sizes"], ["y"], name="n0", mode=mode, extrapolation_value=7.0,
        coordinate_transformation_mode="tf_crop_and_resize",
    )  # fmt: skip
    net = nets.model([node], [nets.value("x", size)], ["y"], known)
    x = whole(data, *size)
    (got,) = evaluate(at.import_onnx(net).graph, [x])
    np.testing.assert_allclose(got, ReferenceEvaluator(net).run(None, {"x": x})[0], rtol=1e-4, atol=1e-4)


# --- powers -----------------------------------------------------------------------------------

INTS = {"int32": TensorProto.INT32, "int64": TensorProto.INT64}
TYPES = INTS | {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}


def powers(base: str, exponent: str, shapes: tuple[Any, Any], known: Any = None) -> Any:
    ports = [nets.value("x", shapes[0], TYPES[base]), nets.value("e", shapes[1], TYPES[exponent])]
    given = {} if known is None else {"e": known}
    net = nets.one("Pow", ports[:1] if given else ports, given, opset=15)
    net.graph.output[0].type.tensor_type.elem_type = TYPES[base]
    return net


@quick
@given(st.data())
def test_powers_of_integers(data: st.DataObject) -> None:
    base, exponent = data.draw(st.sampled_from(list(INTS))), data.draw(st.sampled_from(list(TYPES)))
    if data.draw(st.booleans()):
        base, exponent = exponent, base
    n = data.draw(small)
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    x = rng.integers(-5 if exponent in INTS else 0, 6, (3, n)).astype(base)
    e = rng.integers(0, 10, (n,)).astype(exponent)
    if data.draw(st.booleans()):
        alike(powers(base, exponent, ((3, n), (n,)), e), {"x": x}, rtol=1e-6 if base not in INTS else 0)
    else:
        alike(powers(base, exponent, ((3, n), (n,))), {"x": x, "e": e}, rtol=1e-6 if base not in INTS else 0)


def test_powers_that_wrap_or_are_below_one() -> None:
    """As numpy has them where it has any: the power of the integers, of its lowest bits."""
    x = np.array([3, -3, 2, -1, -1, 1, 7, 5, -2, 1, 0], np.int64)
    e = np.array([50, 41, 63, 2**40 + 1, -3, -5, 0, -1, -1, 2**50, 3], np.int64)
    want = [3**50 % 2**64, -(3**41), -(2**63), -1, -1, 1, 1, 0, 0, 1, 0]
    (got,) = evaluate(at.import_onnx(powers("int64", "int64", ((11,), (11,)))).graph, [x, e])
    assert [int(n) % 2**64 for n in got] == [n % 2**64 for n in want]


# --- reductions of no axes, and known masks ---------------------------------------------------


@pytest.mark.parametrize(
    "op", ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]
)
@pytest.mark.parametrize("axes", [None, []])
@pytest.mark.parametrize("keep", [0, 1])
def test_reductions_of_no_axes(op: str, axes: list[int] | None, keep: int) -> None:
    """What is done before and after a reduction stays."""
    known = {} if axes is None else {"a": np.array(axes, np.int64)}
    net = nets.one(
        f"Reduce{op}", [nets.value("x", [2, 3])], known, opset=18, noop_with_empty_axes=1, keepdims=keep
    )
    x = np.array([[1, 2, 3], [4, 0.5, 6]] if op == "LogSum" else [[1, -2, 3], [4, 0.5, -6]], np.float32)
    alike(net, {"x": x}, rtol=1e-6)


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"])
def test_reductions_of_a_number(op: str) -> None:
    alike(
        nets.one(f"Reduce{op}", [nets.value("x", [])], opset=18), {"x": np.array(3.0, np.float32)}, rtol=1e-6
    )


@quick
@given(st.data())
def test_elements_that_a_known_mask_takes(data: st.DataObject) -> None:
    shape = data.draw(st.lists(small, min_size=1, max_size=3))
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    size = int(np.prod(shape)) if axis is None else shape[axis]
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=1, max_size=size)))
    assume(mask.any())
    how = {} if axis is None else {"axis": axis}
    alike(nets.one("Compress", [nets.value("x", shape)], {"m": mask}, **how), {"x": whole(data, *shape)})


def test_masks_that_take_nothing_or_are_data_are_refused() -> None:
    net = nets.one("Compress", [nets.value("x", [3])], {"m": np.zeros(3, bool)})
    with pytest.raises(at.ModelError, match="Compress .*: its condition takes no element"):
        at.import_onnx(net)
    ports = [nets.value("x", [3]), nets.value("m", [3], TensorProto.BOOL)]
    with pytest.raises(at.ModelError, match="its condition must be known at import"):
        at.import_onnx(nets.one("Compress", ports))
    net = nets.one("Compress", [nets.value("x", [3])], {"m": np.ones(5, bool)})
    with pytest.raises(at.ModelError, match="outside"):
        at.import_onnx(net)
