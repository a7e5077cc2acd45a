"""Quantised operators of ONNX and of ONNX Runtime, and whole files of its quantiser, as it runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_models as nets
import pytest
import quantised_models as models
from graph_meaning import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import imported

import autotune as at
from autotune.errors import ModelError
from schedules.dtypes import DTYPES
from schedules.graph.edit import factors, is_product
from schedules.graph.optimize import optimize

onnx, runtime = imported("onnx"), imported("onnxruntime")
from onnx import helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

runtime.set_default_logger_severity(4)
STORED = ("uint8", "int8")
MICROSOFT = "com.microsoft"
quick = settings(deadline=None, max_examples=20)


def elem(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def extreme(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    """Integers of the whole range, with many of its ends."""
    ends = DTYPES[dtype].range[0], DTYPES[dtype].range[-1]
    every = rng.integers(ends[0], ends[1] + 1, shape)
    return np.where(rng.random(shape) < 0.3, rng.choice(ends, shape), every).astype(dtype)


def net(
    op: str, given_: dict[str, np.ndarray], known: dict[str, Any], order: str, results: dict[str, str],
    domain: str = "", **attributes: Any,
) -> Any:  # fmt: skip
    """A model of one node. ``given_``: inputs of the model; ``known``: its constants; ``order``: the names of
    the node's inputs, "-" for one that is left out; ``results``: {output: dtype}."""
    names = ["" if n == "-" else n for n in order.split()]
    node = helper.make_node(op, names, [*results], name="n0", domain=domain, **attributes)
    ports = [nets.value(n, a.shape, elem(a.dtype.name)) for n, a in given_.items()]
    ids = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    made = nets.model([node], ports, [*results], known, opset_imports=ids)
    for port, dtype in zip(made.graph.output, results.values(), strict=True):
        port.type.tensor_type.elem_type = elem(dtype)
    made.ir_version = 9
    return made


def ran(model: Any, inputs: dict[str, Any]) -> list[Any]:
    """What ONNX Runtime gives, node by node."""
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return list(runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, inputs))


def alike(model: Any, inputs: dict[str, Any], steps: int = 1, share: float = 0.01, rtol: float = 1e-5) -> Any:
    """The graph after rewrites gives what ONNX Runtime does: integers up to so many steps, in so large a
    share of them. Returns the graph."""
    graph = at.import_onnx(model).graph
    after = optimize(graph)
    want = ran(model, inputs)
    for which in (graph, after):
        for have, other in zip(evaluate(which, list(inputs.values())), want, strict=True):
            assert (have.shape, have.dtype) == (other.shape, other.dtype)
            if have.dtype.kind == "f":
                size = float(np.sqrt(np.mean(np.square(other)))) or 1.0
                np.testing.assert_allclose(have, other, rtol=rtol, atol=rtol * size)
                continue
            far = np.abs(have.astype(np.int64) - other.astype(np.int64))
            assert far.max() <= steps and np.mean(far > 0) <= max(share, 1 / far.size), far
    return after


def has_integer_products(graph: Any) -> bool:
    every = [s for s in graph.dag.stages if is_product(s)]
    dtypes = {x.dtype for s in every for x in factors(s.values[0])}
    return bool(every) and dtypes <= set(STORED) and all(s.outputs[0].dtype == "int32" for s in every)


def scale(rng: np.random.Generator, n: int = 0) -> np.ndarray:
    return rng.uniform(0.002, 0.02, (n,) if n else ()).astype(np.float32)


# --- products ---------------------------------------------------------------------------------


