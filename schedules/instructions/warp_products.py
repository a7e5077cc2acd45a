"""Products of small matrices by the lanes of a warp together: mma.sync of NVIDIA GPUs.

``c[16, 8] += a[16, k] * b[k, 8]``. All operands are fragments: each lane has some elements of each, in its
registers, by a layout. Rows of ``a`` and columns of ``b`` have 32 bytes.

The sum of the products and of the old value is rounded in an order of its own, and less exactly than that of
float32: products are exact, sums of them are cut off. Integers wrap. Of a float32 the unit multiplies what
`te.tf32` is; as it would cut off the bits that it lacks, the call rounds its operands.

Source: PTX ISA, "Matrix multiply-accumulate operation using mma instruction".
"""

from __future__ import annotations

from schedules import te
from schedules.dtypes import DTYPES
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
PTX = {"float16": "f16", "bfloat16": "bf16", "int8": "s8", "uint8": "u8", "float32": "tf32"}
C = {
    "float16": "at_bits16",
    "bfloat16": "at_bits16",
    "int8": "at_char",
    "uint8": "at_uchar",
    "float32": "float",
}


def _product(a_dtype: str, b_dtype: str) -> Instruction:
    """``c[i, j] += a[i, k] * b[k, j]``."""
    itemsize, of = DTYPES[a_dtype].itemsize, te.tf32 if a_dtype == "float32" else lambda x: x
    terms = ROW_BYTES // itemsize
    a = te.placeholder((ROWS, terms), a_dtype, "a")
    b = te.placeholder((terms, COLUMNS), b_dtype, "b")
    k = te.reduce_axis(terms, "k")
    c = te.compute((ROWS, COLUMNS), lambda i, j: te.sum(of(a[i, k]) * of(b[k, j]), axis=k), "c")
    floats = c.dtype == "float32"
    named = (a_dtype.replace("float32", "tf32"), *(() if floats else (b_dtype,)))
    name = "_".join(("mma", shape := f"m{ROWS}n{COLUMNS}k{terms}", c.dtype, *named))
    sums, register, kind = ("f32", "+f", "float") if floats else ("s32", "+r", "int")
    text = PRODUCT.replace("NAME", name).replace("SUM", kind).replace("+K", register)
    text = text.replace("PTX", f"{shape}.row.col.{sums}.{PTX[a_dtype]}.{PTX[b_dtype]}.{sums}")
    text = text.replace("LEFT", C[a_dtype]).replace("RIGHT", C[b_dtype])
    return Instruction(
        name, f"c[16, 8] += a[16, {terms}] * b[{terms}, 8] of {' and '.join(named)}, by a warp",
        te.dag([a, b, c]), frozenset((x, d) for x in "abc" for d in (0, 1)), ("sm_80",),
        {"cuda": _call(name, a_dtype == "float32"), "cuda function": text}, exact=not floats, threads=32,
        layouts={"a": left(itemsize), "b": right(itemsize).along((1, 0)), "c": SUMS},
    )  # fmt: skip


def _call(name: str, rounded: bool) -> str:
    """The call; with operands that are ``rounded`` before."""
    if not rounded:
        return f"at_{name}({{c}}, {{a}}, {{b}});"
    x, y = (", ".join(f"at_tf32_float32(({{{o}}})[{i}])" for i in range(n)) for o, n in (("a", 4), ("b", 2)))
    return f"{{{{ const float x[4] = {{{{{x}}}}}, y[2] = {{{{{y}}}}}; at_{name}({{c}}, x, y); }}}}"


BYTES = ("int8", "uint8")
TABLE = (
    *(_product(d, d) for d in ("float16", "bfloat16", "float32")),
    *(_product(a, b) for a in BYTES for b in BYTES),
)
