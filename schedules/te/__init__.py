"""Tensor expressions: how a user states what is computed, one stage at a time.

    A = te.placeholder((m, k), name="A"); B = te.placeholder((k, n), name="B")
    r = te.reduce_axis(k, name="r")
    C = te.compute((m, n), lambda i, j: te.sum(A[i, r] * B[r, j], axis=r), name="C")
    dag = te.dag([A, B, C])

Nothing is global: tensors know the stage they come from, and `dag` walks from its outputs. Every
mistake raises `WorkloadError`.
"""

from schedules.expr import Expr
from schedules.te.language import (
    Reduction,
    Tensor,
    abs,
    all,
    any,
    cast,
    compute,
    const,
    dag,
    equal,
    erf,
    evaluate,
    exp,
    floor,
    fma,
    if_then_else,
    inf,
    log,
    logical_not,
    max,
    max_value,
    maximum,
    min,
    min_value,
    minimum,
    not_equal,
    placeholder,
    prod,
    reduce_axis,
    reducer,
    select,
    sigmoid,
    sqrt,
    sum,
    tanh,
)

__all__ = [
    "Expr", "Reduction", "Tensor", "abs", "all", "any", "cast", "compute", "const", "dag", "equal", "erf",
    "evaluate", "exp", "floor", "fma", "if_then_else", "inf", "log", "logical_not", "max", "max_value",
    "maximum", "min", "min_value", "minimum", "not_equal", "placeholder", "prod", "reduce_axis", "reducer",
    "select", "sigmoid", "sqrt", "sum", "tanh",
]  # fmt: skip
