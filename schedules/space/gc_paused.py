"""Expressions and formulas are made by the ten thousand, and kept. Whenever there are a quarter more of them,
the garbage collector walks all that the process holds: a quarter of the time until a search's first pick."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Without garbage collection meanwhile; a decorator too. Collecting goes on afterwards if it was on."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
