"""Quantised models of ONNX with integers of 2, 4 and 16 bits, as ONNX Runtime runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_models as nets
import pytest
import quantised_models as models
from graph_meaning import evaluate
from needs import imported

import autotune as at
from autotune.errors import ModelError
from autotune.models.operators.narrow_integers import Packed, ends_of
from schedules.graph.edit import is_product
from schedules.graph.graph import Graph
from schedules.graph.optimize import optimize

onnx, runtime = imported("onnx"), imported("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

runtime.set_default_logger_severity(4)


def narrow(name: str, dtype: str, value: np.ndarray) -> Any:
    """An initializer of few bits or of 16."""
    return helper.make_tensor(name, getattr(TensorProto, dtype.upper()), value.shape, value.ravel().tolist())


def drawn(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    low, high = ends_of(dtype)
    return np.where(
        rng.random(shape) < 0.3, rng.choice([low, high], shape), rng.integers(low, high + 1, shape)
    )


def network(nodes: list[Any], given: dict[str, tuple[int, ...]], known: list[Any], opset: int = 21) -> Any:
    """A model whose output is ``y``, a float."""
    ports = [nets.value(n, shape) for n, shape in given.items()]
    made = nets.model(nodes, ports, ["y"], {}, opset=opset)
    made.graph.initializer.extend(known)
    made.ir_version = 13 if opset > 22 else 10
    return made


def ran(model: Any, inputs: dict[str, Any]) -> np.ndarray:
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, inputs)[0])


def both(model: Any, *inputs: np.ndarray) -> list[np.ndarray]:
    """What the graph gives, and what it gives after rewrites."""
    graph = at.import_onnx(model).graph
    return [evaluate(which, list(inputs))[0] for which in (graph, optimize(graph))]


# --- weights of few bits ----------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 4])
def test_numbers_are_packed_from_the_lowest_bits_on(bits: int) -> None:
    numbers = np.arange(10).reshape(2, 5) % (1 << bits)
    rows = Packed(bits).packed(numbers)
    each = 8 // bits
    assert rows.dtype == np.uint8 and rows.shape == (2, -(-5 // each))
    for r in range(2):
        assert [rows[r, i // each] >> i % each * bits & (1 << bits) - 1 for i in range(5)] == [*numbers[r]]


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("k", "n", "block"), [(64, 24, 16), (50, 7, 16), (33, 5, 32)])
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_weights_with_a_scale_a_block(dtype: str, k: int, n: int, block: int, axis: int, zeros: bool) -> None:
    rng = np.random.default_rng(k)
    w = drawn(rng, dtype, k, n)
    shape = (-(-k // block), n) if axis == 0 else (k, -(-n // block))
    scale = rng.uniform(0.01, 0.1, shape).astype(np.float32)
    zero = drawn(rng, dtype, *shape)
    known = [narrow("w", dtype, w), numpy_helper.from_array(scale, "s"), narrow("z", dtype, zero)]
    nodes = [
        nets.node("DequantizeLinear", "w s z" if zeros else "w s", "wide", axis=axis, block_size=block),
        nets.node("MatMul", "x wide", "y"),
    ]
    model = network(nodes, {"x": (3, k)}, known if zeros else known[:2])
    x = rng.normal(0, 1, (3, k)).astype(np.float32)

    def every(a: np.ndarray) -> np.ndarray:
        return np.repeat(a, block, axis).take(range(w.shape[axis]), axis)

    want = x @ ((w - (every(zero) if zeros else 0)) * every(scale)).astype(np.float32)
    for have in (*both(model, x), ran(model, {"x": x})):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4)


def test_they_stay_packed_along_the_sum() -> None:
    """A product reads half a byte for each weight, as of MatMulNBits."""
    rng = np.random.default_rng(0)
    k, n, block = 1024, 128, 32
    scale = rng.uniform(0.01, 0.1, (k // block, n)).astype(np.float32)
    known = [narrow("w", "int4", drawn(rng, "int4", k, n)), numpy_helper.from_array(scale, "s")]
    nodes = [
        nets.node("DequantizeLinear", "w s", "wide", axis=0, block_size=block),
        nets.node("MatMul", "x wide", "y"),
    ]
    graph = optimize(at.import_onnx(network(nodes, {"x": (1, k)}, known)).graph)
    product = next(s for s in graph.dag.stages if is_product(s))
    assert [a.extent for a in product.reduce_axes] == [2, block // 2], "digits of a group"
    assert {(v.dtype.name, v.size) for v in graph.values.values()} == {
        ("uint8", k * n // 2), ("float32", k * n // block),
    }  # fmt: skip


def test_blocks_of_a_table_that_is_read_by_rows() -> None:
    rng = np.random.default_rng(0)
    table = drawn(rng, "uint4", 9, 4, 6)
    scale = rng.uniform(0.01, 0.1, (9, 2, 6)).astype(np.float32)
    known = [
        narrow("w", "uint4", table), numpy_helper.from_array(scale, "s"),
        numpy_helper.from_array(np.array([3, 0, 8]), "ids"),
    ]  # fmt: skip
    nodes = [
        nets.node("DequantizeLinear", "w s", "wide", axis=1, block_size=2),
        nets.node("Gather", "wide ids", "rows"),
        nets.node("Mul", "rows x", "y"),
    ]
    model = network(nodes, {"x": (1,)}, known)
    x = np.float32([3])
    want = (table * np.repeat(scale, 2, 1))[[3, 0, 8]] * 3
    for have in (*both(model, x), ran(model, {"x": x})):
        np.testing.assert_allclose(have, want, rtol=1e-5)


def integers(graph: Graph) -> bool:
    products = [s for s in graph.dag.stages if is_product(s)]
    return bool(products) and all(s.outputs[0].dtype == "int32" for s in products)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["residual", "encoder"])
@pytest.mark.parametrize("types", ["u4", "s4", "u16", "s16"])
def test_files_of_the_quantiser(types: str, name: str, tmp_path: Path) -> None:
    """Weights of four bits a channel are multiplied as integers, activations of 16 bits as floats."""
    kinds = {"u4": ("QUInt8", "QUInt4"), "s4": ("QUInt8", "QInt4")}
    kinds |= {"u16": ("QUInt16", "QInt8"), "s16": ("QInt16", "QInt8")}
    source = getattr(models, name)()
    source.opset_import[0].version, source.ir_version = 21, 10
    model = models.quantised(source, "QDQ", kinds[types], types.endswith("4"), tmp_path)
    graph = at.import_onnx(model).graph
    after = optimize(graph)
    assert integers(after) == types.endswith("4")
    for inputs in models.inputs_of(source, 3, seed=7):
        want = ran(model, inputs)
        size = float(np.sqrt(np.mean(np.square(want))))
        for which in (graph, after):
            (have,) = evaluate(which, list(inputs.values()))
            far = np.abs(have - want) / size
            assert np.mean(far > 1e-4) <= 0.01 and far.max() < 0.1, (far.max(), np.mean(far > 1e-4))


# --- what is computed -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int16", "uint16"])
def test_rounded_then_shifted_then_cut_off(dtype: str) -> None:
    low, high = ends_of(dtype)
    x = np.array([0.0, 0.5, 1.5, -0.5, 2.5, 7, 9, -9, 1e5, -1e5, np.inf, -np.inf], np.float32)
    zero = np.asarray(low + 2)
    known = [numpy_helper.from_array(np.float32(1), "s"), narrow("z", dtype, zero)]
    nodes = [nets.node("QuantizeLinear", "x s z", "q"), nets.node("DequantizeLinear", "q s z", "y")]
    model = network(nodes, {"x": x.shape}, known)
    want = np.clip(np.rint(x) + zero, low, high) - zero
    for have in (*both(model, x), ran(model, {"x": x})):
        np.testing.assert_array_equal(have, want)


def test_a_product_of_activations_of_few_bits_is_one_of_integers() -> None:
    rng = np.random.default_rng(0)
    w = drawn(rng, "int4", 40, 6)
    known = [
        narrow("w", "int4", w), narrow("z", "uint4", np.asarray(7)),
        numpy_helper.from_array(np.float32(0.25), "s"),
    ]  # fmt: skip
    nodes = [
        nets.node("QuantizeLinear", "x s z", "q"),
        nets.node("DequantizeLinear", "q s z", "a"),
        nets.node("DequantizeLinear", "w s", "b"),
        nets.node("MatMul", "a b", "y"),
    ]
    model = network(nodes, {"x": (5, 40)}, known)
    x = rng.normal(0, 1, (5, 40)).astype(np.float32)
    want = ran(model, {"x": x})
    for have in both(model, x):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)
    assert integers(optimize(at.import_onnx(model).graph))


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_an_output_of_such_integers_is_refused(dtype: str) -> None:
    """They are kept as wider ones, and a caller would get these."""
    known = [numpy_helper.from_array(np.float32(1), "s"), narrow("z", dtype, np.asarray(1))]
    model = network([nets.node("QuantizeLinear", "x s z", "y")], {"x": (3,)}, known)
    model.graph.output[0].type.tensor_type.elem_type = getattr(TensorProto, dtype.upper())
    why = f"output 'y' has type {dtype}, which is not supported; use one of .*, or dequantize it"
    with pytest.raises(ModelError, match=why):
        at.import_onnx(model)


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_an_output_of_16_bits(dtype: str) -> None:
    known = [numpy_helper.from_array(np.float32(0.5), "s"), narrow("z", dtype, np.asarray(3))]
    model = network([nets.node("QuantizeLinear", "x s z", "y")], {"x": (7,)}, known)
    model.graph.output[0].type.tensor_type.elem_type = getattr(TensorProto, dtype.upper())
    x = np.array([0.0, 1.25, -7.0, 1e6, -1e6, np.inf, 0.25], np.float32)
    want = ran(model, {"x": x})
    assert want.dtype == dtype
    for have in both(model, x):
        np.testing.assert_array_equal(have, want, strict=True)
