"""Discrete Fourier transforms as products with tables of cosines and sines.

Complex numbers are a last axis of two: the real and the imaginary part. The work of an axis grows with the
square of its length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autotune.models.operators.axes import positive, reshape
from autotune.models.operators.base import Array, UnsupportedForm, cast, stage
from autotune.models.operators.movement import pad, strided_slice
from autotune.models.operators.node import OnnxNode
from autotune.models.operators.table import Floats, Int, onnx_op
from schedules import te
from schedules.dtypes import DTYPES, computed
from schedules.expr import Expr

# Longest axis that is transformed.
LONGEST = 2**12


def afford(n: int) -> None:
    """Raise UnsupportedForm for an axis of more elements than are transformed."""
    if n > LONGEST:
        raise UnsupportedForm(f"its axis has {n} elements, more than {LONGEST}")


def _angles(rows: int, columns: int, n: int) -> tuple[Array, Array]:
    """(cos, sin) of 2π · row · column / n, exact where they are whole."""
    at = np.outer(np.arange(rows), np.arange(columns)) % n
    angle = 2 * np.pi * at / n
    quarter, whole = at * 4 % n == 0, (at * 4 // n) % 4
    cos = np.where(quarter, np.take([1.0, 0.0, -1.0, 0.0], whole), np.cos(angle))
    sin = np.where(quarter, np.take([0.0, 1.0, 0.0, -1.0], whole), np.sin(angle))
    return cos, sin


def _times(x: te.Tensor, axis: int, table: Array, constant: Callable[[Array], te.Tensor]) -> te.Tensor:
    """``x`` with an axis and the last one replaced by those of its product with ``table`` (n, parts, m, new
    parts)."""
    n, parts, m, _ = table.shape
    t = constant(np.ascontiguousarray(table.astype(DTYPES[computed(x.dtype)].numpy)))
    j, over = te.reduce_axis(n, "j"), [] if parts == 1 else [te.reduce_axis(parts, "c")]
    c = over[0] if over else 0

    def value(*at: Expr) -> te.Reduction:
        own = x[(*at[:axis], j, *at[axis + 1 : -1], c)]
        return te.sum(own * t[j, c, at[axis], at[-1]], axis=(j, *over))

    shape = [*x.shape[:-1], table.shape[3]]
    shape[axis] = m
    return cast(stage(shape, value, "dft"), x.dtype)


def dft(
    x: te.Tensor, axis: int, inverse: bool, count: int, scale: float, constant: Callable[[Array], te.Tensor]
) -> te.Tensor:
    """Σ x[j] · exp(∓2πi j k / n) · scale along an axis, for the first ``count`` of k. The last axis of ``x``
    is 2 for complex numbers, or 1 for real ones. ``constant``: makes a tensor of known values."""
    n, parts = x.shape[axis], x.shape[-1]
    cos, sin = _angles(n, count, n)
    sin = -sin if not inverse else sin
    real = np.stack([cos, sin], -1)[:, None]
    table = real if parts == 1 else np.concatenate([real, np.stack([-sin, cos], -1)[:, None]], 1)
    return _times(x, axis, table * scale, constant)


def real_inverse(
    x: te.Tensor, axis: int, n: int, scale: float, constant: Callable[[Array], te.Tensor]
) -> te.Tensor:
    """The ``n`` real numbers, on a last axis of 1, whose transform begins with the n // 2 + 1 complex ones
    of ``x``. Imaginary parts of the first, and of the middle of an even ``n``, are not looked at."""
    half = n // 2 + 1
    cos, sin = _angles(half, n, n)
    twice = np.full((half, 1), 2.0)
    twice[0] = 1.0
    if n % 2 == 0:
        twice[-1] = 1.0
    table = np.stack([cos * twice, -sin * twice], 1)[..., None]
    return _times(fitted(x, axis, half), axis, table * scale, constant)


def fitted(x: te.Tensor, axis: int, n: int) -> te.Tensor:
    """With zeros behind an axis, or cut off there, so that it has ``n`` elements."""
    size = x.shape[axis]
    if n > size:
        sides = [(0, n - size if d == axis else 0) for d in range(len(x.shape))]
        return pad(x, sides, fill=te.const(0, x.dtype))
    shape = [n if d == axis else m for d, m in enumerate(x.shape)]
    return strided_slice(x, [0] * len(shape), shape, [1] * len(shape))


def frames(x: te.Tensor, size: int, step: int, window: te.Tensor | None) -> te.Tensor:
    """Pieces of ``size`` elements of axis 1, ``step`` apart, times ``window``: (batch, pieces, size, …)."""
    count = (x.shape[1] - size) // step + 1

    def value(*at: Expr) -> Expr:
        b, i, j, *rest = at
        v = x[(b, i * step + j, *rest)]
        return te.cast(v if window is None else v * te.cast(window[j], computed(x.dtype)), x.dtype)

    return stage((x.shape[0], count, size, *x.shape[2:]), value, "frames")


# --- complex numbers --------------------------------------------------------------------------


def complex_map(
    shape: Sequence[int], fn: Callable[..., tuple[Expr, Expr]], dtype: str, *xs: te.Tensor, name: str
) -> te.Tensor:
    """``fn`` of the elements of complex tensors that broadcast to ``shape``, each a pair of parts."""
    wide = computed(dtype)

    def value(*at: Expr) -> Expr:
        *index, part = at
        parts: list[Expr] = []
        for x in xs:
            own = x.shape[:-1]
            front = [0 if n == 1 else i for n, i in zip(own, index[len(index) - len(own) :], strict=True)]
            parts += [te.cast(x[(*front, c)], wide) for c in (0, 1)]
        real, imaginary = fn(*parts)
        return te.cast(te.select(te.equal(part, 0), real, imaginary), dtype)

    return stage((*shape, 2), value, name)


# --- rows of ONNX: complex numbers are a last axis of two ---------------------------------------


def _complex(t: te.Tensor) -> te.Tensor:
    if t.shape[-1] not in (1, 2) or len(t.shape) < 2:
        raise ValueError(f"{list(t.shape)} does not end with an axis of 1 or 2, for real or complex numbers")
    return t


def _length(n: int) -> int:
    afford(n)
    if n < 1:
        raise ValueError(f"a length of {n}")
    return n


@onnx_op("DFT")
def _dft(
    node: OnnxNode, x: Floats, dft_length: Int | None = None, axis: Int | None = None, *,
    inverse: bool = False, onesided: bool = False,
) -> te.Tensor:  # fmt: skip
    """The axis is an attribute before version 20."""
    t = _complex(x)
    d = positive((1 if node.version < 20 else -2) if axis is None else axis, len(t.shape))
    if d == len(t.shape) - 1:
        raise ValueError("its axis is that of the parts of complex numbers")
    if inverse and onesided:
        n = _length(2 * (t.shape[d] - 1) if dft_length is None else dft_length)
        if t.shape[-1] != 2:
            raise ValueError("real numbers for the inverse of one side")
        return real_inverse(t, d, n, 1 / n, node.table)
    n = _length(t.shape[d] if dft_length is None else dft_length)
    count = n // 2 + 1 if onesided else n
    return dft(fitted(t, d, n), d, inverse, count, 1 / n if inverse else 1.0, node.table)


@onnx_op("STFT")
def _stft(
    node: OnnxNode, x: Floats, frame_step: Int, window: te.Tensor | None = None,
    frame_length: Int | None = None, *, onesided: bool = True,
) -> te.Tensor:  # fmt: skip
    t = _complex(reshape(x, (*x.shape, 1)) if len(x.shape) == 2 else x)
    if frame_length is None and window is None:
        raise ValueError("neither a window nor frame_length")
    n = window.shape[0] if frame_length is None and window is not None else int(frame_length or 0)
    if window is not None and window.shape != (n,):
        raise ValueError(f"a window of {list(window.shape)} for frames of {n}")
    _length(n)
    if frame_step < 1 or n > t.shape[1]:
        raise ValueError(f"frames of {n} elements, {frame_step} apart, of {t.shape[1]}")
    cut = frames(t, n, frame_step, window)
    return dft(cut, 2, False, n // 2 + 1 if onesided else n, 1.0, node.table)
