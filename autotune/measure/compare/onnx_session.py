"""Sessions of ONNX Runtime on this CPU, which may not be installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autotune.errors import one_line
from autotune.measure.compare.peers import PeerError
from schedules.distribution import install


def session(model: str | bytes, threads: int, profile: str = "") -> Any:
    """A session for a model's file or its content, on so many threads. ``profile``: the beginning of the
    path of a profile that is written. Raises `PeerError` where ONNX Runtime is not installed, and errors of
    its own for a model that it refuses."""
    try:
        import onnxruntime as ort
    except ImportError:
        raise PeerError(f"onnxruntime is not installed: {install('onnxruntime')}") from None
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@contextmanager
def refusals(path: str) -> Iterator[None]:
    """Raise what ONNX Runtime raises for a file as `PeerError`: it has no error class of its own."""
    try:
        yield
    except PeerError:
        raise
    except Exception as err:
        raise PeerError(f"onnxruntime does not run {path}: {one_line(err, 300)}") from None
