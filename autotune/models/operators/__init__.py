"""The operators of ONNX and of ATen, a family a file: what they compute, and the rows of both tables.

What an operator computes is a function of te tensors that knows no file format. An operand may be a numpy
array of one element too, which is written into the expression as a literal. Data that says what is computed,
such as axes and pads, are plain integers. A function states its operator in the form that sketch rules know:
rows are reduced as `schedules/ops/normalize.py` does it, products are sums with their bias in a map
afterwards. Importing this package fills the tables.
"""

from autotune.models.operators import (
    activations,
    attention,
    complex,
    convolution,
    elementwise,
    fourier,
    indexing,
    matmul,
    normalization,
    ordering,
    packed_weights,
    pooling,
    quantization,
    quantized_elements,
    quantized_products,
    quantized_torch,
    recurrent,
    recurrent_torch,
    reduction,
    resize,
    sampling,
    scatter,
    views,
)
from autotune.models.operators.table import aten, complex_op, onnx_op

__all__ = [
    "activations", "aten", "attention", "complex", "complex_op", "convolution", "elementwise", "fourier",
    "indexing", "matmul", "normalization", "onnx_op", "ordering", "packed_weights", "pooling",
    "quantization", "quantized_elements", "quantized_products", "quantized_torch", "recurrent",
    "recurrent_torch", "reduction", "resize", "sampling", "scatter", "views",
]  # fmt: skip
