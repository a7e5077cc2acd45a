"""What other libraries call functions that expressions have: for messages that name ours."""

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
