"""What packs an operand of dot products, whose terms lie side by side: interleaving rows, and turning squares
of terms that lay side by side before.

No instructions of their own: LLVM makes of them what the processor has (on AVX-512 vpermt2w, vpermt2b,
vpermt2d or unpacks).
"""

from __future__ import annotations

from schedules import te
from schedules.ir.instruction import Instruction

LANES = 16


def _interleave(rows: int, dtype: str) -> Instruction:
    """``y[i, t] = x[t, i]`` of 16 columns, whose rows may lie any distance apart."""
    bits = {"bfloat16": 16, "int8": 8, "uint8": 8}[dtype]
    x = te.placeholder((rows, LANES), dtype, "x")
    y = te.compute((LANES, rows), lambda i, t: x[t, i], "y")
    vector = f"<{LANES} x i{bits}>"
    lines = []
    for r in range(rows):
        lines.append(f"%at{r} = getelementptr i{bits}, ptr {{x}}, i64 {{x.0.{r}}}")
        lines.append(f"%x{r} = load {vector}, ptr %at{r}, align {bits // 8}")
    names, width, n = [f"%x{r}" for r in range(rows)], LANES, 0
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
        f"interleave{rows}_{dtype}",
        f"y[16, {rows}] = {rows} rows of 16 {dtype}, interleaved",
        te.dag([x, y]),
        free=frozenset({("x", 0)}),
        spellings={"llvm": "\n".join(lines)},
    )


def _turn(terms: int, dtype: str) -> Instruction:
    """``y[q, i, t] = x[i, q, t]`` of 16 by 16 words of 32 bits. Rows of both may lie any distance apart."""
    x = te.placeholder((LANES, LANES, terms), dtype, "x")
    y = te.compute((LANES, LANES, terms), lambda q, i, t: x[i, q, t], "y")
    bits, vector = 32 // terms, f"<{LANES} x i32>"
    lines, rows = [], []
    for r in range(LANES):
        lines.append(f"%at{r} = getelementptr i{bits}, ptr {{x}}, i64 {{x.0.{r}}}")
        lines.append(f"%x{r} = load {vector}, ptr %at{r}, align {bits // 8}")
        rows.append(f"%x{r}")
    for far in (8, 4, 2, 1):  # the corners of squares twice as large change places
        kept = [c if not c & far else c - far + LANES for c in range(LANES)]
        moved = [c + far if not c & far else c + LANES for c in range(LANES)]
        for r in (r for r in range(LANES) if not r & far):
            pair = f"{vector} {rows[r]}, {vector} {rows[r + far]}, {vector}"
            for k, order in ((r, kept), (r + far, moved)):
                lines.append(f"%y{far}.{k} = shufflevector {pair} <{', '.join(f'i32 {c}' for c in order)}>")
            rows[r], rows[r + far] = f"%y{far}.{r}", f"%y{far}.{r + far}"
    for q in range(LANES):
        lines.append(f"%to{q} = getelementptr i{bits}, ptr {{y}}, i64 {{y.0.{q}}}")
        lines.append(f"store {vector} {rows[q]}, ptr %to{q}, align {bits // 8}")
    return Instruction(
        f"turn{terms}_{dtype}",
        f"y[16, 16, {terms}] = 16 rows of 16 groups of {terms} {dtype}, turned",
        te.dag([x, y]),
        free=frozenset({("x", 0), ("y", 0)}),
        spellings={"llvm": "\n".join(lines)},
    )


INTERLEAVE2_BFLOAT16 = _interleave(2, "bfloat16")
INTERLEAVE4_INT8 = _interleave(4, "int8")
INTERLEAVE4_UINT8 = _interleave(4, "uint8")
TURN2_BFLOAT16 = _turn(2, "bfloat16")
TURN4_INT8 = _turn(4, "int8")
TURN4_UINT8 = _turn(4, "uint8")
