"""Every dtype of numpy: what the table has works at each door, all else is refused by name, with a remedy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from needs import imported

import autotune as at
from autotune.errors import AutotuneError
from schedules import te
from schedules.dtypes import DTYPES

NUMPY = sorted({np.dtype(c).name for c in np.typecodes["All"] if c not in "SUVOMm"})
MORE = ["int4", "uint4", "float8_e4m3", "float8_e4m3b11fnuz"]
REMEDIES = {"uint64": "int64 has its values below", "longdouble": "float64 has", "float128": "float64 has"}
REMEDIES |= {d: "keep real and imaginary parts" for d in NUMPY if d.startswith(("complex", "clong"))}
WIDE = ("longdouble", "float128", "clongdouble", "complex256")  # numpy's alone


def tensor(dtype: str) -> Any:
    x = te.placeholder((3,), dtype, "x")
    return te.evaluate(te.dag([x, te.compute((3,), lambda i: x[i], "y")]), [np.ones(3, DTYPES[dtype].numpy)])


def changed(dtype: str) -> Any:
    x = te.placeholder((3,), "float32", "x")
    y = te.compute((3,), lambda i: te.cast(x[i], dtype), "y")
    return te.evaluate(te.dag([x, y]), [np.ones(3, "float32")])


def onnx_input(dtype: str) -> Any:
    onnx = imported("onnx")
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    ports = [onnx.helper.make_tensor_value_info(n, kind, [3]) for n in "xy"]
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", ports[:1], ports[1:])
    return at.import_onnx(onnx.helper.make_model(graph).SerializeToString())


def onnx_cast(dtype: str) -> Any:
    onnx = imported("onnx")
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    ports = [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3])]
    ports += [onnx.helper.make_tensor_value_info("y", kind, [3])]
    node = onnx.helper.make_node("Cast", ["x"], ["y"], to=kind)
    graph = onnx.helper.make_graph([node], "g", ports[:1], ports[1:])
    return at.import_onnx(onnx.helper.make_model(graph).SerializeToString())


def torch_input(dtype: str) -> Any:
    torch = imported("torch")

    class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x.clone()

    x = torch.ones(3).to(getattr(torch, dtype))
    return at.import_torch(torch.export.export(Net(), (x,)))


@pytest.mark.parametrize("dtype", NUMPY + MORE)
@pytest.mark.parametrize("door", [tensor, changed])
def test_of_tensors(door: Any, dtype: str) -> None:
    _check(door, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [d for d in NUMPY if d not in WIDE])
@pytest.mark.parametrize("door", [onnx_input, onnx_cast, torch_input])
def test_of_models(door: Any, dtype: str) -> None:
    _check(door, dtype)


def _check(door: Any, dtype: str) -> None:
    if dtype in DTYPES:
        door(dtype)
        return
    with pytest.raises(AutotuneError) as err:
        door(dtype)
    text = str(err.value)
    assert dtype in text and REMEDIES.get(dtype, "choose one of these") in text and "int64" in text, text
