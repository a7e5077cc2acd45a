"""The operators of ATen, a family a file. Importing this package fills `table.ROWS`."""

from autotune.models.torch_ops import (
    complex,
    creation,
    elementwise,
    indexing,
    matmul,
    movement,
    normalization,
    ordering,
    quantization,
    reduction,
    sampling,
    scatter,
    transformer,
    windows,
)
from autotune.models.torch_ops.complex import COMPLEX_ROWS
from autotune.models.torch_ops.table import ROWS

__all__ = [
    "COMPLEX_ROWS", "ROWS", "complex", "creation", "elementwise", "indexing", "matmul", "movement",
    "normalization", "ordering", "quantization", "reduction", "sampling", "scatter", "transformer", "windows",
]  # fmt: skip
