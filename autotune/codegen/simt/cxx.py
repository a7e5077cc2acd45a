"""The C++ compiler for what is emulated: the system's, or the one of a wheel (extra ``emulator``)."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from autotune.errors import CompileError

MISSING = "a C++ compiler is needed: install g++, or pip install 'autotune[emulator]'"
_NAMES = ("g++", "c++", "clang++")
# Zig's clang, told to be like the others: code for any CPU of this kind, no checks put in, and nothing for
# debuggers, which made an object 22 times as long.
_WHEEL = (sys.executable, "-m", "ziglang", "c++", "-mcpu=baseline", "-g0", "-fno-sanitize=undefined")


def command() -> tuple[str, ...] | None:
    """How to call it; None where there is none."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is not None:
        return (found,)
    return _WHEEL if importlib.util.find_spec("ziglang") is not None else None


def name(compiler: Sequence[str]) -> str:
    """What messages call it."""
    return "zig" if compiler == _WHEEL else Path(compiler[0]).name


def build(source: str, *flags: str) -> bytes:
    """The object or the library of a source text, as ``flags`` say. Raises CompileError, also where there is
    no compiler."""
    compiler = command()
    if compiler is None:
        raise CompileError(MISSING)
    with tempfile.TemporaryDirectory() as tmp:
        path, out = Path(tmp) / "source.cpp", Path(tmp) / "built"
        path.write_text(source, encoding="utf-8")
        done = subprocess.run(
            [*compiler, *flags, str(path), "-o", str(out)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise CompileError(f"{name(compiler)} refused the generated code: {done.stderr[:600]}")
        return out.read_bytes()