@pytest.mark.slow
@quick
@given(st.integers(0, 10**6), st.sampled_from(STORED), st.sampled_from(STORED), st.booleans(), st.booleans())
def test_qlinear_matmul(seed: int, of_a: str, of_b: str, columns: bool, known: bool) -> None:
    rng = np.random.default_rng(seed)
    m, k, n = rng.integers(5, 12, 3)
    if (of_a, of_b) == ("int8", "uint8"):
        of_b = "int8"  # ONNX Runtime has no such product
    a, b = extreme(rng, of_a, m, k), extreme(rng, of_b, k, n)
    zero = extreme(rng, of_b, n) if columns else extreme(rng, of_b)
    ports = {"a": a} if known else {"a": a, "b": b}
    weights = {
        "as": scale(rng), "az": extreme(rng, of_a), "bs": scale(rng, n if columns else 0), "bz": zero,
        "ys": np.float32(0.3), "yz": extreme(rng, of_a),
    } | ({"b": b} if known else {})  # fmt: skip
    model = net("QLinearMatMul", ports, weights, "a as az b bs bz ys yz", {"y": of_a})
    assert has_integer_products(alike(model, ports))


@pytest.mark.slow
@quick
@given(st.integers(0, 10**6), st.sampled_from(STORED), st.booleans(), st.booleans())
def test_matmul_integer_and_its_float_form(seed: int, of_b: str, columns: bool, computed: bool) -> None:
    rng = np.random.default_rng(seed)
    a, b = extreme(rng, "uint8", 2, 7, 9), extreme(rng, of_b, 9, 6)
    zero = extreme(rng, of_b, 6) if columns else extreme(rng, of_b)
    ports: dict[str, Any] = {"a": a} | ({"az": extreme(rng, "uint8")} if computed else {})
    weights: dict[str, Any] = {"b": b, "bz": zero} | ({} if computed else {"az": extreme(rng, "uint8")})
    after = alike(net("MatMulInteger", ports, weights, "a b az bz", {"y": "int32"}), ports, steps=0)
    assert has_integer_products(after)
    weights |= {"as": scale(rng), "bs": scale(rng, 6 if columns else 0), "c": scale(rng, 6)}
    order = "a b as bs az bz c"
    model = net("MatMulIntegerToFloat", ports, weights, order, {"y": "float32"}, MICROSOFT)
    assert has_integer_products(alike(model, ports))


def test_a_zero_point_a_row() -> None:
    """ONNX has it, and ONNX Runtime does not."""
    rng = np.random.default_rng(0)
    a, b, zero = extreme(rng, "uint8", 7, 5), extreme(rng, "int8", 5, 6), extreme(rng, "uint8", 7)
    model = net("MatMulInteger", {"a": a}, {"b": b, "az": zero}, "a b az", {"y": "int32"})
    graph = at.import_onnx(model).graph
    want = (a.astype(np.int32) - zero[:, None]) @ b.astype(np.int32)
    for which in (graph, optimize(graph)):
        np.testing.assert_array_equal(evaluate(which, [a])[0], want)
    parameters = {"as": np.linspace(0.1, 1, 7, dtype=np.float32), "bs": np.float32(0.5), "bz": np.int8(3)}
    more = parameters | {"b": b, "az": zero, "ys": np.float32(40), "yz": np.uint8(100)}
    model = net("QLinearMatMul", {"a": a}, more, "a as az b bs bz ys yz", {"y": "uint8"})
    total = (a.astype(np.int32) - zero[:, None]) @ (b.astype(np.int32) - 3)
    exact = np.rint(total * (parameters["as"][:, None].astype(float) * 0.5 / 40)) + 100
    have = evaluate(optimize(at.import_onnx(model).graph), [a])[0].astype(int)
    assert np.abs(have - np.clip(exact, 0, 255)).max() <= 1
    assert np.mean(have == np.clip(exact, 0, 255)) > 0.9


@pytest.mark.slow
@quick
@given(st.integers(0, 10**6), st.sampled_from(STORED), st.booleans(), st.booleans(), st.booleans())
def test_qgemm(seed: int, of_a: str, turned: bool, columns: bool, to_float: bool) -> None:
    rng = np.random.default_rng(seed)
    a = extreme(rng, of_a, 9, 6) if turned else extreme(rng, of_a, 6, 9)
    b = extreme(rng, "int8", 7, 9)
    weights = {
        "b": b, "as": scale(rng), "az": extreme(rng, of_a), "bs": scale(rng, 7 if columns else 0),
        "bz": np.zeros(7, np.int8) if columns else np.int8(-5),
        "c": rng.integers(-9999, 9999, 7).astype(np.int32),
        "ys": np.float32(0.2), "yz": extreme(rng, of_a),
    }  # fmt: skip
    order = "a as az b bs bz c" + ("" if to_float else " ys yz")
    weights = {n: w for n, w in weights.items() if n in order.split()}
    result = "float32" if to_float else of_a
    model = net(
        "QGemm", {"a": a}, weights, order, {"y": result}, MICROSOFT, transA=turned, transB=1, alpha=0.5
    )
    assert has_integer_products(alike(model, {"a": a}))


