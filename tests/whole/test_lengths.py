"""Tests that are slow are so by their marks, and others may not take long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import lengths
import pytest
from lengths import Costs, mark_slow_cases


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
    costs.pytest_terminal_summary(terminal)  # type: ignore[arg-type]
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
