"""Settings: defaults, the environment, and values that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.settings import Settings, SettingsError, config_file, database
from schedules.model import Target


def test_an_empty_environment_gives_the_users_directories() -> None:
    s = Settings.from_environment({})
    assert s.db.endswith("tuning.db") and "autotune" in s.db
    assert "autotune" in str(s.cache_dir)
    assert s.log_level == "warning"


def test_the_environment_overrides() -> None:
    s = Settings.from_environment(
        {
            "AUTOTUNE_DB": "/x/y.db",
            "AUTOTUNE_CACHE_DIR": "/x/cache",
            "AUTOTUNE_LOG_LEVEL": "DEBUG",
        }
    )
    assert (s.db, s.cache_dir, s.log_level) == ("/x/y.db", Path("/x/cache"), "debug")


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"AUTOTUNE_DB": ""}, "AUTOTUNE_DB"),
        ({"AUTOTUNE_CACHE_DIR": ""}, "AUTOTUNE_CACHE_DIR"),
        ({"AUTOTUNE_LOG_LEVEL": "loud"}, "AUTOTUNE_LOG_LEVEL"),
    ],
)
def test_a_bad_value_is_refused_by_name(environ: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        Settings.from_environment(environ)


def test_settings_cannot_be_changed() -> None:
    s = Settings.from_environment({})
    with pytest.raises(AttributeError):
        s.db = "other"  # type: ignore[misc]


def test_a_database_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_DB", "/x/env.db")
    assert database(None) == "/x/env.db"
    assert database("given.db") == "given.db"
    assert database(Path("given.db")) == "given.db"
    assert database("sqlite:///a.db") == "sqlite:///a.db"


def test_home_is_expanded_and_an_empty_name_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert database("~/t.db") == "/home/someone/t.db"
    with pytest.raises(SettingsError, match="empty"):
        database("")


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
def test_named_targets_can_be_read_and_list_their_features(name: str) -> None:
    target = Target.from_json(config_file("targets", f"{name}.json").read_text(encoding="utf-8"))
    assert target.arch == name and {"avx2", "fma"} <= set(target.features)
    assert ("avx512f" in target.features) == (target.limit("vector_bytes") == 64)
