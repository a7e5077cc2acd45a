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

# Other forms of operators: what differs by axis, and parameters that are optional.
FORMS: list[tuple[str, dict[str, object]]] = [
    ("conv1d", {"l": 9, "ci": 2, "co": 3, "kernel_size": (3,), "stride": (2,), "padding": (1,)}),
    ("conv2d", {"h": 6, "w": 5, "ci": 2, "co": 3, "k": (3, 2), "stride": (2, 1), "padding": (1, 0)}),
    (
        "conv2d",
        {"h": 7, "w": 4, "ci": 4, "co": 6, "k": 3, "groups": 2, "padding": (0, 1), "dilation": (2, 1)},
    ),
    ("conv2d_bias_relu", {"h": 6, "w": 5, "ci": 2, "co": 3, "k": 3, "stride": (1, 2), "padding": (2, 1)}),
    (
        "conv3d",
        {"d": 4, "h": 5, "w": 5, "ci": 2, "co": 3, "k": 2, "stride": (1, 2, 1), "dilation": (1, 2, 3)},
    ),
    ("depthwise_conv2d", {"h": 6, "w": 5, "c": 3, "k": 3, "stride": (2, 1), "padding": (1, 2)}),
    ("capsule_conv2d", {"h": 4, "w": 5, "ci": 1, "co": 2, "k": 3, "padding": (1, 0), "stride": (1, 2)}),
    (
        "conv2d_transpose",
        {"h": 3, "w": 4, "ci": 2, "co": 3, "k": (3, 2), "stride": (2, 3), "output_padding": (1, 2)},
    ),
    ("conv2d_transpose", {"h": 3, "w": 4, "ci": 4, "co": 6, "k": 4, "stride": 2, "padding": 1, "groups": 2}),
    ("conv2d_transpose", {"h": 3, "w": 4, "ci": 2, "co": 3, "k": 3, "stride": (3, 4), "dilation": (2, 6)}),
    (
        "conv2d_transpose",
        {"h": 3, "w": 2, "ci": 2, "co": 2, "k": 5, "groups": 2, "padding": (2, 1), "dilation": (1, 2)},
    ),
    (
        "max_pool2d",
        {"h": 6, "w": 7, "c": 3, "k": (3, 2), "stride": (2, 3), "padding": (1, 0), "ceil_mode": 1},
    ),
    ("max_pool2d", {"h": 7, "w": 7, "c": 3, "k": 3, "padding": 1, "dilation": (2, 1)}),
    ("avg_pool2d", {"h": 6, "w": 7, "c": 3, "k": (3, 2), "stride": 2, "padding": 1, "count_include_pad": 0}),
    ("avg_pool2d", {"h": 6, "w": 7, "c": 3, "k": 3, "stride": (2, 3), "padding": (1, 0), "ceil_mode": 1}),
    ("avg_pool2d", {"h": 5, "w": 4, "c": 2, "k": 2, "stride": 2, "ceil_mode": 1, "count_include_pad": 0}),
    ("softmax", {"m": 5, "n": 9, "axis": 0}),
    ("softmax", {"shape": (3, 5, 4), "axis": 1}),
    ("softmax", {"shape": (2, 3, 2, 5)}),
    ("layer_norm", {"m": 5, "n": 9, "eps": 0.5}),
    ("rms_norm", {"m": 5, "n": 9, "eps": 0.5}),
    ("attention", {"b": 2, "heads": 3, "seq": 7, "dim": 4, "is_causal": 1}),
    ("attention", {"b": 2, "heads": 3, "seq": 5, "dim": 4, "attn_mask": (2, 1, 1, 5), "scale": 0.25}),
    ("attention", {"heads": 2, "seq": 5, "dim": 4, "attn_mask": (5, 5), "is_causal": 1}),
    ("add", {"shape": (3, 4), "other": (4,)}),
    ("add", {"shape": (4, 1, 5), "other": (3, 1)}),
    ("add", {"n": 7, "other": (3, 2, 1)}),
]
