"""``autotune doctor``: a line a check, and the remedy where something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import run

from autotune.cli import checks as doctor
from autotune.settings import own_folders


def test_this_machine_can_tune(tmp_path: Path) -> None:
    ran = run("doctor", "--db", tmp_path / "t.db", "--json")
    assert ran.status == 0, ran.out
    checks = {c["name"]: c for c in ran.json["checks"]}
    assert ran.json["ok"] and {"llvm", "cpu", "compile and run", "tuning log"} <= set(checks)
    assert checks["compile and run"]["status"] == "ok"
    assert all(c["status"] in ("ok", "warn", "fail") for c in checks.values())
    text = run("doctor", "--db", tmp_path / "t.db").out
    assert "everything that tuning needs works" in text


def test_what_cannot_be_used_fails_with_a_remedy(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.db"
    foreign.write_text("not a database, whatever its name says")
    ran = run("doctor", "--db", foreign)
    assert ran.status == 1
    assert str(foreign) in ran.out and "AUTOTUNE_DB" in ran.out and "1 of " in ran.out


def test_one_broken_check_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken() -> doctor.Outcome:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(doctor, "caches", broken)
    checks = {c["name"]: c for c in run("doctor", "--db", tmp_path / "t.db", "--json").json["checks"]}
    assert checks["caches"]["status"] == "fail" and "no such thing" in checks["caches"]["detail"]
    assert checks["cpu"]["status"] == "ok"


def test_what_is_absent_is_not_called_ok(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = [doctor.Finding("a", "ok", "here"), doctor.Finding("b", "ok", "not installed", "pip install b")]
    monkeypatch.setattr(doctor, "examine", lambda *_: found)
    lines = run("doctor", "--db", tmp_path / "t.db").out.splitlines()
    assert lines[:2] == ["ok    a  here", "-     b  not installed"]
    assert lines[2].strip() == "-> pip install b"


def test_the_extra_for_fleets_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = doctor.fleet()
    assert found.status == "ok" and "--fleet" in found.detail and "[fleet]'" in found.remedy
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2026.8.0")
    assert doctor.fleet() == doctor.Outcome("ok", "distributed 2026.8.0")


def test_torch_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = doctor.torch()
    assert found.status == "ok" and found.detail.startswith("not installed; import_torch, torch.compile, ")
    assert "[torch]'" in found.remedy


def test_the_extra_for_language_models_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOTUNE_LLM_URL", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = doctor.llm()
    assert found.status == "ok" and "--search llm" in found.detail and "[llm]'" in found.remedy
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.0")
    assert doctor.llm() == doctor.Outcome("ok", "openai 1.0; AUTOTUNE_LLM_URL names no endpoint")
    monkeypatch.setenv("AUTOTUNE_LLM_URL", "https://host:99/v1?key=secret")
    assert doctor.llm() == doctor.Outcome("ok", "openai 1.0; the first model at host")
    monkeypatch.setenv("AUTOTUNE_LLM_URL", "host")
    assert doctor.llm().status == "warn" and "no address of an endpoint" in doctor.llm().detail


def test_a_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    found = doctor.writable(tmp_path / "cache", "AUTOTUNE_CACHE_DIR")
    assert (
        found.status == "fail"
        and "Permission denied" in found.detail
        and "AUTOTUNE_CACHE_DIR" in found.remedy
    )


def test_a_cache_that_others_may_write_is_said_not_to_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o775)
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(folder))
    found = doctor.objects()
    assert found.status == "warn" and "0775" in found.detail
    assert found.remedy.startswith(f"chmod 700 {folder}")
    folder.chmod(0o700)
    assert doctor.objects().status == "ok"


def test_where_nothing_can_be_written_the_settings_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    def nobody(_: int) -> None:
        raise KeyError("no entry")

    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("HOME", "XDG_CACHE_HOME", "AUTOTUNE_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    own_folders.instead_of_home.cache_clear()
    kept, temporary = doctor.objects(), doctor.temporary_files()
    assert kept.status == temporary.status == "warn"
    assert kept.remedy == "name a directory of this user alone with AUTOTUNE_CACHE_DIR"
    assert temporary.remedy == "set TMPDIR to a directory that can be written and has space"
