"""The object cache: what comes out is what went in, and nothing that another could have written."""

from __future__ import annotations

import logging
import os
import stat
import threading
from pathlib import Path

import pytest

from autotune.backends.building.object_cache import MAGIC, ObjectCache, key

K1, K2, K3 = ("0123456789abcdef" * 2, "f" * 32, "a" * 32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "objects"


def entries(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_round_trip(folder):
    cache = ObjectCache(folder)
    assert cache.get(K1) is None
    assert not folder.exists(), "reading creates nothing"
    obj = bytes(range(256)) * 9
    cache.put(K1, obj)
    assert cache.get(K1) == obj
    assert ObjectCache(folder).get(K1) == obj
    assert cache.get(K2) is None
    cache.put(K1, b"new")
    assert cache.get(K1) == b"new"
    assert entries(folder) == [K1 + ".o"], "no temporary file stays"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / (K1 + ".o")).stat().st_mode) == 0o600


def test_an_empty_object_is_an_object(folder):
    cache = ObjectCache(folder)
    cache.put(K1, b"")
    assert cache.get(K1) == b""


def test_the_key_depends_on_every_part():
    parts = ("trace", "workload", "target", "1")
    keys = {key(*parts)} | {key(*parts[:i], "other", *parts[i + 1 :]) for i in range(4)}
    keys.add(key("trac", "eworkload", "target", "1"))
    assert len(keys) == 6
    assert key(*parts) == "c4f9983982d14808fa467cbf71909a9c", "keys are the same on every machine"


@pytest.mark.parametrize("bad", ["", "../../etc/passwd", "A" * 32, "0" * 15, K1 + "\n", K1 + "/x"])
def test_keys_that_could_be_paths_are_refused(folder, bad):
    cache = ObjectCache(folder)
    with pytest.raises(ValueError, match="hex digits"):
        cache.get(bad)
    with pytest.raises(ValueError, match="hex digits"):
        cache.put(bad, b"x")


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: b"",
        lambda d: d[:-1],
        lambda d: d[: len(MAGIC) + 5],
        lambda d: d[:-1] + bytes([d[-1] ^ 1]),
        lambda d: b"x" + d[1:],
        lambda d: d + b"\0",
        lambda d: d[len(MAGIC) :],
    ],
)
def test_damaged_files_are_missing_and_removed(folder, damage):
    cache = ObjectCache(folder)
    cache.put(K1, b"object code")
    path = folder / (K1 + ".o")
    path.write_bytes(damage(path.read_bytes()))
    assert cache.get(K1) is None
    assert entries(folder) == []


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_directory_that_others_may_write_is_not_used(folder, caplog, mode):
    ObjectCache(folder).put(K1, b"object")
    folder.chmod(mode)
    cache = ObjectCache(folder)
    with caplog.at_level(logging.WARNING):
        assert cache.get(K1) is None
        cache.put(K2, b"other")
    assert entries(folder) == [K1 + ".o"]
    (record,) = caplog.records
    assert record.getMessage().endswith("; AUTOTUNE_CACHE_DIR names another place")
    assert "written by others" in record.getMessage() and "chmod 700" in record.getMessage()


def test_a_file_that_others_may_write_is_not_used(folder, caplog):
    cache = ObjectCache(folder)
    cache.put(K1, b"object")
    (folder / (K1 + ".o")).chmod(0o666)
    assert cache.get(K1) is None
    assert "written by others" in caplog.text


def test_what_belongs_to_another_user_is_not_used(folder, caplog, monkeypatch):
    cache = ObjectCache(folder)
    cache.put(K1, b"object")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert cache.get(K1) is None
    assert f"belongs to user {me}" in caplog.text


