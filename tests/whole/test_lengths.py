"""Tests that are slow are so by their marks, and others may not take long."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lengths
import own_time
import pytest
from lengths import Costs, mark_slow_cases
from own_time import Imports, OwnTime, slowness
from syntax import parsing_s, tree


class Case:
    """A case of a test that has been collected."""

    def __init__(self, case: str, mark: pytest.MarkDecorator) -> None:
        self.nodeid, self.callspec = f"test_x.py::test[{case}]", SimpleNamespace(id=case)
        self._mark, self.slow = mark.mark, False

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        return [self._mark] if self._mark.name == name else []

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.slow = mark.name == "slow"


def fast_ones(mark: pytest.MarkDecorator, whole: bool = True) -> list[str]:
    cases: list[Any] = [Case(c, mark) for c in ("add-1", "add-2", "softmax-1", "a [b]")]
    mark_slow_cases(cases, whole)
    return [c.callspec.id for c in cases if not c.slow]


def test_cases_that_are_not_named_are_slow() -> None:
    fast = pytest.mark.fast
    assert fast_ones(fast("add-1", "a [b]")) == ["add-1", "a [b]"]
    assert fast_ones(fast("*-1")) == ["add-1", "softmax-1"]
    assert fast_ones(fast("add-*", but=["*-2"])) == ["add-1"]
    assert fast_ones(fast(but=["add-*"])) == ["softmax-1", "a [b]"]
    assert len(fast_ones(pytest.mark.gpu)) == 4


@pytest.mark.parametrize("mark", [pytest.mark.fast("adds-*"), pytest.mark.fast(but=["adds-*"])])
def test_a_name_that_no_case_has_is_refused(mark: pytest.MarkDecorator) -> None:
    with pytest.raises(pytest.UsageError, match=r"test_x\.py::test has no case adds-\*; correct"):
        fast_ones(mark)
    fast_ones(mark, whole=False)  # of a file of which one case was asked for, others are unknown


def held(*took: float, slow: bool = False) -> tuple[int, str]:
    """The status of a run with tests of so many seconds, and what it says."""
    costs, session, said = Costs(), SimpleNamespace(exitstatus=pytest.ExitCode.OK), list[str]()
    for i, spent in enumerate(took):
        words: dict[str, int] = {"slow": 1} if slow else {}
        for part in (0.25 * spent, 0.75 * spent):  # its setup, its call
            costs.pytest_runtest_logreport(SimpleNamespace(nodeid=f"test{i}", keywords=words, spent_s=part))  # type: ignore[arg-type]
    costs.pytest_sessionfinish(session)  # type: ignore[arg-type]
    terminal = SimpleNamespace(section=said.append, line=lambda text, **_: said.append(text))
    list(costs.pytest_terminal_summary(terminal))  # type: ignore[arg-type]
    return int(session.exitstatus), "\n".join(said)


def test_a_run_whose_fast_tests_take_long_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    status, said = held(0.5 * lengths.EACH_S, 1.0)
    assert status == 0 and "TOO LONG" not in said
    status, said = held(0.1, 2 * lengths.EACH_S)
    assert status == 1 and f"TOO LONG {2 * lengths.EACH_S:.1f} s in test1; mark it slow" in said
    assert held(2 * lengths.EACH_S, slow=True)[0] == 0
    monkeypatch.setattr(lengths, "ALL_S", 3.0)
    status, said = held(2.0, 2.0)
    assert status == 1 and "TOO LONG 4 s in all, more than 3 s" in said


class Machine:
    """A machine that a test can let work: ``own`` and ``children`` are its processor seconds, ``wall`` the
    time. ``slow``: times as slow as the one for which limits were chosen."""

    def __init__(self, slow: float = 1.0) -> None:
        self.own = self.children = self.wall = 0.0
        self.imports = Imports()
        self.time = OwnTime(self.imports, lambda: (self.own, self.children), lambda: self.wall, lambda: slow)

    def took(self, own: float = 0.0, children: float = 0.0, wall: float = 0.0, imports: float = 0.0) -> float:
        self.own, self.children, self.wall = self.own + own, self.children + children, self.wall + wall
        self.imports.seconds += imports
        return self.time.end()


def test_the_time_of_a_test_is_that_on_the_machine_of_the_limits() -> None:
    assert Machine().took(own=2.0, wall=2.0) == 2.0
    assert Machine(slow=2.0).took(own=8.0, wall=9.0) == 4.0
    slow = Machine(slow=2.0)
    assert [slow.took(own=0.5, wall=0.5), slow.took(own=0.5, wall=0.5)] == [0.25, 0.25]


def test_what_others_began_is_no_test_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("own_time.os.cpu_count", lambda: 2)
    m = Machine()
    assert m.took(own=0.1, children=9.0, wall=0.2) == pytest.approx(0.4)  # reaped late
    assert m.took(own=1.0, children=9.0, wall=6.0) == pytest.approx(10.0)  # it may have waited for them
    assert m.took(own=7.5, wall=8.0, imports=7.0) == pytest.approx(0.5)
    assert m.took(own=7.5, wall=8.0) == pytest.approx(7.5)


def test_the_first_import_of_a_library_is_counted_and_no_other(tmp_path: Path) -> None:
    spin = "import time\nend = time.thread_time() + 0.02\nwhile time.thread_time() < end: pass\n"
    (tmp_path / "takes_long_inside.py").write_text(spin)
    (tmp_path / "takes_long.py").write_text(spin + "import takes_long_inside\n")
    sys.path.insert(0, str(tmp_path))
    imports = Imports()
    imports.install()
    try:
        importlib.import_module("takes_long")
        assert 0.04 <= imports.seconds < 0.5
        before = imports.seconds
        importlib.import_module("takes_long")
        assert imports.seconds == before
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("takes_long_and_is_not_there")
        assert imports._depth.n == 0
    finally:
        imports.remove()
        sys.path.remove(str(tmp_path))
        for name in ("takes_long", "takes_long_inside"):
            sys.modules.pop(name, None)


def test_a_machine_is_as_slow_as_a_loop_says() -> None:
    def ticks(seconds: float) -> Any:
        return iter([k * seconds for k in range(8)]).__next__

    assert slowness(3, ticks(0.001)) == 1.0  # a faster one has no stricter limits
    assert slowness(3, ticks(2 * own_time.NOMINAL_S)) == pytest.approx(2.0)
    assert slowness(3, ticks(1000.0)) == own_time.SLOWEST
    assert 1.0 <= slowness() <= own_time.SLOWEST


@pytest.mark.slow
def test_a_run_with_a_long_test_fails(tmp_path: Path) -> None:
    """In a process of its own, with limits of a tenth of a second."""
    (tmp_path / "conftest.py").write_text(
        f"import sys; sys.path.insert(0, {str(Path(lengths.__file__).parent)!r})\n"
        "import lengths\nlengths.EACH_S = 0.1\n"
        "def pytest_configure(config): config.pluginmanager.register(lengths.Costs())\n"
    )
    (tmp_path / "test_some.py").write_text(
        "import time\n"
        "def spin(s):\n    end = time.thread_time() + s\n    while time.thread_time() < end: pass\n"
        "def test_long(): spin(0.6)\n"
        "def test_short(): pass\n"
    )
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    found = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode == 1 and "2 passed" in found.stdout
    assert "test_some.py::test_long; mark it slow" in found.stdout
    assert "test_short; mark" not in found.stdout


def test_files_that_are_parsed_once_for_many_tests_are_not_a_tests_own() -> None:
    time = OwnTime(wall=lambda: 100.0, slowness=lambda: 1.0)
    time.begin()
    tree("\n".join(f"f{n} = lambda x: x + {n}" for n in range(20_000)))
    parsed = parsing_s()
    assert parsed > 0.05 and time.end() < parsed / 2
