"""Files of models and of their states: an uncompressed zip of one JSON document and arrays as ``.npy``.

What is read may come from anywhere. Members are read by the names that the reader gives them, each only as
far as it is known to go, and what an uncompressed file claims to hold it must have.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.runtime import aligned
from autotune.errors import ModelError, one_line
from kernels_db.errors import LogError
from kernels_db.replacing import check_replaceable, in_place_of
from schedules.documents import Malformed, parsed
from schedules.dtypes import DTYPES
from schedules.te.compute_dag import Tensor

Array = NDArray[Any]
MOST_TEXT = 256 << 20  # bytes of the document
HEADER = 256  # most bytes of the header of a ``.npy``


class Damaged(Exception):
    """What is wrong in a file."""


class Archive:
    """The members of a file that is ``what``, such as "saved model". All are stored as they are, so that none
    is larger than the file. ``place``: its name. ``document``: the member that is JSON."""

    def __init__(self, z: zipfile.ZipFile, place: str, document: str, what: str) -> None:
        self.z, self.what, self.document_name = z, what, document
        self.members: dict[str, zipfile.ZipInfo] = {}
        size = z.fp.seek(0, os.SEEK_END) if z.fp is not None else 0
        for info in z.infolist():
            if info.filename in self.members:
                raise Damaged(f"it holds {info.filename!r} twice")
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise Damaged(f"{info.filename!r} is compressed, which no member of a {what} is")
            if info.file_size > size:
                raise Damaged(f"{info.filename!r} is larger than the file")
            self.members[info.filename] = info
        if document not in self.members:
            raise ModelError(f"{place} is no {what}: it has no {document}")

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """A member to read. Whatever zipfile finds wrong with it is told."""
        if name not in self.members:
            raise Damaged(f"{name!r} is missing")
        try:
            with self.z.open(self.members[name]) as f:
                yield f
        except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as err:
            raise Damaged(f"{name!r} cannot be read: {short(err)}") from err

    def document(self) -> Any:
        """The document, as JSON is read."""
        name = self.document_name
        if (size := self.members[name].file_size) > MOST_TEXT:
            raise Damaged(f"{name!r} has {size} bytes; at most {MOST_TEXT} are read")
        with self.open(name) as f:
            data = f.read()
        try:
            return parsed(data)
        except Malformed as err:
            raise Damaged(f"{name!r}: {err}") from err

    def array(self, member: str, t: Tensor, what: str) -> Array:
        """The array of a member, which is that of ``t``. ``what``: what it is called."""
        with self.open(member) as f:
            if self.members[member].file_size > t.nbytes + HEADER:
                raise Damaged(f"{what} is larger than {t.dtype}{list(t.shape)}")
            found = _header(f, what)
            if found != (t.shape, False, plain_dtype(t.dtype)):
                raise Damaged(f"{what} is {found[2]}{list(found[0])}, not {t.dtype}{list(t.shape)}")
            made = aligned.kept_zeros(t.shape, t.dtype)
            flat = made.reshape(-1).view(np.uint8)
            at = 0
            while at < flat.size:
                piece = f.read(min(flat.size - at, 1 << 24))
                if not piece:
                    raise Damaged(f"{what} ends early")
                flat[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
                at += len(piece)
            if f.read(1):
                raise Damaged(f"{what} goes on after its end")
        return made


def write_array(z: zipfile.ZipFile, member: str, value: Array) -> None:
    """An array as a member that `Archive.array` reads."""
    with z.open(zipfile.ZipInfo(member), "w", force_zip64=True) as f:
        np.lib.format.write_array(f, value.view(plain_dtype(value.dtype.name)), allow_pickle=False)


def replaced(path: str | os.PathLike[str], write: Callable[[IO[bytes]], None]) -> None:
    """Write a file, whole or not at all. Raises `ModelError`."""
    place = Path(path)
    try:
        check_replaceable(place)
    except LogError as err:
        raise ModelError(str(err)) from None
    try:
        with in_place_of(place) as f:
            write(f)
    except OSError as err:
        raise ModelError(f"{place} cannot be written: {err.strerror or err}") from err


def plain_dtype(dtype: str) -> np.dtype[Any]:
    """A dtype that numpy itself has, which ``.npy`` can tell."""
    row = DTYPES[dtype]
    return row.numpy if row.module == "numpy" else np.dtype(f"u{row.itemsize}")


def short(err: BaseException) -> str:
    """What an error says, in a line."""
    return one_line(err if isinstance(err, ValueError) else repr(err), 300)


def _header(f: IO[bytes], what: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """(shape, whether column-major, dtype) of a ``.npy``."""
    try:
        version = np.lib.format.read_magic(f)
        if version != (1, 0):
            raise ValueError(f"version {version} of .npy")
        return np.lib.format.read_array_header_1_0(f, max_header_size=HEADER)
    except (ValueError, SyntaxError, TypeError, KeyError) as err:
        raise Damaged(f"{what}: {short(err)}") from err
