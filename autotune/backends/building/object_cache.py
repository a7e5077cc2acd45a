"""Compiled objects on disk, so that loading a known kernel compiles nothing.

A cached object is code that will run with the user's rights. So the directory and each file must
belong to the user and be writable by nobody else, or they are not read; objects come only from this
user's own compiler, never from a log. Each file is `MAGIC`, its key, a new line, the blake2b-256 of key and
object, the object. What is truncated or altered counts as missing and is removed. So is the object of another
key, and a warning says so.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from autotune.platform.files import FOLDERS_OPEN
from autotune.settings import NoPlaceError, cache_dir
from autotune.settings.own_folders import refusal_of
from schedules.model import canonical, digest

MAGIC = b"autotune-object-2\n"
SUFFIX = ".o"
CAP_BYTES = 512 << 20
_DIGEST_BYTES = 32
_KEY = re.compile(r"[0-9a-f]{16,128}")
_STALE_S = 3600  # a temporary file this old was left behind by a process that died
_TOUCH_S = 600  # a file read again within this time keeps its place in the order of use

log = logging.getLogger(__name__)
_told: set[Path | None] = set()  # directories of which this process was told that they are not used


def key(trace_json: str, workload_digest: str, target_digest: str, codegen_version: str) -> str:
    """32 hex digits that name the object of a schedule. ``codegen_version`` must change whenever
    the generator, the passes or the compiler would give other code."""
    return digest(canonical([trace_json, workload_digest, target_digest, codegen_version]))


class Contents(NamedTuple):
    """A number of objects, and their bytes."""

    objects: int
    bytes: int


class ObjectCache:
    """Objects by `key` in one directory, the least recently used removed beyond ``cap_bytes``.

    Never raises for what the file system does: a directory that cannot be used means no cache, and
    one warning of a process says why. Processes may share a directory, threads an instance.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, cap_bytes: int = CAP_BYTES) -> None:
        """``directory``: None for a cache that keeps nothing."""
        self.directory = None if directory is None else Path(directory)
        self.cap_bytes = cap_bytes
        self._lock = threading.Lock()
        self._bytes: int | None = None  # estimate of what the directory holds; None: not yet counted

    def get(self, key: str) -> bytes | None:
        """The object, or None. Raises ValueError when ``key`` is not hex digits."""
        name = _file_name(key)
        folder = self._open(create=False)
        if folder is None:
            return None
        try:
            return self._read(name, folder)
        except FileNotFoundError:
            return None
        except OSError as err:
            self._warn(f"{name} cannot be read: {err}")
            return None
        finally:
            os.close(folder)

    def put(self, key: str, obj: bytes) -> None:
        """Store an object; readers see the old one or the new one, never a part. Raises ValueError
        when ``key`` is not hex digits."""
        name = _file_name(key)
        folder = self._open(create=True)
        if folder is None:
            return
        try:
            data = b"".join([MAGIC, key.encode(), b"\n", _hash(key, obj), obj])
            self._write(name, data, folder)
            self._prune(folder, len(data))
        except OSError as err:
            self._warn(f"{name} cannot be stored: {err}")
        finally:
            os.close(folder)

    def contents(self) -> Contents:
        """How much it holds. Nothing where the directory is missing or cannot be used."""
        folder = self._open(create=False)
        if folder is None:
            return Contents(0, 0)
        try:
            sizes = [size for _, size, _ in _objects(folder)]
        finally:
            os.close(folder)
        return Contents(len(sizes), sum(sizes))

    def clear(self) -> Contents:
        """Remove all objects; returns what was removed. Other files in the directory stay, and so do kernels
        that a process has loaded: they are in its memory. Raises OSError where a file cannot be removed."""
        folder = self._open(create=False)
        if folder is None:
            return Contents(0, 0)
        removed = freed = 0
        try:
            for _, size, item in _objects(folder):
                with suppress(FileNotFoundError):
                    os.unlink(item, dir_fd=folder)
                    removed, freed = removed + 1, freed + size
        finally:
            os.close(folder)
        return Contents(removed, freed)

    def _open(self, create: bool) -> int | None:
        """A descriptor of the directory, verified, or None. All access goes through it, so that
        nobody can put another directory in its place after the check."""
        if self.directory is None or not FOLDERS_OPEN:  # nothing is kept where that cannot be verified
            return None
        try:
            if create:
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as err:
            if create or not isinstance(err, FileNotFoundError):  # before the first object nothing is there
                self._warn(f"{err.strerror}")
            return None
        refusal = refusal_of(os.fstat(folder))
        if refusal:
            os.close(folder)
            self._warn(f"the directory {refusal}; give it to this user alone (chmod 700)")
            return None
        return folder

    def _read(self, name: str, folder: int) -> bytes | None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # no pipe is waited for
        with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as f:
            status = os.fstat(f.fileno())
            refusal = refusal_of(status)
            if refusal or not stat.S_ISREG(status.st_mode):
                self._warn(f"{name} {refusal or 'is not a regular file'}; remove it")
                return None
            found = _unpacked(f.read())
            if found is None or found[0] != name.removesuffix(SUFFIX):
                if found is not None:
                    what = "is the object of another kernel; it is removed, and built again"
                    log.warning("object cache %s: %s %s", self.directory, name, what)
                os.unlink(name, dir_fd=folder)
                return None
            obj = found[1]
            if time.time() - status.st_mtime > _TOUCH_S:
                os.utime(f.fileno())  # the order of use; access times are often switched off
            return obj

    def _write(self, name: str, data: bytes, folder: int) -> None:
        temporary = f"{name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as f:
                f.write(data)
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise

    def _prune(self, folder: int, added: int) -> None:
        """Below the cap this is an addition; beyond it, the directory is read and thinned to three
        quarters of the cap."""
        with self._lock:
            if self._bytes is not None:
                self._bytes += added
                if self._bytes <= self.cap_bytes:
                    return
            files = _objects(folder)
            total = sum(size for _, size, _ in files)
            if total > self.cap_bytes:
                for _, size, item in sorted(files):
                    if total <= self.cap_bytes * 3 // 4:
                        break
                    with suppress(FileNotFoundError):
                        os.unlink(item, dir_fd=folder)
                    total -= size
            self._bytes = total

    def _warn(self, reason: str) -> None:
        if _first_time(self.directory):
            log.warning(
                "object cache %s is not used: %s; AUTOTUNE_CACHE_DIR names another place",
                self.directory,
                reason,
            )


