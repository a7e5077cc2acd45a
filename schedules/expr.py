"""Scalar expressions: the one language of tensor expressions, loop bounds and indices.

Nodes are frozen and hashable. The operators of `Expr` build folded nodes (``x + 0`` is ``x``,
``2 * 3`` is ``6``) and nothing more: there is no algebra here (see `affine.py` for linear forms).
``==`` compares structure; write ``te.equal(a, b)`` for a comparison inside a tensor expression.

Index arithmetic has dtype ``"index"`` (a 64-bit signed integer); ``//`` and ``%`` round towards
minus infinity, as in Python and numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

INDEX = "index"
ExprLike = Union["Expr", int, float, bool]


class Expr:
    """Base of every scalar expression."""

    __slots__ = ()

    def __add__(self, o: ExprLike) -> Expr:
        return binary("+", self, o)

    def __radd__(self, o: ExprLike) -> Expr:
        return binary("+", o, self)

    def __sub__(self, o: ExprLike) -> Expr:
        return binary("-", self, o)

    def __rsub__(self, o: ExprLike) -> Expr:
        return binary("-", o, self)

    def __mul__(self, o: ExprLike) -> Expr:
        return binary("*", self, o)

    def __rmul__(self, o: ExprLike) -> Expr:
        return binary("*", o, self)

    def __truediv__(self, o: ExprLike) -> Expr:
        return binary("/", self, o)

    def __rtruediv__(self, o: ExprLike) -> Expr:
        return binary("/", o, self)

    def __floordiv__(self, o: ExprLike) -> Expr:
        return binary("//", self, o)

    def __rfloordiv__(self, o: ExprLike) -> Expr:
        return binary("//", o, self)

    def __mod__(self, o: ExprLike) -> Expr:
        return binary("%", self, o)

    def __rmod__(self, o: ExprLike) -> Expr:
        return binary("%", o, self)

    def __neg__(self) -> Expr:
        return binary("-", 0, self)

    def __lt__(self, o: ExprLike) -> Expr:
        return compare("<", self, o)

    def __le__(self, o: ExprLike) -> Expr:
        return compare("<=", self, o)

    def __gt__(self, o: ExprLike) -> Expr:
        return compare("<", o, self)

    def __ge__(self, o: ExprLike) -> Expr:
        return compare("<=", o, self)

    def __bool__(self) -> bool:
        raise TypeError(
            "an expression has no truth value: use te.select(cond, a, b), te.all(...) or te.equal(a, b)"
        )


@dataclass(frozen=True, slots=True)
class Const(Expr):
    """A literal. ``dtype`` is "index", "bool" or a numeric dtype such as "float32"."""

    value: int | float | bool
    dtype: str = INDEX

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True)
class Var(Expr):
    """An iteration variable: a tensor axis, a reduction axis or a loop. dtype "index"."""

    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Hole(Expr):
    """A numeric unknown of a sketch, a positive integer; a decision fills it."""

    name: str

    def __repr__(self) -> str:
        return f"?{self.name}"


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """``op`` is one of + - * / // % min max ceildiv."""

    op: str
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Compare(Expr):
    """``op`` is one of < <= == !=; the result is "bool"."""

    op: str
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Logic(Expr):
    """``op`` is "and", "or" or "not" (one argument)."""

    op: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """A scalar math function of one floating-point argument: see `FUNCTIONS`."""

    fn: str
    arg: Expr


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """``a`` where ``cond`` holds, else ``b``. Only the chosen side is evaluated: a load on the
    other side may lie out of bounds."""

    cond: Expr
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """Convert to ``dtype``; float to int truncates towards zero."""

    dtype: str
    a: Expr


@dataclass(frozen=True, slots=True)
class Load(Expr):
    """One element of a buffer, by name. The buffer's dtype is repeated so that an expression
    can be typed on its own."""

    buffer: str
    indices: tuple[Expr, ...]
    dtype: str


# name -> numpy-like scalar meaning (on Python floats)
FUNCTIONS: dict[str, Callable[[float], float]] = {
    "exp": lambda x: math.inf if x > 709.7 else math.exp(x),
    "log": lambda x: math.log(x) if x > 0 else (-math.inf if x == 0 else math.nan),
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else math.nan,
    "tanh": math.tanh,
    "erf": math.erf,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x)),
    "abs": abs,
    "floor": lambda x: float(math.floor(x)) if math.isfinite(x) else x,
}

