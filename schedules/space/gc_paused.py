"""Pauses the garbage collector while many expressions and formulas are made and kept.

It would walk all objects of the process whenever there are a quarter more: a quarter of the time until a
search's first pick.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection; also a decorator. Collection goes on afterwards if it was on."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
