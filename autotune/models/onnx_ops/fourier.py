"""Fourier transforms. Complex numbers are a last axis of two."""

from __future__ import annotations

from autotune.models.lowering import fourier as ft
from autotune.models.lowering.base import positive
from autotune.models.lowering.movement import reshape
from autotune.models.onnx_ops.table import OnnxNode, Value, onnx_op
from schedules import te


def _complex(node: OnnxNode, x: Value) -> te.Tensor:
    t = node.floats(x)
    if t.shape[-1] not in (1, 2) or len(t.shape) < 2:
        raise ValueError(f"{list(t.shape)} does not end with an axis of 1 or 2, for real or complex numbers")
    return t


def _afford(n: int) -> None:
    ft.afford(n)
    if n < 1:
        raise ValueError(f"a length of {n}")


@onnx_op("DFT")
def _dft(node: OnnxNode, x: Value, length: Value | None = None, axis: Value | None = None) -> te.Tensor:
    """The axis is an attribute before version 20."""
    t = _complex(node, x)
    where = int(node.attr("axis", 1)) if axis is None and node.version < 20 else -2
    if axis is not None:
        where = int(node.known(axis, "axis").item())
    d = positive(where, len(t.shape))
    if d == len(t.shape) - 1:
        raise ValueError("its axis is that of the parts of complex numbers")
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    n = None if length is None else int(node.known(length, "dft_length").item())
    if inverse and onesided:
        n = 2 * (t.shape[d] - 1) if n is None else n
        _afford(n)
        if t.shape[-1] != 2:
            raise ValueError("real numbers for the inverse of one side")
        return ft.real_inverse(t, d, n, 1 / n, node.constant)
    n = t.shape[d] if n is None else n
    _afford(n)
    count = n // 2 + 1 if onesided else n
    return ft.dft(ft.fitted(t, d, n), d, inverse, count, 1 / n if inverse else 1.0, node.constant)


@onnx_op("STFT")
def _stft(
    node: OnnxNode, x: Value, step: Value, window: Value | None = None, length: Value | None = None
) -> te.Tensor:
    t = node.tensor(x)
    t = _complex(node, reshape(t, (*t.shape, 1)) if len(t.shape) == 2 else t)
    by = int(node.known(step, "frame_step").item())
    w = node.optional(window)
    if length is None and w is None:
        raise ValueError("neither a window nor frame_length")
    n = w.shape[0] if length is None and w is not None else int(node.known(length, "frame_length").item())
    if w is not None and w.shape != (n,):
        raise ValueError(f"a window of {list(w.shape)} for frames of {n}")
    _afford(n)
    if by < 1 or n > t.shape[1]:
        raise ValueError(f"frames of {n} elements, {by} apart, of {t.shape[1]}")
    onesided = bool(node.attr("onesided", 1))
    return ft.dft(ft.frames(t, n, by, w), 2, False, n // 2 + 1 if onesided else n, 1.0, node.constant)
