"""Files: those by which Linux tells about itself, those without a path, and locks."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

PROC, CPU_FOLDERS = Path("/proc"), Path("/sys/devices/system/cpu")
# Cgroups, and the file that names those of this process.
CGROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), PROC / "self/cgroup"


# Whether a folder can be opened, and files be named in it: not on Windows.
FOLDERS_OPEN = os.open in os.supports_dir_fd and hasattr(os, "O_DIRECTORY")


def user_id() -> int:
    """The number of this user as files have it; 0, which they all have, where the system numbers nobody."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def read(path: Path) -> str:
    """The text of a file without spaces around it; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def anonymous_file(name: str) -> int:
    """Descriptor of an empty file without a path. It vanishes with its last descriptor. In memory where the
    system has such files (Linux), else among temporary files. Raises `OSError`."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as f:
        return os.dup(f.fileno())


def locked(file: int) -> bool:
    """Lock an open file for this process, without waiting; whether that could be done. The lock ends with the
    descriptor. Where the system has no ``flock``, as Windows, nothing is locked, and it could be done."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_read_only(file: int) -> bool:
    """Whether an open file cannot be written to. False where the system does not tell, as Windows."""
    try:
        import fcntl
    except ImportError:
        return False
    return fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
