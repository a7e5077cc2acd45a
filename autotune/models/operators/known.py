"""What is known of a model before it is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.models.operators.base import (
    Array,
)
from schedules import te
from schedules.dtypes import DTYPES


@dataclass(frozen=True, eq=False)
class KnownTensor:
    """A tensor that is known at import. ``value``: an array of numpy, or a tensor of torch. ``weight``: it is
    a parameter or a buffer, or made of some: its elements are never looked at, so that other weights give the
    same expression. ``name``: of the constant with its values; empty for one without a name."""

    value: Any
    weight: bool = False
    name: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def dtype(self) -> str:
        """Its name."""
        dtype = self.value.dtype
        return str(getattr(dtype, "name", dtype)).removeprefix("torch.")

    @property
    def place(self) -> Any:
        """Equal for those that are one constant, while they are there: of torch, for the same memory."""
        x = self.value
        if isinstance(x, np.ndarray):
            return id(x)
        return x.data_ptr(), self.shape, tuple(x.stride()), self.dtype

    def array(self) -> Array:
        """Its values as numpy has them, in the same memory where that can be."""
        if isinstance(self.value, np.ndarray):
            return np.asarray(self.value, order="C")
        return to_numpy(self.value)

    def literal(self) -> Array | None:
        """The one number that all elements are: of torch as an array without axes, of numpy itself if it has
        one element. None where they differ, and of a weight."""
        x = self.value
        if self.weight or self.dtype not in DTYPES or 0 in self.shape:
            return None
        if isinstance(x, np.ndarray):
            return x if x.size == 1 else None
        first = x.reshape(-1)[0]
        return np.asarray(first.item(), DTYPES[self.dtype].numpy) if bool((x == first).all()) else None


def to_numpy(tensor: Any) -> Array:
    """The memory of a tensor of torch as numpy has it."""
    import torch

    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    row = DTYPES.get(str(plain.dtype).removeprefix("torch."))
    if row is not None and row.module != "numpy":
        return plain.view(getattr(torch, f"int{8 * row.itemsize}")).numpy().view(row.numpy)
    return plain.numpy()


# What an input of an operator may be: a stage, what is known, and of ATen a number.
Value = te.Tensor | KnownTensor
Scalar = bool | int | float

