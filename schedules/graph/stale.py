"""What an expression is worth at elements that no valid row is behind.

Rows of a state from ``end`` on hold what earlier calls left: any finite numbers. A mask hides them: it makes
of their scores -inf, of whose exponentials 0, of whose products 0. That is computed here, of expressions
alone, with five kinds of values: a number, the same for all such elements; `FINITE`; `UNBOUNDED`, which may
be infinite where everything is masked; `LEAST`; None, of which nothing is known.

Numbers that a model computes of valid rows count as finite unless an infinite literal is behind them.

Many masks have the least number of a dtype in the place of -inf. Beside a score that is seen, its exponential
is 0 as well, if scores are no such numbers themselves: far below `HUGE`. That a score is seen is proved too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from schedules import expr as E
from schedules.dtypes import DTYPES, is_float
from schedules.expr import Binary, Call, Cast, Compare, Const, Expr, Load, Select, Var
from schedules.functions import FUNCTIONS
from schedules.graph.facts import Facts
from schedules.rescaling import linear
from schedules.te.compute_dag import Stage
from schedules.te.extent import is_same

Conditions = tuple[Expr, ...]
# Functions of finite numbers that are finite, and of infinite ones too.
BOUNDED = ("sigmoid", "tanh", "erf", "sin", "cos")


class Unnumbered:
    """A value that is no number."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


FINITE, UNBOUNDED = Unnumbered("finite"), Unnumbered("unbounded")
# -`FAR_BELOW` or less: with any number added, the exponential of its distance to an ordinary number is 0.
LEAST = Unnumbered("about the least number")
# An ordinary number is nearer to 0. Dtypes that have room for both.
HUGE, FAR_BELOW, WIDE = 2.0**64, 2.0**120, ("float32", "float64", "bfloat16")
Worth = float | Unnumbered | None


def unbounded(
    stages: Collection[Stage], values: Mapping[str, Any], most: float = math.inf
) -> frozenset[str]:
    """Tensors whose elements may be infinite though all inputs are finite: an infinite literal is behind
    them, and no exponential between. ``values``: of constants. ``most``: what counts as infinite."""
    found = {n for n, v in values.items() if is_float(str(v.dtype)) and not _below(v, most)}

    def may(e: Expr) -> bool:
        match e:
            case Const(value=v):
                return isinstance(v, float) and not abs(v) < most
            case Load(buffer=b):
                return b in found
            case Call(fn="exp" | "exp2") | Compare():
                return False
            case Call(fn=fn) if fn in BOUNDED:
                return False
            case Select(cond=Compare(op="==", a=x, b=Const(value=v)), a=a, b=b) if x == b and v == -math.inf:
                return may(a)
        return any(map(may, E.children(e)))

    for s in stages:
        found |= {t.name for t, v in zip(s.outputs, s.values, strict=True) if is_float(t.dtype) and may(v)}
    return frozenset(found)


def _below(values: Any, most: float) -> bool:
    """Whether all numbers are nearer to 0; without an array of as many."""
    return values.size == 0 or bool(-most < float(values.min()) and float(values.max()) < most)


