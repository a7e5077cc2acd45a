"""Every primitive keeps the meaning of a nest, travels in a trace, and takes holes filled later."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import hypothesis.strategies as st
import pytest
from helpers import expected, inputs, interpret, same
from hypothesis import given, settings
from programs import PROGRAMS, make
from random_schedules import CHOICES, random_step

from schedules.errors import ScheduleError
from schedules.model import Step, Trace
from schedules.primitives import PRIMITIVES
from schedules.schedule import Schedule

NUMERIC = {"split": "factors", "tile": "factors", "pack": "tiles", "online": "size"}

# Loops that are an instruction are few: tests/schedules/instructions makes them.
KINDS = PRIMITIVES.keys() - {"tensorize"}


def with_holes(trace: Trace) -> tuple[Trace, dict[str, int]]:
    """The trace with every positive tile size replaced by a hole, and the decisions that give it back."""
    decisions: dict[str, int] = {}

    def hole(v: object) -> object:
        if type(v) is not int or v < 1:
            return v
        decisions[f"h{len(decisions)}"] = v
        return ("?", f"h{len(decisions) - 1}")

    steps = []
    for step in trace.steps:
        name = NUMERIC.get(step.primitive)
        args = ((k, _each(hole, v) if k == name else v) for k, v in step.args)
        steps.append(Step(step.primitive, tuple(args)))
    return Trace(tuple(steps)), decisions


def _each(f: Callable[[object], object], v: object) -> object:
    return tuple(map(f, v)) if isinstance(v, tuple) else f(v)


def check(s: Schedule) -> None:
    data = inputs(s.dag)
    same(interpret(s.nest, s.dag, data), expected(s.dag, data), str(s.trace.to_json()))
    again = Trace.from_json(s.trace.to_json())
    assert again == s.trace
    assert Schedule.replay(s.dag, again).nest == s.nest
    open_, decisions = with_holes(s.trace)
    assert Trace.from_json(open_.to_json()) == open_
    filled = Schedule.replay(s.dag, open_, decisions=decisions)
    assert filled.nest == s.nest and filled.trace == s.trace


def test_every_primitive_has_random_arguments() -> None:
    assert CHOICES.keys() == KINDS


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(max_examples=12)
@given(name=st.sampled_from(sorted(PROGRAMS)), seed=st.integers(0, 10**6))
def test_alone(kind: str, name: str, seed: int) -> None:
    s = Schedule(make(name))
    before = s.nest
    if random_step(s, Random(seed), kind):
        check(s)
    else:
        assert s.nest == before and s.trace == Trace()


@pytest.mark.fast("fuse", "partition", "skip_zeros", "annotate", "decompose_reduction")
@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(max_examples=12)
@given(name=st.sampled_from(sorted(PROGRAMS)), seed=st.integers(0, 10**6))
def test_after_others(kind: str, name: str, seed: int) -> None:
    rng = Random(seed)
    s = Schedule(make(name))
    for _ in range(rng.randint(1, 5)):
        random_step(s, rng)
    random_step(s, rng, kind)
    check(s)


@pytest.mark.slow
def test_each_primitive_applies_somewhere() -> None:
    """The random arguments are no vacuous test: each primitive is legal on some program."""
    # of scans: test_sums_of_panels.py and test_compute_ahead.py have programs for these
    of_scans = {"reduce_ahead", "skip_unread", "compute_ahead"}
    for kind in KINDS - of_scans:
        rng, found = Random(1), 0
        for name in PROGRAMS:
            s = Schedule(make(name))
            if kind in ("pack", "unfold"):
                random_step(s, rng, "cache_read")
            found += random_step(s, rng, kind)
        assert found, kind


def test_structure_with_open_holes() -> None:
    """A sketch is a nest too: its extents are expressions that a decision fills."""
    steps = (
        Step("split", (("factors", (None, ("?", "a"), ("?", "b"))), ("loop", "C_i"), ("tail", "guard"))),
        Step("cache_read", (("block", "C"), ("buffer", "B"), ("scope", "global"))),
        Step("pack", (("buffer", "B_global"), ("order", (1, 0, 2)), ("tiles", (0, ("?", "c"))))),
    )
    dag = make("matmul")
    sketch = Schedule.replay(dag, Trace(steps))
    assert "ceildiv(5, ?a * ?b)" in str(sketch)
    for a, b, c in ((1, 1, 1), (2, 3, 4), (8, 1, 3)):
        s = Schedule.replay(dag, Trace(steps), decisions={"a": a, "b": b, "c": c})
        data = inputs(dag)
        same(interpret(s.nest, dag, data), expected(dag, data), f"{a} {b} {c}")


def test_a_refused_step_changes_nothing() -> None:
    s = Schedule(make("matmul"))
    s.split("C_i", [None, 2])
    before, trace = s.nest, s.trace
    with pytest.raises(ScheduleError):
        s.parallel("C_k")
    assert s.nest is before and s.trace == trace
