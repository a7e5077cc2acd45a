"""Which indices a call tells: conditions and indices of a stage by its axes and by numbers of the call.

An index that is read from a tensor is computed in the dtype of that tensor, held inside, counted from the end
where it is below 0. A proof about it wants arithmetic of axes. So integers become indices here, and what no
axis is part of becomes a variable that stands for a number of the call: an element of an input or a state, or
what is computed of such elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES, is_float, is_integer
from schedules.expr import INDEX, Binary, Cast, Compare, Const, Expr, Load, Logic, Select, Var
from schedules.graph.edit import is_map, ranges
from schedules.graph.facts import even
from schedules.graph.graph import Array, Graph
from schedules.te.compute_dag import Stage
from schedules.te.dims import Dim, SizeHole
from schedules.te.infeasible import negation
from schedules.te.marks import as_index

# Nodes of an expression, above which nothing is looked for in it.
MOST_NODES = 2048
# What variables begin with that stand for a number of the call: no name of an axis does.
MARK = "@"


@dataclass
class CallIndices:
    """Reads integers and conditions of the stages of a ``graph`` as index arithmetic. ``numbers``: {variable:
    the number of the call that it stands for, an expression of elements of inputs and states, or an open
    size}. ``sizes``: {variable: the size that it stands for}."""

    graph: Graph
    numbers: dict[str, Expr] = field(default_factory=dict)
    sizes: dict[str, Dim] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._made = {t.name: s for s in self.graph.dag.stages for t in s.outputs}
        self._given = {*self.graph.inputs, *(s.tensor for s in self.graph.states.values())}
        self._names: dict[Expr, str] = {}

    def index(self, e: Expr) -> Expr | None:
        """An integer as index arithmetic; None for what is none."""
        match e:
            case Const(value=v) if not is_float(E.dtype_of(e)):
                return Const(int(v))
            case Var():
                return e
            case SizeHole(name=n):
                self.sizes[MARK + n], self.numbers[MARK + n] = e.dim, e
                return Var(MARK + n)
            case Cast(dtype=d, a=a) if _is_wide(d) and _is_integer(E.dtype_of(a)):
                return self.index(a)
            case Binary(op="+" | "-" | "*" | "min" | "max" | "//" | "%" as op, a=a, b=b):
                if not _is_integer(E.dtype_of(e)):
                    return None
                if E.loads(e) and not self._walks(e) and op not in "+-*":
                    return self._number(e)
                x, y = self.index(a), self.index(b)
                by_0 = op in ("//", "%") and isinstance(y, Const) and y.value <= 0
                return None if x is None or y is None or by_0 else E.binary(op, x, y)
            case Select(cond=c, a=a, b=b) if self._walks(e):
                cond, x, y = self.condition(c), self.index(a), self.index(b)
                return None if cond is None or x is None or y is None else E.select(cond, x, y)
            case Load() if _is_integer(e.dtype):
                return self._loaded(e)
        return self._number(e) if _is_integer(E.dtype_of(e)) and not self._walks(e) else None

    def condition(self, e: Expr) -> Expr | None:
        """A condition on integers as one on indices; None for others. A place that counts from the end where
        it is below 0 is taken for one that does not: who asks must see to it that it is not below 0."""
        match e:
            case Const(dtype="bool"):
                return e
            case Compare(op=op, a=a, b=b) if E.dtype_of(a) != "bool":
                x, y = (self.index(_from_start(k) if op == "==" else k) for k in (a, b))
                return None if x is None or y is None else E.compare(op, x, y)
            case Logic(op="not", args=(a,)):
                found = self.condition(a)
                return None if found is None else negation(found)
            case Logic(op=op, args=args):
                parts = [self.condition(a) for a in args]
                known = [p for p in parts if p is not None]
                if len(known) < len(parts):
                    return None
                return E.all_of(*known) if op == "and" else E.any_of(*known)
            case Select(cond=c, a=a, b=b):
                cond, x, y = self.condition(c), self.condition(a), self.condition(b)
                if cond is None or x is None or y is None:
                    return None
                return E.any_of(E.all_of(cond, x), E.all_of(negation(cond), y))
            case Load(dtype="bool"):
                value = self._value(e)
                return None if value is None else self.condition(value)
        return None

    def read(self, e: Expr) -> Expr:
        """A value with its conditions and indices as index arithmetic, where they are that."""
        if isinstance(e, Select):
            cond = self.condition(e.cond)
            return Select(self.read(e.cond) if cond is None else cond, self.read(e.a), self.read(e.b))
        if isinstance(e, Load):
            found = [self.index(i) for i in e.indices]
            indices = tuple(self.read(i) if x is None else x for i, x in zip(e.indices, found, strict=True))
            return Load(e.buffer, indices, e.dtype)
        return E.rebuild(e, tuple(map(self.read, E.children(e)))) if E.children(e) else e

    def stated(self, e: Expr) -> Expr | None:
        """Index arithmetic of numbers of the call as one integer of dtype int64; None where it is another."""
        terms, const = affine.linear(e)
        made: Expr | None = None
        for atom, factor in terms.items():
            if not isinstance(atom, Var) or atom.name not in self.numbers or not isinstance(factor, Const):
                return None
            term = _as_int64(self.numbers[atom.name])
            term = term if factor.value == 1 else E.binary("*", term, Const(int(factor.value), "int64"))
            made = term if made is None else E.binary("+", made, term)
        if not isinstance(const, Const):
            return None
        if made is None:
            return Const(int(const.value), "int64")
        return E.binary("+", made, Const(int(const.value), "int64")) if const.value else made

    # -- loads ---------------------------------------------------------------------------------

    def _walks(self, e: Expr) -> bool:
        """Whether an axis is part of it."""
        return any(not v.startswith(MARK) for v in E.variables(e))

    def _loaded(self, x: Load) -> Expr | None:
        """An integer that is loaded."""
        if x.buffer in self.graph.values:
            at = [self.index(i) for i in x.indices]
            known = [i for i in at if i is not None]
            return progression(self.graph.values[x.buffer], known) if len(known) == len(at) else None
        value = self._value(x)
        if value is not None:
            return self.index(value)
        return None if self._walks(x) else self._number(x)

    def _value(self, x: Load) -> Expr | None:
        """What a stage makes of other tensors at the place of a load; None where it cannot be told so."""
        s = self._made.get(x.buffer)
        if s is None or len(s.values) > 1:
            return None
        place = {a.var: i for a, i in zip(s.axes, x.indices, strict=True)}
        if is_map(s):
            value = E.substitute(s.values[0], place)
            return value if E.size(value)[0] <= MOST_NODES else None
        found = self._alone(s)
        return None if found is None else E.substitute(found, place)

    def _alone(self, s: Stage) -> Expr | None:
        """The value of a reduction to a maximum in which a condition takes one element alone, and a number
        that is less stands for all others: ``max over r of select(f + r == t, r, -1)``."""
        if s.reducer is None or s.reducer.operation(0) != "max" or len(s.reduce_axes) != 1:
            return None
        (r,) = s.reduce_axes
        value = s.values[0]
        if not isinstance(value, Select) or not isinstance(value.b, Const):
            return None
        cond, a = self.condition(value.cond), self.index(value.a)
        if cond is None or a is None:
            return None
        for c in E.conjuncts(cond):
            if not isinstance(c, Compare) or c.op != "==":
                continue
            step, rest = affine.isolate(c.a - c.b, r.var)
            if not isinstance(step, Const) or abs(step.value) != 1 or r.var in E.variables(rest):
                continue
            at = affine.simplify(rest * -int(step.value), {})
            others = [x for x in E.conjuncts(cond) if x is not c]
            made = E.substitute(a, {r.var: at})
            least = affine.bounds(a, ranges(s))
            if least is None or least[0] < value.b.value:
                return None
            inside = [E.compare("<=", 0, at), E.compare("<", at, as_index(r.extent))]
            there = E.all_of(*inside, *(E.substitute(x, {r.var: at}) for x in others))
            return E.select(there, made, int(value.b.value))
        return None

    def _number(self, e: Expr) -> Expr | None:
        """The variable that stands for a number of the call; None for what is none."""
        known = self._known(e)
        if known is None:
            return None
        if known not in self._names:
            self._names[known] = f"{MARK}{len(self._names)}"
            self.numbers[self._names[known]] = known
        return Var(self._names[known])

    def _known(self, e: Expr) -> Expr | None:
        """An integer by elements of inputs and states alone."""
        match e:
            case Load(buffer=b, indices=ix, dtype=d) if b in self._given:
                return e if not is_float(d) and all(isinstance(i, Const) for i in ix) else None
            case Load(buffer=b, indices=ix) if b in self.graph.values:
                if all(isinstance(i, Const) for i in ix) and not is_float(e.dtype):
                    value = self.graph.values[b][tuple(int(i.value) for i in ix if isinstance(i, Const))]
                    return Const(bool(value) if e.dtype == "bool" else int(value), e.dtype)
                return None
            case Load():
                value = self._value(e)
                return None if value is None else self._known(value)
            case Const():
                return e
            case Var() | E.Call() | E.Fma():
                return None if not isinstance(e, Var) or not e.name.startswith(MARK) else self.numbers[e.name]
        kids = [self._known(k) for k in E.children(e)]
        whole = tuple(k for k in kids if k is not None)
        return E.rebuild(e, whole) if len(whole) == len(kids) else None


def progression(values: Array, at: Sequence[Expr]) -> Expr | None:
    """An element of an array of integers by its indices, where numbers go on evenly along each axis, as those
    of ``arange`` do; or at indices that are numbers. None for others."""
    if values.dtype.kind not in "iu" or values.size == 0:
        return None
    if all(isinstance(i, Const) for i in at):
        place = tuple(int(i.value) for i in at if isinstance(i, Const))
        inside = all(0 <= i < n for i, n in zip(place, values.shape, strict=True))
        return Const(int(values[place])) if inside else None
    found = even(values)
    return None if found is None else sum((i * k for i, k in zip(at, found[1], strict=True)), Const(found[0]))


def _is_integer(dtype: str) -> bool:
    return dtype == INDEX or is_integer(dtype)


def _is_wide(dtype: str) -> bool:
    """Whether places of a tensor are numbers of a dtype, so that sums of them do not wrap."""
    return dtype == INDEX or (_is_integer(dtype) and DTYPES[dtype].itemsize >= 4)


def _from_start(e: Expr) -> Expr:
    """A place that may count from the end, without that."""
    match e:
        case Cast(dtype=d, a=a):
            return Cast(d, _from_start(a))
        case Select(cond=Compare(op="<", a=x, b=Const(value=0)), a=Binary(op="+", a=y), b=z) if x == y == z:
            return z
    return e


def _as_int64(e: Expr) -> Expr:
    return e if E.dtype_of(e) == "int64" else Cast("int64", e)
