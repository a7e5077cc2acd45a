"""Gradients of expressions against differences in float64, and of whole numbers exactly."""

from __future__ import annotations

import numpy as np
import pytest
from gradient_cases import attention, by_differences, check, cross_entropy, dense_gelu, evaluated, operator

from schedules import te
from schedules.errors import WorkloadError
from schedules.functions import FUNCTIONS
from schedules.te.reverse_mode.slopes import FLAT, SLOPES

D = "float64"


def x_of(*shape: int, name: str = "x", dtype: str = D) -> te.Tensor:
    return te.placeholder(shape, dtype, name)


OPERATORS = {
    "matmul": ("matmul", {"m": 5, "n": 3, "k": 4}, None),
    "matmul transposed": ("matmul", {"m": 5, "n": 3, "k": 4, "transpose_a": 1, "transpose_b": 1}, None),
    "conv": ("conv2d", {"b": 2, "h": 5, "w": 6, "ci": 3, "co": 2, "kh": 3, "kw": 3, "padding": 1}, "NHWC"),
    "conv nchw": ("conv2d", {"b": 2, "h": 5, "w": 6, "ci": 3, "co": 2, "kh": 3, "kw": 2}, "NCHW"),
    "conv stride 2": ("conv2d", {"b": 1, "h": 7, "w": 6, "ci": 3, "co": 2, "kh": 3, "kw": 3, "stride": 2, "padding": 1}, "NHWC"),
    "conv stride 3": ("conv2d", {"b": 1, "h": 9, "w": 8, "ci": 1, "co": 2, "kh": 2, "kw": 4, "stride": 3, "padding": 1}, "NHWC"),
    "conv stride and dilation": ("conv2d", {"b": 1, "h": 11, "w": 10, "ci": 2, "co": 2, "kh": 3, "kw": 2, "stride": (2, 3), "dilation": (2, 2)}, "NHWC"),
    "conv 1x1 stride 2": ("conv2d", {"b": 1, "h": 5, "w": 6, "ci": 3, "co": 2, "kh": 1, "kw": 1, "stride": 2}, "NHWC"),
    "conv in groups": ("conv2d", {"b": 1, "h": 5, "w": 5, "ci": 4, "co": 6, "kh": 3, "kw": 3, "groups": 2}, "NHWC"),
    "conv transposed": ("conv2d_transpose", {"b": 1, "h": 3, "w": 4, "ci": 2, "co": 3, "kh": 3, "kw": 3, "stride": 2, "padding": 1}, "NHWC"),
    "conv 1d": ("conv1d", {"b": 2, "l": 9, "ci": 2, "co": 3, "k": 3, "stride": 2}, "NCHW"),
    "depthwise": ("depthwise_conv2d", {"b": 1, "h": 5, "w": 5, "c": 3, "kh": 3, "kw": 3, "padding": 1}, "NHWC"),
    "softmax": ("softmax", {"shape": (2, 5, 3), "axis": 1}, None),
    "layer_norm": ("layer_norm", {"m": 3, "n": 7}, None),
    "rms_norm": ("rms_norm", {"m": 3, "n": 7}, None),
    "attention": ("attention", {"b": 1, "heads": 2, "seq": 4, "dim": 3}, None),
    "attention causal": ("attention", {"b": 1, "heads": 2, "seq": 4, "dim": 3, "is_causal": 1, "attn_mask": (4, 4)}, None),
    "max pool": ("max_pool2d", {"b": 1, "h": 7, "w": 6, "c": 2, "k": 3, "stride": 2, "padding": 1}, "NHWC"),
    "max pool apart": ("max_pool2d", {"b": 1, "h": 7, "w": 6, "c": 2, "k": 2, "stride": 2}, "NHWC"),
    "avg pool": ("avg_pool2d", {"b": 1, "h": 7, "w": 6, "c": 2, "k": 3, "stride": 2, "padding": 1, "count_include_pad": 0}, "NHWC"),
    "avg pool apart": ("avg_pool2d", {"b": 1, "h": 6, "w": 6, "c": 2, "k": 2, "stride": 2}, "NHWC"),
    "avg pool ceil": ("avg_pool2d", {"b": 1, "h": 7, "w": 7, "c": 1, "k": 3, "stride": 2, "ceil_mode": 1, "padding": 1}, "NCHW"),
}  # fmt: skip


@pytest.mark.parametrize("case", OPERATORS)
def test_operators(case) -> None:
    name, params, layout = OPERATORS[case]
    check(operator(name, D, layout, **params))