def objects_of_user() -> ObjectCache:
    """The cache of this user. Where there is no place for one it keeps nothing, and one warning of a process
    says why. Raises `SettingsError` for a setting that cannot be used."""
    try:
        return ObjectCache(cache_dir())
    except NoPlaceError as err:
        if _first_time(None):
            log.warning("compiled kernels are not kept: %s", err)
        return ObjectCache(None)


def _first_time(directory: Path | None) -> bool:
    """Whether nothing was said of a directory yet in this process."""
    told = directory in _told
    _told.add(directory)
    return not told


def _objects(folder: int) -> list[tuple[int, int, str]]:
    """(time of the last use, bytes, name) of each object. Temporary files of processes that died are
    removed."""
    files = []
    for item in os.listdir(folder):
        with suppress(FileNotFoundError):  # another process removed it
            status = os.stat(item, dir_fd=folder, follow_symlinks=False)
            if item.endswith(".tmp") and time.time() - status.st_mtime > _STALE_S:
                os.unlink(item, dir_fd=folder)
            elif item.endswith(SUFFIX) and _KEY.fullmatch(item.removesuffix(SUFFIX)):
                files.append((status.st_mtime_ns, status.st_size, item))
    return files


def _unpacked(data: bytes) -> tuple[str, bytes] | None:
    """(key, object) of a file; None if it is none, or was altered."""
    end = data.find(b"\n", len(MAGIC), len(MAGIC) + 129)
    if not data.startswith(MAGIC) or end < 0:
        return None
    key, body = data[len(MAGIC) : end].decode("ascii", "replace"), end + 1 + _DIGEST_BYTES
    obj = data[body:]
    return (key, obj) if data[end + 1 : body] == _hash(key, obj) else None


def _hash(key: str, obj: bytes) -> bytes:
    made = hashlib.blake2b(key.encode(), digest_size=_DIGEST_BYTES)
    made.update(obj)
    return made.digest()


def _file_name(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(f"an object's key is hex digits, not {key!r}")
    return key + SUFFIX
