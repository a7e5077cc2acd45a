"""A process that looks at a log keeps the locks of its connections to it."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from report_cases import small_log

from autotune.report.data import read
from kernels_db import Log, LogError, lookup, sqlite
from kernels_db.locked_files import first_bytes

# Another process, which tidies up if it takes itself for the only user of the log.
OTHER = "import sys; from kernels_db import Log\nwith Log(sys.argv[1]) as log: print(log.stats()['records'])"


def of_another_process(path: Path) -> int:
    done = subprocess.run([sys.executable, "-c", OTHER, str(path)], stdout=subprocess.PIPE, check=True)
    return int(done.stdout)


def look_up(path: Path) -> None:
    with Log(path, read_only=True) as log:
        uid = next(iter(log.records())).uid
    assert lookup.origin(path, uid) is not None


def refuse_to_overwrite(path: Path) -> None:
    with Log(path, read_only=True) as log, pytest.raises(LogError, match="would be overwritten"):
        log.export(path)


def merge(path: Path) -> None:
    with Log(path.with_name("into.db")) as log:
        log.merge(path)


@pytest.mark.slow
@pytest.mark.parametrize("looks", [(look_up, refuse_to_overwrite), (merge, read)])
def test_looking_gives_up_no_lock(tmp_path: Path, looks: Sequence[Callable[[Path], object]]) -> None:
    """Without its locks, what this process writes would be in a file that the other one removed."""
    path = tmp_path / "t.db"
    with Log(path) as log:
        small_log(path)
        before = log.stats()["records"]
        for look in looks:
            look(path)
        assert of_another_process(path) == before
        small_log(path)
        assert of_another_process(path) == log.stats()["records"] == 2 * before


@pytest.mark.slow
def test_a_file_is_looked_into_when_it_is_no_longer_open(tmp_path: Path) -> None:
    path, link = tmp_path / "t.db", tmp_path / "link.db"
    link.symlink_to(path)
    with Log(path):
        assert first_bytes(path, 4) is first_bytes(link, 4) is None
    assert first_bytes(path, 4) == b"SQLi"
    con = sqlite.connect(path, read_only=True, timeout_s=1)
    assert first_bytes(path, 4) is None
    del con  # without a close
    gc.collect()
    assert first_bytes(path, 4) == b"SQLi"
    path.unlink()
    with pytest.raises(FileNotFoundError):
        first_bytes(path, 4)
