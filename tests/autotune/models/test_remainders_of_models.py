"""Remainders and quotients rounded down in models: bit for bit those of torch and of ONNX's reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from graph_meaning import evaluate
from needs import imported
from torch_cases import Of, arrays, exported, torch

import autotune as at
from autotune.models.torch_import import import_torch

SPECIAL = [0.0, 1e-20, 0.1, 0.5, 1, 3, 6.2831855, 1e7, 1e9, 2.0**24 + 2, 1e20, math.inf]
# Multiples, and quotients beyond 2^23 and 2^52. torch's own fmod ends at quotients of its largest number.
RATIOS = [
    (1e7, 0.1),
    (1e9, 6.2831855),
    (-1e9, 6.2831855),
    (3e30, 7.0),
    (0.3, 0.1),
    (-6, 3),
    (6, -3),
    (1e16, 0.7),
]


def same_bits(got: np.ndarray, want: np.ndarray, what: str) -> None:
    np.testing.assert_array_equal(got, want, err_msg=what)
    zero = np.asarray(want == 0)
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]), err_msg=what)


def of_floats(x: Any, y: Any) -> tuple[Any, ...]:
    down = torch.div(x, y, rounding_mode="floor")
    cut = torch.div(x, y, rounding_mode="trunc")
    return torch.fmod(x, y), x % y, x // y, down, cut, x % 0.1, 1e7 % y, torch.fmod(x, 0.3), x // 0.1


@pytest.mark.fast("float16")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_floats_of_torch(dtype: str) -> None:
    values = torch.tensor([*SPECIAL, *(-v for v in SPECIAL), math.nan])
    x, y = (v.reshape(-1) for v in torch.meshgrid(values, values, indexing="ij"))
    ratios = torch.tensor(RATIOS)
    x, y = torch.cat([x, ratios[:, 0]]).double(), torch.cat([y, ratios[:, 1]]).double()
    known = (x / y).abs() < 1e38  # or torch has NaN
    x, y = (torch.where(known, v, 1).to(getattr(torch, dtype)) for v in (x, y))
    got = evaluate(import_torch(exported(Of(of_floats), x, y)).graph, arrays(x, y))
    for n, (a, b) in enumerate(zip(got, of_floats(x, y), strict=True)):
        same_bits(a, b.numpy(), f"{n}")
    if dtype == "float32":
        at_ratios = [math.fmod(*(float(np.float32(v)) for v in r)) for r in RATIOS]
        np.testing.assert_array_equal(got[0][-len(RATIOS) :], np.array(at_ratios, dtype))


ENDS = {"int8": [-128, -127, -7, -1, 0, 1, 3, 127], "uint8": [0, 1, 3, 100, 255]}
ENDS |= {d: [-(2**b), 1 - 2**b, -7, -1, 0, 1, 3, 2**b - 1] for d, b in (("int32", 31), ("int64", 63))}


@pytest.mark.parametrize("dtype", [*ENDS, "float32", "float64"])
@pytest.mark.parametrize("fmod", [0, 1])
def test_mod_of_onnx(dtype: str, fmod: int) -> None:
    onnx = imported("onnx")
    import onnx_models as nets  # needs onnx

    values = ENDS.get(dtype) or [*SPECIAL, *(-v for v in SPECIAL), math.nan, *(v for r in RATIOS for v in r)]
    if dtype.startswith("float") and not fmod:
        return  # ONNX has it of integers only
    x, y = (v.ravel() for v in np.meshgrid(np.array(values, dtype), np.array(values, dtype)))
    elem = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    net = nets.one("Mod", [nets.value("x", x.shape, elem), nets.value("d", y.shape, elem)], fmod=fmod)
    (got,) = evaluate(at.import_onnx(net).graph, [x, y])
    with np.errstate(all="ignore"):
        same_bits(got, np.fmod(x, y) if fmod else np.mod(x, y), dtype)
