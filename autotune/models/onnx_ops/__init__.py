"""The operators of ONNX, a family a file. Importing this package fills `table.ROWS`."""

from autotune.models.onnx_ops import (
    elementwise,
    fourier,
    indexing,
    matmul,
    movement,
    normalization,
    ordering,
    quantization,
    recurrent,
    reduction,
    resize,
    sampling,
    scatter,
    windows,
)

__all__ = [
    "elementwise", "fourier", "indexing", "matmul", "movement", "normalization", "ordering", "quantization",
    "recurrent", "reduction", "resize", "sampling", "scatter", "windows",
]  # fmt: skip
