"""A plugin of pytest for `mutants.py`: likely tests first, an end after some time, a file of what happens.

`mutants.py` copies it to a folder of its own, since this file may be changed while tests run.
"""

from __future__ import annotations

import os
import time

REPORT, UNTIL, WORDS = "MUTANTS_REPORT", "MUTANTS_UNTIL", "MUTANTS_WORDS"


def pytest_collection_modifyitems(items: list) -> None:
    """First the tests whose names have words of the changed code."""
    words = os.environ[WORDS].split()
    items.sort(key=lambda item: -sum(w in item.nodeid for w in words))


def _tell(event: str, test: str) -> None:
    with open(os.environ[REPORT], "a") as file:
        file.write(f"{event} {test}\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    _tell("started", nodeid)


def pytest_runtest_logreport(report) -> None:
    if report.failed:
        _tell("failed", report.nodeid)


def pytest_collectreport(report) -> None:
    if report.failed:
        _tell("failed", report.nodeid)


def pytest_runtest_teardown(item) -> None:
    if time.time() > float(os.environ[UNTIL]):
        item.session.shouldstop = "the time is over"


def pytest_sessionfinish() -> None:
    _tell("finished", "all")
