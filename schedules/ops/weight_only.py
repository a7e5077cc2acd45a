"""Products with weights of few bits: weight_only_matmul.

The expression is that of `few_bits`. float4_e2m1 with scales of float8_e4m3fn for each 16 is NVFP4. Scales of
MXFP4 (OCP Microscaling Formats, version 1.0) are powers of two, which bfloat16 has. int4_halves in groups of
32 is Q4_0 of GGML, int8 is Q8_0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schedules import te
from schedules.dtypes import is_float
from schedules.errors import WorkloadError
from schedules.ops.base import Array, Operator, Param, Params, Types, flag, stored
from schedules.ops.few_bits import FORMATS, SCALES, FewBits, RoundedRows, product


def _build(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    m, n, k, group = p["m"], p["n"], p["k"], p["group"]
    form = FORMATS[p["weights"]]
    x = te.placeholder((m, k), types.input, "x")
    w = te.placeholder((n, k // form.each), form.dtype, "w")
    s = te.placeholder((n, k // group), p["scales"], "s")
    weights = FewBits(form, w, s, group)
    if is_float(types.input):
        if p.get("grouped"):
            raise WorkloadError(
                f"weight_only_matmul: grouped=1 says where scales of activations of int8 are; {types.input} "
                "has none: leave it out"
            )
        return [x, w, s, stored(product(x, weights), types.output)]
    shape = (m, k // group) if p.get("grouped") else (m,)
    of_x = te.placeholder(shape, "float32", "x_scale")
    return [x, w, s, of_x, product(RoundedRows(x, of_x), weights)]


def _reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    x, w, s, *of_x = inputs
    group = p["group"]
    wide, y = FORMATS[p["weights"]].numbers(w, group), np.zeros((p["m"], p["n"]))
    for g in range(p["k"] // group):  # scaled as sums: an infinite scale makes no NaN of a 0 in its group
        at = slice(g * group, (g + 1) * group)
        part = x[:, at].astype(np.float64) @ wide[:, at].T
        if p.get("grouped"):
            part = part * of_x[0][:, g, None]
        y += part * s[:, g].astype(np.float64)
    if of_x and not p.get("grouped"):
        y = y * of_x[0][:, None]
    return [y.astype(types.output if is_float(types.output) else "float32")]


def _check(p: Params) -> str | None:
    form = FORMATS[p["weights"]]
    each = form.each
    if p["k"] % each:
        return f"k={p['k']} is odd, but a byte has {each} weights of {p['weights']}; use an even k"
    if p["k"] % p["group"]:
        return f"group={p['group']} does not divide k={p['k']}; give a group that does, or group={p['k']}"
    if form.halves and p["group"] % 2:
        return f"group={p['group']} is odd, and has no halves; give an even group, or weights=int4"
    return None


WEIGHT_ONLY_MATMUL = Operator(
    "weight_only_matmul",
    "x(m,k), w(n,k) in a format of few bits, s(n,k/group), x_scale(m) of activations of int8 → "
    "x · (numbers of w, each times the scale of its group)ᵀ, times x_scale",
    (
        Param("m", "rows of activations", example=1),
        Param("n", "outputs"),
        Param("k", "length of the sum"),
        Param("group", "weights along k that share a scale; k: each output has one", 32),
        Param("weights", "format of the weights: 4-bit codes lie in pairs, the first in the lower half of a "
              "byte (int4: 8 stands for 0); int4_halves: a byte has one of each half of its group",
              "int4", "word", options=tuple(FORMATS)),
        Param("scales", "dtype of the scales", "float32", "word", options=SCALES),
        flag("grouped", "1: activations of int8 have a scale for each group, x_scale(m, k/group)",
             optional=True),
    ),
    _build,
    _reference,
    lambda p: 2 * p["m"] * p["n"] * p["k"],
    dtypes=("float32", "bfloat16", "float16", "int8"),
    check=_check,
    weights=("w", "s"),
)  # fmt: skip
