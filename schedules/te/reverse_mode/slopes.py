"""Derivatives of scalar expressions: what each load of a value adds to the gradient.

Reverse mode within one expression (Griewank and Walther, *Evaluating Derivatives*, 2008, chapter 3): the
gradient of the whole is handed from an operation to its operands, times the operation's slope.

Conventions where there is no derivative: two operands of a maximum or minimum that tie get half each, as in
torch.maximum; against an operand that is no input, as in ``te.maximum(x, 0)``, a tie gives nothing, as in
torch's relu, relu6 and hardtanh. |x| has slope 0 at 0. Rounding functions, comparisons and integers have no
slope.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from schedules import expr as E
from schedules.dtypes import computed
from schedules.errors import WorkloadError
from schedules.expr import INDEX, Binary, Call, Cast, Const, Expr, Fma, Logic, Select
from schedules.functions import FUNCTIONS
from schedules.te.infeasible import negation
from schedules.te.reverse_mode.graph import added, guarded, zero
from schedules.te.tensors import TensorLoad


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a gradient: ``value`` where all ``conditions`` hold. Each may be asked only where those
    before it hold, because selects keep loads inside their tensors."""

    conditions: tuple[Expr, ...]
    value: Expr


def terms(
    value: Expr,
    head: Expr,
    own: Expr | None,
    wanted: Callable[[TensorLoad], bool],
    what: str = "te.gradient",
) -> dict[TensorLoad, list[Term]]:
    """For each load of ``value`` that is ``wanted``: the parts of its gradient, where the gradient of
    ``value`` is ``head``.

    ``own``: what reads ``value`` itself once it is stored, None where it is not. ``what``: what errors name.
    Raises `WorkloadError` for
    an operation that has a slope which is not known here."""
    # A part that is used several times gets its whole gradient before it hands on: users come first.
    given: dict[Expr, list[Term]] = {value: [Term((), head)]}
    found: dict[TensorLoad, list[Term]] = {}
    for e in _users_first(value, wanted):
        parts = given.pop(e, None)
        if parts is None:
            continue
        if isinstance(e, TensorLoad):
            found[e] = parts
            continue
        whole = _joined(parts)
        result = own if own is not None and e is value else e
        for x, g, cond in _handed(e, whole.value, result, wanted, what):
            conds = whole.conditions if cond is None else (*whole.conditions, cond)
            given.setdefault(x, []).append(Term(conds, g))
    return found


def _users_first(value: Expr, wanted: Callable[[TensorLoad], bool]) -> list[Expr]:
    """The different parts of a value that read what is wanted, each after all that use it."""
    done: dict[Expr, bool] = {}
    stack = [value]
    while stack:
        e = stack[-1]
        kids = () if isinstance(e, TensorLoad) else E.children(e)
        todo = [k for k in kids if k not in done]
        if e in done or not todo:
            stack.pop()
            if e not in done:
                done[e] = wanted(e) if isinstance(e, TensorLoad) else any(done[k] for k in kids)
        else:
            stack += todo
    return [e for e in reversed(done) if done[e]]


def _joined(parts: list[Term]) -> Term:
    """The sum of parts as one."""
    conds = parts[0].conditions
    if any(p.conditions != conds for p in parts):
        parts, conds = [Term((), guarded(p.conditions, p.value)) for p in parts], ()
    return Term(conds, added(p.value for p in parts))


def _handed(
    e: Expr, g: Expr, result: Expr, wanted: Callable[[TensorLoad], bool], what: str
) -> list[tuple[Expr, Expr, Expr | None]]:
    """What an operation with the gradient ``g`` hands on: (operand, its gradient, where, None: everywhere).
    ``result``: the value of ``e``, to be used where it helps."""
    match e:
        case Binary(op="+" | "-" as op, a=a, b=b):
            return [(a, g, None), (b, g if op == "+" else negative(g), None)]
        case Binary(op="*", a=a, b=b) if a == b:
            return [(a, E.binary("*", 2.0, times(g, b)), None)]
        case Binary(op="*", a=a, b=b):
            return [(a, times(g, b), None), (b, times(g, a), None)]
        case Binary(op="/", a=Const(value=1.0), b=Call(fn="sqrt", args=(a,))):
            cube = E.binary("*", E.binary("*", result, result), result)
            return [(a, times(g, E.binary("*", -0.5, cube)), None)]
        case Binary(op="/", a=Const(value=1.0), b=b):
            return [(b, negative(times(g, E.binary("*", result, result))), None)]
        case Binary(op="/", a=a, b=b):
            return [(a, E.binary("/", g, b), None), (b, negative(times(g, E.binary("/", result, b))), None)]
        case Binary(op="max" | "min" as op, a=a, b=b):
            out: list[tuple[Expr, Expr, Expr | None]] = []
            for x, other in ((a, b), (b, a)):
                # Against a literal the result tells as much, and what made it need not be known.
                of = result if isinstance(other, Const) else x
                above = E.compare("<", other, of) if op == "max" else E.compare("<", of, other)
                if _depends(other, wanted):
                    half = E.select(E.compare("==", a, b), 0.5, zero(E.dtype_of(e)))
                    out.append((x, times(g, E.select(above, E.wrap(1.0, E.dtype_of(e)), half)), None))
                else:
                    out.append((x, g, above))
            return out
        case Select(cond=c, a=a, b=b):
            return [(a, g, c), (b, g, _not(c))]
        case Fma(a=a, b=b, c=c):
            return [(a, times(g, b), None), (b, times(g, a), None), (c, g, None)]
        case Cast(dtype=d, a=a) if E.is_float(d) and E.is_float(E.dtype_of(a)):
            into = computed(E.dtype_of(a))
            return [(a, g if E.dtype_of(g) == into else Cast(into, g), None)]
        case Call(fn=fn, args=args) if FUNCTIONS[fn].change is not None:
            slope = FUNCTIONS[fn].slope
            if slope is None:
                raise WorkloadError(
                    f"{what}: {E.show(e)} has no derivative here; write it with other functions, or "
                    "give the tensor that it makes as an input of the gradient"
                )
            slopes = zip(args, slope(args, result), strict=True)
            return [(x, times(g, s), None) for x, s in slopes if s is not None]
    return []


def _depends(e: Expr, wanted: Callable[[TensorLoad], bool]) -> bool:
    """Whether a value changes with what is wanted, as far as its form tells."""
    match e:
        case TensorLoad():
            return wanted(e)
        case Call(fn=fn) if FUNCTIONS[fn].change is None:
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
    """The opposite of a condition."""
    several = isinstance(c, Logic) and c.op != "not"  # of loads each may be made only where those before hold
    return Logic("not", (c,)) if several and E.loads(c) else negation(c)
