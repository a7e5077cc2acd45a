"""Prints expressions as readable text."""

from __future__ import annotations

from schedules.expr.nodes import Binary, Call, Cast, Compare, Const, Expr, Fma, Hole, Load, Logic, Select, Var

# {operator: precedence}.
_PREC = {"or": 1, "and": 2, "<": 4, "<=": 4, "==": 4, "!=": 4, "|": 5, "^": 6, "&": 7, "<<": 8, ">>": 8}
_PREC |= {"+": 9, "-": 9, "*": 10, "/": 10, "//": 10, "%": 10, "not": 11}


def show(e: Expr, outer: int = 0) -> str:
    """Readable text, with as few parentheses as precedence allows."""
    match e:
        case Const(value=v):
            return repr(v)
        case Var(name=n):
            return n
        case Hole(name=n):
            return f"?{n}"
        case Binary(op=("min" | "max" | "ceildiv") as op, a=a, b=b):
            return f"{op}({show(a)}, {show(b)})"
        case Binary(op=op, a=a, b=b) | Compare(op=op, a=a, b=b):
            p = _PREC[op]
            s = f"{show(a, p)} {op} {show(b, p + 1)}"
            return f"({s})" if p < outer else s
        case Logic(op="not", args=args):
            return f"not {show(args[0], _PREC['not'])}"
        case Logic(op=op, args=args):
            s = f" {op} ".join(show(x, _PREC[op] + 1) for x in args)
            return f"({s})" if _PREC[op] < outer else s
        case Call(fn=fn, args=args):
            return f"{fn}({', '.join(map(show, args))})"
        case Fma(a=a, b=b, c=c):
            return f"fma({show(a)}, {show(b)}, {show(c)})"
        case Select(cond=c, a=a, b=b):
            return f"select({show(c)}, {show(a)}, {show(b)})"
        case Cast(dtype=d, a=a):
            return f"{d}({show(a)})"
        case Load(buffer=b, indices=ix):
            return f"{b}[{', '.join(map(show, ix))}]" if ix else b  # an operand of a reducer
    return repr(e)
