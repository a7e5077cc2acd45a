"""16 dot products of a few terms each, added to 16 sums: a lane has its terms side by side, 32 bits of them.

vpdpbusd: of AVX512-VNNI (Cascade Lake, Zen 4, and later). Sums wrap. They do not saturate, as those of
vpdpbusds do.

vdpbf16ps: of AVX512-BF16 (Zen 4, Cooper Lake, and later). The odd term is added first, then the even one,
each by a fused multiply-add; denormals are taken to be 0, and results that are denormal become 0.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
"""

from __future__ import annotations

from schedules import te
from schedules.ir.instruction import Instruction

LANES = 16
# Text for LLVM, with words for what differs.
LLVM = """
declare SUMS @llvm.x86.FUNCTION.512(SUMS, TERMS, TERMS)
%GROUP = load i32, ptr {a}, align BYTES
%one = insertelement <16 x i32> poison, i32 %GROUP, i64 0
%all = shufflevector <16 x i32> %one, <16 x i32> poison, <16 x i32> zeroinitializer
%x = bitcast <16 x i32> %all to TERMS
%y = load TERMS, ptr {b}, align BYTES
%old = load SUMS, ptr {c}, align 4
%new = call SUMS @llvm.x86.FUNCTION.512(SUMS %old, TERMS %FIRST, TERMS %SECOND)
store SUMS %new, ptr {c}, align 4
"""


def _dot_products(
    name: str, doc: str, feature: str, terms: int, dtypes: tuple[str, str], **words: str
) -> Instruction:
    """The instruction of operands a and b of these dtypes."""
    a, b = te.placeholder((terms,), dtypes[0], "a"), te.placeholder((LANES, terms), dtypes[1], "b")
    t = te.reduce_axis(terms, "t")
    c = te.compute((LANES,), lambda i: te.sum(a[t] * b[i, t], axis=t), "c")
    text = LLVM
    for old, new in words.items():
        text = text.replace(old, new)
    exact = c.dtype == "int32"
    return Instruction(name, doc, te.dag([a, b, c]), frozenset(), (feature,), {"llvm": text}, exact)


VDPBF16PS = _dot_products(
    "vdpbf16ps", "c[16] += pairs of bfloat16: one pair of a with each of the 16 of b",
    "avx512bf16", 2, ("bfloat16", "bfloat16"), FUNCTION="avx512bf16.dpbf16ps", SUMS="<16 x float>",
    TERMS="<32 x bfloat>", GROUP="pair", BYTES="2", FIRST="y", SECOND="x",
)  # fmt: skip
VPDPBUSD = _dot_products(
    "vpdpbusd", "c[16] += fours of uint8 and int8: one four of a with each of the 16 of b",
    "avx512vnni", 4, ("uint8", "int8"), FUNCTION="avx512.vpdpbusd", SUMS="<16 x i32>",
    TERMS="<64 x i8>", GROUP="four", BYTES="1", FIRST="x", SECOND="y",
)  # fmt: skip

TABLE = (VDPBF16PS, VPDPBUSD)
