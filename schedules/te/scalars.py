"""Scalar functions of tensor expressions: literals, casts, conditions and math. `te` exports all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar
from typing import cast as cast_

import numpy as np

from schedules import expr as E
from schedules.dtypes import DTYPES, computed, is_float, is_integer, is_storage, rounded
from schedules.errors import WorkloadError, suggest
from schedules.expr import INDEX, Const, Expr, ExprLike
from schedules.functions import FUNCTIONS, Function

Function_ = TypeVar("Function_", bound=Callable[..., Any])

# A Python float, for use where a number is; also -inf.
inf = math.inf


def of_elements(f: Function_) -> Function_:
    """A function of `te` that refuses whole tensors and reductions by what to write in their place."""

    @wraps(f)
    def checked(*args: Any, **named: Any) -> Any:
        for x in (*args, *named.values()):
            if isinstance(x, Expr):
                continue
            if hasattr(x, "reducer"):  # a reduction says itself what to do
                raise WorkloadError(repr(x))
            if hasattr(x, "shape") and hasattr(x, "op"):
                element = element_of(x) if len(args) > 1 else f"te.{f.__name__}({element_of(x)})"
                raise WorkloadError(
                    f"te.{f.__name__} takes elements, and {x!r} is a tensor; write {element} in a te.compute"
                )
        return f(*args, **named)

    return cast_(Function_, checked)


def element_of(x: Any, last: Sequence[str] = ()) -> str:
    """How an element of a tensor is written, such as ``A[i, j]``. ``last``: names of its last axes."""
    first = ["ijkl"[n : n + 1] or f"i{n}" for n in range(len(x.shape) - len(last))]
    return f"{x.name or 'x'}[{', '.join([*first, *last][-len(x.shape) :]) or '()'}]"


# {another name of a dtype: its name here}.
ALIASES = {"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "half": "float16"}
ALIASES |= {"fp32": "float32", "f32": "float32", "fp64": "float64", "f64": "float64", "double": "float64"}
# {a word that libraries mean different dtypes by: the likely one}.
UNCLEAR = {"float": "float32", "short": "int16", "int": "int32", "long": "int64"}
UNCLEAR |= {"ushort": "uint16", "uint": "uint32"}
# {a dtype that is not here: one that has its values}.
WIDER = {"float128": "float64", "longdouble": "float64"}


def check_dtype(dtype: Any, what: str) -> str:
    """``dtype`` as a name; those of numpy and torch are accepted, and `ALIASES`. Raises `WorkloadError` for
    others."""
    text = str(dtype).removeprefix("torch.")
    if text in DTYPES:
        return text
    if text in ALIASES:
        return ALIASES[text]
    try:
        name = "" if dtype is None or isinstance(dtype, str) else np.dtype(dtype).name
    except (TypeError, ValueError):  # numpy looks for a dtype in what it is given
        name = ""
    if name not in DTYPES:
        raise WorkloadError(f"{what}: dtype {dtype!r} is not one of {instead_of(text, name)}")
    return name


def instead_of(text: str, name: str = "") -> str:
    """The dtypes that there are, and what to take for one that is not here. ``name``: numpy's, empty where
    numpy does not know it."""
    known, every = name or text, ", ".join(DTYPES)
    if known in WIDER:
        return f"{every}; {WIDER[known]} has all its values"
    if known == "uint64":
        return f"{every}; int64 has its values below 2**63, and x.view('int64') the bits of all"
    if known.startswith(("complex", "cfloat", "cdouble")):
        way = "keep real and imaginary parts in a tensor each, which one stage may make, or side by side"
        return f"{every}; {way}"
    close = f" (did you mean {UNCLEAR[text]!r}?)" if text in UNCLEAR else suggest(text, DTYPES)
    return f"{every}{close}; choose one of these"


@of_elements
def const(value: int | float, dtype: str) -> Const:
    """A literal of ``dtype``, for floats also NaN and, where they have it, ``te.inf``. Raises `WorkloadError`
    for another infinity, and if an integer dtype cannot hold it.
    Example: ``te.const(0.5, "float32")``."""
    dtype = check_dtype(dtype, "te.const")
    try:
        if E.is_float(dtype) and (DTYPES[dtype].infinite or value not in (inf, -inf)):
            return Const(float(value), dtype)
        fits = int(value) == value and int(value) in DTYPES[dtype].range
    except (OverflowError, ValueError):  # an integer beyond all floats, an infinity or NaN
        fits = False
    except TypeError:
        given: Any = value
        got = f"{E.show(given)}; use te.cast(x, {dtype!r})" if isinstance(given, Expr) else repr(given)
        raise WorkloadError(f"te.const makes a literal of a number, got {got}") from None
    if not fits:
        remedy = "choose another dtype"
        if value in (inf, -inf):
            remedy = f'its end is te.{"max" if value > 0 else "min"}_value("{dtype}")'
        raise WorkloadError(f"{value!r} is not a value of {dtype}; {remedy}")
    return Const(bool(value) if dtype == "bool" else int(value), dtype)


@of_elements
def max_value(dtype: str) -> Const:
    """The largest finite value of ``dtype``. For floats ``te.inf`` is larger: a minimum that may meet
    infinities starts there.
    Example: ``te.max_value("int8")``, which is 127."""
    return const(_finite(dtype, "max"), dtype)


@of_elements
def min_value(dtype: str) -> Const:
    """The lowest finite value of ``dtype``. For floats ``-te.inf`` is lower: a maximum that may meet
    infinities starts there.
    Example: ``te.min_value("int8")``, which is -128."""
    return const(_finite(dtype, "min"), dtype)


def _finite(dtype: str, end: str) -> int | float:
    row = DTYPES[check_dtype(dtype, f"te.{end}_value")]
    if E.is_float(dtype):
        return row.largest if end == "max" else -row.largest
    return row.range[-1 if end == "max" else 0]


def limit(dtype: str, sign: int) -> Const:
    """The identity of max (sign -1) and of min (sign 1)."""
    if E.is_float(dtype) and DTYPES[dtype].infinite:
        return Const(sign * inf, dtype)
    return max_value(dtype) if sign > 0 else min_value(dtype)


@of_elements
def cast(value: ExprLike, dtype: str, saturate: bool = False) -> Expr:
    """``value`` as ``dtype``. Float to int truncates towards zero and ends at the largest and least. A dtype
    of storage is made by way of the one that it is computed with: floats of 16 and 8 bits round a float32,
    int8, uint8, int16 and uint16 keep the low bits of an int32, uint32 those of an int64. Beyond its largest
    number float8_e4m3fn is NaN, for it has no infinity. bool is whether ``value`` is not 0; a condition
    is 0 or 1.

    ``saturate``: if ``dtype`` has fewer numbers, what is beyond its largest or its least becomes that,
    infinities too. NaN stays NaN, and is 0 as an integer.
    Example: ``te.cast(te.round(x[i] * 127.0), "int8", saturate=True)``."""
    e = value if isinstance(value, Expr) else E.wrap(value, "float32" if isinstance(value, float) else INDEX)
    old, new = E.dtype_of(e), check_dtype(dtype, "te.cast")
    if old == new:
        return e
    if new == "bool":
        return E.compare("!=", e, 0)
    if saturate:
        e = _saturated(e, new)
        old = E.dtype_of(e)
    if isinstance(e, Const) and e.dtype in (INDEX, "bool"):
        return const(e.value, dtype)
    if is_storage(old) and new != computed(old):
        e = E.widen(e)
    if is_storage(new) and E.dtype_of(e) != computed(new):
        e = E.Cast(computed(new), e)
    return E.Cast(new, e)


def _saturated(e: Expr, new: str) -> Expr:
    """``e`` cut off at the ends of a dtype, in the dtype in which it is cast to that."""
    if is_storage(new) and is_float(new):
        e = cast(e, computed(new))
    old, ends = computed(E.dtype_of(e)), (_finite(new, "min"), _finite(new, "max"))
    if is_float(old):
        if is_storage(new) and is_integer(new) and rounded(ends[1], old) != ends[1]:
            return _saturated(cast(e, computed(new)), new)  # no float is the largest
        fewer = is_storage(new) if is_integer(new) else ends[1] < DTYPES[old].largest
        return clip(e, *map(float, ends)) if fewer else e  # (a cast to int32 or int64 ends by itself)
    if is_float(new):
        return e
    values = DTYPES["int64" if old == INDEX else old].range
    low, high = (min(max(x, values[0]), values[-1]) for x in ends)
    return e if (low, high) == (values[0], values[-1]) else clip(e, low, high)


@of_elements
def select(cond: Expr, a: ExprLike, b: ExprLike) -> Expr:
    """``a`` where ``cond`` holds, else ``b``. Only the chosen side is evaluated.
    ``cond``: of axes, or of elements. Raises `WorkloadError` for what is no condition.
    Example: ``te.select(x[i] > 0.0, x[i], 0.1 * x[i])``."""
    c = _cond(cond, "te.select")
    if not isinstance(a, Expr) and not isinstance(b, Expr):
        like = "float32" if isinstance(a, float) or isinstance(b, float) else INDEX
        return E.select(c, E.wrap(a, like), E.wrap(b, like))
    return E.select(c, a, b)


if_then_else = where = select


def _cond(c: Any, what: str) -> Expr:
    if isinstance(c, Expr) and E.dtype_of(c) == "bool":
        return c
    got = f"the Python bool {c}" if isinstance(c, bool) else E.show(c) if isinstance(c, Expr) else repr(c)
    raise WorkloadError(
        f"{what} needs a condition over axes or elements, got {got}; compare with <, <=, >, >=, "
        "te.equal or te.not_equal (== compares the expressions' text, not their values)"
    )


@of_elements
def equal(a: ExprLike, b: ExprLike) -> Expr:
    """Whether two values are equal.
    Example: ``te.equal(n[i], 0)``."""
    return E.compare("==", a, b)


@of_elements
def not_equal(a: ExprLike, b: ExprLike) -> Expr:
    """Whether two values differ.
    Example: ``te.not_equal(n[i], m[i])``."""
    return E.compare("!=", a, b)


@of_elements
def all(*conds: Expr) -> Expr:
    """Whether every condition holds.
    Raises `WorkloadError` for what is none.
    Example: ``te.all(i >= 2, i < 6)``."""
    return E.all_of(*(_cond(c, "te.all") for c in conds))


@of_elements
def any(*conds: Expr) -> Expr:
    """Whether some condition holds.
    Raises `WorkloadError` for what is none.
    Example: ``te.any(i < 2, x[i] > 1.0)``."""
    return E.any_of(*(_cond(c, "te.any") for c in conds))


@of_elements
def logical_not(cond: Expr) -> Expr:
    """Whether a condition does not hold.
    Raises `WorkloadError` for what is none.
    Example: ``te.logical_not(x[i] > 0.0)``."""
    c = _cond(cond, "te.logical_not")
    return Const(not c.value, "bool") if isinstance(c, Const) else E.Logic("not", (c,))


@of_elements
def fma(a: ExprLike, b: ExprLike, c: ExprLike) -> Expr:
    """``a * b + c`` in floating point, in one instruction if the processor has it: the product is then not
    rounded, else it is. All else is rounded as written.

    Raises `WorkloadError` for operands of different dtypes or integers. Example: ``te.fma(x[i], scale[i],
    shift[i])``."""
    try:
        return E.fma(a, b, c)
    except TypeError as err:
        raise WorkloadError(f"te.fma: {err}") from None


minimum = of_elements(E.minimum)
maximum = of_elements(E.maximum)


@of_elements
def clip(x: ExprLike, low: ExprLike, high: ExprLike) -> Expr:
    """``x`` cut off at ``low``, then at ``high``; NaN if one is NaN. Of integers too. Exact.
    Example: ``te.clip(x[i], -1.0, 1.0)``."""
    return E.minimum(E.maximum(x, low), high)


#: Values of float4 e2m1 by code, of which the highest bit is the sign (OCP Microscaling Formats 1.0, 5.3.3).
FLOAT4_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def lookup(values: Sequence[float], index: Expr, dtype: str = "float32") -> Expr:
    """The number of ``values`` at ``index``, as ``dtype``; below 0 the first of them, beyond the last the
    last. ``values``: 2 to 16 numbers, such as those of codes of 4 bits. A CPU keeps the table in a register.
    ``index``: integers of a tensor. Raises `WorkloadError`.
    Example: ``te.lookup(te.FLOAT4_E2M1, n[i] & 15)``."""
    given = index if isinstance(index, Expr) else E.wrap(index)
    if not is_integer(E.dtype_of(given)):
        raise WorkloadError(
            f"te.lookup needs an index of integers of a tensor, got {E.dtype_of(given)}; cast it, e.g. "
            'te.cast(index, "int32")'
        )
    number = len(values) if hasattr(values, "__len__") else f"a {type(values).__name__}"
    if isinstance(number, str) or not 2 <= number <= E.MOST_ENTRIES:
        raise WorkloadError(
            f"te.lookup takes 2 to {E.MOST_ENTRIES} values, got {number}; read a larger table from a "
            "tensor, as in table[index]"
        )
    if is_storage(dtype := check_dtype(dtype, "te.lookup")):
        raise WorkloadError(
            f"te.lookup gives a dtype that is computed with, and {dtype} is stored; cast the result: "
            f'te.cast(te.lookup(values, index, "{computed(dtype)}"), "{dtype}")'
        )
    return E.lookup([const(v, dtype) for v in values], E.widen(given))


# --- functions of floating point --------------------------------------------------------------


def _operand(fn: str, x: Any) -> Expr:
    """A floating-point argument, in the dtype that it is computed with."""
    if isinstance(x, (int, float)) and not isinstance(x, bool):
        x = Const(float(x), "float32")
    if not isinstance(x, Expr) or not E.is_float(E.dtype_of(x)):
        got = f"dtype {E.dtype_of(x)}" if isinstance(x, Expr) else repr(x)
        raise WorkloadError(
            f'te.{fn} needs a floating-point expression, got {got}; use te.cast(x, "float32")'
        )
    return E.widen(x)


def _of_row(row: Function) -> Callable[..., Expr]:
    """The function of `te` for a row of the table."""

    def one(x: ExprLike) -> Expr:
        return E.Call(row.name, (_operand(row.name, x),))

    def two(x: ExprLike, y: ExprLike) -> Expr:
        q = _quotient(row.name, x, y)
        return E.Call(row.name, (q.a, q.b))

    f: Callable[..., Expr] = one if row.arity == 1 else two
    given, right = "x[i]", "x is floating point"
    if row.arity == 2:
        given, right = "x[i], y[i]", "both are floating point, of one dtype"
    f.__name__ = f.__qualname__ = row.name
    f.__doc__ = f"{row.doc} Raises `WorkloadError` unless {right}.\nExample: ``te.{row.name}({given})``."
    return of_elements(f)


# {name: function of `te`} of the rows that have a text.
OF_ROWS = {row.name: _of_row(row) for row in FUNCTIONS.values() if row.doc}


@of_elements
def rsqrt(x: ExprLike) -> Expr:
    """1 / sqrt(x), each rounded: on CPUs within 1.5 ulp; infinite for zeros, of their sign. Raises
    `WorkloadError` unless x is floating point.
    Example: ``te.rsqrt(x[i] * x[i] + 1e-5)``."""
    return E.binary("/", 1.0, E.Call("sqrt", (_operand("rsqrt", x),)))


@of_elements
def pow(x: ExprLike, y: ExprLike) -> Expr:
    """x to the power of y, as ``x ** y``. On CPUs within 2 ulp, with the special values of C: NaN for a
    negative x unless y is whole, 1 where y is 0 or x is 1.

    A literal y of -1, 0, 1, 2 or 3 is a quotient or a product, every operation rounded (x ** 3 within 2 ulp).
    Powers of integers are products, wrap, and need a literal y from 0 to 64. Raises `WorkloadError` for
    another, and for operands of different dtypes. Example: ``te.pow(x[i], 0.25)``, ``x[i] ** y[i]``."""
    try:
        return E.power(x if isinstance(x, Expr) or isinstance(y, Expr) else _operand("pow", x), y)
    except TypeError as err:
        raise WorkloadError(f"te.pow: {err}") from None


@of_elements
def remainder(x: ExprLike, y: ExprLike) -> Expr:
    """The remainder of x / y with the sign of y, as torch.remainder: that of `fmod`, plus y where its sign is
    another; so rounded at most once. A zero has the sign of x. Raises as `fmod`.
    Example: ``te.remainder(x[i], 360.0)``."""
    q = _quotient("remainder", x, y)
    rest = E.Call("fmod", (q.a, q.b))
    return select(_rounded_up(q, rest), rest + q.b, rest)


@of_elements
def floor_divide(x: ExprLike, y: ExprLike) -> Expr:
    """The largest whole number that is not above x / y, by way of the remainder, as Python, numpy and torch
    have ``x // y`` of floats: NaN where x is infinite, x / y where y is 0. Exact up to 2^22 (of float64
    2^51). Raises as `fmod`.
    Example: ``te.floor_divide(x[i], 0.1)``."""
    q = _quotient("floor_divide", x, y)
    rest = E.Call("fmod", (q.a, q.b))
    multiple = (q.a - rest) / q.b
    near = select(_rounded_up(q, rest), multiple - 1.0, multiple)
    low = E.Call("floor", (near,))
    whole = select(near - low > 0.5, low + 1.0, low)
    return select(equal(q.b, 0.0), q, select(equal(near, 0.0), q * 0.0, whole))


def _rounded_up(q: E.Binary, rest: Expr) -> Expr:
    """Whether rounding a quotient towards 0, which leaves ``rest``, makes it larger."""
    return all(not_equal(q.a < 0.0, q.b < 0.0), not_equal(rest, 0.0))


def _quotient(fn: str, x: ExprLike, y: ExprLike) -> E.Binary:
    """``x / y``, with both as operands of one floating-point dtype. Raises `WorkloadError`."""
    try:
        q = E.binary("/", x if isinstance(x, Expr) or isinstance(y, Expr) else _operand(fn, x), y)
    except TypeError as err:
        raise WorkloadError(f"te.{fn}: {err}") from None
    assert isinstance(q, E.Binary)
    return q


@of_elements
def abs(x: ExprLike) -> Expr:
    """The absolute value of x, of integers too.
    Example: ``te.abs(x[i] - y[i])``."""
    return E.absolute(x if isinstance(x, Expr) else _operand("abs", x))


@of_elements
def isnan(x: Expr) -> Expr:
    """Whether x is NaN, a condition. Of integers it never holds.
    Example: ``te.isnan(x[i])``."""
    return E.compare("!=", x, x) if E.is_float(E.dtype_of(x)) else E.FALSE


@of_elements
def isfinite(x: Expr) -> Expr:
    """Whether x is neither infinite nor NaN, a condition. Of integers it always holds.
    Example: ``te.isfinite(x[i])``."""
    return abs(x) < inf if E.is_float(E.dtype_of(x)) else E.TRUE


# --- bits of integers -------------------------------------------------------------------------


def _bits(fn: str, op: str, x: ExprLike, y: ExprLike) -> Expr:
    try:
        return E.binary(op, x, y)
    except TypeError as err:
        raise WorkloadError(f"te.{fn}: {err}") from None


@of_elements
def left_shift(x: ExprLike, y: ExprLike) -> Expr:
    """``x << y`` of integers: x times 2**y, which wraps. As in numpy, 0 where y is below 0 or not below the
    number of bits. int8, uint8, int16, uint16 and bool are computed with as int32, uint32 as int64, so cast
    to get one of them. Raises `WorkloadError` for floating point and operands of different dtypes.
    Example: ``te.left_shift(n[i], 3)``."""
    return _bits("left_shift", "<<", x, y)


@of_elements
def right_shift(x: ExprLike, y: ExprLike) -> Expr:
    """``x >> y`` of integers: x divided by 2**y, rounded down. As in numpy, 0 or -1, by the sign of x, where
    y is below 0 or not below the number of bits. Dtypes and errors as of `left_shift`.
    Example: ``te.right_shift(n[i], 3)``."""
    return _bits("right_shift", ">>", x, y)


@of_elements
def bitwise_and(x: ExprLike, y: ExprLike) -> Expr:
    """``x & y``: the bits that both integers have; of conditions, whether both hold. Dtypes and errors as of
    `left_shift`.
    Example: ``te.bitwise_and(n[i], 7)``."""
    return _bits("bitwise_and", "&", x, y)


@of_elements
def bitwise_or(x: ExprLike, y: ExprLike) -> Expr:
    """``x | y``: the bits that one of the integers has; of conditions, whether one holds. Dtypes and errors
    as of `left_shift`.
    Example: ``te.bitwise_or(n[i], m[i])``."""
    return _bits("bitwise_or", "|", x, y)


@of_elements
def bitwise_xor(x: ExprLike, y: ExprLike) -> Expr:
    """``x ^ y``: the bits in which two integers differ; of conditions, whether they differ. Dtypes and errors
    as of `left_shift`.
    Example: ``te.bitwise_xor(n[i], m[i])``."""
    return _bits("bitwise_xor", "^", x, y)


@of_elements
def bitwise_not(x: Expr) -> Expr:
    """``~x``: -1 - x for integers; of a condition, whether it does not hold. Dtypes and errors as of
    `left_shift`.
    Example: ``te.bitwise_not(n[i])``."""
    try:
        return E.inverted(x)
    except TypeError as err:
        raise WorkloadError(f"te.bitwise_not: {err}") from None
