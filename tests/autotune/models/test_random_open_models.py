"""Random models with open sizes and with states give, at several sizes and in several calls, what the
evaluator says."""

from __future__ import annotations

from collections import Counter

import pytest
from random_models import tried


def check(first: int, count: int) -> Counter[str]:
    total, wrong = Counter[str](), []
    for seed in range(first, first + count):
        found, said = tried(seed)
        total += found
        wrong += said
    assert wrong == []
    return total


def test_random_models_are_right_at_every_size_and_call() -> None:
    total = check(0, 10)
    assert total["with sizes"] and total["with states"]


@pytest.mark.slow
def test_more_random_models_are_right_at_every_size_and_call() -> None:
    total = check(100, 80)
    assert total["models"] >= 50 and total["with states"] >= 8


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(1000, 3000, 200))
def test_many_random_models_are_right_at_every_size_and_call(first: int) -> None:
    assert check(first, 200)["cases"] >= 400
