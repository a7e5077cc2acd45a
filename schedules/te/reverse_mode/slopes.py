"""Derivatives of scalar expressions: what each load of a value adds to the gradient.

Reverse mode within one expression (Griewank and Walther, *Evaluating Derivatives*, 2008, chapter 3): the
gradient of the whole is handed from an operation to its operands, times the operation's slope.

Conventions where there is no derivative: two operands of a maximum or minimum that tie get half each, as in
torch.maximum; against an operand that is no input, as in ``te.maximum(x, 0)``, a tie gives nothing, as in
torch's relu, relu6 and hardtanh. |x| has slope 0 at 0. Rounding functions, comparisons and integers have no
slope.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from schedules import expr as E
from schedules.dtypes import computed
from schedules.errors import WorkloadError
from schedules.expr import INDEX, Binary, Call, Cast, Const, Expr, Fma, Logic, Select
from schedules.te.reverse_mode.graph import zero
from schedules.te.tensors import TensorLoad


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a gradient: ``value`` where all ``conditions`` hold. Each may be asked only where those
    before it hold, because selects keep loads inside their tensors."""

    conditions: tuple[Expr, ...]
    value: Expr


def terms(
    value: Expr, head: Expr, own: Expr | None, wanted: Callable[[TensorLoad], bool]
) -> dict[TensorLoad, list[Term]]:
    """For each load of ``value`` that is ``wanted``: the parts of its gradient, where the gradient of
    ``value`` is ``head``.

    ``own``: what reads ``value`` itself once it is stored, None where it is not. Raises `WorkloadError` for
    an operation that has a slope which is not known here."""
    found: dict[TensorLoad, list[Term]] = {}

    def hand(e: Expr, g: Expr, conds: tuple[Expr, ...]) -> None:
        if not any(isinstance(x, TensorLoad) and wanted(x) for x in E.loads(e)):
            return
        result = own if own is not None and e is value else e
        match e:
            case TensorLoad():
                if wanted(e):
                    found.setdefault(e, []).append(Term(conds, g))
            case Binary(op="+" | "-" as op, a=a, b=b):
                hand(a, g, conds)
                hand(b, g if op == "+" else negative(g), conds)
            case Binary(op="*", a=a, b=b) if a == b:
                hand(a, E.binary("*", 2.0, times(g, b)), conds)
            case Binary(op="*", a=a, b=b):
                hand(a, times(g, b), conds)
                hand(b, times(g, a), conds)
            case Binary(op="/", a=Const(value=1.0), b=Call(fn="sqrt", args=(a,))):
                cube = E.binary("*", E.binary("*", result, result), result)
                hand(a, times(g, E.binary("*", -0.5, cube)), conds)
            case Binary(op="/", a=Const(value=1.0), b=b):
                hand(b, negative(times(g, E.binary("*", result, result))), conds)
            case Binary(op="/", a=a, b=b):
                hand(a, E.binary("/", g, b), conds)
                hand(b, negative(times(g, E.binary("/", result, b))), conds)
            case Binary(op="max" | "min" as op, a=a, b=b):
                for x, other in ((a, b), (b, a)):
                    # Against a literal the result tells as much, and what made it need not be known.
                    of = result if isinstance(other, Const) else x
                    above = E.compare("<", other, of) if op == "max" else E.compare("<", of, other)
                    if _depends(other, wanted):
                        half = E.select(E.compare("==", a, b), 0.5, zero(E.dtype_of(e)))
                        hand(x, times(g, E.select(above, E.wrap(1.0, E.dtype_of(e)), half)), conds)
                    else:
                        hand(x, g, (*conds, above))
            case Select(cond=c, a=a, b=b):
                hand(a, g, (*conds, c))
                hand(b, g, (*conds, _not(c)))
            case Fma(a=a, b=b, c=c):
                hand(a, times(g, b), conds)
                hand(b, times(g, a), conds)
                hand(c, g, conds)
            case Cast(dtype=d, a=a):
                if E.is_float(d) and E.is_float(E.dtype_of(a)):
                    into = computed(E.dtype_of(a))
                    hand(a, g if E.dtype_of(g) == into else Cast(into, g), conds)
            case Call(fn=fn, args=args):
                if fn in FLAT:
                    return
                if fn not in SLOPES:
                    raise WorkloadError(
                        f"te.gradient: {E.show(e)} has no derivative here; write it with other functions, or "
                        "give the tensor that it makes as an input of the gradient"
                    )
                for x, slope in zip(args, SLOPES[fn](args, result), strict=True):
                    if slope is not None:
                        hand(x, times(g, slope), conds)

    hand(value, head, ())
    return found


