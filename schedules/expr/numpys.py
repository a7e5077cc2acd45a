"""Numbers and functions of Python and numpy that meet expressions: what they become, or what is said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, SupportsFloat

from schedules.dtypes import DTYPES, is_float

# {name in numpy, torch or math: name in `te`}, where they differ.
ELSEWHERE = {
    "absolute": "abs", "amax": "max", "amin": "min", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin",
    "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "argmax": "reducer",
    "argmin": "reducer", "around": "round", "astype": "cast", "bitwise_invert": "bitwise_not",
    "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift", "clamp": "clip", "fabs": "abs",
    "fix": "trunc", "float_power": "pow", "fmax": "maximum", "fmin": "minimum", "if_else": "select",
    "invert": "bitwise_not", "logical_and": "all", "logical_or": "any", "logical_xor": "not_equal",
    "mod": "remainder", "power": "pow", "product": "prod", "rint": "round", "square": "pow",
}  # fmt: skip
# Those that have one name. Tests hold that `te` has each.
SAME = frozenset(
    "abs acos acosh all any asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor "
    "cbrt ceil clip cos cosh equal erf exp exp2 expm1 floor floor_divide fma fmod hypot isfinite isnan "
    "left_shift log log10 log1p log2 logical_not max maximum min minimum not_equal pow prod remainder "
    "right_shift round rsqrt select sigmoid sin sinh sqrt sum tan tanh trunc where".split()
)
REDUCTIONS = frozenset(("sum", "prod", "max", "min"))
# {function of numpy: the middle of the names of Python's operator, that of it from the right}.
OPERATORS = {
    "add": ("add", "radd"), "subtract": ("sub", "rsub"), "multiply": ("mul", "rmul"),
    "divide": ("truediv", "rtruediv"), "floor_divide": ("floordiv", "rfloordiv"),
    "remainder": ("mod", "rmod"), "power": ("pow", "rpow"),
    "left_shift": ("lshift", "rlshift"), "right_shift": ("rshift", "rrshift"),
    "bitwise_and": ("and", "rand"), "bitwise_or": ("or", "ror"), "bitwise_xor": ("xor", "rxor"),
    "less": ("lt", "gt"), "less_equal": ("le", "ge"), "greater": ("gt", "lt"), "greater_equal": ("ge", "le"),
}  # fmt: skip
NUMBERS = "numpy and math compute with numbers: take te.exp, te.maximum, te.cast and so on"


def word(name: str) -> str:
    """The name in `te` of a function of another library; empty where there is none."""
    return ELSEWHERE.get(name, name if name in SAME else "")


def refused(name: str) -> TypeError:
    """The error of a function of numpy, or a method of its arrays, that is given an expression."""
    told = f"numpy computes with numbers: take te.{word(name)}" if word(name) else NUMBERS
    return TypeError(f"{name} of an expression; {told}")


def applied(name: str, method: str, inputs: Sequence[Any], expression: type) -> Any:
    """A function of numpy on expressions, of class ``expression``, and numbers. Numbers are operands as
    Python's are; an expression is no number's equal. Raises TypeError for what is no operator."""
    if name in ("equal", "not_equal"):
        return name == "not_equal"
    if method != "__call__" or name not in OPERATORS:
        raise refused(name)
    a, b = inputs
    forward, backward = OPERATORS[name]
    if isinstance(a, expression):
        return getattr(a, f"__{forward}__")(b)
    return getattr(b, f"__{backward}__")(a)


def of_array(x: Any) -> Any:
    """The number in an array without dimensions, which has the methods of integers too; else ``x``."""
    if isinstance(x, (int, float)) or not (hasattr(x, "__array__") and hasattr(x, "__len__")):
        return x
    if x.shape:
        many = f"an array of shape {tuple(x.shape)}"
        raise TypeError(f"{many} cannot be part of an expression: make it an input and index it")
    return x.item()


def literal(x: Any, like: str) -> int | float | bool | None:
    """A number, of numpy or Python, as a literal of dtype ``like``; None where ``x`` is no number. Raises
    TypeError for one that the dtype does not have."""
    whole = hasattr(x, "__index__")
    if not whole and not hasattr(x, "__float__"):
        return None
    unlimited = is_float(like) and DTYPES[like].infinite
    if not unlimited and not whole and math.isinf(x):
        end = f'use te.{"max" if x > 0 else "min"}_value("{like}"), or ' if like in DTYPES else ""
        raise TypeError(
            f"{x!r} meets a value of dtype {like}, and {like} has no infinity; "
            f'{end}cast the value first: te.cast(x, "float32")'
        )
    if is_float(like):
        return _as_float(x, like)
    if not whole and not float(x).is_integer():
        raise TypeError(
            f"{x!r} is not a whole number but meets a value of dtype {like}; "
            f'cast first: te.cast(x, "float32")'
        )
    if like == "bool" and x in (0, 1):
        return bool(x)
    if like in DTYPES and int(x) not in DTYPES[like].range:
        wider = "int64" if int(x) in DTYPES["int64"].range else "float64"
        raise _out_of_range(x, like, f'cast that first: te.cast(x, "{wider}")')
    return int(x)


def _as_float(x: SupportsFloat, dtype: str) -> float:
    try:
        return float(x)
    except OverflowError:  # Python's integers have no limit
        raise _out_of_range(x, dtype, "write it as a float, e.g. te.inf") from None


def _out_of_range(x: object, dtype: str, remedy: str) -> TypeError:
    return TypeError(f"the literal {x} is out of the range of {dtype}, the dtype that it meets; {remedy}")
