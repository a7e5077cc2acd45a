"""Exports that another program saved in its own encoding."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from cli_runner import run
from log_cases import fill

from autotune.tuning import suites
from kernels_db import Log, LogError
from kernels_db.encoding import HEAD, foreign
from schedules.errors import AutotuneError

MARKED = "UTF-8 with a byte order mark"
# codec -> what the message calls it
ENCODINGS = {
    "utf-8-sig": MARKED, "utf-16": "UTF-16", "utf-16-le": "UTF-16", "utf-16-be": "UTF-16",
    "utf-32": "UTF-32", "utf-32-le": "UTF-32", "utf-32-be": "UTF-32",
}  # fmt: skip


@pytest.mark.fast("plain-jsonl-utf-16", "packed-t4-utf-8-sig", "plain-t4-utf-32")
@pytest.mark.parametrize("codec", ENCODINGS)
@pytest.mark.parametrize("form", ["jsonl", "t4"])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_another_encoding_is_named_with_the_remedy(
    codec: str, form: str, packed: bool, tmp_path: Path
) -> None:
    file = tmp_path / "x"
    with Log(tmp_path / "a.db") as log:
        fill(log, 2)
        log.export(file, form=form)
        data = file.read_bytes().decode("utf-8").encode(codec)
        file.write_bytes(gzip.compress(data) if packed else data)
        with pytest.raises(LogError) as err:
            log.merge(file)
    wanted = f"{file} is in {ENCODINGS[codec]}; save it as UTF-8 without a byte order mark"
    assert str(err.value) == wanted
    for words in (("log", "import", file, "--db", tmp_path / "b.db"), ("replay", file)):
        ran = run(*words)
        assert (ran.status, ran.out, ran.err) == (2, "", f"autotune: {wanted}\n")


@pytest.mark.parametrize("codec", ENCODINGS)
def test_a_suite_in_another_encoding_is_named_too(codec: str, tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_bytes('[[group]]\nname = "x"\n'.encode(codec))
    with pytest.raises(AutotuneError, match=f"s.toml is in {ENCODINGS[codec]}; save it as UTF-8"):
        suites.read(str(file))


def test_no_other_file_is_taken_for_text_in_another_encoding() -> None:
    for head in (b"", b"{", b"{}\n", b"\0" * HEAD, b"SQLite format 3\0", b"\x1f\x8b\x08\0", b"\xfd7zXZ\0"):
        assert foreign(head[:HEAD]) is None
