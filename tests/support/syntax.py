"""Syntax trees of source texts. Several tests read the whole product: a process parses each file once."""

from __future__ import annotations

import ast
import time
from functools import cache

from schedules.space.gc_paused import gc_paused

_spent: list[float] = []


@cache
def tree(text: str) -> ast.Module:
    begin = time.thread_time()
    with gc_paused():  # trees are many objects, which stay
        parsed = ast.parse(text)
    _spent.append(time.thread_time() - begin)
    return parsed


def parsing_s() -> float:
    """Processor seconds of this process in which files were parsed for all tests that read them."""
    return sum(_spent)
