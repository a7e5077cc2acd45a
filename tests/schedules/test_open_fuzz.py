"""Random programs of random open sizes, in random schedules, mean at each size what the evaluator says; and
compiled they touch nothing else."""

from __future__ import annotations

from collections import Counter

import pytest
from open_fuzz import tried


def check(first: int, count: int, compiled: bool = False) -> Counter[str]:
    total, wrong = Counter[str](), []
    for seed in range(first, first + count):
        found, said = tried(seed, compiled)
        total += found
        wrong += said
    assert wrong == []
    return total


@pytest.mark.parametrize("first", range(0, 6, 2))
def test_random_programs_are_right_at_every_size(first: int) -> None:
    assert check(first, 2)["cases"] > 0


@pytest.mark.slow
def test_random_programs_are_right_compiled() -> None:
    total = check(20, 12, compiled=True)
    assert total["compiled"] >= 20 and total["random"] >= 0.85 * 2 * total["programs"]


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(1000, 1480, 40))
def test_many_random_programs_are_right_at_every_size(first: int) -> None:
    """About 6,000 of (program, schedule, size)."""
    total = check(first, 40, compiled=first % 160 == 40)
    assert total["cases"] >= 350
