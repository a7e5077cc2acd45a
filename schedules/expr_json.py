"""Expressions as JSON: integers of dtype "index" as they are, everything else as ``[tag, ...]`` lists."""

from __future__ import annotations

import math
from typing import Any

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
    """Inverse of `to_json`. Raises ValueError on anything else."""
    try:
        return _from_json(v)
    except (IndexError, TypeError, KeyError, ZeroDivisionError) as err:
        raise ValueError(f"malformed expression {str(v)[:80]!r}: {err}") from None


def _from_json(v: Any) -> Expr:
    if isinstance(v, int) and not isinstance(v, bool):
        return Const(v)
    if not isinstance(v, list) or not v or not isinstance(v[0], str):
        raise ValueError(f"malformed expression {str(v)[:80]!r}")
    tag, rest = v[0], v[1:]
    if tag == "const":
        d, x = rest
        if isinstance(x, str):
            x = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[x]
        elif is_float(d):
            x = float(x)
        return Const(x, d)
    if tag in ("var", "hole") and isinstance(rest[0], str):
        return Var(rest[0]) if tag == "var" else Hole(rest[0])
    if tag == "call":
        if rest[0] not in FUNCTIONS:
            raise ValueError(f"unknown function {rest[0]!r}")
        args = tuple(map(_from_json, rest[1:]))
        if len(args) != FUNCTIONS[rest[0]].arity:
            raise ValueError(f"{rest[0]} has {len(args)} arguments, not {FUNCTIONS[rest[0]].arity}")
        return Call(rest[0], args)
    if tag == "fma":
        return Fma(*map(_from_json, rest))
    if tag == "select":
        return Select(*map(_from_json, rest))
    if tag == "cast":
        return Cast(rest[0], _from_json(rest[1]))
    if tag == "load":
        return Load(rest[0], tuple(map(_from_json, rest[2:])), rest[1])
    kids = tuple(map(_from_json, rest))
    if tag in ("and", "or", "not"):
        return Logic(tag, kids)
    if tag in COMPARISONS:
        return Compare(tag, *kids)
    if tag in NUMERIC:
        return Binary(tag, *kids)
    raise ValueError(f"unknown expression tag {tag!r}")
