"""``autotune cache``: where compiled kernels are, how large they are, and removing them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from cli_runner import run

import autotune as at
from autotune.backends.building.object_cache import CAP_BYTES, ObjectCache

te = at.te
X = te.placeholder((3, 5), "float32", name="x")
PROGRAM = [X, te.compute((3, 5), lambda i, j: X[i, j] * 2.0 + 1.0, name="y")]


def test_a_kernel_is_shown_cleared_and_compiled_again(own_places: Path) -> None:
    folder = own_places / "cache"
    empty = {"directory": str(folder), "objects": 0, "bytes": 0, "limit_bytes": CAP_BYTES}
    assert run("cache", "--json").json == empty and not folder.exists()
    kernel = at.build(at.Schedule(PROGRAM), threads=1)
    (file,) = folder.glob("*.o")
    size = file.stat().st_size
    assert run("cache", "--json").json == empty | {"objects": 1, "bytes": size}
    out = run("cache").out.splitlines()
    assert out[0] == str(folder) and out[1].startswith("  1 kernel, ") and "limit 537 MB" in out[1]

    assert run("cache", "clear", "--json").json == {
        "directory": str(folder),
        "removed": 1,
        "freed_bytes": size,
    }
    assert not file.exists() and run("cache", "--json").json == empty
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    np.testing.assert_array_equal(kernel(x), 2 * x + 1)  # it is in the memory of this process
    np.testing.assert_array_equal(at.build(at.Schedule(PROGRAM), threads=1)(x), 2 * x + 1)
    assert file.exists()
    assert run("cache", "--json", "clear").json["removed"] == 1
    assert run("cache", "clear").out == f"removed 0 kernels, 0 bytes from {folder}\n"


def test_only_what_the_cache_wrote_is_removed(own_places: Path) -> None:
    folder = own_places / "cache"
    ObjectCache(folder).put("ab" * 16, b"object")
    ObjectCache(folder / "tvm").put("cd" * 16, b"of a peer")
    mine = folder / "main.o"  # a file of the user, who named this directory
    mine.write_bytes(b"x")
    left, written = folder / "a.1.tmp", folder / "b.2.tmp"
    for file in (left, written):
        file.write_bytes(b"x")
    os.utime(left, (time.time() - 7200,) * 2)  # of a process that died
    assert run("cache", "clear", "--json").json["removed"] == 2
    assert sorted(p.name for p in folder.rglob("*") if p.is_file()) == ["b.2.tmp", "main.o"]


def test_a_directory_that_is_not_the_users_alone_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path))
    ObjectCache(tmp_path).put("ab" * 16, b"object")
    tmp_path.chmod(0o777)
    for words in (["cache"], ["cache", "clear"]):
        ran = run(*words)
        assert ran.status == 2 and "may be written by others" in ran.err and "AUTOTUNE_CACHE_DIR" in ran.err
    assert len(list(tmp_path.glob("*.o"))) == 1
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", __file__)
    assert "is not a directory" in run("cache").err
