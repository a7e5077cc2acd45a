"""The operators of ONNX, a family a file. Importing this package fills `table.ROWS`."""

from autotune.models.onnx_ops import (
    elementwise,
)

__all__ = ["elementwise"]
