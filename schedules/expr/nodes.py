"""The nodes of expressions, and the functions that make folded nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar, Union

from schedules.dtypes import DTYPES, computed, is_float, is_storage, rounded
from schedules.expr import numpys
from schedules.expr.numpys import of_array
from schedules.expr.operators import BITWISE, COMPARISONS, FOLD

# Dtype of index arithmetic: a 64-bit signed integer.
INDEX = "index"
# Operations on the way to what tells a dtype, from which on it is kept.
_FAR = 8
ExprLike = Union["Expr", int, float, bool]
Node = TypeVar("Node", bound="Expr")


def _operators(op: str) -> tuple[Callable[[Expr, ExprLike], Expr], Callable[[Expr, ExprLike], Expr]]:
    """The methods of ``self op other`` and of ``other op self``."""
    if op in COMPARISONS:
        return lambda self, o: compare(op, self, o), lambda self, o: compare(op, o, self)
    return lambda self, o: binary(op, self, o), lambda self, o: binary(op, o, self)


class Expr:
    """Base of every scalar expression."""

    # Computed once and kept, because trees are shared and asked often.
    __slots__ = ("_dtype", "_hash", "_holes", "_loads", "_variables")

    def __copy__(self) -> Expr:
        """Itself, because an expression does not change, and variables and tensors compare by identity."""
        return self

    def __deepcopy__(self, memo: object) -> Expr:
        return self

    __add__, __radd__ = _operators("+")
    __sub__, __rsub__ = _operators("-")
    __mul__, __rmul__ = _operators("*")
    __truediv__, __rtruediv__ = _operators("/")
    __floordiv__, __rfloordiv__ = _operators("//")
    __mod__, __rmod__ = _operators("%")
    __lshift__, __rlshift__ = _operators("<<")
    __rshift__, __rrshift__ = _operators(">>")
    __and__, __rand__ = _operators("&")
    __or__, __ror__ = _operators("|")
    __xor__, __rxor__ = _operators("^")

    def __pow__(self, o: ExprLike) -> Expr:
        return power(self, o)

    def __rpow__(self, o: ExprLike) -> Expr:
        return power(o, self)

    def __invert__(self) -> Expr:
        return inverted(self)

    def __neg__(self) -> Expr:
        # 0.0 - x would have the wrong sign for x = 0.0.
        return binary("*", -1, self) if is_float(dtype_of(self)) else binary("-", 0, self)

    def __pos__(self) -> Expr:
        return self

    def __abs__(self) -> Expr:
        return absolute(self)

    def __round__(self, digits: int | None = None) -> Expr:
        if digits is not None:
            raise TypeError("round(x, 2) of an expression: write te.round(x * 100.0) / 100.0")
        return _whole("round", self)

    def __floor__(self) -> Expr:
        return _whole("floor", self)

    def __ceil__(self) -> Expr:
        return _whole("ceil", self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_: Any) -> Any:
        """numpy asks its operands, in place of computing with each as with an object."""
        return numpys.applied(ufunc.__name__, method, inputs, Expr)

    def __array_function__(self, function: Any, *_: Any) -> Any:
        raise numpys.refused(function.__name__)

    __lt__, __gt__ = _operators("<")
    __le__, __ge__ = _operators("<=")

    def __bool__(self) -> bool:
        raise TypeError(
            "an expression has no truth value: use te.select(cond, a, b), te.all(...) or te.equal(a, b)"
        )


def _whole(fn: str, x: Expr) -> Expr:
    """The whole number next to ``x`` by a function; an integer is its own."""
    return Call(fn, (widen(x),)) if is_float(dtype_of(x)) else x


def _remember_hash(cls: type[Node]) -> type[Node]:
    """Let a node hash its tree only once."""
    generated = cls.__hash__

    def __hash__(self: Node) -> int:
        try:
            return self._hash  # type: ignore[attr-defined]
        except AttributeError:
            object.__setattr__(self, "_hash", generated(self))
            return self._hash  # type: ignore[attr-defined]

    cls.__hash__ = __hash__  # type: ignore[assignment]
    return cls


@dataclass(frozen=True, slots=True)
class Const(Expr):
    """A literal. ``dtype``: "index", "bool" or a numeric dtype such as "float32". Literals are equal if every
    computation gives the same for both: 0.0 and -0.0 differ, NaN equals NaN."""

    value: int | float | bool
    dtype: str = INDEX

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not Const:
            return NotImplemented
        a, b = self.value, other.value
        if a is not b:
            if a != b:
                if a == a or b == b:
                    return False
            elif not a and math.copysign(1.0, a) != math.copysign(1.0, b):
                return False
        return self.dtype == other.dtype

    def __hash__(self) -> int:
        v = self.value
        return hash((v if v == v else None, self.dtype))  # Python gives each NaN another hash

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
    """A numeric unknown of a sketch, a positive integer. A decision fills it."""

    name: str

    def __repr__(self) -> str:
        return f"?{self.name}"


@_remember_hash
@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """``op`` is one of + - * / // % min max ceildiv, and of integers << >> & | ^. A shift by less than 0 or
    by as many bits as there are leaves 0, or to the right of a negative number -1."""

    op: str
    a: Expr
    b: Expr


@_remember_hash
@dataclass(frozen=True, slots=True)
class Compare(Expr):
    """``op`` is one of < <= == !=; the result is "bool"."""

    op: str
    a: Expr
    b: Expr


@_remember_hash
@dataclass(frozen=True, slots=True)
class Logic(Expr):
    """``op`` is "and", "or" or "not" (one argument)."""

    op: str
    args: tuple[Expr, ...]


@_remember_hash
@dataclass(frozen=True, slots=True)
class Call(Expr):
    """A function of floating-point arguments of one dtype: see `schedules.functions`."""

    fn: str
    args: tuple[Expr, ...]


@_remember_hash
@dataclass(frozen=True, slots=True)
class Fma(Expr):
    """``a * b + c`` in floating point, rounded once if the processor has an instruction for that; else the
    product is rounded too."""

    a: Expr
    b: Expr
    c: Expr


@_remember_hash
@dataclass(frozen=True, slots=True)
class Select(Expr):
    """``a`` where ``cond`` holds, else ``b``. Only the chosen side is evaluated, so a load on the other side
    may lie out of bounds."""

    cond: Expr
    a: Expr
    b: Expr


@_remember_hash
@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """Convert to ``dtype``; float to int truncates towards zero."""

    dtype: str
    a: Expr


@_remember_hash
@dataclass(frozen=True, slots=True)
class Bits(Expr):
    """The lowest bits of ``a``, above them zeros, read as ``dtype``. It is in no stage and no file:
    generators make casts of it (`schedules.conversions`)."""

    dtype: str
    a: Expr


@_remember_hash
@dataclass(frozen=True, slots=True)
class Load(Expr):
    """One element of a buffer, by name. ``dtype``: that of the buffer, so that an expression has a type by
    itself."""

    buffer: str
    indices: tuple[Expr, ...]
    dtype: str


# The two conditions that always and never hold.
TRUE = Const(True, "bool")
FALSE = Const(False, "bool")


class _ByClass(dict[type, Any]):
    """A value for every node class. Subclasses, as of tensor expressions, get the value of their base."""

    def __missing__(self, t: type) -> Any:
        self[t] = found = next((self[k] for k in t.__mro__[1:] if k in self), None)
        return found


# {class of a node: its base among the node classes}.
_KIND = _ByClass({k: k for k in (Const, Var, Hole, Binary, Compare, Logic, Call, Select, Cast, Bits, Load)})


def kind(e: Expr) -> type:
    """The node class of an expression; tensor expressions have subclasses of their own."""
    return _KIND[type(e)] or type(e)


def dtype_of(e: Expr) -> str:
    """The dtype of an expression."""
    # By class and in a loop, because this is the function that lowering calls most.
    at, steps, found = e, 0, ""
    while not found:
        t = kind(at)
        if t is Binary or t is Select or t is Fma:
            at = at.a  # type: ignore[attr-defined]
        elif t is Var or t is Hole:
            found = INDEX
        elif t is Const or t is Load or t is Cast or t is Bits:
            found = at.dtype  # type: ignore[attr-defined]
        elif t is Compare or t is Logic:
            found = "bool"
        elif t is Call:
            at = at.args[0]  # type: ignore[attr-defined]
        else:
            raise TypeError(f"not an expression: {at!r}")
        steps += 1
        if steps > _FAR and not found:
            found = getattr(at, "_dtype", "")
    if steps > _FAR:  # chains of many operations are asked at each of them
        object.__setattr__(e, "_dtype", found)
    return found


def wrap(given: ExprLike, like: str = INDEX) -> Expr:
    """``given`` as an expression; a Python number takes the dtype ``like``."""
    if isinstance(given, Expr):
        return given
    x = of_array(given)
    if isinstance(x, bool):
        return Const(x, "bool")
    if isinstance(x, int) and isinstance(told := getattr(x, "expr", None), Expr):  # it depends on a size
        return told if like == INDEX else Cast(like, told)
    if (number := numpys.literal(x, like)) is not None:
        return Const(number, like)
    if hasattr(x, "reducer"):  # a reduction says itself what to do
        raise TypeError(repr(x))
    hint = "; index it, as in x[i, j]" if hasattr(x, "shape") and hasattr(x, "op") else ""
    raise TypeError(f"{x!r} ({type(x).__name__}) cannot be part of an expression{hint}")


def widen(e: Expr) -> Expr:
    """``e`` as an operand: a dtype that is only for storage is cast to the one that it is computed with."""
    d = dtype_of(e)
    if not is_storage(d):
        return e
    return Const(int(e.value), computed(d)) if type(e) is Const and d == "bool" else Cast(computed(d), e)


def _pair(a: ExprLike, b: ExprLike) -> tuple[Expr, Expr, str]:
    """(both as operands of one dtype, that dtype). Raises TypeError if their dtypes differ."""
    if isinstance(a, Expr):
        da = dtype_of(a)
        if type(b) is int and da == INDEX:
            return a, Const(b), da
        if is_storage(da):
            a, da = widen(a), computed(da)
        ea, eb = a, wrap(b, da)
    else:
        eb = widen(wrap(b))
        ea = wrap(a, dtype_of(eb))
        da = dtype_of(ea)
    db = dtype_of(eb)
    if is_storage(db):
        eb, db = widen(eb), computed(db)
    if da != db:
        if INDEX in (da, db):
            old, d = (ea, db) if da == INDEX else (eb, da)
            new = _numbers(old, d)
            if new is not None:
                return (new, eb, d) if old is ea else (ea, new, d)
        to = max((d for d in (da, db) if d != INDEX), key=lambda d: (is_float(d), DTYPES[d].itemsize))
        raise TypeError(f"operands have different dtypes, {da} and {db}; convert one with te.cast(x, {to!r})")
    return ea, eb, da


def _numbers(e: Expr, dtype: str) -> Expr | None:
    """An integer that is made of literals, as ``select(cond, 1, 0)``, as one of ``dtype``; None for what is
    made of axes."""
    match e:
        case Const(value=n, dtype="index"):
            return wrap(n, dtype)
        case Select(a=x, b=y) | Binary(op="+" | "-" | "*" | "min" | "max", a=x, b=y):
            a, b = _numbers(x, dtype), _numbers(y, dtype)
            if a is not None and b is not None:
                return select(e.cond, a, b) if isinstance(e, Select) else binary(e.op, a, b)
    return None


def absolute(e: Expr) -> Expr:
    """The absolute value, of integers too."""
    if is_float(dtype_of(e)):
        return Call("abs", (widen(e),))
    x = widen(e)
    return select(compare("<", x, 0), binary("-", 0, x), x)


def binary(op: str, a: ExprLike, b: ExprLike) -> Expr:
    """``a op b``, with constants folded and neutral elements of integers dropped. Floating point is kept as
    written, so that no schedule changes rounding; code rounds every operation except the multiply-add of a
    reduction's update (`ir.multiply_add`). Raises TypeError for unsuitable dtypes, ZeroDivisionError for a
    constant 0."""
    if op in BITWISE:
        return _bitwise(op, a, b)
    ea, eb, d = _pair(a, b)
    if d != INDEX and is_float(d):
        if op in ("//", "%"):
            instead = "te.remainder" if op == "%" else "te.floor_divide"
            raise TypeError(f"operator {op!r} needs integers, got {d}; use {instead}(x, y)")
        return Binary(op, ea, eb)
    if op == "/":
        raise TypeError(f"true division needs floating point, got {d}; use // or te.cast")
    ca = ea.value if type(ea) is Const else None
    cb = eb.value if type(eb) is Const else None
    if op in ("//", "%", "ceildiv") and cb == 0:
        raise ZeroDivisionError(f"{op} by zero in an expression")
    if ca is not None and cb is not None and d == INDEX:
        return Const(int(FOLD[op](ca, cb)), INDEX)
    kept = _KEPT_BESIDE_LEFT.get((op, ca), _KEPT_BESIDE_RIGHT.get((op, cb)))
    if kept is not None:
        return (ea, eb)[kept]
    if op == "%" and cb == 1:
        return Const(0, d)
    if op in ("-", "ceildiv", "min", "max") and ea == eb:
        if op == "-":
            return Const(0, d)
        if op != "ceildiv":
            return ea
        if d == INDEX:  # a size, which is not 0
            return Const(1, d)
    return Binary(op, ea, eb)


# Operations of integers whose result is one of the operands, by the constant that stands on the left, and on
# the right: 0 is the left operand, 1 the right one.
_KEPT_BESIDE_LEFT: dict[tuple[str, Any], int] = {
    ("+", 0): 1, ("*", 0): 0, ("*", 1): 1, ("//", 0): 0, ("ceildiv", 0): 0,
}  # fmt: skip
_KEPT_BESIDE_RIGHT: dict[tuple[str, Any], int] = {
    ("+", 0): 0, ("-", 0): 0, ("*", 0): 1, ("*", 1): 0, ("//", 1): 0, ("ceildiv", 1): 0,
}  # fmt: skip


def _bitwise(op: str, a: ExprLike, b: ExprLike) -> Expr:
    """An operation on bits. Of conditions, & | ^ are conditions. What it does to an axis must be arithmetic,
    because places in tensors are."""
    conds = all(isinstance(x, bool) or (isinstance(x, Expr) and dtype_of(x) == "bool") for x in (a, b))
    if conds and op in "&|^":
        x, y = wrap(a), wrap(b)
        return all_of(x, y) if op == "&" else any_of(x, y) if op == "|" else compare("!=", x, y)
    ea, eb, d = _pair(a, b)
    if is_float(d):
        raise TypeError(f'operator {op!r} needs integers, got {d}; cast first: te.cast(x, "int32")')
    ca, cb = (int(x.value) if type(x) is Const else None for x in (ea, eb))
    if d == INDEX:
        if ca is not None and cb is not None:
            return Const(int(FOLD[op](ca, cb)), INDEX)
        if cb is not None and 0 <= cb < 63:
            if op in ("<<", ">>"):
                return binary("*" if op == "<<" else "//", ea, 1 << cb)
            if op == "&" and cb & (cb + 1) == 0:
                return binary("%", ea, cb + 1)
        raise TypeError(
            f"operator {op!r} of an axis: only literals may shift it, and only 2**n - 1 may mask it; "
            'for its value cast first: te.cast(axis, "int64")'
        )
    if cb == 0 and op != "&":
        return ea
    if ca == 0 and op in "|^":
        return eb
    return Binary(op, ea, eb)


def inverted(e: Expr) -> Expr:
    """``~e``: all bits changed. Of a condition, whether it does not hold. Raises TypeError for floating
    point."""
    if dtype_of(e) != "bool":
        return binary("^", e, -1) if dtype_of(e) != INDEX else binary("-", -1, e)
    return Const(not e.value, "bool") if isinstance(e, Const) else Logic("not", (e,))


def power(a: ExprLike, b: ExprLike) -> Expr:
    """``a ** b``. A literal exponent of -1, 0, 1, 2 or 3 is a quotient or a product; of integers any from 0
    to 64 is. Raises TypeError for integers with another exponent."""
    if isinstance(a, Expr) and not isinstance(b, Expr) and hasattr(b, "__float__"):
        base, n = widen(a), float(b)
        if n in ((0, 1, 2, 3) if is_float(dtype_of(base)) else range(65)):
            return _product(base, int(n))
        if n == -1 and is_float(dtype_of(base)):
            return binary("/", 1, base)
    ea, eb, d = _pair(a, b)
    if not is_float(d):
        raise TypeError(
            f'a power of {d} needs a literal exponent from 0 to 64; cast first: te.cast(x, "float32")'
        )
    return Call("pow", (ea, eb))


def _product(x: Expr, n: int) -> Expr:
    """The product of ``n`` factors ``x``."""
    if n < 2:
        return x if n else wrap(1, dtype_of(x))
    half = _product(x, n // 2)
    return binary("*", binary("*", half, half), x) if n % 2 else binary("*", half, half)


def compare(op: str, a: ExprLike, b: ExprLike) -> Expr:
    """A folded comparison; ``op`` is < <= == or !=. Beside floating point, literals are rounded to their
    dtype first. Integers are compared with any number, as mathematics has it."""
    if not isinstance(a, Expr) or not isinstance(b, Expr):
        known = _beside_integer(op, a, b)
        if known is not None:
            return known
    if op in ("==", "!=") and all(isinstance(x, Expr) and dtype_of(x) == "bool" for x in (a, b)):
        ea, eb, d = wrap(a), wrap(b), "bool"
    else:
        ea, eb, d = _pair(a, b)
    if isinstance(ea, Const) and isinstance(eb, Const):
        return Const(bool(FOLD[op](rounded(ea.value, d), rounded(eb.value, d))), "bool")
    return Compare(op, ea, eb)


def _beside_integer(op: str, a: ExprLike, b: ExprLike) -> Expr | None:
    """A comparison of an integer with a Python number that its dtype does not have; None for others. It
    becomes a comparison with a number that the dtype has. That reads the integer even where the answer is
    known, so that no input is left unread."""
    e, x = (a, b) if isinstance(a, Expr) else (b, a)
    x = of_array(x)
    if (type(x) is int and -(1 << 31) <= x < 1 << 31) or isinstance(x, bool) or not isinstance(e, Expr):
        return None
    d = computed(dtype_of(e))
    if is_float(d) or not (hasattr(x, "__index__") or hasattr(x, "__float__")):
        return None
    values = DTYPES["int64" if d == INDEX else d].range
    low, high = values[0], values[-1]
    number: float = int(x) if hasattr(x, "__index__") else float(x)
    if low <= number <= high and number == math.floor(number):
        return None
    if number != number or op in ("==", "!="):
        holds = op == "!="
    else:
        number = min(max(number, low - 1), high + 1)
        if e is a:  # e <= most
            most = math.ceil(number) - 1 if op == "<" else math.floor(number)
            if low <= most < high:
                return compare("<=", e, most)
            holds = most >= high
        else:
            least = math.floor(number) + 1 if op == "<" else math.ceil(number)
            if low < least <= high:
                return compare("<=", least, e)
            holds = least <= low
    if d == INDEX:
        return TRUE if holds else FALSE
    return compare("<=", low, e) if holds else compare("<", e, low)


def all_of(*conds: Expr) -> Expr:
    """The conjunction, flattened and folded. Without arguments it is true."""
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


def any_of(*conds: Expr) -> Expr:
    """The disjunction, folded. Without arguments it is false."""
    if TRUE in conds:
        return TRUE
    some = tuple(c for c in conds if c != FALSE)
    if not some:
        return FALSE
    return some[0] if len(some) == 1 else Logic("or", some)


def select(cond: Expr, a: ExprLike, b: ExprLike) -> Expr:
    """A folded select. Two values of one storage dtype, or one and a number, keep that dtype."""
    dtypes = {dtype_of(x) for x in (a, b) if isinstance(x, Expr)}
    if len(dtypes) == 1 and is_storage(one := min(dtypes)):
        ea, eb = wrap(a, one), wrap(b, one)
    elif isinstance(a, Expr):
        ea, eb, _ = _pair(a, b)
    else:
        eb, ea, _ = _pair(b, a)
    if cond == TRUE:
        return ea
    if cond == FALSE:
        return eb
    return Select(cond, ea, eb)


# {node class: function that returns its children}, for all classes and for subclasses.
_GETTERS: dict[type, Any] = {
    **dict.fromkeys((Const, Var, Hole), lambda e: ()),
    **dict.fromkeys((Binary, Compare), attrgetter("a", "b")),
    Load: attrgetter("indices"),
    **dict.fromkeys((Logic, Call), attrgetter("args")),
    **dict.fromkeys((Cast, Bits), lambda e: (e.a,)),
    Fma: attrgetter("a", "b", "c"),
    Select: attrgetter("cond", "a", "b"),
}
_CHILDREN = _ByClass(_GETTERS)


def children(e: Expr) -> tuple[Expr, ...]:
    """Direct sub-expressions, left to right."""
    get = _CHILDREN[type(e)]
    return get(e) if get is not None else ()
