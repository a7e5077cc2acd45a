"""Scalar expressions: the language of tensor expressions, loop bounds and indices.

Nodes are frozen and hashable. The operators of `Expr` build folded nodes (``x + 0`` is ``x``, ``2 * 3`` is
``6``) and do no other algebra (see `affine.py` for linear forms). ``==`` compares structure; write
``te.equal(a, b)`` for a comparison inside a tensor expression.

Index arithmetic has dtype ``"index"``, a 64-bit signed integer. ``//`` and ``%`` round towards minus
infinity, as in Python and numpy.
"""

from schedules.dtypes import is_float
from schedules.expr.arithmetic import ceildiv, fma, maximum, minimum
from schedules.expr.evaluate import evaluate
from schedules.expr.nodes import (
    FALSE,
    INDEX,
    TRUE,
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    ExprLike,
    Fma,
    Hole,
    Load,
    Logic,
    Node,
    Select,
    Var,
    absolute,
    all_of,
    any_of,
    binary,
    children,
    compare,
    dtype_of,
    inverted,
    kind,
    power,
    select,
    widen,
    wrap,
)
from schedules.expr.operators import BITWISE, COMPARISONS, FOLD, NUMERIC
from schedules.expr.show import (
    show,
)
from schedules.expr.walk import (
    MAX_DEPTH,
    MAX_NODES,
    conjuncts,
    fill,
    holes,
    loads,
    rebuild,
    rewrite,
    size,
    substitute,
    variables,
    walk,
)

__all__ = [
    "BITWISE",
    "Binary",
    "COMPARISONS",
    "Call",
    "Cast",
    "Compare",
    "Const",
    "Expr",
    "ExprLike",
    "Fma",
    "FALSE",
    "FOLD",
    "Hole",
    "INDEX",
    "Load",
    "Logic",
    "MAX_DEPTH",
    "MAX_NODES",
    "NUMERIC",
    "Node",
    "Select",
    "TRUE",
    "Var",
    "absolute",
    "all_of",
    "any_of",
    "binary",
    "ceildiv",
    "children",
    "compare",
    "conjuncts",
    "dtype_of",
    "fma",
    "evaluate",
    "fill",
    "holes",
    "inverted",
    "is_float",
    "kind",
    "loads",
    "maximum",
    "minimum",
    "power",
    "rebuild",
    "rewrite",
    "select",
    "show",
    "size",
    "substitute",
    "variables",
    "walk",
    "widen",
    "wrap",
]
