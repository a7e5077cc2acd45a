"""Numbers beside tensors of integers: the dtype of the tensor wins, and they wrap, as in torch."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from graph_meaning import evaluate
from torch_cases import Of, arrays, compared, exported, torch

from autotune.errors import ModelError
from autotune.models.torch_import import import_torch

ENDS = {
    "uint8": [0, 1, 3, 44, 127, 128, 200, 255], "int8": [-128, -127, -3, -1, 0, 1, 44, 127],
    "int32": [-(2**31), -7, -1, 0, 1, 44, 16777217, 2**31 - 1],
    "int64": [-(2**63), -7, -1, 0, 16777217, 2**31, 2**53 + 1, 2**63 - 1],
}  # fmt: skip
NUMBERS = [
    -1,
    44,
    200,
    256,
    300,
    -129,
    2**31,
    -(2**31) - 1,
    2**32 + 3,
    2**63,
    0.5,
    -0.5,
    1e30,
    torch.inf,
    torch.nan,
]
COMPARED = [operator.eq, operator.lt, operator.le, operator.gt]
COMPUTED = [operator.add, operator.mul, operator.floordiv, operator.mod, operator.and_]
# torch traps where these divide the least integer by -1
COMPUTED += [lambda x, v: v - x, lambda x, v: torch.fmod(x[1:], v)]
COMPUTED += [lambda x, v: torch.div(x[1:], v, rounding_mode="trunc")]


class All(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, fns: list[Callable[[Any], Any]]) -> None:
        super().__init__()
        self.fns = fns

    def forward(self, x: Any) -> Any:
        return tuple(f(x) for f in self.fns)


def works(f: Callable[[Any], Any], x: Any) -> bool:
    """Whether torch does it. It does not divide by zero, by what wraps to it neither."""
    try:
        f(x)
    except RuntimeError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ENDS)
def test_numbers_of_any_size(dtype: str) -> None:
    x = torch.tensor(ENDS[dtype], dtype=getattr(torch, dtype))
    fns = [
        f
        for v in NUMBERS
        for g in (*COMPARED, *(COMPUTED if isinstance(v, int) else ()))
        if works(f := partial(lambda g, v, t: g(t, v), g, v), x)
    ]
    assert len(fns) > 100
    module = All(fns)
    got = evaluate(import_torch(exported(module, x)).graph, arrays(x))
    for f, a, b in zip(fns, got, module(x), strict=True):
        np.testing.assert_array_equal(a, b.numpy(), err_msg=str(f))


@pytest.mark.slow
def test_a_tensor_of_one_number_counts_as_a_number() -> None:
    x = torch.tensor([0, 44, 255], dtype=torch.uint8)
    s = torch.tensor(300)
    for f in (lambda x, s: x == s, lambda x, s: x // s, lambda x, s: torch.where(x > 0, x, s)):
        compared(Of(f), x, s)
    compared(Of(lambda x: x == torch.tensor(300)), x)


@pytest.mark.fast(but=["<lambda>2"])
@pytest.mark.parametrize("f", [
    lambda x: x.clamp(-3, 128), lambda x: x.clamp_min(-129), lambda x: torch.where(x > 0, x, 200),
    lambda x: x.masked_fill(x > 0, 2**31), lambda x: x // 256,
])  # fmt: skip
def test_what_torch_refuses_is_refused(f: Callable[[Any], Any]) -> None:
    x = torch.tensor([1, 2], dtype=torch.int8)
    assert not works(f, x)
    with pytest.raises(ModelError, match=r"is not a value of int8; use one from -128 to 127|by zero"):
        import_torch(exported(Of(f), x))


def test_negative_bounds_of_unsigned_integers_wrap() -> None:
    x = torch.tensor([0, 44, 255], dtype=torch.uint8)
    compared(All([lambda x: x.clamp(min=-1), lambda x: x.clamp(-255, 77)]), x)


@pytest.mark.slow
def test_division_by_zero_and_of_the_least_integer_have_values() -> None:
    """torch raises for the first, and a processor traps for both."""
    for dtype in ("int8", "int32", "int64", "uint8"):
        kind = getattr(torch, dtype)
        least = torch.iinfo(kind).min
        x, y = (
            torch.tensor([7, -7 if least else 7, least, least], dtype=kind),
            torch.tensor([0, 0, 0, -1]).to(kind),
        )
        fns = [
            operator.floordiv,
            operator.mod,
            torch.fmod,
            lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        ]
        module = Of(lambda a, b, fns=fns: tuple(f(a, b) for f in fns))
        got = evaluate(import_torch(exported(module, x, y)).graph, arrays(x, y))
        with np.errstate(all="ignore"):
            a, b = x.numpy(), y.numpy()
            want = [
                a // b,
                a % b,
                np.fmod(a, b),
                np.where(b == 0, 0, a // np.where(b == 0, 1, b)).astype(dtype),
            ]
        for u, v in zip(got, want, strict=True):
            np.testing.assert_array_equal(u, v)
