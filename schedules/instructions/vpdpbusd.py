"""vpdpbusd: 16 dot products of four uint8 with four int8 each, added to 16 int32.

AVX512-VNNI has it: Cascade Lake, Zen 4, and later. Sums wrap. They do not saturate, as those of vpdpbusds do
(Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2).
"""

from __future__ import annotations

from schedules import te
from schedules.ir.instruction import Instruction

LANES, TERMS = 16, 4

a = te.placeholder((TERMS,), "uint8", "a")
b = te.placeholder((LANES, TERMS), "int8", "b")
t = te.reduce_axis(TERMS, "t")
c = te.compute((LANES,), lambda i: te.sum(a[t] * b[i, t], axis=t), "c")

LLVM = """
declare <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>, <64 x i8>, <64 x i8>)
%four = load i32, ptr {a}, align 1
%one = insertelement <16 x i32> poison, i32 %four, i64 0
%all = shufflevector <16 x i32> %one, <16 x i32> poison, <16 x i32> zeroinitializer
%x = bitcast <16 x i32> %all to <64 x i8>
%y = load <64 x i8>, ptr {b}, align 1
%old = load <16 x i32>, ptr {c}, align 4
%new = call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> %old, <64 x i8> %x, <64 x i8> %y)
store <16 x i32> %new, ptr {c}, align 4
"""

VPDPBUSD = Instruction(
    "vpdpbusd",
    "c[16] += fours of uint8 and int8: one four of a with each of the 16 of b",
    te.dag([a, b, c]),
    features=("avx512vnni",),
    spellings={"llvm": LLVM},
)
