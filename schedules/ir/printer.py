"""Loop nests as text for people."""

from __future__ import annotations

from dataclasses import MISSING, fields

from schedules import affine
from schedules import expr as E
from schedules.affine import Ranges
from schedules.expr import Expr
from schedules.ir import (
    Alloc,
    AllReduce,
    Block,
    Buffer,
    Guard,
    Intrinsic,
    Loop,
    LoweredFunc,
    Nest,
    Prefetch,
    Seq,
    Stmt,
    Store,
    const,
    kids,
)
from schedules.ir.exprs import expressions, loads, places
from schedules.ir.nest import bound, domain, reads
from schedules.te.compute_dag import operand


def show(program: Nest | LoweredFunc) -> str:
    """The program, one loop a line, the way TVM and Exo print theirs. A block that loops of known extents
    carry past the end of its domain, a tail, shows the condition under which it runs."""
    lines: list[str] = []
    if isinstance(program, Nest):
        args = ", ".join(_buffer(program.buffer(n)) for n in program.params)
        lines.append(f"def nest({args}):")
        for b in program.buffers:
            if b.name not in program.params:
                lines.append(f"    {_buffer(b)}  # intermediate, {b.scope}")
    else:
        lines.append(f"def {program.name}({', '.join(map(_buffer, program.params))}):")
    _stmt(program.body, 1, lines, {})
    return "\n".join(lines)


# Longest loop variable and extent in an outline (characters).
_LONGEST_NAME, _LONGEST_EXTENT = 40, 120


def outline(nest: Nest) -> str:
    """The loops of a nest with what each block computes, without indices: what matters about a schedule, in
    a tenth of the text. Loops that run once are left out. Of a long extent only the holes are named.

    >>> from schedules import te
    >>> from schedules.ir.nest import initial
    >>> a = te.placeholder((2, 4), name="a")
    >>> k = te.reduce_axis((0, 4), "k")
    >>> s = te.compute((2,), lambda i: te.sum(a[i, k], axis=k), name="s")
    >>> print(outline(initial(te.dag([a, s]))))
    for s_i in range(2):
     for s_k in range(4):
      s = sum of a
    """
    lines: list[str] = []
    _outline(nest.body, 0, lines)
    return "\n".join(lines)


def _outline(s: Stmt, depth: int, out: list[str]) -> None:
    pad = " " * depth
    if isinstance(s, Loop) and const(s.extent) != 1:
        name, extent = s.var, E.show(s.extent)
        if len(name) > _LONGEST_NAME:
            name = f"{name[:_LONGEST_NAME]}..."
        if len(extent) > _LONGEST_EXTENT:
            extent = f"of {', '.join(f'?{h}' for h in sorted(E.holes(s.extent)))}"
        out.append(f"{pad}{_loop(s, name, extent)}")
        _outline(s.body, depth + 1, out)
    elif isinstance(s, Block):
        written = [w.buffer for w in s.writes]
        read = ", ".join(dict.fromkeys(x.buffer for x in reads(s) if x.buffer not in written))
        how = f"{s.reducer.name} of" if s.reducer else "from"
        out.append(f"{pad}{', '.join(written)} = {f'{how} {read}' if read else 'a constant'}")
    else:
        for x in kids(s):
            _outline(x, depth, out)


def _buffer(b: Buffer) -> str:
    strides = "" if b.strides is None else f" strides [{', '.join(map(E.show, b.strides))}]"
    swizzle = f" swizzle {b.swizzle}" if b.swizzle else ""
    return f"{b.name}: {b.dtype}[{', '.join(E.show(n) for n in b.shape)}]{strides}{swizzle}"


_WORD = {"serial": "for", "parallel": "parallel", "vectorize": "vectorize", "unroll": "unroll"}


def _loop(s: Loop, name: str, extent: str) -> str:
    word = _WORD.get(s.kind, f"bind[{s.kind}]")
    marks = "".join(f"  # {k}={E.show(v) if isinstance(v, E.Hole) else v}" for k, v in s.annotations)
    return f"{word} {name} in range({extent}):{marks}"