@pytest.mark.slow
@quick
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_dynamic_quantize_matmul(seed: int, columns: bool, zero: bool) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (5, 11)).astype(np.float32)
    weights: dict[str, Any] = {"b": extreme(rng, "int8", 11, 6), "bs": scale(rng, 6 if columns else 0)}
    weights |= {"bz": extreme(rng, "int8", 6) if columns else extreme(rng, "int8")} if zero else {}
    weights |= {"c": scale(rng, 6)}
    order = "x b bs " + ("bz" if zero else "-") + " c"
    model = net("DynamicQuantizeMatMul", {"x": x}, weights, order, {"y": "float32"}, MICROSOFT)
    assert has_integer_products(alike(model, {"x": x}))


# --- convolutions -----------------------------------------------------------------------------


@pytest.mark.slow
@quick
@given(st.integers(0, 10**6), st.sampled_from(STORED), st.booleans(), st.sampled_from([1, 2]), st.booleans())
def test_qlinear_conv(seed: int, of_x: str, channels: bool, groups: int, bias: bool) -> None:
    rng = np.random.default_rng(seed)
    x, w = extreme(rng, of_x, 2, 4, 7, 6), extreme(rng, "int8", 6, 4 // groups, 3, 2)
    weights: dict[str, Any] = {
        "w": w, "xs": scale(rng), "xz": extreme(rng, of_x), "ws": scale(rng, 6 if channels else 0),
        "wz": np.zeros(6 if channels else (), np.int8), "ys": np.float32(0.3), "yz": extreme(rng, of_x),
    }  # fmt: skip
    weights |= {"c": rng.integers(-9999, 9999, 6).astype(np.int32)} if bias else {}
    order = "x xs xz w ws wz ys yz" + (" c" if bias else "")
    how = {"pads": [1, 0, 2, 1], "strides": [2, 1], "group": groups}
    model = net("QLinearConv", {"x": x}, weights, order, {"y": of_x}, **how)
    assert has_integer_products(alike(model, {"x": x}))


@pytest.mark.slow
@quick
@given(st.integers(0, 10**6), st.sampled_from(STORED), st.booleans())
def test_conv_integer(seed: int, of_w: str, computed: bool) -> None:
    rng = np.random.default_rng(seed)
    x, w = extreme(rng, "uint8", 1, 3, 6, 7), extreme(rng, of_w, 5, 3, 3, 3)
    ports: dict[str, Any] = {"x": x} | ({"xz": extreme(rng, "uint8")} if computed else {})
    weights: dict[str, Any] = {"w": w, "wz": extreme(rng, of_w)}
    weights |= {} if computed else {"xz": extreme(rng, "uint8")}
    model = net("ConvInteger", ports, weights, "x w xz wz", {"y": "int32"}, pads=[1, 1, 1, 1])
    assert has_integer_products(alike(model, ports, steps=0))


ONE = {
    test_qlinear_matmul: (0, "uint8", "int8", True, True),
    test_matmul_integer_and_its_float_form: (1, "uint8", True, True),
    test_qgemm: (2, "uint8", True, True, False),
    test_dynamic_quantize_matmul: (3, True, True),
    test_qlinear_conv: (4, "int8", True, 2, True),
    test_conv_integer: (5, "uint8", True),
}


@pytest.mark.parametrize("test", ONE, ids=lambda test: test.__name__.removeprefix("test_"))
def test_one_case_of_each(test: Any) -> None:
    test.hypothesis.inner_test(*ONE[test])


@pytest.mark.parametrize("zero", [0, 7, 255])
def test_what_equals_its_zero_point_is_nothing_at_borders_too(zero: int) -> None:
    """Padding is with the zero point."""
    rng = np.random.default_rng(0)
    x = np.full((1, 2, 4, 5), zero, np.uint8)
    weights = {"w": extreme(rng, "uint8", 3, 2, 3, 3), "xz": np.uint8(zero), "wz": np.uint8(99)}
    model = net("ConvInteger", {"x": x}, weights, "x w xz wz", {"y": "int32"}, pads=[2, 1, 2, 1])
    after = alike(model, {"x": x}, steps=0)
    np.testing.assert_array_equal(evaluate(after, [x])[0], 0)


# --- rounding ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "by", "zero", "want"),
    [
        ([0.5], 1.0, np.uint8(1), [1]),  # rounded, then the zero point is added
        ([0.25, 0.75, 1.25, 1.75], 0.5, np.uint8(0), [0, 2, 2, 4]),  # halves to even
        ([3e9, -3e9, 1e38, np.inf, -np.inf], 1.0, np.int8(0), [127, -128, 127, 127, -128]),
        ([300.7, -0.6], 1.0, np.uint8(0), [255, 0]),
        ([127.5, -1.5], 1.0, np.int8(-1), [127, -3]),
    ],
)
def test_quantising_rounds_then_shifts_then_cuts_off(x: Any, by: float, zero: Any, want: Any) -> None:
    data = np.array(x, np.float32)
    known = {"s": np.float32(by), "z": zero}
    model = net("QuantizeLinear", {"x": data}, known, "x s z", {"y": zero.dtype.name})
    after = alike(model, {"x": data}, steps=0)
    assert evaluate(after, [data])[0].tolist() == want


