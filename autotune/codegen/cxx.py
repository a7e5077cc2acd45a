"""The C++ compiler for what is emulated: the system's, or the one of a wheel (extra ``emulator``)."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

MISSING = "emulating a GPU needs a C++ compiler: install g++, or pip install 'autotune[emulator]'"
_NAMES = ("g++", "c++", "clang++")
# Zig's clang, told to be like the others: code for any CPU of this kind, and no checks put in.
_WHEEL = (sys.executable, "-m", "ziglang", "c++", "-mcpu=baseline", "-fno-sanitize=undefined")


def command() -> tuple[str, ...] | None:
    """How to call it; None where there is none."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is not None:
        return (found,)
    return _WHEEL if importlib.util.find_spec("ziglang") is not None else None


def name(compiler: Sequence[str]) -> str:
    """What messages call it."""
    return "zig" if compiler == _WHEEL else Path(compiler[0]).name
