"""Translates a `ComputeDAG` into TVM's tensor expressions, with the same stages, so that TVM tunes the same
task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import and_, eq, le, lshift, lt, ne, or_, rshift, xor
from typing import Any

from tvm import te, tirx

from schedules import expr as E
from schedules.expr import Binary, Call, Cast, Compare, Const, Expr, Fma, Load, Logic, Select, Var
from schedules.te.compute_dag import ComputeDAG, Reducer, Stage
from schedules.te.domains import masked, require_plain

# {name of a tensor or variable: TVM's object}.
Scope = Mapping[str, Any]
# {operator of an expression: TVM's}, here and below.
ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": te.floordiv,
    "%": te.floormod,
    "min": tirx.min,
    "max": tirx.max,
    "ceildiv": lambda a, b: te.floordiv(a + b - 1, b),
    "<<": lshift,
    ">>": rshift,
    "&": and_,
    "|": or_,
    "^": xor,
}
# {function: TVM's}, where that has another name or is an expression.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "pow": te.power,
    "round": tirx.nearbyint,
    "log1p": lambda x: te.log(x + tirx.const(1, x.dtype)),
    "expm1": lambda x: te.exp(x) - tirx.const(1, x.dtype),
    "cbrt": lambda x: tirx.copysign(te.power(te.abs(x), tirx.const(1 / 3, x.dtype)), x),
    "hypot": lambda x, y: te.sqrt(x * x + y * y),
}
COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {"<": lt, "<=": le, "==": eq, "!=": ne}


def tensors(dag: ComputeDAG) -> list[Any]:
    """TVM's tensors for the inputs of ``dag``, then for its outputs."""
    scope: dict[str, Any] = {t.name: te.placeholder(t.shape, t.dtype, t.name) for t in dag.inputs}
    for stage in map(masked, dag.stages):
        require_plain(stage, "TVM")
        shape = tuple(a.extent for a in stage.axes)
        made = te.compute(shape, _body(stage, scope), name=stage.name, varargs_names=_names(stage))
        scope |= zip((t.name for t in stage.outputs), made if len(stage.outputs) > 1 else [made], strict=True)
    return [scope[n] for n in (*(t.name for t in dag.inputs), *dag.outputs)]


def _names(stage: Stage) -> list[str]:
    return [a.var for a in stage.axes]


def _body(stage: Stage, known: Scope) -> Callable[..., Any]:
    def body(*at: Any) -> Any:
        over = [te.reduce_axis((0, a.extent), a.var) for a in stage.reduce_axes]
        scope = {
            **known,
            **dict(zip(_names(stage), at, strict=True)),
            **{a.var: x.var for a, x in zip(stage.reduce_axes, over, strict=True)},
        }
        values = [convert(v, scope) for v in stage.values]
        if stage.reducer is not None:
            return _reducer(stage.reducer)(values[0] if len(values) == 1 else tuple(values), axis=over)
        return values[0] if len(values) == 1 else values

    return body


def _reducer(r: Reducer) -> Callable[..., Any]:
    """TVM's reducer of the same formula."""
    several = len(r.identity) > 1

    def combine(x: Any, y: Any) -> Any:
        xs, ys = (x, y) if several else ([x], [y])
        scope = {f"x{i}": v for i, v in enumerate(xs)} | {f"y{i}": v for i, v in enumerate(ys)}
        values = [convert(c, scope) for c in r.combine]
        return tuple(values) if several else values[0]

    def identity(*dtypes: str) -> Any:
        values = [tirx.const(c.value, d) for c, d in zip(r.identity, dtypes, strict=True)]
        return tuple(values) if several else values[0]

    made: Callable[..., Any] = te.comm_reducer(combine, identity, name=r.name)
    return made


def convert(e: Expr, scope: Scope) -> Any:
    """TVM's expression of the same meaning. A load without indices is an operand of a reducer. Raises
    TypeError."""
    match e:
        case Const(value=v, dtype=d):
            return tirx.const(v, "int32" if d == E.INDEX else d)
        case Var(name=n):
            return scope[n]
        case Load(buffer=b, indices=()) if not hasattr(scope[b], "op"):
            return scope[b]
        case Load(buffer=b, indices=ix):
            return scope[b](*(convert(i, scope) for i in ix))
        case Binary(op=op, a=a, b=b):
            return ARITHMETIC[op](convert(a, scope), convert(b, scope))
        case Compare(op=op, a=a, b=b):
            return COMPARISONS[op](convert(a, scope), convert(b, scope))
        case Logic(op="not", args=(a,)):
            return tirx.Not(convert(a, scope))
        case Logic(op=op, args=args):
            return reduce(tirx.And if op == "and" else tirx.Or, (convert(a, scope) for a in args))
        case Select(cond=c, a=a, b=b):
            return te.if_then_else(convert(c, scope), convert(a, scope), convert(b, scope))
        case Call(fn=fn, args=args):
            return (FUNCTIONS.get(fn) or getattr(te, fn))(*(convert(a, scope) for a in args))
        case Fma(a=a, b=b, c=c):
            return convert(a, scope) * convert(b, scope) + convert(c, scope)
        case Cast(dtype=d, a=a):
            return convert(a, scope).astype("int32" if d == E.INDEX else d)
    raise TypeError(f"not an expression: {e!r}")