@pytest.mark.parametrize("domain", ["", MICROSOFT])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scales_along_an_axis(axis: int, domain: str) -> None:
    rng = np.random.default_rng(axis)
    x = rng.normal(0, 3, (3, 4, 5)).astype(np.float32)
    n = x.shape[axis]
    known = {"s": scale(rng, n) * 9, "z": extreme(rng, "int8", n)}
    order = "x s z"
    q = net("QuantizeLinear", {"x": x}, known, order, {"y": "int8"}, domain, axis=axis)
    alike(q, {"x": x})
    whole = extreme(rng, "int8", 3, 4, 5)
    alike(
        net("DequantizeLinear", {"x": whole}, known, order, {"y": "float32"}, domain, axis=axis), {"x": whole}
    )


def test_scales_of_blocks_stay_blocks() -> None:
    """A scale a block of the sum can not be taken out of it."""
    rng = np.random.default_rng(3)
    w, x = extreme(rng, "int8", 8, 6), rng.normal(0, 1, (5, 8)).astype(np.float32)
    known = {"w": w, "s": scale(rng, 12).reshape(2, 6), "xs": np.float32(0.03), "xz": np.uint8(9)}
    nodes = [
        nets.node("DequantizeLinear", "w s", "wide", axis=0, block_size=4),
        nets.node("QuantizeLinear", "x xs xz", "q"),
        nets.node("DequantizeLinear", "q xs xz", "a"),
        nets.node("MatMul", "a wide", "y"),
    ]
    model = nets.model(nodes, [nets.value("x", [5, 8])], ["y"], known, opset=21)
    assert not has_integer_products(alike(model, {"x": x}))


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_8_bits(dtype: str, saturate: int) -> None:
    """They are rounded by themselves, and what is too large ends at the largest by default: 464 and 465 are
    448. Back they keep their fractions."""
    x = np.array([0, 1, 2, 928, 930, 1e5, 200, -3.3, -1e9, np.inf, np.nan], np.float32)
    known = {"s": np.float32(2), "z": np.zeros((), DTYPES[dtype].numpy)}
    nodes = [
        nets.node("QuantizeLinear", "x s z", "q", saturate=saturate),
        nets.node("DequantizeLinear", "q s z", "y"),
    ]
    model = nets.model(nodes, [nets.value("x", x.shape)], ["q", "y"], known, opset=21)
    model.graph.output[0].type.tensor_type.elem_type = elem(DTYPES[dtype].numpy.name)
    want = ReferenceEvaluator(model).run(None, {"x": x})
    for which in (at.import_onnx(model).graph, optimize(at.import_onnx(model).graph)):
        q, y = evaluate(which, [x])
        np.testing.assert_array_equal(q.astype(np.float32), want[0].astype(np.float32))
        np.testing.assert_array_equal(y, want[1])


