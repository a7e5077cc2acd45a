"""Which tests are slow, and what the others take.

``slow`` marks a test that takes more than about half a second of processor time, or that waits for a clock.
``fast`` names the cases of a test that are not slow, where it has many: by their ids, or by patterns of them.
``but`` names those that are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase

import pytest
from own_time import OwnTime

# Processor seconds of its own (`own_time`) that a test may take unless it is marked slow. It is many times
# what a test should take.
EACH_S = 5.0
# The same for all of them together. They are to take four minutes on two cores, where these do nothing else.
ALL_S = 600.0


def matching(case: str, names: Collection[str]) -> set[str]:
    """Those of ``names`` that are the id of a case, or a pattern of it."""
    return {n for n in names if n == case or fnmatchcase(case, n)}


def mark_slow_cases(items: list[pytest.Item], whole: bool) -> None:
    """Marks the cases slow that ``fast`` leaves out.

    Raises:
        UsageError: a name of ``fast`` that no case has; only where ``items`` are ``whole`` files.
    """
    named, found = dict[str, set[str]](), defaultdict[str, set[str]](set)
    for item in items:
        for mark in item.iter_markers("fast"):
            test, case = item.nodeid.split("[")[0], item.callspec.id  # type: ignore[attr-defined]
            but = mark.kwargs.get("but", ())
            kept, left_out = matching(case, mark.args), matching(case, but)
            named[test] = {*mark.args, *but}
            found[test] |= kept | left_out
            if left_out or (mark.args and not kept):
                item.add_marker(pytest.mark.slow)
    for test, names in named.items():
        if whole and names - found[test]:
            unknown = ", ".join(sorted(names - found[test]))
            raise pytest.UsageError(f"{test} has no case {unknown}; correct its mark fast")


class Costs:
    """Has a run fail in which tests that are not slow take too much processor time: `EACH_S`, `ALL_S`."""

    def __init__(self) -> None:
        self._own = OwnTime()
        self._took = defaultdict[str, float](float)

    def pytest_sessionstart(self) -> None:
        self._own.imports.install()

    def pytest_unconfigure(self) -> None:
        self._own.imports.remove()

    def pytest_runtest_logstart(self) -> None:
        self._own.begin()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        report.spent_s = self._own.end()  # goes with the report from a worker to where it is told
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not {"slow", "soak", "fuzz"} & set(report.keywords):
            self._took[report.nodeid] += report.spent_s  # type: ignore[attr-defined]

    def _faults(self) -> list[str]:
        each = [f"{s:.1f} s in {test}; mark it slow" for test, s in self._took.items() if s > EACH_S]
        both = sum(self._took.values())
        return [*each, *([f"{both:.0f} s in all, more than {ALL_S:.0f} s"] if both > ALL_S else [])]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._faults() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # after all other summaries, which may be long
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
        yield
        terminalreporter.section("processor time of tests that are not slow")
        terminalreporter.line(f"{sum(self._took.values()):.0f} s, of at most {ALL_S:.0f} s; the longest:")
        for test, s in sorted(self._took.items(), key=lambda x: -x[1])[:5]:
            terminalreporter.line(f"{s:.1f} s in {test}")
        for fault in self._faults():
            terminalreporter.line(f"TOO LONG {fault}", red=True)
