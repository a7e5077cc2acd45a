"""Products of small matrices by the lanes of a warp together: mma.sync of NVIDIA GPUs.

``c[16, 8] += a[16, k] * b[k, 8]``. All operands are fragments: each lane has some elements of each, in its
registers, by a layout. Rows of ``a`` and columns of ``b`` have 32 bytes.

The sum of the products and of the old value is rounded in an order of its own, and less exactly than that of
float32: products are exact, sums of them are cut off. Integers wrap.

Source: PTX ISA, "Matrix multiply-accumulate operation using mma instruction".
"""

from __future__ import annotations

from schedules import te
from schedules.dtypes import is_float
from schedules.ir.instruction import Instruction
from schedules.layouts import SUMS, left, right

ROWS, COLUMNS, ROW_BYTES = 16, 8, 32
# Words of a lane: those of ``a`` and ``b`` hold several elements each.
PRODUCT = """\
AT_INLINE void at_NAME(SUM *c, const LEFT *a, const RIGHT *b) {
  const unsigned *x = (const unsigned *)a, *y = (const unsigned *)b;
  asm("mma.sync.aligned.PTX {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+K"(c[0]), "+K"(c[1]), "+K"(c[2]), "+K"(c[3])
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
}
"""
PTX = {"float16": "f16", "bfloat16": "bf16", "int8": "s8", "uint8": "u8", "float32": "f32", "int32": "s32"}
C = {"float16": "at_bits16", "bfloat16": "at_bits16", "int8": "at_char", "uint8": "at_uchar"}


def _product(a_dtype: str, b_dtype: str, itemsize: int) -> Instruction:
    """``c[i, j] += a[i, k] * b[k, j]``."""
    terms = ROW_BYTES // itemsize
    a = te.placeholder((ROWS, terms), a_dtype, "a")
    b = te.placeholder((terms, COLUMNS), b_dtype, "b")
    k = te.reduce_axis(terms, "k")
    c = te.compute((ROWS, COLUMNS), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    shape, dtypes = f"m{ROWS}n{COLUMNS}k{terms}", (c.dtype, a_dtype, b_dtype, c.dtype)
    named = (a_dtype,) if is_float(a_dtype) else (a_dtype, b_dtype)
    name = "_".join(("mma", shape, c.dtype, *named))
    text = PRODUCT.replace("NAME", name)
    text = text.replace("PTX", f"{shape}.row.col." + ".".join(PTX[d] for d in dtypes))
    text = text.replace("SUM", "float" if c.dtype == "float32" else "int").replace("LEFT", C[a_dtype])
    text = text.replace("RIGHT", C[b_dtype]).replace("+K", "+f" if c.dtype == "float32" else "+r")
    return Instruction(
        name, f"c[16, 8] += a[16, {terms}] * b[{terms}, 8] of {a_dtype} and {b_dtype}, by a warp",
        te.dag([a, b, c]), frozenset((x, d) for x in "abc" for d in (0, 1)), ("sm_80",),
        {"cuda": f"at_{name}({{c}}, {{a}}, {{b}});", "cuda function": text}, exact=c.dtype == "int32",
        threads=32, layouts={"a": left(itemsize), "b": right(itemsize).along((1, 0)), "c": SUMS},
    )  # fmt: skip


BYTES = ("int8", "uint8")
TABLE = (
    *(_product(d, d, 2) for d in ("float16", "bfloat16")),
    *(_product(a, b, 1) for a in BYTES for b in BYTES),
)
