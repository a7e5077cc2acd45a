"""Products with weights of few bits: several lie in a byte, and blocks along the sum have a scale each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autotune.models.operators.base import Operand, UnsupportedForm, cast, dtype_of, elementwise, stage
from autotune.models.operators.matmul import linear
from autotune.models.operators.table import Floats, onnx_op
from schedules import te
from schedules.dtypes import is_float
from schedules.expr import Expr, ExprLike

# Gives the byte with an index.
Bytes = Callable[[Expr], Expr]


@dataclass(frozen=True)
class _Packed:
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


@onnx_op("com.microsoft::MatMulNBits")
def _matmul_of_bits(
    x: Floats, b: te.Tensor, scales: te.Tensor, zeros: te.Tensor | None = None,
    groups: te.Tensor | None = None, bias: Operand | None = None, *, K: int, N: int, block_size: int,
    bits: int = 4, accuracy_level: int = 0, weight_prepacked: int = 0,
) -> te.Tensor:  # fmt: skip
    """x · W, where W[k, n] is (b - zero point) * scale, and each block of ``block_size`` numbers along k has
    one of either. ``b``: (N, blocks, bytes of a block). ``zeros``: packed as numbers are, each row of them
    from a byte of its own on; or floats. Left out they are half of what the bits count to. ``groups``: the
    block of each k, where they are not in order. ``accuracy_level`` allows less exact sums, which are not
    made."""
    if bits not in (2, 4, 8) or weight_prepacked:
        raise UnsupportedForm(f"{bits} bits are not supported by it")
    if block_size < 1 or K < 1 or N < 1:
        raise ValueError(f"K={K}, N={N} or block_size={block_size} is below 1")
    packed, blocks = _Packed(bits), -(-K // block_size)
    row = blocks * block_size // packed.each
    if b.dtype != "uint8" or np.prod(b.shape) != N * row or x.shape[-1] != K:
        raise ValueError(
            f"{b.dtype}{list(b.shape)} are no {N} rows of {row} bytes, or {list(x.shape)} has no {K} columns"
        )
    flat = _flat(b)
    scale_of = _by_block(scales, N, blocks, "scales")
    zero_of = _zeros(zeros, packed, N, blocks)

    def value(n: Expr, k: Expr) -> Expr:
        block = k // block_size if groups is None else groups[k]
        q = packed.number(lambda i: flat(n * row + i), k)
        return (te.cast(q, "float32") - zero_of(n, block)) * te.cast(scale_of(n, block), "float32")

    weights = stage((N, K), value, "unpacked")
    y = linear(cast(x, "float32"), weights)
    if bias is None:
        return cast(y, x.dtype)
    return elementwise(lambda v, c: v + te.cast(c, "float32"), y, bias, dtype=x.dtype, name="bias_add")


def _flat(t: te.Tensor) -> Bytes:
    """A reader of elements in row-major order."""

    def element(i: Expr) -> Expr:
        index: list[ExprLike] = []
        for n in reversed(t.shape[1:]):
            index.append(i % n)
            i = i // n
        return t[(i, *reversed(index))]

    return element


def _by_block(t: te.Tensor, rows: int, blocks: int, what: str) -> Callable[[Expr, Expr], Expr]:
    """A reader of a number a row and block."""
    if np.prod(t.shape) != rows * blocks:
        raise ValueError(f"{what} of {list(t.shape)} are not one for each of {rows} rows and {blocks} blocks")
    if len(t.shape) == 2:
        return lambda n, b: t[n, b]
    return lambda n, b: t[n * blocks + b]


def _zeros(t: te.Tensor | None, packed: _Packed, rows: int, blocks: int) -> Callable[[Expr, Expr], Expr]:
    """A reader of zero points as float32."""
    if t is None:
        middle = te.const(float(1 << packed.bits - 1), "float32")
        return lambda n, b: middle
    if is_float(dtype_of(t)):
        of = _by_block(t, rows, blocks, "zero points")
        return lambda n, b: te.cast(of(n, b), "float32")
    row = -(-blocks // packed.each)
    if t.dtype != "uint8" or np.prod(t.shape) != rows * row:
        raise ValueError(f"zero points of {t.dtype}{list(t.shape)} are no {rows} rows of {row} bytes")
    flat = _flat(t)
    return lambda n, b: te.cast(packed.number(lambda i: flat(n * row + i), b), "float32")
