"""Most schedules that the space offers for the largest size are right at every size, on arrays that end at
inaccessible pages; none is wrong."""

from __future__ import annotations

from collections import Counter

import pytest
from helpers import host
from open_breadth import BFLOATS, BYTES, KINDS, PAIRS, of_kind, outcomes

# Of the schedules that are tried, how many may be refused in words: a share, and of few one. Loops of two
# open sizes are cut in four, and some are unrolled to more operations than a kernel may have.
SHARE, HALF = 0.03, 0.5


def check(found: Counter[str], least: int, share: float = SHARE) -> None:
    wrong = {what: n for what, n in found.items() if what != "right" and not what.startswith("refused: ")}
    assert wrong == {}
    assert found.total() >= least
    assert found.total() - found["right"] <= max(1, share * found.total()), found


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", KINDS)
def test_schedules_of_the_space_are_right_at_every_size(name: str, threads: int) -> None:
    """Four of each sketch."""
    check(of_kind(KINDS[name], threads, 4), 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BFLOATS, *BYTES])
def test_products_of_few_bits_are_right_at_every_size(name: str) -> None:
    """By the instructions that this machine has, on one thread and on two."""
    check(of_kind((BFLOATS | BYTES)[name], 1, 2), 2)
    check(of_kind((BFLOATS | BYTES)[name], 2, 1), 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows and depth", "rows and columns of a softmax"])
def test_schedules_are_right_at_pairs_of_sizes(name: str) -> None:
    check(outcomes(PAIRS[name](), host(2), 1, exact=False), 1, share=HALF)


@pytest.mark.soak
@pytest.mark.parametrize("name", PAIRS)
def test_more_schedules_are_right_at_pairs_of_sizes(name: str) -> None:
    check(outcomes(PAIRS[name](), host(1), 2, exact=False), 2, share=HALF)
    check(outcomes(PAIRS[name](), host(2), 1, exact=False), 1, share=HALF)


def test_some_schedules_are_right_at_every_size() -> None:
    check(of_kind(KINDS["rows of a softmax"], 1, 1), 1)
