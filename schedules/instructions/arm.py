"""Dot products and small matrix products of ARM, on registers of 128 bits.

A dot product multiplies one group of operand a, 32 bits long, with each of 4 groups of operand b. A matrix
product multiplies 2 rows of operand a, each 64 bits long, with 2 rows of operand b. Both add to 4 sums. Sums
of integers wrap.

Source: Arm Architecture Reference Manual for A-profile architecture, SDOT, UDOT, USDOT, BFDOT, SMMLA, UMMLA,
USMMLA, BFMMLA (vector). BFDOT and BFMMLA take denormals to be 0 and round each sum in a way of their own.
"""

from __future__ import annotations

from schedules import te
from schedules.ir.instruction import Instruction

# Texts for LLVM, with words for what differs.
DOT = """
declare SUMS @llvm.aarch64.neon.FUNCTION(SUMS, TERMS, TERMS)
%group = load i32, ptr {a}, align BYTES
%one = insertelement <4 x i32> poison, i32 %group, i64 0
%all = shufflevector <4 x i32> %one, <4 x i32> poison, <4 x i32> zeroinitializer
%x = bitcast <4 x i32> %all to TERMS
%y = load TERMS, ptr {b}, align BYTES
%old = load SUMS, ptr {c}, align 4
%new = call SUMS @llvm.aarch64.neon.FUNCTION(SUMS %old, TERMS %FIRST, TERMS %SECOND)
store SUMS %new, ptr {c}, align 4
"""
MATRIX = """
declare SUMS @llvm.aarch64.neon.FUNCTION(SUMS, TERMS, TERMS)
%x = load TERMS, ptr {a}, align BYTES
%y = load TERMS, ptr {b}, align BYTES
%old = load SUMS, ptr {c}, align 4
%new = call SUMS @llvm.aarch64.neon.FUNCTION(SUMS %old, TERMS %x, TERMS %y)
store SUMS %new, ptr {c}, align 4
"""
# What llvm calls a function: of integers by both of its types, of BFMMLA by neither.
INTEGERS = ".v4i32.v16i8"
SPELLED = {"bfdot": "bfdot.v4f32.v8bf16", "bfmmla": "bfmmla"}


def _dot(name: str, feature: str, dtypes: tuple[str, str], function: str) -> Instruction:
    """Sums of dot products of operands a and b of these dtypes. ``function`` takes the unsigned one first."""
    terms = 2 if dtypes[0] == "bfloat16" else 4
    a, b = te.placeholder((terms,), dtypes[0], "a"), te.placeholder((4, terms), dtypes[1], "b")
    t = te.reduce_axis(terms, "t")
    c = te.compute((4,), lambda i: te.sum(a[t] * b[i, t], axis=t), "c")
    turned = dtypes == ("int8", "uint8")
    text = _spelled(DOT, dtypes[0], function, FIRST="y" if turned else "x", SECOND="x" if turned else "y")
    doc = f"c[4] += groups of {dtypes[0]} and {dtypes[1]}: one group of a with each of the 4 of b"
    return Instruction(name, doc, te.dag([a, b, c]), frozenset(), (feature,), text, c.dtype == "int32")


def _matrix(name: str, feature: str, dtypes: tuple[str, str]) -> Instruction:
    """Sums of the products of 2 rows of a with 2 rows of b."""
    terms = 4 if dtypes[0] == "bfloat16" else 8
    a, b = te.placeholder((2, terms), dtypes[0], "a"), te.placeholder((2, terms), dtypes[1], "b")
    t = te.reduce_axis(terms, "t")
    c = te.compute((2, 2), lambda i, j: te.sum(a[i, t] * b[j, t], axis=t), "c")
    doc = f"c[2, 2] += 2 rows of {dtypes[0]} times 2 rows of {dtypes[1]}, {terms} terms each"
    text = _spelled(MATRIX, dtypes[0], name)
    return Instruction(name, doc, te.dag([a, b, c]), frozenset(), (feature,), text, c.dtype == "int32")


def _spelled(text: str, dtype: str, function: str, **words: str) -> dict[str, str]:
    floats = dtype == "bfloat16"
    words["FUNCTION"] = SPELLED.get(function, function + INTEGERS)
    words["SUMS"] = "<4 x float>" if floats else "<4 x i32>"
    words["TERMS"] = "<8 x bfloat>" if floats else "<16 x i8>"
    words["BYTES"] = "2" if floats else "1"
    for old, new in words.items():
        text = text.replace(old, new)
    return {"llvm": text}


SDOT = _dot("sdot", "dotprod", ("int8", "int8"), "sdot")
UDOT = _dot("udot", "dotprod", ("uint8", "uint8"), "udot")
USDOT = _dot("usdot", "i8mm", ("uint8", "int8"), "usdot")
SUDOT = _dot("sudot", "i8mm", ("int8", "uint8"), "usdot")
BFDOT = _dot("bfdot", "bf16", ("bfloat16", "bfloat16"), "bfdot")
SMMLA = _matrix("smmla", "i8mm", ("int8", "int8"))
UMMLA = _matrix("ummla", "i8mm", ("uint8", "uint8"))
USMMLA = _matrix("usmmla", "i8mm", ("uint8", "int8"))
BFMMLA = _matrix("bfmmla", "bf16", ("bfloat16", "bfloat16"))

TABLE = (SDOT, UDOT, USDOT, SUDOT, BFDOT, SMMLA, UMMLA, USMMLA, BFMMLA)
