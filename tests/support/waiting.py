"""Waiting for what happens soon, on a machine that may be busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Far beyond what anything takes: who runs into it hangs. No test measures time by it (seconds).
LIMIT_S = 120.0


def wait_until(what: Callable[[], T], limit_s: float = LIMIT_S) -> T:
    """The first true value of ``what()``."""
    until = time.monotonic() + limit_s
    while not (found := what()):
        assert time.monotonic() < until, f"it did not happen within {limit_s:.0f} s"
        time.sleep(0.01)
    return found
