"""Expressions as JSON: integers of dtype "index" as they are, everything else as ``[tag, ...]`` lists."""

from __future__ import annotations

import math
from typing import Any

from schedules.documents import any_text, short
from schedules.expr import (
    COMPARISONS,
    INDEX,
    NUMERIC,
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Fma,
    Hole,
    Load,
    Logic,
    Select,
    Var,
    is_float,
)
from schedules.functions import FUNCTIONS


def to_json(e: Expr) -> Any:
    """A JSON value: numbers of dtype "index" as they are, all else as ``[tag, ...]`` lists."""
    match e:
        case Const(value=v, dtype=d):
            if d == INDEX:
                return v
            if isinstance(v, float) and not math.isfinite(v):
                return ["const", d, repr(v)]
            return ["const", d, v]
        case Var(name=n):
            return ["var", n]
        case Hole(name=n):
            return ["hole", n]
        case Binary(op=op, a=a, b=b) | Compare(op=op, a=a, b=b):
            return [op, to_json(a), to_json(b)]
        case Logic(op=op, args=args):
            return [op, *map(to_json, args)]
        case Call(fn=fn, args=args):
            return ["call", fn, *map(to_json, args)]
        case Fma(a=a, b=b, c=c):
            return ["fma", to_json(a), to_json(b), to_json(c)]
        case Select(cond=c, a=a, b=b):
            return ["select", to_json(c), to_json(a), to_json(b)]
        case Cast(dtype=d, a=a):
            return ["cast", d, to_json(a)]
        case Load(buffer=b, indices=ix, dtype=d):
            return ["load", b, d, *map(to_json, ix)]
    raise TypeError(f"not an expression: {e!r}")


def from_json(v: Any) -> Expr:
    """Inverse of `to_json`. Raises ValueError on anything else. Whether types fit is not looked at here: see
    `schedules.te.typed`."""
    try:
        return _from_json(v)
    except (IndexError, TypeError, KeyError, OverflowError, RecursionError) as err:
        raise ValueError(f"malformed expression {short(v)}: {err}") from None


def _from_json(v: Any) -> Expr:
    if type(v) is int:
        return Const(v)
    if not isinstance(v, list) or not v:
        raise ValueError(f"malformed expression {short(v)}")
    tag, rest = any_text(v[0]), v[1:]
    if tag == "const":
        dtype, x = rest
        return _const(any_text(dtype), x)
    if tag in ("var", "hole"):
        (name,) = rest
        return Var(any_text(name)) if tag == "var" else Hole(any_text(name))
    if tag == "load":
        return Load(any_text(rest[0]), tuple(map(_from_json, rest[2:])), any_text(rest[1]))
    if tag == "cast":
        dtype, x = rest
        return Cast(any_text(dtype), _from_json(x))
    if tag == "call":
        args = tuple(map(_from_json, rest[1:]))
        if rest[0] not in FUNCTIONS:
            raise ValueError(f"unknown function {short(rest[0])}")
        if len(args) != FUNCTIONS[rest[0]].arity:
            raise ValueError(f"{rest[0]} has {len(args)} arguments, not {FUNCTIONS[rest[0]].arity}")
        return Call(rest[0], args)
    kids = tuple(map(_from_json, rest))
    if tag == "fma":
        return Fma(*kids)
    if tag == "select":
        return Select(*kids)
    if tag in ("and", "or", "not"):
        return Logic(tag, kids)
    if tag in COMPARISONS:
        return Compare(tag, *kids)
    if tag in NUMERIC:
        return Binary(tag, *kids)
    raise ValueError(f"unknown expression tag {short(tag)}")


def _const(dtype: str, x: Any) -> Const:
    if isinstance(x, str):
        return Const({"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[x], dtype)
    return Const(float(x) if is_float(dtype) and type(x) is int else x, dtype)
