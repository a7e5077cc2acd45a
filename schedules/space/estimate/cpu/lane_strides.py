"""How far apart in memory neighbouring lanes are."""

from __future__ import annotations

from schedules import affine
from schedules import expr as E
from schedules.expr import Binary, Const, Expr, Var
from schedules.ir import Buffer, Loop
from schedules.ir.strides import buffer_strides

# {(// or %, what is divided, by what): elements of memory from one to the next}.
Parts = dict[tuple[str, Expr, Expr], Expr]


def lane_stride(at: tuple[Expr, ...], buf: Buffer, lane: Loop | None) -> tuple[Expr | None, tuple[Expr, ...]]:
    """Elements between neighbouring lanes, by the strides of the buffer; and what lanes are divided by,
    quotients staying as they are and remainders going on by one. A fused loop whose quotient and remainder
    are two dimensions that lie one after the other goes on through both."""
    out: Expr = Const(0)
    parts: Parts = {}
    if lane is None:
        return out, ()
    for i, step in zip(reversed(at), reversed(buffer_strides(buf)), strict=True):
        for atom, c in affine.linear(i)[0].items():
            if atom == Var(lane.var):
                out = out + c * step
            elif lane.var in E.variables(atom):
                match atom:
                    case Binary(op="//" | "%" as op, a=a, b=b) if affine.is_scalar(b):
                        parts[op, a, b] = parts.get((op, a, b), Const(0)) + c * step
                    case _:
                        return None, ()
    more, digits = _joined(parts, Var(lane.var))
    return out + more, digits


def _joined(parts: Parts, lane: Var) -> tuple[Expr, tuple[Expr, ...]]:
    """(elements between lanes, what lanes are divided by) of the parts of an index."""
    out: Expr = Const(0)
    digits: dict[Expr, None] = {}
    done: set[tuple[str, Expr, Expr]] = set()
    for (op, a, b), step in parts.items():
        if op != "%" or a != lane:
            continue
        far = affine.simplify(step * b, {})
        for key, other in parts.items():  # a dimension that is the quotient, or a tile cut out of that
            whole = key == ("//", lane, b)
            if other == far and (whole or (key[0] == "%" and _quotient(key[1], lane) == b)):
                done |= {(op, a, b), ("//", lane, b), key, ("//", *key[1:])}
                out = out + step
                if not whole:
                    digits[key[2] * b] = None
                break
    for key, step in parts.items():
        if key not in done:
            out = out + step if key[0] == "%" else out
            digits[key[2]] = None
    return out, tuple(digits)


def _quotient(a: Expr, lane: Var) -> Expr | None:
    """What the lane is divided by in a sum that has it once."""
    atoms = [x for x in affine.linear(a)[0].items() if lane.name in E.variables(x[0])]
    match atoms:
        case [(Binary(op="//", a=x, b=b), Const(value=1))] if x == lane:
            return b
    return None
