"""Interleaving rows: what packs an operand of dot products, whose terms lie side by side.

No instruction of its own: LLVM makes of it what the processor has (on AVX-512 vpermt2w, vpermt2b or unpacks).
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


INTERLEAVE2_BFLOAT16 = _interleave(2, "bfloat16")
INTERLEAVE4_INT8 = _interleave(4, "int8")
INTERLEAVE4_UINT8 = _interleave(4, "uint8")