def test_links_are_not_followed(folder, tmp_path, caplog):
    cache = ObjectCache(folder)
    cache.put(K1, b"object")
    os.rename(folder / (K1 + ".o"), tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", folder / (K1 + ".o"))
    assert cache.get(K1) is None
    assert "cannot be read" in caplog.text


def test_a_directory_that_cannot_be_made_means_no_cache(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    cache = ObjectCache(tmp_path / "file" / "objects")
    for _ in range(3):
        cache.put(K1, b"object")
        assert cache.get(K1) is None
    assert len(caplog.records) == 1


def test_a_full_disk_means_no_cache(folder, caplog, monkeypatch):
    cache = ObjectCache(folder)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache.put(K1, b"object")
    assert cache.get(K1) is None
    assert entries(folder) == [], "the temporary file is gone"
    assert "No space left" in caplog.text


def test_the_least_recently_used_go_first(folder):
    cache = ObjectCache(folder, cap_bytes=1200)
    keys = [f"{i:032x}" for i in range(6)]
    for age, k in enumerate(keys[:3]):
        cache.put(k, bytes(200))
        os.utime(folder / (k + ".o"), (0, 10_000 + age))
    assert cache.get(keys[0]) == bytes(200), "read: now the most recent"
    for k in keys[3:5]:
        cache.put(k, bytes(200))
    assert cache.get(keys[0]) and cache.get(keys[4])
    assert cache.get(keys[1]) is None
    cache.put(keys[5], bytes(5000))
    held = sum((folder / name).stat().st_size for name in entries(folder))
    assert held <= 1200


def test_leftovers_of_dead_processes_are_removed(folder):
    ObjectCache(folder).put(K1, b"object")
    old, new = folder / "x.o.1.aa.tmp", folder / "x.o.2.bb.tmp"
    for path in (old, new):
        path.write_bytes(b"part")
    os.utime(old, (0, 0))
    ObjectCache(folder).put(K2, b"object")
    assert not old.exists() and new.exists()


def test_writers_and_readers_at_once(folder):
    """A reader sees one of the two objects, whole, or nothing."""
    objects = [bytes([i]) * 50_000 for i in range(2)]
    stop = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        cache = ObjectCache(folder)
        while not stop.is_set():
            got = cache.get(K3)
            if got is not None and got not in objects:
                wrong.append(got)

    def write(obj: bytes) -> None:
        cache = ObjectCache(folder)
        for _ in range(60):
            cache.put(K3, obj)

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(o,)) for o in objects]
    for t in (reader, *writers):
        t.start()
    for t in writers:
        t.join()
    stop.set()
    reader.join()
    assert not wrong
    assert ObjectCache(folder).get(K3) in objects


def test_the_object_of_another_kernel_is_not_used(folder, caplog):
    """Its content is whole, and its file is the user's: only what is written in it tells whose it is."""
    cache = ObjectCache(folder)
    cache.put(K1, b"of one")
    cache.put(K2, b"of another")
    os.replace(folder / (K2 + ".o"), folder / (K1 + ".o"))
    assert cache.get(K1) is None
    assert [r.getMessage() for r in caplog.records] == [
        f"object cache {folder}: {K1}.o is the object of another kernel; it is removed, and built again"
    ]
    assert entries(folder) == []
    cache.put(K1, b"of one")
    assert cache.get(K1) == b"of one" and len(caplog.records) == 1


def test_changing_the_key_in_a_file_is_damage(folder, caplog):
    cache = ObjectCache(folder)
    cache.put(K2, b"of another")
    data = (folder / (K2 + ".o")).read_bytes()
    (folder / (K1 + ".o")).write_bytes(data.replace(K2.encode(), K1.encode()))
    (folder / (K1 + ".o")).chmod(0o600)
    assert cache.get(K1) is None and cache.get(K2) == b"of another"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_not_waited_for(folder, caplog, make):
    cache = ObjectCache(folder)
    cache.put(K2, b"object")
    make(folder / (K1 + ".o"), 0o600)
    assert cache.get(K1) is None
    assert "is not a regular file; remove it" in caplog.text or "Is a directory" in caplog.text
    cache.put(K1, b"new")
    assert cache.get(K1) == (b"new" if make is os.mkfifo else None)