def _stmt(s: Stmt, depth: int, out: list[str], ranges: Ranges) -> None:
    pad = "    " * depth
    match s:
        case Loop():
            out.append(f"{pad}{_loop(s, s.var, E.show(s.extent))}")
            n = const(s.extent)
            _stmt(s.body, depth + 1, out, ranges if n is None else {**ranges, s.var: (0, n - 1)})
        case Seq(stmts=xs):
            for x in xs:
                _stmt(x, depth, out, ranges)
        case Guard():
            out.append(f"{pad}if {E.show(s.cond)}:")
            _stmt(s.body, depth + 1, out, ranges)
        case Alloc():
            out.append(f"{pad}alloc {_buffer(s.buffer)}  # {s.buffer.scope}")
            _stmt(s.body, depth, out, ranges)
        case Store():
            out.append(f"{pad}{_place(s.buffer, s.indices)} = {E.show(s.value)}")
        case Prefetch(cache=2):
            out.append(f"{pad}prefetch {_place(s.buffer, s.indices)} to L2")
        case Intrinsic():
            at = ", ".join(f"{x.name}={_place(x.buffer, x.indices)}" for x in s.operands)
            out.append(f"{pad}{s.instruction.name}({at})")
        case AllReduce():
            value = f"{E.show(s.value)} for {s.var} in range({s.extent})"
            who = f"each {s.near} lanes" if s.near else "all threads"
            out.append(f"{pad}{_place(s.buffer, s.indices)} {s.op}= {who}: {value}")
        case Block():
            _block(s, pad, out, ranges)
        case _:
            parts = [_place(p.buffer, p.indices) for p in places(s)]
            parts += map(E.show, loads(s) if parts else expressions(s))
            parts += [str(getattr(s, f.name)) for f in fields(s) if f.type == "int" and f.default is MISSING]
            parts += [f"if {E.show(x)}" for x in expressions(s) if E.dtype_of(x) == "bool" and x != E.TRUE]
            out.append(f"{pad}{type(s).__name__.lower()} {', '.join(parts)}".rstrip())
            for x in kids(s):
                _stmt(x, depth + 1, out, ranges)


def _place(buffer: str, indices: tuple[Expr, ...]) -> str:
    return f"{buffer}[{', '.join(map(E.show, indices))}]"


def _tails(b: Block, ranges: Ranges) -> list[Expr]:
    """What must hold of the bindings where they are known to leave the block's domain."""
    inside = [
        c
        for it, e in zip(b.iters, b.binds, strict=True)
        if affine.bounds(e, ranges) is not None
        for c in domain(it, e)
    ]
    return [c for c in inside if affine.decide(c, ranges) is not True]


def _block(b: Block, pad: str, out: list[str], ranges: Ranges) -> None:
    for it, e in zip(b.iters, b.binds, strict=True):
        if not isinstance(e, E.Var) or not e.name.endswith(it.var):
            kind = "" if it.kind == "spatial" else "  # reduce"
            out.append(f"{pad}{b.name}.{it.var} = {E.show(e)}{kind}")
    runs = [*_tails(b, ranges), *(bound(b, w) for w in b.where)]
    where = f"if {' and '.join(map(E.show, runs))}: " if runs else ""
    for n, w in enumerate(b.writes):
        place = _place(w.buffer, tuple(bound(b, i) for i in w.indices))
        value = bound(b, b.values[n])
        if b.reducer is None:
            out.append(f"{pad}{where}{place} = {E.show(value)}  # block {b.name}")
            continue
        if b.reducer.name in ("sum", "prod") and len(b.writes) == 1:
            op = "+" if b.reducer.name == "sum" else "*"
            text = f"{place} {op}= {E.show(value)}"
        else:
            new = tuple(bound(b, v) for v in b.values)
            acc = tuple(
                operand(f"{x.buffer}'", E.dtype_of(v)) for x, v in zip(b.writes, b.values, strict=True)
            )
            text = f"{place} = {E.show(b.reducer.apply(acc, new)[n])}"
        init = f"  (starts at {E.show(b.reducer.identity[n])})" if b.init else ""
        out.append(f"{pad}{where}{text}  # block {b.name}, {b.reducer.name}{init}")
