"""vdpbf16ps: 16 dot products of two bfloat16 each, added to 16 float32.

AVX512-BF16 has it: Zen 4, Cooper Lake, and later. The odd term is added first, then the even one, each by a
fused multiply-add; denormals are taken to be 0, and results that are denormal become 0 (Intel 64 and IA-32
Architectures Software Developer's Manual, volume 2). """

from __future__ import annotations

from schedules import te
from schedules.ir.instruction import Instruction

LANES, TERMS = 16, 2

a = te.placeholder((TERMS,), "bfloat16", "a")
b = te.placeholder((LANES, TERMS), "bfloat16", "b")
t = te.reduce_axis(TERMS, "t")
c = te.compute((LANES,), lambda i: te.sum(a[t] * b[i, t], axis=t), "c")

LLVM = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
%pair = load i32, ptr {a}, align 2
%one = insertelement <16 x i32> poison, i32 %pair, i64 0
%all = shufflevector <16 x i32> %one, <16 x i32> poison, <16 x i32> zeroinitializer
%x = bitcast <16 x i32> %all to <32 x bfloat>
%y = load <32 x bfloat>, ptr {b}, align 2
%old = load <16 x float>, ptr {c}, align 4
%new = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(SUM %old, PAIRS %y, PAIRS %x)
store <16 x float> %new, ptr {c}, align 4
""".replace("SUM", "<16 x float>").replace("PAIRS", "<32 x bfloat>")

VDPBF16PS = Instruction(
    "vdpbf16ps",
    "c[16] += pairs of bfloat16: one pair of a with each of the 16 of b",
    te.dag([a, b, c]),
    features=("avx512bf16",),
    spellings={"llvm": LLVM},
    exact=False,
)
