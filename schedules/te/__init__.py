"""Tensor expressions: how a user states what is computed, one stage at a time.

    A = te.placeholder((m, k), name="A"); B = te.placeholder((k, n), name="B")
    r = te.reduce_axis(k, name="r")
    C = te.compute((m, n), lambda i, j: te.sum(A[i, r] * B[r, j], axis=r), name="C")
    dag = te.dag([A, B, C])

Nothing is global: tensors know the stage they come from, and `dag` walks from its outputs. Every
mistake raises `WorkloadError`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from schedules.expr import Expr, ExprLike
from schedules.expr.numpys import ELSEWHERE
from schedules.te.associative import associative_scan
from schedules.te.cumulative import cummax, cummin, cumprod, cumsum
from schedules.te.evaluator import evaluate
from schedules.te.forward_mode import jvp
from schedules.te.language import compute, max, min, placeholder, prod, reduce_axis, reducer, sum
from schedules.te.recurrences import scan, state
from schedules.te.reverse_mode import cut, gradient, inputs
from schedules.te.scalars import (
    FLOAT4_E2M1,
    OF_ROWS,
    abs,
    all,
    any,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    cast,
    clip,
    const,
    equal,
    floor_divide,
    fma,
    if_then_else,
    inf,
    isfinite,
    isnan,
    left_shift,
    logical_not,
    lookup,
    max_value,
    maximum,
    min_value,
    minimum,
    not_equal,
    pow,
    remainder,
    right_shift,
    rsqrt,
    select,
    where,
)
from schedules.te.scatter import histogram, scatter_add, scatter_max, scatter_min
from schedules.te.strided import with_strides
from schedules.te.tensors import Reduction, Tensor, dag

__all__ = [
    "Expr", "FLOAT4_E2M1", "Reduction", "Tensor", "abs", "all", "any", "associative_scan", "bitwise_and",
    "bitwise_not", "bitwise_or", "bitwise_xor", "cast", "clip", "compute", "const", "cummax", "cummin",
    "cumprod", "cumsum", "cut", "dag", "equal", "evaluate", "floor_divide",
    "fma", "gradient", "histogram", "if_then_else", "inf", "inputs", "isfinite", "isnan",
    "jvp", "left_shift", "logical_not", "lookup", "max", "max_value", "maximum", "min", "min_value",
    "minimum", "not_equal", "placeholder", "pow", "prod", "reduce_axis", "reducer", "remainder",
    "right_shift", "rsqrt", "scan", "scatter_add", "scatter_max", "scatter_min", "select", "state", "sum",
    "where", "with_strides",
]  # fmt: skip
# The functions of the table, `schedules.functions`. Type checkers and editors read their names here.
if TYPE_CHECKING:
    OneInput = Callable[[ExprLike], Expr]
    TwoInputs = Callable[[ExprLike, ExprLike], Expr]
    acos: OneInput
    acosh: OneInput
    asin: OneInput
    asinh: OneInput
    atan: OneInput
    atan2: TwoInputs
    atanh: OneInput
    cbrt: OneInput
    ceil: OneInput
    cos: OneInput
    cosh: OneInput
    erf: OneInput
    exp: OneInput
    exp2: OneInput
    expm1: OneInput
    floor: OneInput
    fmod: TwoInputs
    hypot: TwoInputs
    log: OneInput
    log10: OneInput
    log1p: OneInput
    log2: OneInput
    round: OneInput
    sigmoid: OneInput
    sin: OneInput
    sinh: OneInput
    sqrt: OneInput
    tan: OneInput
    tanh: OneInput
    tf32: OneInput
    trunc: OneInput
globals().update(OF_ROWS)
__all__ = sorted([*__all__, *OF_ROWS])


def __getattr__(name: str) -> Any:
    close = f" (did you mean {ELSEWHERE[name]!r}?)" if name in ELSEWHERE else ""
    every = "" if name.startswith("__") else f"{close}; it has {', '.join(__all__)}"
    raise AttributeError(f"te has no {name!r}{every}", name=name)
