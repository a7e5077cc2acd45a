"""Finds and runs the C++ compiler for emulation: the system's, or that of a wheel (extra ``emulator``)."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from autotune.errors import CompileError
from kernels_db.temporary import temporary_folder
from schedules.distribution import install

# Message without a compiler, and names of compilers that are looked for.
MISSING = f"a C++ compiler is needed: install g++, or {install('emulator')}"
_NAMES = ("g++", "c++", "clang++")
# The clang of the wheel ziglang, with the defaults of other compilers: code for any CPU of this kind, no
# checks, and no debug information, which makes an object 22 times as large.
_WHEEL = (sys.executable, "-m", "ziglang")
_DEFAULTS = ("-mcpu=baseline", "-g0", "-fno-sanitize=undefined")


def command(names: Sequence[str] = _NAMES, in_wheel: str = "c++") -> tuple[str, ...] | None:
    """The command, None if there is no compiler. ``names``: of those to look for; ``in_wheel``: of the
    wheel's."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is not None:
        return (found,)
    return (*_WHEEL, in_wheel, *_DEFAULTS) if importlib.util.find_spec("ziglang") is not None else None


def name(compiler: Sequence[str]) -> str:
    """The name of a compiler in messages."""
    return "zig" if tuple(compiler[: len(_WHEEL)]) == _WHEEL else Path(compiler[0]).name


def build(source: str, *flags: str, given: Sequence[Path] = ()) -> bytes:
    """The object or library of a source text, by ``flags``, and of the objects ``given``. Raises
    CompileError, also without a compiler."""
    compiler = command()
    if compiler is None:
        raise CompileError(MISSING)
    with temporary_folder() as tmp:
        path, out = tmp / "source.cpp", tmp / "built"
        path.write_text(source, encoding="utf-8")
        done = subprocess.run(
            [*compiler, *flags, str(path), *map(str, given), "-o", str(out)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise CompileError(f"{name(compiler)} refused the generated code: {done.stderr[:600]}")
        return out.read_bytes()