_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
    "ceildiv": lambda a, b: -(-a // b),
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
TRUE = Const(True, "bool")
FALSE = Const(False, "bool")


def kind(e: Expr) -> type:
    """The node class of an expression; tensor expressions have subclasses of their own."""
    t = type(e)
    if t in _KINDS:
        return t
    return next((k for k in t.__mro__ if k in _KINDS), t)


_KINDS = frozenset((Const, Var, Hole, Binary, Compare, Logic, Call, Select, Cast, Load))


def dtype_of(e: Expr) -> str:
    """The dtype of an expression."""
    # by class and in a loop: this is the hottest function of lowering
    while True:
        t = kind(e)
        if t is Binary or t is Select:
            e = e.a  # type: ignore[attr-defined]
        elif t is Var or t is Hole:
            return INDEX
        elif t is Const or t is Load or t is Cast:
            return e.dtype  # type: ignore[attr-defined]
        elif t is Compare or t is Logic:
            return "bool"
        elif t is Call:
            e = e.arg  # type: ignore[attr-defined]
        else:
            raise TypeError(f"not an expression: {e!r}")


def is_float(dtype: str) -> bool:
    return dtype.startswith("float")


def wrap(x: ExprLike, like: str = INDEX) -> Expr:
    """``x`` as an expression; a Python number takes the dtype ``like``."""
    if isinstance(x, Expr):
        return x
    if isinstance(x, bool):
        return Const(x, "bool")
    number = isinstance(x, (int, float))
    if number or hasattr(x, "__index__") or hasattr(x, "__float__"):  # numpy's numbers
        if is_float(like):
            return Const(float(x), like)
        if isinstance(x, float) and not float(x).is_integer():
            raise TypeError(
                f"{x!r} is not a whole number but meets a value of dtype {like}; "
                f'cast first: te.cast(x, "float32")'
            )
        return Const(int(x), like)
    raise TypeError(f"{x!r} ({type(x).__name__}) cannot be part of an expression")


def _pair(a: ExprLike, b: ExprLike) -> tuple[Expr, Expr]:
    if isinstance(a, Expr):
        da = dtype_of(a)
        if type(b) is int and da == INDEX:
            return a, Const(b)
        ea, eb = a, wrap(b, da)
    else:
        eb = wrap(b)
        ea = wrap(a, dtype_of(eb))
        da = dtype_of(ea)
    db = dtype_of(eb)
    if da != db:
        raise TypeError(
            f"operands have different dtypes, {da} and {db}; convert one with te.cast(x, {da!r})"
        )
    return ea, eb


def binary(op: str, a: ExprLike, b: ExprLike) -> Expr:
    """``a op b`` with constants folded and neutral elements dropped (integers only: floating
    point is left as written, so that a schedule never changes rounding)."""
    ea, eb = _pair(a, b)
    d = dtype_of(ea)
    if d == "bool":
        raise TypeError(f"operator {op!r} needs numbers, got bool; use te.select")
    if is_float(d):
        if op in ("//", "%"):
            raise TypeError(f"operator {op!r} needs integers, got {d}")
        return Binary(op, ea, eb)
    if op == "/":
        raise TypeError(f"true division needs floating point, got {d}; use // or te.cast")
    ca = ea.value if type(ea) is Const else None
    cb = eb.value if type(eb) is Const else None
    if op in ("//", "%", "ceildiv") and cb == 0:
        raise ZeroDivisionError(f"{op} by zero in an expression")
    if ca is not None and cb is not None and d == INDEX:
        return Const(int(_FOLD[op](ca, cb)), INDEX)
    match op:
        case "+":
            if ca == 0:
                return eb
            if cb == 0:
                return ea
        case "-":
            if cb == 0:
                return ea
            if ea == eb:
                return Const(0, d)
        case "*":
            if ca == 0 or cb == 1:
                return ea
            if cb == 0 or ca == 1:
                return eb
        case "//" | "ceildiv":
            if cb == 1 or ca == 0:
                return ea
            if op == "ceildiv" and ea == eb:
                return Const(1, d)
        case "%":
            if cb == 1:
                return Const(0, d)
        case "min" | "max":
            if ea == eb:
                return ea
    return Binary(op, ea, eb)


def compare(op: str, a: ExprLike, b: ExprLike) -> Expr:
    """A folded comparison; ``op`` is < <= == or !=."""
    ea, eb = _pair(a, b)
    if isinstance(ea, Const) and isinstance(eb, Const):
        return Const(bool(_FOLD[op](ea.value, eb.value)), "bool")
    return Compare(op, ea, eb)


def all_of(*conds: Expr) -> Expr:
    """Conjunction, flattened and folded; of nothing it is true."""
    flat: list[Expr] = []
    for c in conds:
        for x in c.args if isinstance(c, Logic) and c.op == "and" else (c,):
            if x == FALSE:
                return FALSE
            if x != TRUE and x not in flat:
                flat.append(x)
    if not flat:
        return TRUE
    return flat[0] if len(flat) == 1 else Logic("and", tuple(flat))


def conjuncts(cond: Expr) -> tuple[Expr, ...]:
    """The parts of a conjunction; none of ``TRUE``."""
    if cond == TRUE:
        return ()
    return cond.args if isinstance(cond, Logic) and cond.op == "and" else (cond,)


def select(cond: Expr, a: ExprLike, b: ExprLike) -> Expr:
    if isinstance(a, Expr):
        ea, eb = _pair(a, b)
    else:
        eb, ea = _pair(b, a)
    if cond == TRUE:
        return ea
    if cond == FALSE:
        return eb
    return Select(cond, ea, eb)


def ceildiv(a: ExprLike, b: ExprLike) -> Expr:
    return binary("ceildiv", a, b)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    return binary("min", a, b)


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    return binary("max", a, b)


def children(e: Expr) -> tuple[Expr, ...]:
    """Direct sub-expressions, left to right."""
    t = kind(e)
    if t is Var or t is Const or t is Hole:
        return ()
    if t is Binary or t is Compare:
        return (e.a, e.b)  # type: ignore[attr-defined]
    if t is Load:
        return e.indices  # type: ignore[attr-defined]
    if t is Logic:
        return e.args  # type: ignore[attr-defined]
    if t is Call:
        return (e.arg,)  # type: ignore[attr-defined]
    if t is Cast:
        return (e.a,)  # type: ignore[attr-defined]
    if t is Select:
        return (e.cond, e.a, e.b)  # type: ignore[attr-defined]
    return ()


def rebuild(e: Expr, kids: tuple[Expr, ...]) -> Expr:
    """``e`` with its children replaced, folded again."""
    match e:
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
            return Call(fn, kids[0])
        case Cast(dtype=d):
            return Cast(d, kids[0])
        case Select():
            return select(*kids)
        case Load(buffer=b, dtype=d):
            return Load(b, kids, d)
    return e


def rewrite(e: Expr, f: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild bottom-up; wherever ``f`` returns an expression that takes the node's place
    (``f`` is asked before the children are visited, and its answer isn't visited again)."""
    r = f(e)
    if r is not None:
        return r
    kids = children(e)
    if not kids:
        return e
    new = tuple(rewrite(k, f) for k in kids)
    return e if all(n is k for n, k in zip(new, kids, strict=True)) else rebuild(e, new)


def substitute(e: Expr, env: Mapping[str, Expr]) -> Expr:
    """Replace variables by name."""
    if not env:
        return e
    return rewrite(e, lambda x: env.get(x.name) if isinstance(x, Var) else None)


def fill(e: Expr, decisions: Mapping[str, int]) -> Expr:
    """Replace holes by integers; unnamed holes stay."""
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
        stack.extend(reversed(children(x)))


def variables(e: Expr) -> frozenset[str]:
    return frozenset(x.name for x in walk(e) if isinstance(x, Var))


def holes(e: Expr) -> frozenset[str]:
    return frozenset(x.name for x in walk(e) if isinstance(x, Hole))


def loads(e: Expr) -> tuple[Load, ...]:
    return tuple(x for x in walk(e) if isinstance(x, Load))


def evaluate(e: Expr, env: Mapping[str, Any]) -> Any:
    """An index expression's value; ``env`` maps variable and hole names to integers or to numpy
    columns of a decision matrix (then the result is a column)."""
    # by class, commonest first: a search evaluates these over thousands of rows, many times a second
    t = kind(e)
    if t is Const:
        return e.value  # type: ignore[attr-defined]
    if t is Var or t is Hole:
        return env[e.name]  # type: ignore[attr-defined]
    if t is Binary:
        op = e.op  # type: ignore[attr-defined]
        x, y = evaluate(e.a, env), evaluate(e.b, env)  # type: ignore[attr-defined]
        if op == "*":
            return x * y
        if op == "+":
            return x + y
        if (op == "min" or op == "max") and (hasattr(x, "shape") or hasattr(y, "shape")):
            return np.minimum(x, y) if op == "min" else np.maximum(x, y)
        return _FOLD[op](x, y)
    match e:
        case Compare(op=op, a=a, b=b):
            return _FOLD[op](evaluate(a, env), evaluate(b, env))
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
    raise TypeError(f"not an index expression: {e!r}")


_PREC = {"or": 1, "and": 2, "<": 4, "<=": 4, "==": 4, "!=": 4, "+": 5, "-": 5, "*": 6, "/": 6}
_PREC |= {"//": 6, "%": 6}


def show(e: Expr, outer: int = 0) -> str:
    """Readable text, with as few parentheses as precedence allows."""
    match e:
        case Const(value=v):
            return repr(v)
        case Var(name=n):
            return n
        case Hole(name=n):
            return f"?{n}"
        case Binary(op=("min" | "max" | "ceildiv") as op, a=a, b=b):
            return f"{op}({show(a)}, {show(b)})"
        case Binary(op=op, a=a, b=b) | Compare(op=op, a=a, b=b):
            p = _PREC[op]
            s = f"{show(a, p)} {op} {show(b, p + 1)}"
            return f"({s})" if p < outer else s
        case Logic(op="not", args=args):
            return f"not {show(args[0], 9)}"
        case Logic(op=op, args=args):
            s = f" {op} ".join(show(x, _PREC[op] + 1) for x in args)
            return f"({s})" if _PREC[op] < outer else s
        case Call(fn=fn, arg=a):
            return f"{fn}({show(a)})"
        case Select(cond=c, a=a, b=b):
            return f"select({show(c)}, {show(a)}, {show(b)})"
        case Cast(dtype=d, a=a):
            return f"{d}({show(a)})"
        case Load(buffer=b, indices=ix):
            return f"{b}[{', '.join(map(show, ix))}]"
    return repr(e)
