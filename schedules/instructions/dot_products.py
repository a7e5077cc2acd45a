"""Dot products of a few terms each, one a lane, added to the sums: a lane has its terms side by side, 32 bits
of them.

vpdpbusd: of AVX512-VNNI (Cascade Lake, Zen 4, and later), and on 8 lanes of AVX-VNNI (Alder Lake, Zen 5).
vpdpbssd, vpdpbuud: of AVX-VNNI-INT8 (Sierra Forest, Arrow Lake). Sums wrap. They do not saturate, as those of
vpdpbusds do.

vdpbf16ps: of AVX512-BF16 (Zen 4, Cooper Lake, and later). The odd term is added first, then the even one,
each by a fused multiply-add; denormals are taken to be 0, and results that are denormal become 0.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
"""

from __future__ import annotations

from schedules import te
from schedules.ir.instruction import Instruction

# Text for LLVM, with words for what differs.
LLVM = """
declare SUMS @llvm.x86.FUNCTION(SUMS, TERMS, TERMS)
%GROUP = load i32, ptr {a}, align BYTES
%one = insertelement <LANES x i32> poison, i32 %GROUP, i64 0
%all = shufflevector <LANES x i32> %one, <LANES x i32> poison, <LANES x i32> zeroinitializer
%x = bitcast <LANES x i32> %all to TERMS
%y = load TERMS, ptr {b}, align BYTES
%old = load SUMS, ptr {c}, align 4
%new = call SUMS @llvm.x86.FUNCTION(SUMS %old, TERMS %FIRST, TERMS %SECOND)
store SUMS %new, ptr {c}, align 4
"""


def _dot_products(
    name: str, feature: str, lanes: int, dtypes: tuple[str, str], function: str, unless: tuple[str, ...] = ()
) -> Instruction:
    """The instruction of operands a and b of these dtypes."""
    floats = dtypes[0] == "bfloat16"
    terms = 2 if floats else 4
    a, b = te.placeholder((terms,), dtypes[0], "a"), te.placeholder((lanes, terms), dtypes[1], "b")
    t = te.reduce_axis(terms, "t")
    c = te.compute((lanes,), lambda i: te.sum(a[t] * b[i, t], axis=t), "c")
    words = {
        "FUNCTION": function,
        "SUMS": f"<{lanes} x {'float' if floats else 'i32'}>",
        "TERMS": f"<{terms * lanes} x {'bfloat' if floats else 'i8'}>",
        "LANES": str(lanes),
        "GROUP": "pair" if floats else "four",
        "BYTES": "2" if floats else "1",
        # Of vpdpbusd the first is unsigned. Else the second may lie in memory, and be spread over the lanes.
        "FIRST": "y" if floats or dtypes == TURNED else "x",
        "SECOND": "x" if floats or dtypes == TURNED else "y",
    }
    text = LLVM
    for old, new in words.items():
        text = text.replace(old, new)
    of = f"pairs of {dtypes[0]}" if floats else f"fours of {dtypes[0]} and {dtypes[1]}"
    doc = f"c[{lanes}] += {of}: one {words['GROUP']} of a with each of the {lanes} of b"
    return Instruction(
        name, doc, te.dag([a, b, c]), frozenset(), (feature,), {"llvm": text}, not floats, unless=unless
    )


BFLOAT16, MIXED, TURNED = ("bfloat16", "bfloat16"), ("uint8", "int8"), ("int8", "uint8")
VNNI = ("avx512vnni",)
TABLE = (
    _dot_products("vdpbf16ps", "avx512bf16", 16, BFLOAT16, "avx512bf16.dpbf16ps.512"),
    _dot_products("vpdpbusd", "avx512vnni", 16, MIXED, "avx512.vpdpbusd.512"),
    _dot_products("vpdpbusd_turned", "avx512vnni", 16, TURNED, "avx512.vpdpbusd.512"),
    _dot_products("vpdpbusd_ymm", "avxvnni", 8, MIXED, "avx512.vpdpbusd.256", VNNI),
    _dot_products("vpdpbusd_ymm_turned", "avxvnni", 8, TURNED, "avx512.vpdpbusd.256", VNNI),
    _dot_products("vpdpbssd", "avxvnniint8", 8, ("int8", "int8"), "avx2.vpdpbssd.256"),
    _dot_products("vpdpbuud", "avxvnniint8", 8, ("uint8", "uint8"), "avx2.vpdpbuud.256"),
)
