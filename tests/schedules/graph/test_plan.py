"""The arena: what lives at one time never overlaps, and dead places are used again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules.graph.plan import ALIGNMENT, PlanStep, plan


def lifetimes(steps: list[PlanStep], kept: list[str]) -> dict[str, set[int]]:
    alive: dict[str, set[int]] = {}
    for n, step in enumerate(steps):
        for name in step.writes:
            alive.setdefault(name, {n})
        for name in step.reads:
            if name in alive:
                alive[name] |= set(range(min(alive[name]), n + 1))
    for name in kept:
        alive[name] |= set(range(min(alive[name]), len(steps) + 1))
    return alive


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[PlanStep], dict[str, int], list[str]]:
    steps: list[PlanStep] = []
    names: list[str] = []
    for n in range(draw(st.integers(1, 12))):
        reads = draw(st.lists(st.sampled_from(names), max_size=3, unique=True)) if names else []
        writes = [f"t{n}_{k}" for k in range(draw(st.integers(1, 2)))]
        steps.append(PlanStep(tuple(reads), tuple(writes)))
        names += writes
    sizes = {n: draw(st.integers(1, 1000)) for n in names}
    return steps, sizes, draw(st.lists(st.sampled_from(names), max_size=2, unique=True))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(programs())
def test_what_lives_together_does_not_overlap(
    program: tuple[list[PlanStep], dict[str, int], list[str]],
) -> None:
    steps, sizes, kept = program
    made = plan(steps, sizes, kept)
    alive = lifetimes(steps, kept)
    for a in sizes:
        assert made.offsets[a] % ALIGNMENT == 0
        assert made.offsets[a] + sizes[a] <= made.nbytes
        for b in sizes:
            if a < b and alive[a] & alive[b]:
                begin, end = made.offsets[a], made.offsets[a] + sizes[a]
                assert end <= made.offsets[b] or made.offsets[b] + sizes[b] <= begin, (a, b)


@pytest.mark.parametrize("layers", [3, 12])
def test_a_chain_needs_two_places(layers: int) -> None:
    steps = [PlanStep((f"t{n - 1}",) if n else (), (f"t{n}",)) for n in range(layers)]
    assert plan(steps, {f"t{n}": 256 for n in range(layers)}).nbytes == 512


def test_a_result_that_is_kept_is_not_written_over() -> None:
    steps = [PlanStep((), ("a",)), PlanStep(("a",), ("b",)), PlanStep(("b",), ("c",))]
    sizes = dict.fromkeys("abc", 64)
    assert plan(steps, sizes).nbytes == 128
    assert plan(steps, sizes, ["a"]).nbytes == 192


def test_tensors_that_lie_elsewhere_have_no_place() -> None:
    assert plan([PlanStep(("input",), ("a",))], {"a": 4}).offsets == {"a": 0}
