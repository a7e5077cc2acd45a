"""Random schedules mean what the unscheduled program does: as nests, after every pass, and compiled."""

from __future__ import annotations

from random import Random

import pytest
from helpers import check_compiled, check_interpreted, expected, host, inputs
from programs import PROGRAMS, make
from random_schedules import minimise, random_schedule

from autotune.codegen.llvm import emit
from schedules.dtypes import COMPUTED
from schedules.schedule import Schedule


def check(s: Schedule, seed: int, *, compiled: bool) -> None:
    """Raise unless the schedule is right on this seed's data."""
    data = inputs(s.dag, seed)
    want = expected(s.dag, data)
    check_interpreted(s.nest, s.dag, data, want)
    if compiled:
        check_compiled(s.dag, s.trace, host(1 + seed // 2 % 2), data, want)


def try_one(seed: int, monkeypatch: pytest.MonkeyPatch, *, compiled: bool) -> None:
    """A random schedule of a random program; a failure is shown as a smallest trace."""
    rng = Random(seed)
    name, dtype = rng.choice(list(PROGRAMS)), rng.choice(COMPUTED)
    # a small limit now and then, so that small buffers too live in scratch memory
    monkeypatch.setattr(emit, "STACK_BYTES", 64 if seed % 3 == 0 else 16384)
    dag = make(name, dtype)
    s = random_schedule(dag, rng, rng.randint(3, 10))
    try:
        check(s, seed, compiled=compiled)
    except Exception as err:
        kind = type(err)

        def fails(t: Schedule) -> bool:
            try:
                check(t, seed, compiled=compiled)
            except Exception as again:
                return type(again) is kind
            return False

        least = minimise(dag, s.trace, fails)
        steps = "\n  ".join(map(str, least.steps))
        pytest.fail(f"seed {seed}, {name} {dtype}: {kind.__name__}: {err}\n  {steps}")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 10))
def test_random_schedules(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(first, first + 10):
        try_one(seed, monkeypatch, compiled=seed % 2 == 0)


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(100_000, 102_400, 100))
def test_many_random_schedules(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(first, first + 100):
        try_one(seed, monkeypatch, compiled=True)
