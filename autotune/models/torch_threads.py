"""Keeps threads that trace with torch apart from each other, and from those that run what torch compiled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_own = threading.RLock()


@contextmanager
def alone() -> Iterator[None]:
    """No other thread compiles with torch meanwhile, and none takes itself for the one that exports.

    While torch traces a graph, classes and tables of the whole process are changed: another thread that is
    being traced sees them. torch.compile has a lock for that, which an export does not take. And whoever runs
    a compiled graph while torch exports writes marks into a table of the process, which the export replaces.
    """
    import torch

    with _lock():
        here, asked = threading.get_ident(), getattr(torch.compiler, "is_exporting", None)
        if asked is None:  # an older torch asks nobody
            yield
            return
        torch.compiler.is_exporting = lambda: threading.get_ident() == here and asked()
        try:
            yield
        finally:
            torch.compiler.is_exporting = asked


def _lock() -> Any:
    """The lock under which torch.compile works."""
    try:
        from torch._dynamo.convert_frame import compile_lock
    except ImportError:  # torch has it elsewhere
        return _own
    return compile_lock
