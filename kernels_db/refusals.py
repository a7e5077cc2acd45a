"""Why the operating system refuses a file. SQLite tells that it does, and keeps the reason to itself."""

from __future__ import annotations

import errno
import tempfile
from contextlib import ExitStack
from pathlib import Path

# {error: the reason and the remedy}.
_WORDS = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the quota of this user on the disk is used up; free some space",
    errno.EFBIG: "the file would be larger than this process may write; raise the limit (ulimit -f)",
    errno.EMFILE: "this process has too many files open; close some, or raise the limit (ulimit -n)",
    errno.ENFILE: "this machine has too many files open; close some",
    errno.EROFS: "the file system is read-only; choose another place with --db or AUTOTUNE_DB",
}
# Room that SQLite may need beside a log (bytes), and files that it has open.
ROOM, FILES = 256 << 10, 4


def words(err: OSError) -> str | None:
    """The reason and the remedy; None for an error that says little to people."""
    return _WORDS.get(err.errno or 0)


def found(path: Path) -> str | None:
    """What refuses a few more pages of a log at ``path`` now, in words; None where nothing does, or nothing
    that is known here."""
    try:
        with ExitStack() as stack:
            for _ in range(FILES):
                f = stack.enter_context(tempfile.TemporaryFile(dir=path.absolute().parent))
            f.write(bytes(ROOM))
            f.flush()
    except OSError as err:
        return words(err)
    return _WORDS[errno.EFBIG] if _at_its_limit(path) else None


def _at_its_limit(path: Path) -> bool:
    """Whether the log, or what is written ahead of it, is as large as a file of this process may be."""
    try:
        import resource
    except ImportError:
        return False
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    sizes = [p.stat().st_size for p in (path, path.with_name(f"{path.name}-wal")) if p.exists()]
    return limit != resource.RLIM_INFINITY and any(size + ROOM > limit for size in sizes)