# --- elements ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_sums_and_products_of_elements(op: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    ports = {"a": extreme(rng, dtype, 4, 5, 6), "b": extreme(rng, dtype, 5, 1)}
    known = {n: scale(rng) for n in ("as", "bs")} | {n: extreme(rng, dtype) for n in ("az", "bz", "yz")}
    known["ys"] = np.float32(0.02 if op == "QLinearAdd" else 0.01)
    model = net(op, ports, known, "a as az b bs bz ys yz", {"y": dtype}, MICROSOFT)
    alike(model, ports, share=0.03)


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize(
    ("op", "how"),
    [
        ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.1}),
        ("QLinearSoftmax", {"axis": -1, "opset": 13}),
        ("QLinearGlobalAveragePool", {}),
        ("QLinearGlobalAveragePool", {"channels_last": 1}),
        ("QLinearAveragePool", {"kernel_shape": [3, 2], "strides": [1, 2], "pads": [1, 0, 1, 1]}),
    ],
)
def test_operators_of_one_quantised_tensor(op: str, how: dict[str, Any], dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = extreme(rng, dtype, 2, 3, 6, 5)
    share = 1 / 256 if op in ("QLinearSigmoid", "QLinearSoftmax") else 0.015
    low = DTYPES[dtype].range[0]
    known = {
        "s": np.float32(0.02),
        "z": extreme(rng, dtype),
        "ys": np.float32(share),
        "yz": np.array(low, dtype),
    }
    alike(net(op, {"x": x}, known, "x s z ys yz", {"y": dtype}, MICROSOFT, **how), {"x": x}, share=0.02)


def test_concatenation_and_choice() -> None:
    rng = np.random.default_rng(0)
    ports = {"a": extreme(rng, "uint8", 2, 3), "b": extreme(rng, "uint8", 2, 5)}
    known = {n: scale(rng) for n in ("as", "bs", "ys")} | {
        n: extreme(rng, "uint8") for n in ("az", "bz", "yz")
    }
    alike(
        net("QLinearConcat", ports, known, "ys yz a as az b bs bz", {"y": "uint8"}, MICROSOFT, axis=1), ports
    )
    ports["b"] = extreme(rng, "uint8", 2, 3)
    ports = {"c": rng.random((2, 3)) < 0.5, **ports}
    alike(net("QLinearWhere", ports, known, "c a as az b bs bz ys yz", {"y": "uint8"}, MICROSOFT), ports)


# --- weights of few bits ----------------------------------------------------------------------


def packed(q: np.ndarray, bits: int) -> np.ndarray:
    """Numbers of few bits, the first one in the lowest bits of a byte, rows padded to whole bytes."""
    each = 8 // bits
    q = np.pad(q, [(0, 0)] * (q.ndim - 1) + [(0, -q.shape[-1] % each)])
    parts = q.reshape(*q.shape[:-1], -1, each).astype(np.uint8)
    return np.bitwise_or.reduce(parts << (np.arange(each) * bits).astype(np.uint8), axis=-1).astype(np.uint8)


@pytest.mark.parametrize("zeros", ["none", "packed", "float"])
@pytest.mark.parametrize(
    ("k", "block", "bits"), [(64, 16, 4), (40, 16, 4), (4304, 32, 4), (96, 32, 8), (50, 16, 8), (48, 16, 2)]
)
def test_matmul_of_packed_weights(k: int, block: int, bits: int, zeros: str) -> None:
    """K=4304 in blocks of 32: a row has 135 blocks, 2160 bytes, and 68 bytes of zero points."""
    rng = np.random.default_rng(k)
    n, blocks = 5, -(-k // block)
    q = rng.integers(0, 1 << bits, (n, blocks, block))
    q[:, -1, k - (blocks - 1) * block :] = 0
    points = rng.integers(0, 1 << bits, (n, blocks))
    s = scale(rng, n * blocks)
    x = rng.normal(0, 1, (3, k)).astype(np.float32)
    known: dict[str, Any] = {"b": packed(q, bits), "s": s}
    order = "x b s"
    if zeros == "packed":
        known["z"], order = packed(points, bits).reshape(-1), "x b s z"
        assert k != 4304 or (known["b"].reshape(n, -1).shape[1], known["z"].size) == (2160, 68 * n)
    elif zeros == "float":
        known["z"], order = points.astype(np.float32), "x b s z"
    else:
        points = np.full((n, blocks), 1 << bits - 1)
    model = net(
        "MatMulNBits",
        {"x": x},
        known,
        order,
        {"y": "float32"},
        MICROSOFT,
        K=k,
        N=n,
        bits=bits,
        block_size=block,
    )
    w = (q - points[:, :, None]) * s.reshape(n, blocks, 1).astype(np.float64)
    want = x.astype(np.float64) @ w.reshape(n, -1)[:, :k].T
    for which in (at.import_onnx(model).graph, optimize(at.import_onnx(model).graph)):
        np.testing.assert_allclose(evaluate(which, [x])[0], want, rtol=1e-4, atol=1e-4)
    if bits != 2 and zeros != "float":  # what ONNX Runtime has
        np.testing.assert_allclose(ran(model, {"x": x})[0], want, rtol=1e-3, atol=2e-3)


def test_packed_weights_of_another_size_are_refused() -> None:
    known = {"b": np.zeros((5, 4, 8), np.uint8), "s": np.ones(20, np.float32)}
    x = np.zeros((3, 70), np.float32)
    model = net(
        "MatMulNBits", {"x": x}, known, "x b s", {"y": "float32"}, MICROSOFT, K=70, N=5, bits=4, block_size=16
    )
    with pytest.raises(ModelError, match=r"n0 \(MatMulNBits\): uint8\[5, 4, 8\] are no 5 rows of 40 bytes"):
        at.import_onnx(model)


def test_an_operator_of_another_library_is_refused_by_name() -> None:
    x = np.zeros((3, 4), np.float32)
    model = net("QMoE", {"x": x}, {}, "x", {"y": "float32"}, MICROSOFT)
    with pytest.raises(ModelError, match=r"QMoE of domain com.microsoft \(1\): n0: domain 'com.microsoft'"):
        at.import_onnx(model)


# --- files of the quantiser -------------------------------------------------------------------

FILES = [
    (model, how, types, channels)
    for model in ("residual", "encoder")
    for how, kinds in (("QDQ", models.TYPES), ("QOperator", models.TYPES), ("dynamic", ("us", "uu")))
    for types in kinds
    for channels in (False, True)
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "how", "types", "channels"), FILES)
def test_files_of_the_quantiser(name: str, how: str, types: str, channels: bool, tmp_path: Path) -> None:
    """Every product is one of integers, and outputs are those of ONNX Runtime but for single steps."""
    source = getattr(models, name)()
    model = models.quantised(source, how, types, channels, tmp_path)
    graph = at.import_onnx(model).graph
    after = optimize(graph)
    products = [s for s in after.dag.stages if is_product(s)]
    floats = [s for s in products if s.outputs[0].dtype != "int32"]
    assert len(floats) == (2 if (name, how) == ("encoder", "dynamic") else 0)  # of attention
    for inputs in models.inputs_of(source, 3, seed=7):
        (want,) = ran(model, inputs)
        size = float(np.sqrt(np.mean(np.square(want))))
        for which in (graph, after):
            (have,) = evaluate(which, list(inputs.values()))
            far = np.abs(have - want) / size
            assert np.mean(far > 1e-4) <= 0.01 and far.max() < 0.1, (far.max(), np.mean(far > 1e-4))
