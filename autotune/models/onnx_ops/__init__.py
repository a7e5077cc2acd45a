"""The operators of ONNX, a family a file. Importing this package fills `table.ROWS`."""

from autotune.models.onnx_ops import elementwise, matmul, movement, normalization, reduction, windows

__all__ = ["elementwise", "matmul", "movement", "normalization", "reduction", "windows"]
