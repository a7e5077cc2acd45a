"""Choosing the next round while this one is measured: what the policy knows, and when."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

import pytest

from autotune.search.ahead import LEAD, AskAhead
from autotune.search.base import Result
from schedules.space.base import Candidate


class Scripted:
    """A policy that notes what it is told and asked; choosing waits for ``go``."""

    def __init__(self, left: int = 100) -> None:
        self.go, self.asked = threading.Event(), threading.Event()
        self.go.set()
        self.seen: list[tuple[str, int, bool]] = []
        self.left = left

    def exclude(self, digests: Iterable[str]) -> None: ...

    def predicted(self, chosen: Sequence[Candidate]) -> Mapping[str, Sequence[float]]:
        return {"model": [float(c.row[0]) for c in chosen]}

    def tell(self, results: Sequence[Result]) -> None:
        self.seen.append(("tell", len(results), threading.current_thread() is threading.main_thread()))

    def ask(self, n: int) -> list[Candidate]:
        self.asked.set()
        assert self.go.wait(10)
        if n < 0:
            raise ValueError("a made-up failure")
        self.seen.append(("ask", n, threading.current_thread() is threading.main_thread()))
        n = min(n, self.left)
        self.left -= n
        return [Candidate(0, (k,)) for k in range(n)]


def results(n: int) -> list[Result]:
    return [Result(Candidate(0, (k,)), 1.0) for k in range(n)]


def test_a_round_that_was_begun_is_the_next_one() -> None:
    policy = Scripted()
    with AskAhead(policy) as search:
        assert len(search.ask(3)) == 3  # nothing was begun: chosen here
        assert search.predicted == {"model": [0.0, 1.0, 2.0]}
        search.tell(results(2))
        search.begin(5)
        assert len(search.ask(7)) == 5  # the size that was begun counts
        assert len(search.ask(7)) == 7
    assert policy.seen == [("ask", 3, True), ("tell", 2, True), ("ask", 5, False), ("ask", 7, True)]


def test_what_is_told_meanwhile_waits_for_the_thread() -> None:
    policy = Scripted()
    with AskAhead(policy) as search:
        policy.go.clear()
        search.begin(4)
        assert policy.asked.wait(10)
        search.tell(results(3))
        search.tell(results(1))
        assert policy.seen == []  # the policy is in use
        policy.go.set()
        assert len(search.ask(4)) == 4
        search.begin(2)
        search.ask(2)
    assert policy.seen == [("ask", 4, False), ("tell", 4, True), ("ask", 2, False)]


def test_a_round_that_came_out_empty_is_asked_for_again_with_all_that_is_known() -> None:
    policy = Scripted(left=0)
    with AskAhead(policy) as search:
        search.begin(4)
        search.tell(results(3))
        policy.go.set()
        assert search.ask(4) == []
    assert policy.seen in (
        [("ask", 4, False), ("tell", 3, True), ("ask", 4, True)],
        [("tell", 3, True), ("ask", 4, False), ("ask", 4, True)],
    )


def test_a_failure_in_the_thread_reaches_who_asks() -> None:
    with AskAhead(Scripted()) as search:
        search.begin(-1)
        with pytest.raises(ValueError, match="a made-up failure"):
            search.ask(1)


def test_it_is_due_when_choosing_takes_about_as_long_as_what_is_left() -> None:
    with AskAhead(Scripted()) as search:
        search.seconds = 2.0
        assert search.due(LEAD * 2.0) and not search.due(LEAD * 2.0 + 0.01)
        search.begin(1)
        assert not search.due(0.0)  # once is enough
        search.ask(1)