@dataclass(frozen=True)
class Stale:
    """Values at elements whose index along a dimension is ``var`` and not below the number of valid rows.

    ``tensors``: states whose rows are meant, all finite. ``stages``: {tensor: the reduction that makes it}.
    ``length``: of that dimension. ``seen_at``: where masks by the least number are looked at, indices below
    ``end`` of which one may be seen; ``always``: conditions that hold at all elements."""

    facts: Facts
    var: str
    stages: Mapping[str, Stage]
    tensors: frozenset[str]
    infinite: frozenset[str]
    length: int
    end: Expr
    always: Conditions
    seen_at: tuple[Expr, ...] = ()

    @cached_property
    def _names(self) -> list[str]:
        return []

    def worth(self, e: Expr, conds: Conditions) -> Worth:
        """The value of an expression where conditions on indices hold."""
        match e:
            case Const(value=v):
                return self._literal(v)
            case Select(cond=c, a=a, b=b):
                yes, no = (*conds, self.facts.implied(c)), (*conds, self.facts.implied(c, False))
                if self.facts.never(yes):
                    return self.worth(b, no)
                if self.facts.never(no):
                    return self.worth(a, yes)
                return _either(self.worth(a, yes), self.worth(b, no))
            case Load():
                return self._element(e, conds)
            case Cast(dtype=d, a=a):
                return _cast(self.worth(a, conds), d)
            case Binary(op=op, a=a, b=b) if is_float(E.dtype_of(e)):
                x, y = self.worth(a, conds), self.worth(b, conds)
                found = _combined(op, x, y, E.dtype_of(e))
                return self._relative(e, conds) if found is None and op in "+-" else found
            case Call(fn=fn, args=args):
                if fn == "exp" and self._relative(args[0], conds) is not None:
                    return 0.0
                return _called(fn, [self.worth(x, conds) for x in args], E.dtype_of(e))
        if E.dtype_of(e) == "bool":
            for v in (True, False):
                if self.facts.never((*conds, self.facts.implied(e, not v))):
                    return v
        return None

    def _literal(self, v: Any) -> Worth:
        if not self.seen_at or not isinstance(v, float) or abs(v) < HUGE or math.isinf(v):
            return v
        return LEAST if v <= -FAR_BELOW else UNBOUNDED

    def _element(self, e: Load, conds: Conditions) -> Worth:
        if not any(self.var in E.variables(i) for i in e.indices):
            return None if not is_float(e.dtype) else UNBOUNDED if e.buffer in self.infinite else FINITE
        if e.buffer in self.tensors:
            return FINITE if is_float(e.dtype) else None
        if e.buffer in self.facts.graph.values:
            return self._constant(e, conds)
        inner = self.facts.inlined(e)
        if inner is not None:
            return self.worth(inner, conds)
        if e.buffer in self.stages:
            return self._reduced(self.stages[e.buffer], e, conds)
        return FINITE if is_float(e.dtype) else None

    def _reduced(self, s: Stage, e: Load, conds: Conditions) -> Worth:
        """An element of a reduction along other dimensions."""
        k = [t.name for t in s.outputs].index(e.buffer)
        env: dict[str, Expr] = dict(zip((a.var for a in s.axes), e.indices, strict=True))
        for a in s.reduce_axes:
            self._names.append(f"{a.var}.{len(self._names)}")
            self.facts.ranges[self._names[-1]] = (0, int(a.extent) - 1)
            env[a.var] = Var(self._names[-1])
        term = self.worth(E.substitute(s.values[k], env), conds)
        assert s.reducer is not None
        op, start = s.reducer.operation(k), s.reducer.identity[k].value
        if isinstance(term, Unnumbered):
            return term if op in ("+", "min", "max") or (op == "*" and term is not LEAST) else None
        same = term is not None and (op in ("min", "max") or term == start)
        return term if same else FINITE if term is not None and math.isfinite(term) and op else None

    def _constant(self, e: Load, conds: Conditions) -> Worth:
        """An element of a constant of few different values, as a mask is."""
        value = self.facts.graph.values[e.buffer]
        if not is_float(e.dtype):
            for held in (True, False) if e.dtype == "bool" else ():
                if self.facts.never((*conds, self.facts.implied(e, not held))):
                    return held
            return None
        kinds = np.unique(value)
        for v in kinds if kinds.size <= 4 else ():
            others = self.facts.among(e, list(np.nonzero(value != v)))
            if self.facts.never((*conds, others)):
                return self._literal(float(v))
        return UNBOUNDED if e.buffer in self.infinite else FINITE

    def is_seen(self, e: Expr) -> bool:
        """Whether in each row an element that is not stale is an ordinary number, so that `LEAST` is far
        below the maximum of the row."""

        def ordinary(worth: Worth) -> bool:
            if worth is None or isinstance(worth, Unnumbered):
                return worth is FINITE
            return abs(worth) < HUGE

        for at in self.seen_at:
            outside = E.compare("<", at, 0), E.compare("<=", self.end, at)
            if all(self.facts.never((*self.always, x)) for x in outside):
                if ordinary(self.worth(e, (*self.always, E.compare("==", Var(self.var), at)))):
                    return True
        return False

    def _relative(self, e: Expr, conds: Conditions) -> Worth:
        """The value of ``p (x - top)`` with p > 0, where x is -inf or `LEAST` here, and ``top`` the maximum
        of all x along the dimension. Where that is -inf too, all x are, and no sum over them is a number,
        with these elements or without. None for other expressions."""
        terms = linear(e)
        for top, c in terms.items():
            if not isinstance(top, Load) or c >= 0 or top.buffer not in self.stages:
                continue
            s = self.stages[top.buffer]
            if s.reducer is None or len(s.values) > 1 or s.reducer.operation(0) != "max":
                continue
            if len(s.reduce_axes) != 1 or not is_same(s.reduce_axes[0].extent, self.length):
                continue
            env: dict[str, Expr] = dict(zip((a.var for a in s.axes), top.indices, strict=True))
            of = E.substitute(s.values[0], env | {s.reduce_axes[0].var: Var(self.var)})
            rest = {x: k for x, k in terms.items() if x != top}
            if rest == {x: -c * k for x, k in linear(of).items()}:
                worth = self.worth(of, conds)
                if worth == -math.inf or (worth is LEAST and c <= -1 and self.is_seen(of)):
                    return worth
        return None


