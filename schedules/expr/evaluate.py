"""Evaluates index expressions on integers or on columns of a decision matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from schedules.expr.nodes import (
    INDEX,
    Binary,
    Cast,
    Compare,
    Const,
    Expr,
    Hole,
    Logic,
    Select,
    Var,
    kind,
)
from schedules.expr.operators import FOLD


def evaluate(e: Expr, env: Mapping[str, Any], known: dict[Expr, Any] | None = None) -> Any:
    """The value of an index expression. ``env``: {name of a variable or hole: integer, or numpy column of a
    decision matrix}; with columns the result is a column. ``known``: values of sub-expressions, kept between
    calls with the same ``env``. Raises TypeError for other expressions."""
    # By class, commonest first, because a search evaluates thousands of rows many times a second.
    t = kind(e)
    if t is Const:
        # With its dtype, so that results are rounded and wrap as in a kernel.
        return e.value if e.dtype == INDEX else np.dtype(e.dtype).type(e.value)  # type: ignore[attr-defined]
    if t is Var or t is Hole:
        return env[e.name]  # type: ignore[attr-defined]
    if t is Binary:
        if known is not None:
            found = known.get(e)
            if found is None:
                found = known[e] = _binary_value(e, env, known)  # type: ignore[arg-type]
            return found
        return _binary_value(e, env, known)  # type: ignore[arg-type]
    match e:
        case Compare(op=op, a=a, b=b):
            return FOLD[op](evaluate(a, env), evaluate(b, env))
        case Logic(op=op, args=args):
            vals = [evaluate(v, env) for v in args]
            if op == "not":
                return vals[0] ^ True
            out = vals[0]
            for v in vals[1:]:
                out = (out & v) if op == "and" else (out | v)
            return out
        case Select(cond=c, a=a, b=b):
            x = evaluate(c, env)
            if hasattr(x, "shape"):
                return np.where(x, evaluate(a, env), evaluate(b, env))
            return evaluate(a, env) if x else evaluate(b, env)
        case Cast(dtype=d, a=a):
            return np.asarray(evaluate(a, env)).astype(np.int64 if d == INDEX else d)
    raise TypeError(f"not an index expression: {e!r}")


def _binary_value(e: Binary, env: Mapping[str, Any], known: dict[Expr, Any] | None) -> Any:
    op, x, y = e.op, evaluate(e.a, env, known), evaluate(e.b, env, known)
    if op == "*":
        return x * y
    if op == "+":
        return x + y
    if (op == "min" or op == "max") and (hasattr(x, "shape") or hasattr(y, "shape")):
        return np.minimum(x, y) if op == "min" else np.maximum(x, y)
    return FOLD[op](x, y)
