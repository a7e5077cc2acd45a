"""What packs an operand of dot products, whose terms lie side by side: interleaving rows, and turning squares
of terms that lay side by side before.

No instructions of their own: LLVM makes of them what the processor has (on AVX-512 vpermt2w, vpermt2b,
vpermt2d or unpacks).
"""

from __future__ import annotations

from schedules import te
from schedules.ir.instruction import Instruction

BITS = {"bfloat16": 16, "int8": 8, "uint8": 8, "int16": 16}


def _named(kind: str, terms: int, dtype: str, lanes: int) -> str:
    return f"{kind}{terms}_{dtype}" + ("" if lanes == 16 else f"_x{lanes}")


def _interleave(rows: int, dtype: str, lanes: int) -> Instruction:
    """``y[i, t] = x[t, i]`` of ``lanes`` columns, whose rows may lie any distance apart."""
    bits = BITS[dtype]
    x = te.placeholder((rows, lanes), dtype, "x")
    y = te.compute((lanes, rows), lambda i, t: x[t, i], "y")
    vector = f"<{lanes} x i{bits}>"
    lines = []
    for r in range(rows):
        lines.append(f"%at{r} = getelementptr i{bits}, ptr {{x}}, i64 {{x.0.{r}}}")
        lines.append(f"%x{r} = load {vector}, ptr %at{r}, align {bits // 8}")
    names, width, n = [f"%x{r}" for r in range(rows)], lanes, 0
    while len(names) > 1:  # pairs that are half of all rows apart, until there is one vector
        half = len(names) // 2
        order = ", ".join(f"i32 {k + side * width}" for k in range(width) for side in (0, 1))
        made = []
        for a, b in zip(names[:half], names[half:], strict=True):
            n += 1
            t = f"<{width} x i{bits}>"
            lines.append(f"%y{n} = shufflevector {t} {a}, {t} {b}, <{2 * width} x i32> <{order}>")
            made.append(f"%y{n}")
        names, width = made, 2 * width
    lines.append(f"store <{width} x i{bits}> {names[0]}, ptr {{y}}, align {bits // 8}")
    return Instruction(
        _named("interleave", rows, dtype, lanes),
        f"y[{lanes}, {rows}] = {rows} rows of {lanes} {dtype}, interleaved",
        te.dag([x, y]),
        free=frozenset({("x", 0)}),
        spellings={"llvm": "\n".join(lines)},
    )


def _turn(terms: int, dtype: str, lanes: int) -> Instruction:
    """``y[q, i, t] = x[i, q, t]`` of ``lanes`` by ``lanes`` groups. Rows of both lie any distance apart."""
    x = te.placeholder((lanes, lanes, terms), dtype, "x")
    y = te.compute((lanes, lanes, terms), lambda q, i, t: x[i, q, t], "y")
    bits = BITS[dtype]
    vector = f"<{lanes} x i{bits * terms}>"
    lines, rows = [], []
    for r in range(lanes):
        lines.append(f"%at{r} = getelementptr i{bits}, ptr {{x}}, i64 {{x.0.{r}}}")
        lines.append(f"%x{r} = load {vector}, ptr %at{r}, align {bits // 8}")
        rows.append(f"%x{r}")
    far = lanes
    while far > 1:  # the corners of squares twice as large change places
        far //= 2
        kept = [c if not c & far else c - far + lanes for c in range(lanes)]
        moved = [c + far if not c & far else c + lanes for c in range(lanes)]
        for r in (r for r in range(lanes) if not r & far):
            pair = f"{vector} {rows[r]}, {vector} {rows[r + far]}, <{lanes} x i32>"
            for k, order in ((r, kept), (r + far, moved)):
                lines.append(f"%y{far}.{k} = shufflevector {pair} <{', '.join(f'i32 {c}' for c in order)}>")
            rows[r], rows[r + far] = f"%y{far}.{r}", f"%y{far}.{r + far}"
    for q in range(lanes):
        lines.append(f"%to{q} = getelementptr i{bits}, ptr {{y}}, i64 {{y.0.{q}}}")
        lines.append(f"store {vector} {rows[q]}, ptr %to{q}, align {bits // 8}")
    return Instruction(
        _named("turn", terms, dtype, lanes),
        f"y[{lanes}, {lanes}, {terms}] = {lanes} rows of {lanes} groups of {terms} {dtype}, turned",
        te.dag([x, y]),
        free=frozenset({("x", 0), ("y", 0)}),
        spellings={"llvm": "\n".join(lines)},
    )


# Groups of terms that instructions read side by side, and their lanes.
GROUPS = ((2, "bfloat16"), (4, "int8"), (4, "uint8"), (2, "int16"))
TABLE = tuple(make(*group, lanes) for lanes in (16, 8) for make in (_interleave, _turn) for group in GROUPS)
