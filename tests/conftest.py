"""What all tests share: the user's own database and cache are never touched."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import new_logs
import pytest
import signals
from hypothesis import settings
from lengths import Costs, mark_slow_cases
from log_cases import fill
from postgres_server import Server, started

from autotune.tuning.interrupts import ENDING
from kernels_db import Log

# Hundreds of tests start Python. Byte code is kept for them, also where the environment asks for none:
# without it each child compiles this project, half of its start. Workers of pytest-xdist start later.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No deadline: a busy machine must not fail a test. Derandomised: a red run can be repeated. A run without
# slow tests tries fewer examples where a test names no number of them.
settings.register_profile("whole", deadline=None, derandomize=True)
settings.register_profile("fast", settings.get_profile("whole"), max_examples=40)


# Garbage is collected less often: a tenth of the time went there.
gc.set_threshold(20_000, 20, 20)


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "fail where tests that are not slow take too much processor time"
    parser.addoption("--hold-fast", action="store_true", help=told)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("fast" if "not slow" in config.getoption("markexpr") else "whole")
    if config.getoption("--hold-fast"):
        config.pluginmanager.register(Costs())


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_slow_cases(items, whole=not any("::" in arg for arg in config.args))


def pytest_collection_finish() -> None:
    """Keeps modules and thousands of tests, which stay to the end, out of what is searched for garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Paths that nobody has used. ``mktemp`` would read the names of all of them for each test."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(n) for n in count())


@pytest.fixture(autouse=True)
def own_places(homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database and a cache directory of this test's own, inherited by its child processes."""
    place = next(homes)
    place.mkdir()
    monkeypatch.setenv("AUTOTUNE_DB", str(place / "tuning.db"))
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(place / "cache"))
    monkeypatch.delenv("AUTOTUNE_LOG_LEVEL", raising=False)
    return place


@pytest.fixture(autouse=True, scope="session")
def short_migrations() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kernels_db.migrate.upgrade", new_logs.upgrade)
        yield


@pytest.fixture
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets of two threads, however many CPUs this process may use."""
    monkeypatch.setattr("autotune.targets.cpus.usable_cpus", lambda: 2)


@pytest.fixture
def terminal_signals() -> Iterator[None]:
    """Signals as a terminal has them: a shell has its background jobs ignore SIGINT."""
    with signals.usual(ENDING):
        yield


@pytest.fixture
def usual_recursion() -> Iterator[None]:
    """Python's own limit of nested calls: torch's compiler raises it for the whole process."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """No garbage is collected: close to the limit of nested calls, what ends an object would fail."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server for all tests that ask for one."""
    with started() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a new log, on each kind of database in turn."""
    if request.param == "sqlite":
        return str(tmp_path / "tuning.db")
    server: Server = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    """A log of four trials and a final."""
    with Log(tmp_path / "tuning.db") as log:
        fill(log, 4)
    return tmp_path / "tuning.db"
