"""Syntax trees of source texts. Several tests read the whole product: a process parses each file once."""

from __future__ import annotations

import ast
from functools import cache


@cache
def tree(text: str) -> ast.Module:
    return ast.parse(text)
