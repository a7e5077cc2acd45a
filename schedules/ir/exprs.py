"""The expressions that stand in statements, and the places that they access: read, and rewritten.

All is told from the fields of a statement, so that a new one is not named here: fields that are expressions,
or tuples of them; a ``buffer`` with its ``indices``; and `Operand`s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from schedules import expr as E
from schedules.expr import Expr, Load
from schedules.ir.nodes import Access, Block, Guard, Loop, Operand, Prefetch, Seq, Stmt, Store, with_body


def substitute(s: Stmt, env: dict[str, Expr]) -> Stmt:
    """Replace loop variables in a lowered statement."""
    return rewrite(s, lambda e: E.substitute(e, env))


def rewrite(s: Stmt, f: Callable[[Expr], Expr]) -> Stmt:
    """A lowered statement, and those in it, with ``f`` of each of its expressions."""
    match s:
        case Store(indices=ix, value=v):  # the most frequent ones, without the price of asking
            return Store(s.buffer, tuple(map(f, ix)), f(v), s.update)
        case Loop(extent=n, body=b):
            return Loop(s.var, f(n), rewrite(b, f), s.kind, s.annotations)
        case Guard(cond=c, body=b):
            return Guard(f(c), rewrite(b, f), s.speculative)
        case Seq() | Block():
            return with_body(s, lambda x: rewrite(x, f))
    return with_body(rewritten(s, f), lambda x: rewrite(x, f))


def rewritten(s: Stmt, f: Callable[[Expr], Expr]) -> Stmt:
    """A lowered statement with ``f`` of each of its own expressions, not of those of its children."""
    new = {name: _rewritten(v, f) for name, v in _fields(s) if _has_expressions(v)}
    return replace(s, **new) if new else s


def moved(s: Stmt, f: Callable[[Access], Access]) -> Stmt:
    """A lowered statement with ``f`` of each of its own `places`."""

    def at(x: Any) -> Any:
        to = f(Access(x.buffer, x.indices))
        return replace(x, buffer=to.buffer, indices=to.indices)

    for name, v in _fields(s):
        if isinstance(v, tuple) and v and isinstance(v[0], Operand):
            s = replace(s, **{name: tuple(map(at, v))})  # type: ignore[arg-type]
    return at(s) if "indices" in s.__dataclass_fields__ else s


def expressions(s: Stmt) -> tuple[Expr, ...]:
    """The expressions that stand in a lowered statement itself, not in its children."""
    match s:
        case Store(indices=ix, value=v):
            return (*ix, v)
        case Loop(extent=n):
            return (n,)
        case Guard(cond=c):
            return (c,)
        case Seq() | Block():
            return ()
    return tuple(e for _, v in _fields(s) for e in _of(v))


def loads(s: Stmt) -> tuple[Load, ...]:
    return tuple(x for e in expressions(s) for x in E.loads(e))


def places(s: Stmt) -> tuple[Access, ...]:
    """The places that a lowered statement itself names beside its loads: what it writes or asks for, and its
    operands."""
    if isinstance(s, Store):
        return (Access(s.buffer, s.indices),)
    fields = dict(_fields(s))
    own = (Access(fields["buffer"], fields["indices"]),) if "indices" in fields else ()
    operands = (o for v in fields.values() if isinstance(v, tuple) for o in v if isinstance(o, Operand))
    return (*own, *(Access(o.buffer, o.indices) for o in operands))


def beside(indices: tuple[Expr, ...], by: int | Expr) -> tuple[Expr, ...]:
    """The place so many elements further along the last dimension."""
    return (*indices[:-1], indices[-1] + by)


def written(s: Stmt) -> tuple[str, ...]:
    """The buffers that a lowered statement itself writes. What an `Intrinsic` writes stands in its body."""
    own = "indices" in s.__dataclass_fields__ and not isinstance(s, Prefetch)
    return (s.buffer,) if own else ()  # type: ignore[union-attr, return-value]


def accesses(s: Stmt) -> tuple[Load | Access, ...]:
    """All places that a lowered statement itself names, those of its loads first."""
    return (*loads(s), *places(s))


def _fields(s: Stmt) -> list[tuple[str, Any]]:
    return [(name, getattr(s, name)) for name in s.__dataclass_fields__]


def _has_expressions(v: Any) -> bool:
    return isinstance(v, (Expr, Operand)) or (
        isinstance(v, tuple) and bool(v) and isinstance(v[0], (Expr, Operand))
    )


def _of(v: Any) -> tuple[Expr, ...]:
    """The expressions of a field."""
    if isinstance(v, Expr):
        return (v,)
    if isinstance(v, Operand):
        return v.indices
    return tuple(e for x in v for e in _of(x)) if _has_expressions(v) else ()


def _rewritten(v: Any, f: Callable[[Expr], Expr]) -> Any:
    if isinstance(v, Expr):
        return f(v)
    if isinstance(v, Operand):
        return replace(v, indices=tuple(map(f, v.indices)))
    return tuple(_rewritten(x, f) for x in v)
