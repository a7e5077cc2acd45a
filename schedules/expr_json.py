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
    """Inverse of `to_json`. What stands in it several times is one node, as in most expressions that were
    written. Raises ValueError on anything else. Whether types fit is not looked at here: see
    `schedules.te.typed`."""
    try:
        return _from_json(v, {})
    except (IndexError, TypeError, KeyError, OverflowError, RecursionError) as err:
        raise ValueError(f"malformed expression {short(v)}: {err}") from None


def _from_json(v: Any, known: dict[Any, Expr]) -> Expr:
    """``known``: nodes by what they are, their operands by identity."""
    if type(v) is int:
        return _once(("int", v), Const(v), known)
    if not isinstance(v, list) or not v:
        raise ValueError(f"malformed expression {short(v)}")
    tag, rest = any_text(v[0]), v[1:]
    if tag == "const":
        dtype, x = rest
        return _once((tag, dtype, type(x), str(x)), _const(any_text(dtype), x), known)
    if tag in ("var", "hole"):
        (name,) = rest
        return _once((tag, name), Var(any_text(name)) if tag == "var" else Hole(any_text(name)), known)
    first = {"load": 2, "cast": 1, "call": 1}.get(tag, 0)
    own, kids = rest[:first], tuple(_from_json(x, known) for x in rest[first:])
    return _once((tag, *map(str, own), *map(id, kids)), _node(tag, own, kids), known)


def _once(key: Any, made: Expr, known: dict[Any, Expr]) -> Expr:
    """The node that was made first of what a key tells."""
    return known.setdefault(key, made)


def _node(tag: str, own: list[Any], kids: tuple[Expr, ...]) -> Expr:
    """``own``: what is no operand."""
    if tag == "load":
        return Load(any_text(own[0]), kids, any_text(own[1]))
    if tag == "cast":
        (a,) = kids
        return Cast(any_text(own[0]), a)
    if tag == "call":
        (fn,) = own
        if fn not in FUNCTIONS:
            raise ValueError(f"unknown function {short(fn)}")
        if len(kids) != FUNCTIONS[fn].arity:
            raise ValueError(f"{fn} has {len(kids)} arguments, not {FUNCTIONS[fn].arity}")
        return Call(fn, kids)
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
