"""Loads of fragments from shared memory by the lanes of a warp together: ldmatrix of NVIDIA GPUs.

Four matrices of 8 rows of 16 bytes are read at once. Each lane gives the address of a row. It gets a word of
4 bytes of each matrix: those of a row go to four neighbouring lanes. With ``.trans`` the two elements of 2
bytes of a word are neighbours in a column.

What is read is an operand of `schedules.instructions.warp_products`, so it lies as that needs it: the first
(``a``) by rows or by columns (``a_trans``), the second (``b``) by columns or by rows (``b_trans``).

Source: PTX ISA, "Warp-level matrix load instruction: ldmatrix".
"""

from __future__ import annotations

from schedules import te
from schedules.dtypes import DTYPES
from schedules.ir.instruction import Instruction
from schedules.layouts import Layout, left, two_right

CHUNK = 16  # bytes of a row
LOAD = """\
template <class T> AT_INLINE void at_NAME(T *to, const T &from) {
  unsigned *y = (unsigned *)to;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4PTX.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3])
               : "r"((unsigned)__cvta_generic_to_shared(&from)) : "memory");
}
"""


def _load(dtype: str, operand: str, trans: bool) -> Instruction:
    """``y[i, j] = x[i, j]``. What lies side by side are elements of the sum, but of a transposed operand."""
    itemsize = DTYPES[dtype].itemsize
    layout = {"a": left, "b": two_right}[operand](itemsize)
    if trans:
        layout = layout.along((1, 0))
    shape = layout.shape
    x = te.placeholder(shape, dtype, "x")
    y = te.compute(shape, lambda i, j: x[i, j], "y")
    call = "ldmatrix_x4_trans" if trans else "ldmatrix_x4"
    text = LOAD.replace("NAME", call).replace("PTX", ".trans" if trans else "")
    name = f"ldmatrix_{dtype}_{operand}" + ("_trans" if trans else "")
    return Instruction(
        name, f"y[{shape[0]}, {shape[1]}] = x of {dtype} in shared memory, operand {operand} of a product "
        f"that lies by {'columns' if trans == (operand == 'a') else 'rows'}",
        te.dag([x, y]), frozenset({("x", 0), ("y", 0), ("y", 1)}), ("sm_75",),
        {"cuda": f"at_{call}({{y}}, {{x}});", "cuda function": text},
        threads=32, layouts={"x": _addresses(layout, itemsize), "y": layout},
    )  # fmt: skip


def _addresses(layout: Layout, itemsize: int) -> Layout:
    """Where the lanes' rows begin: eight lanes have the rows of a matrix, in order, and matrix ``w`` is
    word ``w`` of the lanes that read it."""
    inside = (CHUNK // itemsize).bit_length() - 1
    words = layout.registers[-2:]
    return Layout((*((0, b) for b in range(3)), *words), tuple((1, b) for b in range(inside)))


TABLE = (
    *(_load(d, x, t) for d in ("float16", "bfloat16") for x in "ab" for t in (False, True)),
    *(_load(d, x, False) for d in ("int8", "uint8", "float32") for x in "ab"),
)
