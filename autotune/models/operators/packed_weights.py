"""Products with weights of few bits: several lie in a byte, and blocks along the sum have a scale each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autotune.models.operators.base import Operand, UnsupportedForm, cast, dtype_of, elementwise, stage
from autotune.models.operators.matmul import linear
from autotune.models.operators.narrow_integers import Bytes, Packed
from autotune.models.operators.node import TorchNode
from autotune.models.operators.table import Floats, aten, onnx_op
from schedules import te
from schedules.dtypes import is_float
from schedules.expr import Expr, ExprLike


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
    packed, blocks = Packed(bits), -(-K // block_size)
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


def _zeros(t: te.Tensor | None, packed: Packed, rows: int, blocks: int) -> Callable[[Expr, Expr], Expr]:
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


# --- torch's: pairs of 4 bits, a float scale and a float zero point a group --------------------------

# {what torch finds in a CPU: rows of a block, and of those how many lie in a byte's lower half before the
# others follow in the upper one}. Rows that fill no block lie in pairs.
_INTERLEAVED = {"AVX512": (64, 32), "AVX2": (32, 16)}


@aten("_weight_int4pack_mm_for_cpu.default")
def _matmul_of_pairs(
    node: TorchNode, x: Floats, w: te.Tensor, group: int, parameters: te.Tensor
) -> te.Tensor:
    """x · Wᵀ, where W[n, k] is (b - 8) * scale + zero. ``w``: uint8, in the order of
    `torch.ops.aten._convert_weight_to_int4pack_for_cpu` on this CPU. ``parameters``: (groups of k, n, 2), the
    scale and the zero."""
    import torch

    rows, depth = w.shape[0], w.shape[1] * 2
    if group < 1 or parameters.shape != (-(-depth // group), rows, 2):
        raise ValueError(f"{list(parameters.shape)} are no pairs for {rows} rows in groups of {group}")
    flat, block = _flat(w), _Block.of(rows, torch.backends.cpu.get_cpu_capability())

    def number(at: tuple[Expr, Expr]) -> Expr:
        byte = te.cast(flat(at[0]), "int32")
        return te.bitwise_and(te.right_shift(byte, te.cast(at[1] * 4, "int32")), 15) - 8

    def value(n: Expr, k: Expr) -> Expr:
        parts = [number(of(n, k, depth)) for of in (block.full, block.rest)]
        q = parts[0] if block.whole == rows else parts[1]
        if 0 < block.whole < rows:
            q = te.select(n < block.whole, *parts)
        scale, zero = (te.cast(parameters[k // group, n, i], "float32") for i in (0, 1))
        return te.cast(q, "float32") * scale + zero

    return cast(linear(cast(x, "float32"), stage((rows, depth), value, "unpacked")), node.dtype)


@dataclass(frozen=True)
class _Block:
    """How a kind of CPU packs ``rows`` (`aten/src/ATen/native/cpu/int4mm_kernel.cpp`): in blocks of ``size``
    rows, whose bytes have rows ``half`` apart, or pairs if that is 0; rows after these lie in pairs."""

    rows: int
    size: int
    half: int

    @staticmethod
    def of(rows: int, capability: str) -> _Block:
        """The blocks of a kind of CPU, as torch names it."""
        return _Block(rows, *_INTERLEAVED.get(capability, (32, 0)))

    @property
    def whole(self) -> int:
        """Rows in full blocks."""
        return self.rows // self.size * self.size

    def full(self, n: Expr, k: Expr, depth: int) -> tuple[Expr, Expr]:
        """(the byte of an element of a full block, 1 for its upper half) by its row and column."""
        j, start = n % self.size, n // self.size * (self.size // 2 * depth)
        byte, upper = (j % self.half, j // self.half) if self.half else (j // 2, j % 2)
        return start + k * (self.size // 2) + byte, upper

    def rest(self, n: Expr, k: Expr, depth: int) -> tuple[Expr, Expr]:
        """`full` of an element of the rows after these."""
        j, left = n - self.whole, self.rows - self.whole
        return self.whole // 2 * depth + k * (left // 2) + j // 2, j % 2
