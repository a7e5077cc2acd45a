"""Dot products of groups of 32 bits, for CPUs without an instruction for them: terms are widened first.

vpmaddwd multiplies pairs of 16-bit integers, and adds up each pair. It takes int16 as they are. The bytes of
a group are the even ones, then the odd ones, as integers of 16 bits. So these sums are exact. (vpmaddubsw
multiplies bytes, but its sums saturate.) On CPUs with VNNI LLVM makes one instruction of vpmaddwd and of the
addition, vpdpwssd.

A bfloat16 is the upper half of a float32. Two fused multiply-adds add the even term first, then the odd one.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
"""

from __future__ import annotations

from schedules import te
from schedules.dtypes import DTYPES
from schedules.ir.instruction import Instruction

# Texts for LLVM, with words for what differs.
# What products of integers begin with.
LOADED = """
declare <LANES x i32> @llvm.x86.FUNCTION(<WIDE x i16>, <WIDE x i16>)
%group = load i32, ptr {a}, align ALIGN
%one = insertelement <LANES x i32> poison, i32 %group, i64 0
%all = shufflevector <LANES x i32> %one, <LANES x i32> poison, <LANES x i32> zeroinitializer
%x = bitcast <LANES x i32> %all to <WIDE x i16>
%y = load <WIDE x i16>, ptr {b}, align ALIGN
"""
INTEGERS = """EVEN_A
EVEN_B
%x_odd = SHIFT_A <WIDE x i16> %x, splat (i16 8)
%y_odd = SHIFT_B <WIDE x i16> %y, splat (i16 8)
%even = call <LANES x i32> @llvm.x86.FUNCTION(<WIDE x i16> %x_even, <WIDE x i16> %y_even)
%odd = call <LANES x i32> @llvm.x86.FUNCTION(<WIDE x i16> %x_odd, <WIDE x i16> %y_odd)
%old = load <LANES x i32>, ptr {c}, align 4
%half = add <LANES x i32> %old, %even
%new = add <LANES x i32> %half, %odd
store <LANES x i32> %new, ptr {c}, align 4
"""
# The lower byte of each 16 bits, widened.
EVEN = {
    "uint8": "%NAME_even = and <WIDE x i16> %NAME, splat (i16 255)",
    "int8": "%NAME_up = shl <WIDE x i16> %NAME, splat (i16 8)\n"
    "%NAME_even = ashr <WIDE x i16> %NAME_up, splat (i16 8)",
}
PAIRS = """%both = call <LANES x i32> @llvm.x86.FUNCTION(<WIDE x i16> %x, <WIDE x i16> %y)
%old = load <LANES x i32>, ptr {c}, align 4
%new = add <LANES x i32> %old, %both
store <LANES x i32> %new, ptr {c}, align 4
"""
FLOATS = """
declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)
%pair = load i32, ptr {a}, align 2
%one = insertelement <8 x i32> poison, i32 %pair, i64 0
%all = shufflevector <8 x i32> %one, <8 x i32> poison, <8 x i32> zeroinitializer
%pairs = load <8 x i32>, ptr {b}, align 2
%even_a = shl <8 x i32> %all, splat (i32 16)
%even_b = shl <8 x i32> %pairs, splat (i32 16)
%odd_a = and <8 x i32> %all, splat (i32 -65536)
%odd_b = and <8 x i32> %pairs, splat (i32 -65536)
%a0 = bitcast <8 x i32> %even_a to <8 x float>
%b0 = bitcast <8 x i32> %even_b to <8 x float>
%a1 = bitcast <8 x i32> %odd_a to <8 x float>
%b1 = bitcast <8 x i32> %odd_b to <8 x float>
%old = load <8 x float>, ptr {c}, align 4
%half = call <8 x float> @llvm.fma.v8f32(<8 x float> %a0, <8 x float> %b0, <8 x float> %old)
%new = call <8 x float> @llvm.fma.v8f32(<8 x float> %a1, <8 x float> %b1, <8 x float> %half)
store <8 x float> %new, ptr {c}, align 4
"""
SIGNS = {"uint8": "u8", "int8": "s8"}
SHIFT = {"uint8": "lshr", "int8": "ashr"}


def _product(
    name: str,
    lanes: int,
    dtypes: tuple[str, str],
    features: tuple[str, ...],
    unless: tuple[str, ...],
    text: str,
    cost: float,
    latency: float | None = None,
) -> Instruction:
    terms = 32 // (8 * DTYPES[dtypes[0]].itemsize)
    a, b = te.placeholder((terms,), dtypes[0], "a"), te.placeholder((lanes, terms), dtypes[1], "b")
    t = te.reduce_axis(terms, "t")
    c = te.compute((lanes,), lambda i: te.sum(a[t] * b[i, t], axis=t), "c")
    return Instruction(
        name,
        f"c[{lanes}] += groups of {dtypes[0]} and {dtypes[1]}: one of a with each of the {lanes} of b",
        te.dag([a, b, c]),
        features=features,
        spellings={"llvm": text},
        exact=c.dtype == "int32",
        cost=cost,
        latency=latency,
        unless=unless,
    )


def _integers(a: str, b: str, lanes: int, unless: tuple[str, ...]) -> Instruction:
    text = INTEGERS
    for operand, name, dtype in (("A", "x", a), ("B", "y", b)):
        text = text.replace(f"EVEN_{operand}", EVEN[dtype].replace("NAME", name))
    text = text.replace("SHIFT_A", SHIFT[a]).replace("SHIFT_B", SHIFT[b])
    cost = 4.0 if lanes == 8 else 6.0  # of three units, and of two
    return _by_pairs(f"vpmaddwd_{SIGNS[a]}{SIGNS[b]}", lanes, (a, b), text, cost, unless=unless)


def _by_pairs(
    name: str,
    lanes: int,
    dtypes: tuple[str, str],
    text: str,
    cost: float,
    latency: float | None = None,
    unless: tuple[str, ...] = (),
) -> Instruction:
    """A product of vpmaddwd on 8 or 16 lanes."""
    wide = lanes == 16
    text = LOADED.replace("ALIGN", str(DTYPES[dtypes[0]].itemsize)) + text
    text = text.replace("FUNCTION", "avx512.pmaddw.d.512" if wide else "avx2.pmadd.wd")
    text = text.replace("LANES", str(lanes)).replace("WIDE", str(2 * lanes))
    feature, unless = ("avx512bw", unless) if wide else ("avx2", (*unless, "avx512bw"))
    return _product(name + "_zmm" * wide, lanes, dtypes, (feature,), unless, text, cost, latency)


# Extensions with one instruction for the same: for both signs alike, and for one with the other.
ALIKE, MIXED = ("avxvnniint8",), ("avx512vnni", "avxvnni")
TABLE = (
    *(
        _integers(a, b, lanes, ALIKE if a == b else MIXED)
        for lanes in (8, 16)
        for a in ("uint8", "int8")
        for b in ("uint8", "int8")
    ),
    # Additions go to three units, products to two of them. Of 512 bits there are two.
    _by_pairs("vpmaddwd", 8, ("int16", "int16"), PAIRS, 4 / 3, latency=1.0),
    _by_pairs("vpmaddwd", 16, ("int16", "int16"), PAIRS, 2.0, latency=1.0),
    _product(
        "fma_bfloat16", 8, ("bfloat16", "bfloat16"), ("avx2", "fma"), ("avx512bf16", "avx512f"), FLOATS, 3.0
    ),
)
