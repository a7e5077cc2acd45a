"""``autotune demo``: what an installed wheel shows without a checkout."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from cli_runner import run

SMALL = "m=8,n=8,k=8"


@pytest.mark.slow
def test_it_tunes_and_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ran = run("demo", "--shape", SMALL, "--budget", "2s")
    assert ran.status == ("numpy is" in ran.out), ran.out + ran.err  # a busy machine may make either faster
    assert "1/2  Tuning matmul m=8,n=8,k=8 for 2 s, threads: 1" in ran.out
    assert "2/2  The kernel that was found" in ran.out and "times as fast as numpy" in ran.out
    assert not [*tmp_path.glob("autotune-demo-*")]  # its log is gone
    kept = tmp_path / "kept.db"
    ran = run("demo", "--shape", SMALL, "--budget", "2s", "--db", kept)
    assert ran.status == ("numpy is" in ran.out), ran.out + ran.err
    assert run("best", "matmul", "--shape", SMALL, "--threads", 1, "--db", kept).status == 0


def test_what_cannot_be_tuned_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ran = run("demo", "--shape", "m=8,n=8")
    assert ran.status == 2 and "matmul needs the parameter k" in ran.err
    assert "2/2" not in ran.out and not [*tmp_path.glob("autotune-demo-*")]
