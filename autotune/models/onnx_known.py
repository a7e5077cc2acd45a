"""Evaluates nodes whose inputs are all known, with onnx's own reference evaluator."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from autotune.errors import ModelError, one_line
from autotune.models.operators.base import Array, UnsupportedForm
from autotune.models.operators.known import KnownTensor
from schedules import te
from schedules.dtypes import DTYPES

# Most bytes of values that are computed at import, beside what the file itself has.
MAX_BYTES = 2**30
# Largest input whose values are shown to shape inference, in elements: shapes, axes and the like.
_SHOWN = 2**10
# Operators that are evaluated: shape arithmetic, elements, movement. Others, whose work may be far more than
# what they read and write, are lowered although all is known.
FOLDED = frozenset(
    """
    Abs Add And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil
    Clip Compress Concat Constant ConstantOfShape Cos CumSum DequantizeLinear Div Equal Erf Exp Expand
    EyeLike Flatten Floor Gather GatherElements GatherND Gemm Greater GreaterOrEqual IsInf IsNaN Less
    LessOrEqual Log MatMul Max Mean Min Mod Mul Neg NonZero Not OneHot Or Pad Pow QuantizeLinear Range
    Reciprocal ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare
    Relu Reshape Round ScatterElements ScatterND Sigmoid Sign Sin Slice Softmax Split Sqrt Squeeze Sub
    Sum Tan Tanh Tile TopK Transpose Trilu Unique Unsqueeze Where Xor
    """.split()
)
# Integers that are multiplied as such: matrices of them, dequantized, stay expressions.
_MULTIPLIED = ("int8", "uint8")
# Operators whose outputs are not larger than their inputs, times the rank, whatever the values are.
_BOUNDED = frozenset({"NonZero", "Compress", "Unique"})


def is_folded(op: str, inputs: Sequence[KnownTensor | None]) -> bool:
    """Whether an operator of ONNX is evaluated, if its inputs are all known."""
    first = inputs[0] if inputs else None
    matrix = first is not None and first.dtype in _MULTIPLIED and len(first.shape) > 1
    return op in FOLDED and not (op == "DequantizeLinear" and matrix)


class ConstantFolder:
    """Evaluates nodes. ``left``: bytes that it may still make."""

    def __init__(self, file_bytes: int):
        self.left = MAX_BYTES + 4 * file_bytes

    def evaluate(self, node: Any, values: Mapping[str, Array], opsets: Mapping[str, int]) -> list[Array]:
        """The outputs of a node. Raises ModelError."""
        if node.op_type == "Range":  # exporters give it numbers, and arrays of one
            values = {n: x.reshape(()) if x.size == 1 else x for n, x in values.items()}
        self._afford(node, values, opsets)
        if node.op_type == "GatherElements":
            return [_gather_elements(node, values)]
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                made = ReferenceEvaluator(node, opsets=dict(opsets)).run(None, dict(values))
        except Exception as err:  # the evaluator raises what numpy raises
            raise ModelError(f"it cannot be evaluated: {one_line(err)}") from err
        for x in made:
            if isinstance(x, (list, dict)):
                raise UnsupportedForm("it makes a sequence")
            if x is None:
                raise UnsupportedForm("it makes an optional value")
        return [np.asarray(x) for x in made]

    def _afford(self, node: Any, values: Mapping[str, Array], opsets: Mapping[str, int]) -> None:
        """Raise ModelError if the outputs of a node would be too large, before they are made."""
        types = output_types(node, values, opsets)
        for name in node.output:
            if not name:
                continue
            tensor = types[name].tensor_type if name in types else None
            shape = None if tensor is None else static_shape(tensor)
            if shape is None:
                if node.op_type not in _BOUNDED:
                    raise UnsupportedForm("the shape of its output depends on data")
                continue
            itemsize = 8
            if tensor is not None and tensor.elem_type:
                itemsize = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)).itemsize
            self.left -= math.prod(shape) * itemsize
            if self.left < 0:
                raise ModelError(
                    f"its output of shape {list(shape)} is known at import but too large to keep: values "
                    f"computed at import may have {MAX_BYTES >> 20} MB, and four times the size of the file"
                )


def _gather_elements(node: Any, values: Mapping[str, Array]) -> Array:
    """By numpy: onnx's evaluator fails where the indices are a part of an axis."""
    data, ids = (values[n] for n in node.input)
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    if not -data.ndim <= axis < data.ndim or ids.ndim != data.ndim:
        raise ModelError(f"indices of {list(ids.shape)} for data of {list(data.shape)} along axis {axis}")
    axis %= data.ndim
    part = tuple(slice(None) if d == axis else slice(n) for d, n in enumerate(ids.shape))
    try:
        return np.asarray(np.take_along_axis(data[part], ids, axis))
    except (IndexError, ValueError) as err:
        raise ModelError(f"it cannot be evaluated: {err}") from err


def output_types(
    node: Any, values: Mapping[str, te.Tensor | KnownTensor | Array], opsets: Mapping[str, int]
) -> dict[str, Any]:
    """{output: TypeProto} by onnx's shape inference. Raises ModelError where the node is wrong."""
    schema = onnx.defs.get_schema(node.op_type, opsets[node.domain], node.domain)
    types, data = {}, {}
    for name, given in values.items():
        x = given.value if isinstance(given, KnownTensor) else given
        types[name] = type_of(x)
        if isinstance(x, np.ndarray) and x.size <= _SHOWN and x.dtype.kind in "iufb":
            data[name] = numpy_helper.from_array(x, name)
    ids = [helper.make_opsetid(d, v) for d, v in opsets.items()]
    try:
        return onnx.shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=ids)
    except Exception as err:  # what its C++ raises
        raise ModelError(f"its inputs do not fit it: {one_line(err)}") from err


def type_of(x: Any) -> Any:
    """The ONNX type of a tensor, of an array, or of what is known."""
    x = x.value if isinstance(x, KnownTensor) else x
    dtype = np.dtype(DTYPES[x.dtype].numpy) if isinstance(x.dtype, str) else x.dtype
    try:
        elem = helper.np_dtype_to_tensor_dtype(dtype)
    except (KeyError, ValueError):
        elem = onnx.TensorProto.STRING
    return helper.make_tensor_type_proto(elem, list(x.shape))


def static_shape(tensor: Any) -> Sequence[int] | None:
    """The shape in a type of a tensor if every dimension is a number, else None."""
    if not tensor.HasField("shape"):
        return None
    dims = [d.dim_value if d.WhichOneof("value") == "dim_value" else None for d in tensor.shape.dim]
    return None if None in dims else [int(d) for d in dims if d is not None]
