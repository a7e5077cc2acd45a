"""Reads a GGUF file: its keys with their values, and where its tensors lie.

The format is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
Nothing in a file is trusted. Each count and length is compared with the bytes that are left before anything
is made of it, and tensors must lie inside the file. Their elements are not read: they stay in the file, which
is mapped into memory.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ModelError, refused
from kernels_db.opening import open_regular

MAGIC, VERSIONS = b"GGUF", (2, 3)
# Most keys and tensors of a file, characters of a name, and dimensions of a tensor. ggml has four of these.
MOST_KEYS, MOST_TENSORS, MOST_NAME, MOST_DIMENSIONS = 4096, 65536, 1024, 4
# Most elements of an array that are kept. Longer ones are vocabularies, which are skipped.
MOST_KEPT = 4096
# Bytes of keys and names of tensors, with all vocabularies.
MOST_HEADER = 1 << 28
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# {number in a file: (name, elements of a block, bytes of a block)}.
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8),
    28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36),
}  # fmt: skip


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of a file. ``shape``: row-major, as of numpy. ``type``: its name in ggml. ``data``: its bytes,
    in the file."""

    name: str
    shape: tuple[int, ...]
    type: str
    data: NDArray[np.uint8]


@dataclass(frozen=True)
class GgufFile:
    """``keys``: {key: a number, a text, or a tuple of these}; of arrays with more than `MOST_KEPT` elements,
    their length as a `Skipped`. ``label``: what messages call the file."""

    label: str
    keys: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


@dataclass(frozen=True)
class Skipped:
    """Stands for a long array, of which ``count`` elements were not kept."""

    count: int


def read_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """The keys and the tensors of a file. Raises ModelError for one that is none, is cut off, or says what
    cannot be."""
    label = str(Path(path))
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = np.memmap(file, np.uint8, "r") if size >= 24 else None
    except OSError as err:
        raise ModelError(f"{label} cannot be read: {refused(err)}; give the path of a GGUF file") from err
    except ValueError as err:
        raise ModelError(f"{label} cannot be read: {err}") from err
    if data is None:
        raise ModelError(f"{label} is no GGUF file: it has {size} bytes; give the path of a GGUF file")
    return _Reader(label, data).file()


class _Reader:
    """Reads a file from its beginning on. ``at``: the next byte."""

    def __init__(self, label: str, data: NDArray[np.uint8]) -> None:
        self.label, self.data, self.at = label, data, 0
        self.header = data.data[:MOST_HEADER]

    def file(self) -> GgufFile:
        magic = bytes(self._take(4, "its first bytes"))
        if magic != MAGIC:
            raise ModelError(
                f"{self.label} is no GGUF file: it begins with {magic!r}; convert the model to GGUF"
            )
        version = self._number("I", "its version")
        if version not in VERSIONS:
            swapped = " (written on a big-endian machine)" if version & 0xFFFF == 0 else ""
            self._refuse(f"its version is {version}{swapped}, not 2 or 3: convert the model again")
        tensors, keys = self._number("Q", "its header"), self._number("Q", "its header")
        if keys > MOST_KEYS or tensors > MOST_TENSORS:
            self._refuse(
                f"it has {keys} keys and {tensors} tensors; at most {MOST_KEYS} and {MOST_TENSORS} are read: "
                "it is damaged"
            )
        found: dict[str, Any] = {}
        for n in range(keys):
            name = self._text(f"key {n}", MOST_NAME)
            if name in found:
                self._refuse(f"key {name!r} is there twice")
            found[name] = self._value(self._number("I", f"key {name!r}"), f"key {name!r}")
        told = [self._tensor(n) for n in range(tensors)]
        return GgufFile(self.label, found, self._placed(told, found))

    def _refuse(self, why: str) -> NoReturn:
        raise ModelError(f"{self.label}: {why}")

    def _take(self, n: int, what: str) -> memoryview:
        if n > len(self.header) - self.at:
            if len(self.header) < len(self.data):
                self._refuse(f"{what} ends behind the first {MOST_HEADER >> 20} MiB: it is damaged")
            self._refuse(f"{what} ends behind the file's end: it is cut off or damaged; copy it again")
        self.at += n
        return self.header[self.at - n : self.at]

    def _number(self, kind: str, what: str) -> Any:
        return struct.unpack(f"<{kind}", self._take(struct.calcsize(f"<{kind}"), what))[0]

    def _text(self, what: str, most: int | None = None) -> str:
        n = self._number("Q", what)
        if most is not None and n > most:
            self._refuse(f"the name of {what} has {n} bytes, more than {most}: it is damaged")
        raw = bytes(self._take(n, what))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            if most is None:
                return raw.decode(errors="replace")
            self._refuse(f"the name of {what} is not UTF-8: it is damaged")

    def _value(self, kind: int, what: str) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind], what)
        if kind == _STRING:
            return self._text(what)
        if kind != _ARRAY:
            self._refuse(f"{what} has type {kind}, which GGUF does not have: it is damaged")
        inner, count = self._number("I", what), self._number("Q", what)
        if inner in _SCALARS:
            item = struct.calcsize(f"<{_SCALARS[inner]}")
            raw = self._take(item * count, what)
            return struct.unpack(f"<{count}{_SCALARS[inner]}", raw) if count <= MOST_KEPT else Skipped(count)
        if inner != _STRING:
            self._refuse(f"{what} is an array of type {inner}, which is not read")
        if count > len(self.header) // 8:
            self._refuse(f"{what} has {count} texts, more than the file has room for: it is damaged")
        if count <= MOST_KEPT:
            return tuple(self._text(what) for _ in range(count))
        for _ in range(count):
            self._take(self._number("Q", what), what)
        return Skipped(count)

    def _tensor(self, n: int) -> tuple[str, tuple[int, ...], int, int]:
        """(Name, shape, number of the type, offset) of a tensor."""
        name = self._text(f"tensor {n}", MOST_NAME)
        what = f"tensor {name!r}"
        rank = self._number("I", what)
        if not 1 <= rank <= MOST_DIMENSIONS:
            self._refuse(f"{what} has {rank} dimensions, not 1 to {MOST_DIMENSIONS}: it is damaged")
        shape = tuple(reversed([self._number("Q", what) for _ in range(rank)]))
        return name, shape, self._number("I", what), self._number("Q", what)

    def _placed(
        self, told: list[tuple[str, tuple[int, ...], int, int]], keys: Mapping[str, Any]
    ) -> dict[str, GgufTensor]:
        align = keys.get("general.alignment", 32)
        if type(align) is not int or not 8 <= align <= 1 << 20 or align & (align - 1):
            self._refuse(f"general.alignment is {align!r}, no power of two from 8 on: it is damaged")
        start = -(-self.at // align) * align
        found: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in told:
            what = f"tensor {name!r}"
            if name in found:
                self._refuse(f"{what} is there twice")
            if kind not in TYPES:
                self._refuse(f"{what} has type {kind}, which is not known: convert the model again")
            type_, block, nbytes = TYPES[kind]
            count = math.prod(shape)
            if not 0 < count < 1 << 48 or shape[-1] % block:
                self._refuse(f"{what} of type {type_} has shape {list(shape)}: it is damaged")
            begin, size = start + offset, count // block * nbytes
            if offset % align or begin + size > len(self.data):
                self._refuse(
                    f"{what} has {size} bytes from {begin} on, and the file {len(self.data)}: it is cut off "
                    "or damaged; copy it again"
                )
            found[name] = GgufTensor(name, shape, type_, self.data[begin : begin + size])
        return found
