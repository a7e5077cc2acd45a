"""Temporary files: where they go, and what is said where they cannot be."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from kernels_db.temporary import TemporaryFilesError, temporary_folder, temporary_place
from schedules.errors import AutotuneError


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No directory is one for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])


def test_a_folder_ends_with_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert temporary_place() == tmp_path
    with temporary_folder() as folder:
        assert folder.parent == tmp_path
        (folder / "file").touch()
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("nowhere")
def test_where_there_is_no_place_the_setting_is_named() -> None:
    for use in (temporary_place, lambda: temporary_folder().__enter__()):
        with pytest.raises(
            TemporaryFilesError, match=r"nowhere \(tried '.*none'\): set TMPDIR to a "
        ) as caught:
            use()
        assert isinstance(caught.value, AutotuneError)


def test_a_full_disk_is_told_with_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (
        pytest.raises(TemporaryFilesError, match=f"in {tmp_path}: No space.*: set TMPDIR to .* has space$"),
        temporary_folder(),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(FileNotFoundError), temporary_folder() as folder:
        (folder / "none").read_text()  # any other is told as it is
    assert os.listdir(tmp_path) == []
