"""Small parameters of every operator, for comparing with other libraries."""

from __future__ import annotations

SMALL: dict[str, dict[str, object]] = {
    "matmul": {"m": 5, "n": 7, "k": 3},
    "batch_matmul": {"b": 2, "m": 5, "n": 7, "k": 3},
    "matmul_bias_relu": {"m": 5, "n": 7, "k": 3},
    "conv2d": {"h": 6, "w": 5, "ci": 2, "co": 3, "k": 3, "padding": 1},
    "conv2d_bias_relu": {"h": 6, "w": 5, "ci": 2, "co": 3, "k": 3, "stride": 2},
    "depthwise_conv2d": {"h": 6, "w": 5, "c": 3, "k": 3},
    "max_pool2d": {"h": 6, "w": 6, "c": 3, "k": 2, "stride": 2},
    "matmul_bias_gelu": {"m": 5, "n": 7, "k": 3},
    "conv1d": {"l": 9, "ci": 2, "co": 4, "k": 3, "stride": 2, "padding": 1, "groups": 2},
    "conv3d": {"d": 3, "h": 4, "w": 5, "ci": 2, "co": 3, "k": 2, "padding": 1},
    "conv2d_bn_relu": {"h": 6, "w": 5, "ci": 2, "co": 3, "k": 3, "padding": 1},
    "conv2d_transpose": {"h": 3, "w": 4, "ci": 2, "co": 3, "k": 4, "stride": 2, "padding": 1},
    "capsule_conv2d": {"h": 4, "w": 5, "ci": 2, "co": 3, "k": 3, "padding": 1},
    "avg_pool2d": {"h": 6, "w": 6, "c": 3, "k": 3, "stride": 2, "padding": 1},
    "rms_norm": {"m": 5, "n": 9},
    "attention": {"b": 2, "heads": 3, "seq": 5, "dim": 4},
    "transpose_batch_matmul_softmax": {"b": 2, "seq": 5, "heads": 3, "dim": 4},
    "softmax": {"m": 5, "n": 9},
    "layer_norm": {"m": 5, "n": 9},
    "norm2": {"b": 2, "m": 5, "n": 9},
    "argmax": {"m": 5, "n": 9},
    "argmin": {"m": 5, "n": 9},
    "reduce_sum": {"m": 5, "n": 9},
    "permute": {"shape": (2, 3, 4), "axes": (2, 0, 1)},
    "add": {"n": 11},
    "fused_multiply_add": {"n": 11},
}
