"""The version of what makes code of a trace: a digest of its source, so that nobody has to remember a
number."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from autotune.targets import machine
from schedules.model import digest

# What decides the code that a trace gives, and what is refused.
# Whatever else changes, cached objects stay good.
GENERATOR = ("schedules", "autotune.codegen", "autotune.backends.building")


@cache
def generator_version() -> str:
    """Digest of the source of everything between a trace and its code, and of LLVM's version. An object that
    another generator made is not found in the cache. NVRTC's version is told beside it."""
    import llvmlite

    state = hashlib.blake2b(llvmlite.__version__.encode(), digest_size=16)
    for name, data in (x for package in GENERATOR for x in _sources(files(package), package)):
        state.update(f"\n{name} {len(data)}\n".encode())
        state.update(data)
    return state.hexdigest()


def this_machine() -> dict[str, str | int]:
    """`autotune.targets.machine`, with ``generator``, this version, and ``thread_runtime``, what the
    threads of kernels are."""
    threads = files("autotune.codegen.runtime").joinpath("threads.py").read_text(encoding="utf-8")
    pool = f"autotune pool {digest(threads)[:12]}"
    return machine({"generator": generator_version(), "thread_runtime": pool})


def _sources(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for item in sorted(folder.iterdir(), key=lambda x: x.name):
        if item.name.endswith((".py", ".h", ".cpp")):
            found.append((f"{prefix}/{item.name}", item.read_bytes()))
        elif item.name != "__pycache__" and item.is_dir():
            found += _sources(item, f"{prefix}/{item.name}")
    return found
