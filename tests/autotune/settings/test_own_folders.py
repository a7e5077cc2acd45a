"""A user without a home directory, or with one that cannot be written."""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runner import run
from log_cases import fill

from autotune import settings
from autotune.backends.building import object_cache
from autotune.settings import Settings, SettingsError, own_folders
from kernels_db import Log


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No home directory; where files are kept then."""
    import pwd

    def none(_: int) -> None:
        raise KeyError("no entry")

    monkeypatch.setattr(pwd, "getpwuid", none)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "AUTOTUNE_DB", "AUTOTUNE_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own_folders.instead_of_home.cache_clear()
    yield tmp_path / f"autotune-{os.geteuid()}"
    own_folders.instead_of_home.cache_clear()


def test_without_a_home_directory_a_private_folder_is_made_and_said_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = os.umask(0)
    try:
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                assert Settings.from_environment().cache_dir == settings.cache_dir() == folder
                assert Settings.from_environment().db == settings.database(None) == str(folder / "tuning.db")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (said,) = [r.getMessage() for r in caplog.records]
    assert str(folder) in said and "AUTOTUNE_DB and AUTOTUNE_CACHE_DIR" in said


@pytest.mark.parametrize("home", ["", "relative"])
def test_a_home_that_is_no_place_is_none(folder: Path, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home)
    assert settings.cache_dir() == folder


def test_who_names_places_needs_no_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.log_level() == "warning" and settings.cuda_binding() == "auto"
    assert settings.database("t.db") == "t.db"
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", "/somewhere")
    assert settings.cache_dir() == Path("/somewhere")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert settings.database(None) == "/data/autotune/tuning.db"
    assert not folder.exists()


@pytest.mark.parametrize(
    "what", ["link", "file", "open to others", "of another user", "no temporary files", "nowhere"]
)
def test_a_folder_that_is_not_private_is_refused_with_the_remedy(
    folder: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    match what:
        case "link":
            (folder.parent / "elsewhere").mkdir(mode=0o700)
            folder.symlink_to(folder.parent / "elsewhere")
        case "file":
            folder.touch()
        case "open to others":
            folder.mkdir()
            folder.chmod(0o777)
        case "of another user":
            folder.mkdir(mode=0o700)
            made_by = os.geteuid()
            monkeypatch.setattr("os.geteuid", lambda: made_by + 1)
            folder.rename(folder.parent / f"autotune-{made_by + 1}")
        case "no temporary files":
            monkeypatch.setattr("tempfile.tempdir", str(folder.parent / "none"))
        case _:
            monkeypatch.setattr("tempfile.gettempdir", nowhere)
    for use, variable in ((settings.cache_dir, "CACHE_DIR"), (lambda: settings.database(None), "DB")):
        with pytest.raises(
            SettingsError,
            match=f"no home directory, and .*(not used;|nowhere .*:) name a .* AUTOTUNE_{variable}",
        ):
            use()


def nowhere() -> str:
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/x']")


def test_without_a_place_kernels_are_compiled_and_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    monkeypatch.setattr(object_cache, "_told", set())
    for _ in range(2):
        objects = object_cache.objects_of_user()
        objects.put("ab" * 16, b"object")
        assert objects.get("ab" * 16) is None and objects.contents().objects == 0
    (said,) = [r.getMessage() for r in caplog.records]
    assert re.search(r"not kept: this user .* nowhere \(tried '/tmp', '/x'\): .* AUTOTUNE_CACHE_DIR$", said)
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", "")
    with pytest.raises(SettingsError, match="AUTOTUNE_CACHE_DIR is empty"):  # a mistake is none
        object_cache.objects_of_user()


def test_a_folder_that_others_may_read_is_closed_to_them(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    assert settings.cache_dir() == folder and stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.fast("/dev/null")
@pytest.mark.parametrize("home", [None, "/dev/null"])
def test_commands_work_without_a_home_directory(
    folder: Path, home: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or say what to do. No path is below /dev/null."""
    if home is not None:
        monkeypatch.setenv("HOME", home)
    db = folder.parent / "t.db"
    with Log(db) as log:
        fill(log, 2)
    for words in (("ops",), ("cache",), ("log", "stats", "--db", db), ("doctor", "--db", db)):
        assert run(*words).status == 0, words
    assert run("best", "add", "--shape", "n=8").status == 1
    ran = run("log", "merge", db)
    assert ran.status == (0 if home is None else 2) and (home is None or "AUTOTUNE_DB" in ran.err)


CODE = """
import pwd

def none(number):
    raise KeyError("no entry")

pwd.getpwuid = none  # what a user has who is not among the passwords
import autotune as at, numpy as np, warnings
warnings.simplefilter("ignore")
for n in (8, 16):
    kernel = at.load("add", n=n, db="t.db", threads=1, fallback=True)
    assert (kernel(np.ones(n, "float32"), np.ones(n, "float32")) == 2).all()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("home", "said"), [({}, "no home directory"), ({"HOME": "/dev/null"}, "AUTOTUNE_CACHE_DIR names another")]
)
def test_kernels_are_loaded_without_a_home_directory(tmp_path: Path, home: dict[str, str], said: str) -> None:
    kept = {k: v for k, v in os.environ.items() if k != "HOME" and not k.startswith(("XDG_", "AUTOTUNE_"))}
    here = {"PYTHONPATH": str(Path(own_folders.__file__).parents[2]), "TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, cwd=tmp_path, env=kept | here | home
    )
    assert ran.returncode == 0 and ran.stderr.count(said) == 1, ran.stderr
