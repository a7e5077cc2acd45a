"""Walks over expressions: rebuild, substitute, collect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat

from schedules.expr.nodes import (
    TRUE,
    Binary,
    Bits,
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
    all_of,
    binary,
    children,
    compare,
    select,
)

# Largest expression of a stage: depth (Python's recursion ends at 1000 calls) and nodes (they take seconds to
# compile).
MAX_DEPTH, MAX_NODES = 420, 1 << 16


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0


def rebuild(e: Expr, kids: tuple[Expr, ...]) -> Expr:
    """``e`` with its children replaced, folded again."""
    match e:
        case Binary(op="//" | "%" | "ceildiv" as op) if _is_zero(kids[1]):
            return Binary(op, *kids)  # gives 0, as one whose divisor is data does; a written 0 is refused
        case Binary(op=op):
            return binary(op, *kids)
        case Compare(op=op):
            return compare(op, *kids)
        case Logic(op="and"):
            return all_of(*kids)
        case Logic(op=op):
            if op == "not" and isinstance(kids[0], Const):
                return Const(not kids[0].value, "bool")
            return Logic(op, kids)
        case Call(fn=fn):
            return Call(fn, kids)
        case Fma():
            return Fma(*kids)
        case Cast(dtype=d) | Bits(dtype=d):
            return type(e)(d, kids[0])
        case Select():
            return select(*kids)
        case Load(buffer=b, dtype=d):
            return Load(b, kids, d)
    return e


def rewrite(e: Expr, f: Callable[[Expr], Expr | None], known: dict[int, Expr] | None = None) -> Expr:
    """Rebuild bottom-up. Where ``f`` returns an expression, it replaces the node. ``f`` is called before the
    children are visited; its result is not visited again. What is shared is rebuilt once and shared again.
    ``known``: what was made of nodes of the same tree, by identity."""
    r = f(e)
    if r is not None:
        return r
    kids = children(e)
    if not kids:
        return e
    if known is None:
        known = {}
    made = known.get(id(e))
    if made is None:
        # `map` adds no frame of its own: expressions may be deep
        new = tuple(map(rewrite, kids, repeat(f), repeat(known)))
        made = e if all(n is k for n, k in zip(new, kids, strict=True)) else rebuild(e, new)
        known[id(e)] = made
    return made


def substitute(e: Expr, env: Mapping[str, Expr], known: dict[int, Expr] | None = None) -> Expr:
    """Replace variables by name. What is shared is rebuilt once. ``known``: as of `rewrite`."""
    if variables(e).isdisjoint(env):
        return e
    if isinstance(e, Var):
        return e if env[e.name] == e else env[e.name]
    if known is None:
        known = {}
    made = known.get(id(e))
    if made is None:
        kids = children(e)
        new = tuple(map(substitute, kids, repeat(env), repeat(known)))
        made = known[id(e)] = e if all(n is k for n, k in zip(new, kids, strict=True)) else rebuild(e, new)
    return made


def fill(e: Expr, decisions: Mapping[str, int]) -> Expr:
    """Replace holes by integers. Holes without a decision stay."""
    return rewrite(
        e,
        lambda x: Const(decisions[x.name]) if isinstance(x, Hole) and x.name in decisions else None,
    )


def walk(e: Expr) -> Iterator[Expr]:
    """Every node, parents first."""
    stack = [e]
    while stack:
        x = stack.pop()
        yield x
        kids = children(x)
        if kids:
            stack.extend(kids[::-1])


def distinct(*roots: Expr) -> list[Expr]:
    """The nodes of expressions, operands first; a shared one stands once."""
    found: dict[int, Expr] = {}
    stack = list(roots[::-1])
    while stack:
        x = stack[-1]
        if id(x) in found:
            stack.pop()
            continue
        missing = [k for k in children(x) if id(k) not in found]
        if missing:
            stack.extend(missing[::-1])
        else:
            found[id(x)] = stack.pop()
    return list(found.values())


def different(e: Expr) -> int:
    """How many different nodes an expression has: equal ones count once."""
    return len(set(distinct(e)))


def size(e: Expr) -> tuple[int, int]:
    """(nodes of ``e`` as a tree, depth). A shared sub-expression counts at each use, but is visited once."""
    known: dict[int, tuple[int, int]] = {}
    stack = [e]
    while stack:
        x = stack[-1]
        kids = children(x)
        nodes = depth = 1
        for k in kids:
            found = known.get(id(k))
            if found is None:
                stack.append(k)
                nodes = 0
            elif nodes:
                nodes += found[0]
                depth = max(depth, 1 + found[1])
        if nodes:
            stack.pop()
            known[id(x)] = nodes, depth
    return known[id(e)]


# The empty set of names.
_NONE: frozenset[str] = frozenset()


def variables(e: Expr) -> frozenset[str]:
    """Names of the variables in an expression."""
    try:
        return e._variables  # type: ignore[attr-defined]
    except AttributeError:
        found = frozenset((e.name,)) if isinstance(e, Var) else _NONE.union(*map(variables, children(e)))
        object.__setattr__(e, "_variables", found)
        return found


def holes(e: Expr) -> frozenset[str]:
    """Names of the holes in an expression."""
    try:
        return e._holes  # type: ignore[attr-defined]
    except AttributeError:
        found = frozenset((e.name,)) if isinstance(e, Hole) else _NONE.union(*map(holes, children(e)))
        object.__setattr__(e, "_holes", found)
        return found


def loads(e: Expr) -> tuple[Load, ...]:
    """All loads, parents first."""
    try:
        return e._loads  # type: ignore[attr-defined]
    except AttributeError:
        own = (e,) if isinstance(e, Load) else ()
        found = tuple(chain(own, *map(loads, children(e))))
        object.__setattr__(e, "_loads", found)
        return found


def conjuncts(cond: Expr) -> tuple[Expr, ...]:
    """The parts of a conjunction; empty for ``TRUE``."""
    if cond == TRUE:
        return ()
    return cond.args if isinstance(cond, Logic) and cond.op == "and" else (cond,)
