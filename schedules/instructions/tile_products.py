"""Products of two tiles of 1 KiB, added to a tile of 16 by 16 sums: AMX of x86.

A tile is 16 rows of 64 bytes. Rows lie any distance apart. A row of ``a`` has 16 groups of terms. A row of
``b`` has a group of terms for each of 16 columns. A group is 4 integers of 8 bits or 2 bfloat16.

Sums of integers wrap. They do not saturate. tdpbf16ps adds the even terms of a row in one sum and the odd
ones in another, each by a fused multiply-add, then both to the old value. Denormals are taken to be 0, and
results that are denormal become 0.

The sums stay in tile registers over a loop. `TILEZERO_INT32` and `TILEZERO_FLOAT32` start them there.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1 chapter 18, and volume 2.
Cycles: Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter on AMX: one product in 16, its
result after 52.
"""

from __future__ import annotations

from types import MappingProxyType

from schedules import te
from schedules.ir.instruction import Instruction, Registers

ROWS = 16
ROW_BYTES = 64
# Text for LLVM. Registers are values of a type that memory cannot hold: a slot holds them as a vector. A
# process that loads an object with the symbol asks for permission.
TILES = Registers(
    "tile", count=8, bytes=ROWS * ROW_BYTES,
    spellings=MappingProxyType({"llvm": MappingProxyType({
        "type": "<256 x i32>",
        "load": """
declare x86_amx @llvm.x86.tileloadd64.internal(i16, i16, ptr, i64)
{value} = call x86_amx @llvm.x86.tileloadd64.internal(i16 {rows}, i16 {bytes}, ptr {at}, i64 {step})
""",
        "store": """
declare void @llvm.x86.tilestored64.internal(i16, i16, ptr, i64, x86_amx)
call void @llvm.x86.tilestored64.internal(i16 {rows}, i16 {bytes}, ptr {at}, i64 {step}, x86_amx {value})
""",
        "take": """
declare x86_amx @llvm.x86.cast.vector.to.tile.v256i32(<256 x i32>)
%words = load <256 x i32>, ptr {slot}, align 64
{value} = call x86_amx @llvm.x86.cast.vector.to.tile.v256i32(<256 x i32> %words)
""",
        "keep": """
@at_tiles = internal constant i8 1
declare <256 x i32> @llvm.x86.cast.tile.to.vector.v256i32(x86_amx)
%words = call <256 x i32> @llvm.x86.cast.tile.to.vector.v256i32(x86_amx {value})
store <256 x i32> %words, ptr {slot}, align 64
""",
    })}),
)  # fmt: skip
ZERO = """
declare x86_amx @llvm.x86.tilezero.internal(i16, i16)
{c.new} = call x86_amx @llvm.x86.tilezero.internal(i16 16, i16 64)
"""
PRODUCT = """
declare x86_amx @llvm.x86.NAME.internal(i16, i16, i16, x86_amx, x86_amx, x86_amx)
{c.new} = call x86_amx @llvm.x86.NAME.internal(i16 16, i16 64, i16 64, x86_amx {c}, x86_amx {a}, x86_amx {b})
"""


def _zero(dtype: str) -> Instruction:
    """``c[i, j] = 0``."""
    c = te.compute((ROWS, ROWS), lambda i, j: te.const(0, dtype), "c")
    return Instruction(
        f"tilezero_{dtype}", f"c[16, 16] = 0, {dtype}", te.dag([c]), frozenset({("c", 0)}), ("amx-tile",),
        {"llvm": ZERO}, registers=TILES,
    )  # fmt: skip


def _product(name: str, feature: str, terms: int, dtypes: tuple[str, str], start: Instruction) -> Instruction:
    """``c[i, j] += a[i, q, t] * b[q, j, t]``."""
    a = te.placeholder((ROWS, ROWS, terms), dtypes[0], "a")
    b = te.placeholder((ROWS, ROWS, terms), dtypes[1], "b")
    q, t = te.reduce_axis(ROWS, "q"), te.reduce_axis(terms, "t")
    c = te.compute((ROWS, ROWS), lambda i, j: te.sum(a[i, q, t] * b[q, j, t], axis=(q, t)), "c")
    return Instruction(
        name, f"c[16, 16] += products of {dtypes[0]} and {dtypes[1]}: 16 rows of a by 16 columns of b",
        te.dag([a, b, c]), frozenset((x, 0) for x in "abc"), ("amx-tile", feature),
        {"llvm": PRODUCT.replace("NAME", name)}, exact=c.dtype == "int32", registers=TILES, start=start,
        cost=32.0, latency=52.0,
    )  # fmt: skip


TILEZERO_FLOAT32 = _zero("float32")
TILEZERO_INT32 = _zero("int32")
TDPBF16PS = _product("tdpbf16ps", "amx-bf16", 2, ("bfloat16", "bfloat16"), TILEZERO_FLOAT32)
TDPBUSD = _product("tdpbusd", "amx-int8", 4, ("uint8", "int8"), TILEZERO_INT32)
TDPBSSD = _product("tdpbssd", "amx-int8", 4, ("int8", "int8"), TILEZERO_INT32)
TDPBSUD = _product("tdpbsud", "amx-int8", 4, ("int8", "uint8"), TILEZERO_INT32)
TDPBUUD = _product("tdpbuud", "amx-int8", 4, ("uint8", "uint8"), TILEZERO_INT32)

TABLE = (TILEZERO_FLOAT32, TILEZERO_INT32, TDPBF16PS, TDPBUSD, TDPBSSD, TDPBSUD, TDPBUUD)
