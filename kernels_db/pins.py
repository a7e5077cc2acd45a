"""Pins: the records with which tasks are loaded, whatever is measured later; and lock files that hold them.

A lock file is JSON with one pin a line, in the order of the tasks, so that a change of one task changes one
line in a repository. It names records by their digests. The records themselves are in the log, or in an
export beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kernels_db.compression import opened
from kernels_db.errors import LogError
from kernels_db.replacing import replaced
from kernels_db.spool import as_file
from schedules.distribution import UPGRADE
from schedules.documents import Malformed, any_text, list_of, parsed, record, text
from schedules.model import canonical

# Marks of a lock file.
FORMAT, VERSION = "autotune-pins", 1
# Largest lock file (bytes).
MOST_BYTES = 64 << 20
# Keys of a pin.
_KEYS = ("workload", "target", "record")


@dataclass(frozen=True, order=True)
class Pin:
    """Digests of a task's workload and target, and the uid of its record. ``task``: a description for
    people."""

    workload: str
    target: str
    record: str
    task: str = ""


def write(path: Path | IO[str], pins: Iterable[Pin]) -> int:
    """Write a lock file to a path or an open text file. Returns the number of pins. Raises `LogError`."""
    lines = [canonical({name: getattr(pin, name) for name in (*_KEYS, "task")}) for pin in sorted(pins)]
    head = f'{{"format":"{FORMAT}","version":{VERSION},"pins":['
    with replaced(path) as f:
        f.write("\n".join([head, ",\n".join(lines), "]}", ""]))
    return len(lines)


def read(path: Path) -> list[Pin]:
    """The pins of a lock file. Raises `LogError`."""
    try:
        with as_file(path) as file, opened(file) as f:
            content = f.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise LogError(f"{path} is larger than any lock file: {MOST_BYTES >> 20} MB")
        value = parsed(content)
    except OSError as err:
        raise LogError(f"cannot read {path}: {err.strerror}; give a file of autotune log pin") from None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise LogError(f"{path} is not a lock file; give one that `autotune log pin FILE` wrote")
    if value.get("version") != VERSION:
        raise LogError(
            f"{path} has version {str(value.get('version'))[:40]}, and this autotune reads {VERSION}; "
            f"update autotune: {UPGRADE}"
        )
    try:
        return [Pin(**v) for v in _PINS(value)["pins"]]
    except Malformed as err:
        raise LogError(
            f"{path} is damaged: {err}; a pin is an object of {', '.join(_KEYS)}; write it again"
        ) from None


_PIN = record(dict.fromkeys(_KEYS, text(32, ".{32}", "32 characters")), {"task": any_text})
_PINS = record({"pins": list_of(_PIN)}, open_ended=True)