def _either(x: Worth, y: Worth) -> Worth:
    """Of what is one or the other."""
    if x is None or y is None:
        return None
    if not isinstance(x, Unnumbered) and not isinstance(y, Unnumbered) and x == y:
        return x
    if LEAST in (x, y):
        return LEAST if x is y or -math.inf in (x, y) else UNBOUNDED
    every = [v if isinstance(v, Unnumbered) else FINITE if math.isfinite(v) else UNBOUNDED for v in (x, y)]
    return UNBOUNDED if UNBOUNDED in every else FINITE


def _cast(x: Worth, dtype: str) -> Worth:
    if x is None or (isinstance(x, Unnumbered) and not is_float(dtype)):
        return None
    if x is LEAST and dtype not in WIDE:
        return None
    if isinstance(x, Unnumbered) or not is_float(dtype):
        return x if isinstance(x, Unnumbered) else None
    return _rounded(float(x), dtype)


def _rounded(x: float, dtype: str) -> Worth:
    with np.errstate(all="ignore"):
        found = float(np.asarray(x).astype(DTYPES[dtype].numpy))
    return None if math.isnan(found) else found


def _combined(op: str, x: Worth, y: Worth, dtype: str) -> Worth:
    """The value of ``x op y``. None where it may be NaN."""
    if x is None or y is None:
        return None
    if LEAST in (x, y):
        return _with_least(op, x, y)
    if not isinstance(x, Unnumbered) and not isinstance(y, Unnumbered):
        with np.errstate(all="ignore"):
            number = DTYPES[dtype].numpy.type
            return _rounded(float(_NUMPY[op](number(x), number(y))), dtype) if op in _NUMPY else None
    known, other, left = (x, y, True) if not isinstance(x, Unnumbered) else (y, x, False)
    if isinstance(known, Unnumbered):
        return FINITE if x is y is FINITE and op in _NUMPY else None
    if other is UNBOUNDED:
        return None
    if op == "*" and known == 0:
        return 0.0
    if op == "/" and left and known == 0:
        return 0.0
    if math.isfinite(known):
        return FINITE if op in _NUMPY else None
    if op == "+" or (op == "-" and left):
        return known
    if op == "-":
        return -known
    if op in ("min", "max"):
        return known if (op == "min") == (known < 0) else FINITE
    return None


def _with_least(op: str, x: Worth, y: Worth) -> Worth:
    """`_combined`, where one is `LEAST`."""
    other = y if x is LEAST else x
    if other is UNBOUNDED or (other is LEAST and op not in ("+", "min", "max")):
        return None
    known = other if not isinstance(other, Unnumbered) else None
    if known is not None and not abs(known) < HUGE:
        return LEAST if known == -math.inf and op in ("+", "min") else None
    if op in ("+", "min") or (op == "-" and x is LEAST):
        return LEAST
    if op == "max":
        return other
    grows = known is not None and (known >= 1 if op == "*" else op == "/" and x is LEAST and 0 < known <= 1)
    return LEAST if grows else None


_NUMPY: dict[str, Any] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "min": np.minimum, "max": np.maximum,
}  # fmt: skip


def _called(fn: str, args: list[Worth], dtype: str) -> Worth:
    if any(x is None for x in args):
        return None
    if fn == "exp" and args == [LEAST]:
        return 0.0
    if not any(isinstance(x, Unnumbered) for x in args):
        with np.errstate(all="ignore"):
            return _rounded(float(FUNCTIONS[fn].of(*(DTYPES[dtype].numpy.type(x) for x in args))), dtype)
    bounded = fn in BOUNDED or (fn in ("exp", "abs") and all(x is FINITE for x in args))
    return FINITE if bounded and len(args) == 1 else None
