"""Integers of ONNX that are kept as others: those of few bits in 8, or packed.

ONNX has int2, uint2, int4 and uint4 where tensors are quantized
(https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html). Between operators a wider integer stands for
each. Weights with a scale a block stay packed: they are there to save memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.models.operators.base import Array
from autotune.models.operators.known import KnownTensor, Value
from schedules import te
from schedules.dtypes import DTYPES
from schedules.expr import Expr

# {dtype: what it is kept as between operators}.
KEPT_AS = {
    "int2": "int8", "uint2": "uint8", "int4": "int8", "uint4": "uint8",
}  # fmt: skip
# Gives the byte with an index.
Bytes = Callable[[Expr], Expr]


def ends_of(dtype: str) -> tuple[int, int]:
    """The least and the largest integer of a dtype, of `KEPT_AS` too."""
    if dtype in DTYPES:
        return DTYPES[dtype].range[0], DTYPES[dtype].range[-1]
    half = 1 << bits_of(dtype) - 1
    return (0, 2 * half - 1) if dtype.startswith("u") else (-half, half - 1)


def bits_of(dtype: str) -> int:
    """Bits of a dtype of integers."""
    return int(dtype.removeprefix("u").removeprefix("int"))


def kept(x: Value | None) -> Value | None:
    """What is known and of a dtype of `KEPT_AS`, as it is kept; else itself."""
    if not isinstance(x, KnownTensor) or x.dtype not in KEPT_AS:
        return x
    return KnownTensor(np.asarray(x.value).astype(KEPT_AS[x.dtype]), x.weight, x.name)


def may_be_packed(x: Value) -> bool:
    """Whether it is known and several of its numbers fit in a byte."""
    return isinstance(x, KnownTensor) and x.dtype in KEPT_AS and bits_of(x.dtype) < 8


@dataclass(frozen=True)
class Packed:
    """Numbers of ``bits`` bits, the first one in the lowest bits of a byte. Bits: 2, 4 or 8."""

    bits: int

    @property
    def each(self) -> int:
        """Numbers in a byte."""
        return 8 // self.bits

    def number(self, read_byte: Bytes, i: Expr) -> Expr:
        """Number ``i`` of those that bytes hold, as int32."""
        if self.each == 1:
            return te.cast(read_byte(i), "int32")
        byte = te.cast(read_byte(i // self.each), "int32")
        shifted = te.right_shift(byte, te.cast(i % self.each * self.bits, "int32"))
        return te.bitwise_and(shifted, (1 << self.bits) - 1)

    def packed(self, numbers: Array) -> Array:
        """Numbers from 0 on as bytes. The last axis is filled up with 0 to whole bytes."""
        filled = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, -numbers.shape[-1] % self.each)])
        parts = filled.astype(np.uint8).reshape(*filled.shape[:-1], -1, self.each)
        shifts = (np.arange(self.each) * self.bits).astype(np.uint8)
        return np.bitwise_or.reduce(parts << shifts, axis=-1, dtype=np.uint8)


@dataclass(frozen=True)
class Codes:
    """What is known of few bits, less the least number of its dtype, packed along ``axis``. ``constant``:
    makes a tensor of what is known."""

    x: KnownTensor
    axis: int
    constant: Callable[[KnownTensor], te.Tensor]

    @property
    def least(self) -> int:
        """The number that the code 0 stands for."""
        return ends_of(self.x.dtype)[0]

    def reader(self) -> Callable[[Sequence[Expr]], Expr]:
        """Gives the code with an index, as int32."""
        packed, rank = Packed(bits_of(self.x.dtype)), len(self.x.shape)
        others = [d for d in range(rank) if d != self.axis]
        rows = np.transpose(above(self.x, self.least), [*others, self.axis])
        t = self.constant(KnownTensor(packed.packed(rows), self.x.weight, self.x.name))
        return lambda at: packed.number(lambda i: t[(*(at[d] for d in others), i)], at[self.axis])


def above(x: KnownTensor, least: int) -> Array:
    """Small integers less the least of their dtype, as uint8."""
    return (np.asarray(x.value).astype(np.int16) - least).astype(np.uint8)
