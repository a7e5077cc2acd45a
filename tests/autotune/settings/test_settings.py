"""Settings: defaults, the environment, and values that are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune import settings
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


def test_a_home_that_is_not_there_is_named() -> None:
    for use in (
        lambda: settings.database("~nobody-of-this-name/x.db"),
        lambda: Settings.from_environment({"AUTOTUNE_CACHE_DIR": "~nobody-of-this-name"}),
    ):
        with pytest.raises(SettingsError, match="~nobody-of-this-name.*no home directory"):
            use()


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
def test_named_targets_can_be_read_and_list_their_features(name: str) -> None:
    target = Target.from_json(config_file("targets", f"{name}.json").read_text(encoding="utf-8"))
    assert target.arch == name and {"avx2", "fma"} <= set(target.features)
    assert ("avx512f" in target.features) == (target.limit("vector_bytes") == 64)


def test_a_described_arm_cpu_has_instructions_for_products() -> None:
    target = Target.from_json(config_file("targets", "neoverse-v1.json").read_text(encoding="utf-8"))
    assert {"neon", "dotprod", "i8mm", "bf16"} <= set(target.features) and target.limit("vector_bytes") == 16


def test_variables_are_changed_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_TEST_A", "before")
    monkeypatch.delenv("AUTOTUNE_TEST_B", raising=False)
    with settings.environment({"AUTOTUNE_TEST_A": None, "AUTOTUNE_TEST_B": "meanwhile"}):
        assert "AUTOTUNE_TEST_A" not in os.environ and os.environ["AUTOTUNE_TEST_B"] == "meanwhile"
    assert os.environ["AUTOTUNE_TEST_A"] == "before" and "AUTOTUNE_TEST_B" not in os.environ


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity of threads")
def test_tuning_stays_on_all_cpus_where_openmp_is_told_to_bind(tmp_path: Path) -> None:
    code = (
        "import os, autotune as at\n"
        "before = os.sched_getaffinity(0)\n"
        f"at.tune('add', n=4096, trials=24, threads=1, budget_s=20.0, db={str(tmp_path / 't.db')!r})\n"
        "import sys; assert 'xgboost' in sys.modules\n"
        "assert os.sched_getaffinity(0) == before and os.environ['OMP_PROC_BIND'] == 'true'\n"
    )
    bound = {**os.environ, "OMP_PROC_BIND": "true"}
    done = subprocess.run([sys.executable, "-c", code], env=bound, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