def _depends(e: Expr, wanted: Callable[[TensorLoad], bool]) -> bool:
    """Whether a value changes with what is wanted, as far as its form tells."""
    match e:
        case TensorLoad():
            return wanted(e)
        case Call(fn=fn) if fn in FLAT:
            return False
        case Select(a=a, b=b):
            return _depends(a, wanted) or _depends(b, wanted)
        case Cast(dtype=d, a=a) if not (E.is_float(d) and E.is_float(E.dtype_of(a))):
            return False
    return any(_depends(k, wanted) for k in E.children(e))


def times(a: Expr, b: Expr) -> Expr:
    """``a * b``; a factor of 1 is left out, and a factor of -1 joins a literal."""
    if _is(a, 1.0):
        return b
    if _is(b, 1.0):
        return a
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(float(a.value) * float(b.value), a.dtype)
    return E.binary("*", a, b)


def negative(a: Expr) -> Expr:
    """``-a``."""
    if isinstance(a, Const):
        return Const(-float(a.value), a.dtype)
    match a:
        case Binary(op="*", a=Const(value=-1.0), b=b):
            return b
    return E.binary("*", -1.0, a)


def _is(e: Expr, value: float) -> bool:
    return isinstance(e, Const) and e.dtype != INDEX and e.value == value


def _not(c: Expr) -> Expr:
    """The opposite of a condition. Of comparisons of indices one that simplifies."""
    match c:
        case Const(value=v):
            return Const(not v, "bool")
        case Logic(op="not", args=(x,)):
            return x
        case Logic(op="and" | "or" as op, args=args) if not E.loads(c):
            return (E.any_of if op == "and" else E.all_of)(*map(_not, args))
        case E.Compare(op=op, a=a, b=b) if E.dtype_of(a) == INDEX:
            if op in ("==", "!="):
                return E.compare("!=" if op == "==" else "==", a, b)
            return E.compare("<=" if op == "<" else "<", b, a)
    return Logic("not", (c,))


def _log_slope(x: Expr, y: Expr, result: Expr) -> Expr:
    """The slope of x ** y along y: x ** y * ln x, and 0 for 0 ** y, whose logarithm is infinite."""
    nothing = E.all_of(E.compare("==", x, 0.0), E.compare("<=", 0.0, y))
    return E.select(nothing, 0.0, E.binary("*", result, Call("log", (x,))))


def _pow(args: tuple[Expr, ...], result: Expr) -> tuple[Expr | None, Expr | None]:
    x, y = args
    if isinstance(y, Const):
        return times(y, E.power(x, float(y.value) - 1)), None
    lower = E.binary("*", y, Call("pow", (x, E.binary("-", y, 1.0))))
    return E.select(E.compare("==", y, 0.0), 0.0, lower), _log_slope(x, y, result)


def _sign(x: Expr) -> Expr:
    one = E.wrap(1.0, E.dtype_of(x))
    return E.select(E.compare("<", 0.0, x), one, E.select(E.compare("<", x, 0.0), -1.0, zero(one.dtype)))  # type: ignore[attr-defined]


# {function: its slope along each argument, None where that is no input, from its arguments and its result}.
# `schedules.functions` has their meanings.
SLOPES: dict[str, Callable[[tuple[Expr, ...], Expr], tuple[Expr | None, ...]]] = {
    "exp": lambda x, y: (y,),
    "log": lambda x, y: (1.0 / x[0],),
    "sqrt": lambda x, y: (0.5 / y,),
    "tanh": lambda x, y: (1.0 - y * y,),
    "erf": lambda x, y: (Call("exp", (negative(x[0] * x[0]),)) * (2 / math.sqrt(math.pi)),),
    "sigmoid": lambda x, y: (y * (1.0 - y),),
    "sin": lambda x, y: (Call("cos", x),),
    "cos": lambda x, y: (negative(Call("sin", x)),),
    "tan": lambda x, y: (1.0 + y * y,),
    "pow": _pow,
    "log1p": lambda x, y: (1.0 / (1.0 + x[0]),),
    "expm1": lambda x, y: (y + 1.0,),
    "abs": lambda x, y: (_sign(x[0]),),
}
# Functions whose slope is 0 wherever they have one.
FLAT = frozenset({"floor", "ceil", "round"})
