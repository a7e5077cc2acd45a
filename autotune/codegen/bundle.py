"""The objects of one schedule as one: the kernel's, and those that pack its constant inputs.

Without constants to pack it is the kernel's ELF object itself. Otherwise `MAGIC`, a line of JSON
(``[[input, bytes], ...]``, the kernel last as ``[-1, bytes]``), and the objects end to end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from autotune.errors import CompileError
from schedules.documents import Malformed, integer, items, list_of, parsed

if TYPE_CHECKING:
    from autotune.codegen.llvm.compile import LoadedObject

MAGIC = b"autotune-packing-1\n"
_SIZES = list_of(items(integer(-1, 1 << 30), integer(0, 1 << 48)))


def join(kernel: bytes, packing: Mapping[int, bytes]) -> bytes:
    """``packing``: objects by the number of the input that they pack."""
    if not packing:
        return kernel
    parts = [*sorted(packing.items()), (-1, kernel)]
    head = json.dumps([[n, len(x)] for n, x in parts]).encode()
    return b"".join([MAGIC, head, b"\n", *(x for _, x in parts)])


def split(data: bytes) -> tuple[bytes, dict[int, bytes]]:
    """Inverse of `join`. Raises CompileError for what it cannot have made."""
    if not data.startswith(MAGIC):
        return data, {}
    end = data.find(b"\n", len(MAGIC))
    try:
        sizes = _SIZES(parsed(data[len(MAGIC) : end]))
    except Malformed as err:
        raise CompileError(f"a bundle of objects without its table of contents: {err}") from None
    at, parts = end + 1, {}
    for n, size in sizes:
        parts[n] = data[at : at + size]
        at += size
    if at != len(data) or -1 not in parts:
        raise CompileError("a bundle of objects that is cut off")
    return parts.pop(-1), parts


def load(data: bytes) -> tuple[LoadedObject, dict[int, LoadedObject]]:
    """`split`, with the code mapped into this process (see `autotune.codegen.llvm.compile.load_object`)."""
    from autotune.codegen.llvm.compile import load_object

    kernel, packing = split(data)
    return load_object(kernel), {i: load_object(x) for i, x in packing.items()}
