"""The types of a stage: whether every part of it fits its operands, and every value its output.

Expressions of files are read node by node, and code for their loads and stores has no checks. So whatever
makes a compute DAG goes through here. A user's own expression has met the same rules where it was written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from schedules import expr as E
from schedules.affine import is_size
from schedules.dtypes import DTYPES, computed, is_float, is_storage
from schedules.expr import (
    BITWISE,
    COMPARISONS,
    INDEX,
    NUMERIC,
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Fma,
    Hole,
    Load,
    Logic,
    Select,
    Var,
)
from schedules.functions import FUNCTIONS

if TYPE_CHECKING:
    from schedules.te.compute_dag import Stage, Tensor

Tensors = Mapping[str, tuple[tuple[int, ...], str]]  # {name: (shape, dtype)}

_SHOWN = 120  # characters of an expression in a message
_INDEX_RANGE = DTYPES["int64"].range  # of index arithmetic: 64 bits
_OF_INTEGERS = {*BITWISE, "//", "%", "ceildiv"}
# What an axis can be computed with: see `schedules.expr.binary`.
_OF_INDICES = {"+", "-", "*", "//", "%", "min", "max", "ceildiv"}


def check_types(stage: Stage, known: Mapping[str, Tensor], sizes: Collection[str] = ()) -> None:
    """Raise ValueError, which names the stage, unless (``known``: the tensors that it may read; ``sizes``:
    the variables of sizes that a call tells)

    - every operation has operands of the dtypes that it is defined for (nothing is computed in a dtype of
      storage), and every literal is a value of its dtype,
    - every variable is an axis of the stage, every hole a size, and every load has the rank and dtype of its
      tensor,
    - a reducer has an identity and a combine of the dtype of each value, and combines its operands only,
    - every value has the dtype of its output.
    """
    what = f"stage {stage.name}"
    axes = {a.var for a in (*stage.axes, *stage.reduce_axes)}.union(sizes)  # (no axis has the name of a size)
    tensors = {n: (t.shape, t.dtype) for n, t in known.items()}
    dtypes = [_dtype(v, axes, tensors, what) for v in stage.values]
    if len(dtypes) != len(stage.outputs):
        raise ValueError(f"{what}: {len(dtypes)} values for {len(stage.outputs)} outputs; give one for each")
    for value, d, t in zip(stage.values, dtypes, stage.outputs, strict=True):
        if d != t.dtype:
            raise ValueError(
                f"{what}: the value {_show(value)} is {d}, and its output {t.name} is {t.dtype}; "
                f'use te.cast(value, "{t.dtype}")'
            )
    for c in stage.where:
        if (d := _dtype(c, axes, tensors, what)) != "bool":
            raise ValueError(f"{what}: the where {_show(c)} is {d}, no condition")
    for place in stage.places:
        if (d := _dtype(place, axes, tensors, what)) != INDEX:
            raise ValueError(f"{what}: its place {_show(place)} has dtype {d}, which is no index")
    r = stage.reducer
    if r is None:
        if stage.reduce_axes:
            raise ValueError(
                f"{what}: it has reduction axes and no reducer; give it one, or use its axes only"
            )
        return
    if not len(r.identity) == len(r.combine) == len(dtypes):
        raise ValueError(
            f"{what}: {r.name} has {len(r.identity)} identities and combines {len(r.combine)} values, and "
            f"{len(dtypes)} are reduced; give one of each"
        )
    operands: Tensors = {f"{side}{n}": ((), d) for n, d in enumerate(dtypes) for side in "xy"}
    for part, values in (("identity", r.identity), ("combine", r.combine)):
        for n, (value, d) in enumerate(zip(values, dtypes, strict=True)):
            found = _dtype(value, set(), operands, f"{what}: {part} of {r.name}")
            if found != d or (part == "identity" and not isinstance(value, Const)):
                raise ValueError(
                    f"{what}: {part} {n} of {r.name} is {_show(value)} of dtype {found}; the value that it "
                    f"reduces is {d}"
                )


def _dtype(e: Expr, axes: set[str], tensors: Tensors, what: str) -> str:
    """The dtype of an expression. ``tensors``: what may be read."""
    known: dict[int, str] = {}
    for x in E.distinct(e):
        kids = [known[id(k)] for k in E.children(x)]
        wrong = _flaw(x, kids, axes, tensors)
        if wrong:
            raise ValueError(f"{what}: {wrong}")
        known[id(x)] = kids[0] if isinstance(x, Binary) else E.dtype_of(x)
    return known[id(e)]


def _flaw(e: Expr, kids: list[str], axes: set[str], tensors: Tensors) -> str:
    """What is wrong with a node whose operands have the dtypes ``kids``, with the remedy; else nothing."""
    match e:
        case Const(value=v, dtype=d):
            return "" if _is_value(v, d) else f"the literal {str(v)[:40]} is no value of {_name(d)}"
        case Var(name=n):
            known = n in axes and type(e) is Var and not is_size(n)
            return "" if known else f"axis {n[:40]!r} is not an axis of this stage"
        case Hole(name=n):
            return "" if n in axes and is_size(n) else f"{n[:40]!r} is no size that a call tells"
        case Load(buffer=b, dtype=d):
            return _flaw_of_load(e, b, d, kids, tensors)
        case Logic(op=op, args=args):
            fits = set(kids) == {"bool"} and (len(args) == 1 if op == "not" else op in ("and", "or"))
            return "" if fits else f"{_show(e)} needs conditions, got {', '.join(kids) or 'none'}"
        case Select():
            if kids[0] == "bool" and kids[1] == kids[2]:
                return ""
            return f"{_show(e)} needs a condition and two values of one dtype, got {', '.join(kids)}"
        case Cast(dtype=d):
            return _flaw_of_cast(e, d, kids[0])
        case Binary(op=op) | Compare(op=op):
            if kids[0] == kids[1] == "bool" and isinstance(e, Compare) and op in ("==", "!="):
                return ""
            return _flaw_of_arithmetic(e, op, kids)
        case Call(fn=fn):
            if fn not in FUNCTIONS or len(kids) != FUNCTIONS[fn].arity:
                return f"{_show(e)} calls no known function with {len(kids)} arguments"
            return _in_storage(e, kids) or _of_floats(e, kids)
        case Fma():
            return _in_storage(e, kids) or _of_floats(e, kids)
    return f"{_show(e)} has no place in a stage"


def _flaw_of_load(e: Expr, buffer: str, dtype: str, kids: list[str], tensors: Tensors) -> str:
    if buffer not in tensors:
        return f"reads {buffer[:40]!r}, which no earlier stage computes"
    shape, d = tensors[buffer]
    if len(kids) != len(shape) or dtype != d:
        return f"{_show(e)} does not fit {buffer}{list(shape)} {d}"
    wrong = next((k for k in kids if k != INDEX), None)
    return f"{_show(e)} has an index of dtype {wrong}, which is no index" if wrong else ""


def _flaw_of_cast(e: Expr, to: str, of: str) -> str:
    if to == INDEX:
        if of in ("int32", "int64", INDEX):
            return ""
        if is_storage(of):
            return _computes_in(e, of)
        return (
            f'{_show(e)} makes an index of {of}; convert it to int32 or int64 first, e.g. te.cast(x, "int32")'
        )
    if to not in DTYPES:
        return f"{_show(e)} converts to {_name(to)}"
    # what is stored is made of what it is computed with, and a condition by a comparison
    stored = next((d for d in (to, of) if is_storage(d) and computed(d) not in (to, of)), None)
    return _computes_in(e, stored or to) if stored or to == "bool" else ""


def _flaw_of_arithmetic(e: Expr, op: str, kids: list[str]) -> str:
    if stored := _in_storage(e, kids):
        return stored
    if kids[0] != kids[1]:
        return (
            f"{_show(e)} has operands of different dtypes, {kids[0]} and {kids[1]}; convert one with te.cast"
        )
    if isinstance(e, Compare):
        fits = op in COMPARISONS
    elif kids[0] == INDEX:
        fits = op in _OF_INDICES
    else:
        fits = (
            op in NUMERIC
            and op not in COMPARISONS
            and (op not in _OF_INTEGERS if is_float(kids[0]) else op != "/")
        )
    if not fits:
        return f"{_show(e)}: operator {_name(op)} is not defined for {kids[0]}"
    if op in ("//", "%", "ceildiv") and E.children(e)[1] == Const(0, kids[0]):
        return f"{_show(e)} divides by zero"
    return ""


def _in_storage(e: Expr, kids: list[str]) -> str:
    stored = next((d for d in kids if is_storage(d)), None)
    return "" if stored is None else _computes_in(e, stored)


def _computes_in(e: Expr, stored: str) -> str:
    return f'{_show(e)} computes in {stored}, a dtype for storage only; use te.cast(x, "{computed(stored)}")'


def _of_floats(e: Expr, kids: list[str]) -> str:
    fits = len(set(kids)) == 1 and is_float(kids[0])
    return "" if fits else f"{_show(e)} needs operands of one floating-point dtype, got {', '.join(kids)}"


def _is_value(v: object, dtype: str) -> bool:
    if dtype == "bool":
        return isinstance(v, bool)
    if is_float(dtype):
        return isinstance(v, (int, float)) and not isinstance(v, bool)
    values = DTYPES[dtype].range if dtype in DTYPES else _INDEX_RANGE if dtype == INDEX else range(0)
    return type(v) is int and v in values


def _name(x: object) -> str:
    return f"{str(x)[:40]!r}"


def _show(e: Expr) -> str:
    text = E.show(e)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
