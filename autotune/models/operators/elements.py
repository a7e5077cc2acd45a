"""The functions of elements that models of ONNX and of torch share: one row each, read by both importers.

What only one of the two has, or takes parameters for, is a row in `autotune.models.operators`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from autotune.models.operators import functions as f
from schedules import te

# "float": ONNX has it of floats alone; torch makes floats of integers. "whole": the same in ONNX; in torch
# integers are what they are. "any": of every dtype but torch's bool. "compare": of two, to bool. "logic": of
# two as bool. "bits": of two integers.
Kind = Literal["float", "whole", "any", "compare", "logic", "bits"]


@dataclass(frozen=True)
class Element:
    """``value``: of expressions. ``onnx``: the operator; ``aten``: the operator without overload; empty where
    there is none. ``kind``: which dtypes it takes and makes."""

    value: Callable[..., Any]
    onnx: str
    aten: str
    kind: Kind = "float"


ELEMENTS = (
    Element(te.exp, "Exp", "exp"),
    Element(te.log, "Log", "log"),
    Element(te.sqrt, "Sqrt", "sqrt"),
    Element(te.rsqrt, "", "rsqrt"),
    Element(te.erf, "Erf", "erf"),
    Element(te.sigmoid, "Sigmoid", "sigmoid"),
    Element(te.tanh, "Tanh", "tanh"),
    Element(te.sin, "Sin", "sin"),
    Element(te.cos, "Cos", "cos"),
    Element(te.tan, "Tan", "tan"),
    Element(te.expm1, "", "expm1"),
    Element(te.exp2, "", "exp2"),
    Element(te.log1p, "", "log1p"),
    Element(te.sinh, "Sinh", "sinh"),
    Element(te.cosh, "Cosh", "cosh"),
    Element(te.asinh, "Asinh", "asinh"),
    Element(te.acosh, "Acosh", "acosh"),
    Element(te.atanh, "Atanh", "atanh"),
    Element(te.asin, "Asin", "asin"),
    Element(te.acos, "Acos", "acos"),
    Element(te.atan, "Atan", "atan"),
    Element(lambda x: 1.0 / x, "Reciprocal", "reciprocal"),
    Element(te.log2, "", "log2"),
    Element(te.log10, "", "log10"),
    Element(f.softplus, "Softplus", ""),
    Element(lambda x: -f.softplus(-x), "", "log_sigmoid"),
    Element(f.softsign, "Softsign", ""),
    Element(f.mish, "Mish", "mish"),
    Element(f.swish, "", "silu"),
    Element(f.hard_swish, "HardSwish", "hardswish"),
    Element(lambda x: f.hard_sigmoid(x, 1 / 6, 0.5), "", "hardsigmoid"),
    Element(lambda x: te.minimum(f.relu(x), 6), "", "relu6"),
    Element(lambda x: f.selu(x, 1.6732632423543772, 1.0507009873554805), "", "selu"),
    Element(te.floor, "Floor", "floor", "whole"),
    Element(te.ceil, "Ceil", "ceil", "whole"),
    Element(te.round, "Round", "round", "whole"),
    Element(te.trunc, "", "trunc", "whole"),
    Element(te.abs, "Abs", "abs", "any"),
    Element(lambda x: -x, "Neg", "neg", "any"),
    Element(f.sign, "Sign", "sign", "any"),
    Element(f.relu, "Relu", "relu", "any"),
    Element(lambda x: x * x, "", "square", "any"),
    Element(te.equal, "Equal", "eq", "compare"),
    Element(te.not_equal, "", "ne", "compare"),
    Element(lambda a, b: a < b, "Less", "lt", "compare"),
    Element(lambda a, b: a <= b, "LessOrEqual", "le", "compare"),
    Element(lambda a, b: a > b, "Greater", "gt", "compare"),
    Element(lambda a, b: a >= b, "GreaterOrEqual", "ge", "compare"),
    Element(te.all, "And", "logical_and", "logic"),
    Element(te.any, "Or", "logical_or", "logic"),
    Element(te.not_equal, "Xor", "logical_xor", "logic"),
    Element(te.bitwise_and, "BitwiseAnd", "bitwise_and", "bits"),
    Element(te.bitwise_or, "BitwiseOr", "bitwise_or", "bits"),
    Element(te.bitwise_xor, "BitwiseXor", "bitwise_xor", "bits"),
    Element(te.left_shift, "", "bitwise_left_shift", "bits"),
    Element(te.right_shift, "", "bitwise_right_shift", "bits"),
    Element(te.left_shift, "", "__lshift__", "bits"),
    Element(te.right_shift, "", "__rshift__", "bits"),
)


def of_onnx(*kinds: Kind) -> dict[str, Callable[..., Any]]:
    """{operator of ONNX: its value}."""
    return {e.onnx: e.value for e in ELEMENTS if e.onnx and e.kind in kinds}


def of_aten(*kinds: Kind) -> dict[str, Callable[..., Any]]:
    """{operator of ATen: its value}."""
    return {e.aten: e.value for e in ELEMENTS if e.aten and e.kind in kinds}
