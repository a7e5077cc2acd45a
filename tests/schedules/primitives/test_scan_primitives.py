"""Scans under random primitives mean what they did, and what would read too early is refused."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from helpers import check_compiled, check_interpreted, expected, host, inputs, same
from random_scans import random_scan
from random_schedules import minimise, random_schedule

from schedules import primitives, te
from schedules.errors import ScheduleError
from schedules.ir import carried
from schedules.passes import fold_storage
from schedules.primitives import scan_order
from schedules.schedule import Schedule


def check(s: Schedule, seed: int, *, compiled: bool) -> None:
    """Raise unless the schedule is right on this seed's data."""
    data = inputs(s.dag, seed)
    want = te.evaluate(s.dag, data)
    same(expected(s.dag, data), want, "plain loops")
    check_interpreted(s.nest, s.dag, data, want)
    if compiled:
        check_compiled(s.dag, s.trace, host(1 + seed // 2 % 2), data, want)


def try_one(seed: int, *, compiled: bool) -> None:
    """A random schedule of a random scan; a failure is shown as a smallest trace."""
    rng = Random(seed)
    dag = random_scan(rng)
    s = random_schedule(dag, rng, rng.randint(2, 9))
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
        pytest.fail(f"seed {seed}, {dag.to_json()['stages'][0]}: {kind.__name__}: {err}\n  {steps}")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_schedules_of_scans(first: int) -> None:
    for seed in range(first, first + 20):
        try_one(seed, compiled=seed % 2 == 0)


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(100_000, 102_000, 100))
def test_many_random_schedules_of_scans(first: int) -> None:
    for seed in range(first, first + 100):
        try_one(seed, compiled=seed % 4 == 0)


def recurrence(axis: int = 0, reverse: bool = False) -> list[Any]:
    """``y[t, i] = y[t - 1, i] / 2 + b[t, i]``."""
    b = te.placeholder((7, 10), name="b")
    step = -1 if reverse else 1

    def value(y: Any, t: Any, i: Any) -> Any:
        return b[t, i] - (y[t, i - step] if axis else y[t - step, i])

    return [
        b,
        te.scan((7, 10), lambda y, t, i: value(y, t, i), init=0.0, axis=axis, reverse=reverse, name="y"),
    ]


def neighbours() -> list[Any]:
    """A step reads the next column of the step before."""
    b = te.placeholder((7, 10), name="b")
    at = 9
    return [
        b,
        te.scan((7, 10), lambda y, t, i: b[t, i] - y[t - 1, te.minimum(i + 1, at)], init=0.0, name="y"),
    ]


LEGAL: dict[str, tuple[Callable[[], list[Any]], Callable[[Schedule], Any]]] = {
    "reorder": (recurrence, lambda s: s.reorder("y_i", "y_t")),
    "columns in parallel": (recurrence, lambda s: (s.reorder("y_i", "y_t"), s.parallel("y_i"))),
    "columns in lanes": (recurrence, lambda s: s.vectorize("y_i")),
    "lanes of steps": (
        recurrence,
        lambda s: (s.split("y_i", 4), s.reorder("y_i_0", "y_t", "y_i_1"), s.vectorize("y_i_1")),
    ),
    "shifted tiles": (
        recurrence,
        lambda s: (s.split("y_i", 4, "shift"), s.reorder("y_i_0", "y_t", "y_i_1"), s.vectorize("y_i_1")),
    ),
    "shifted steps": (recurrence, lambda s: s.split("y_t", 3, "shift")),
    "tiles of both": (
        recurrence,
        lambda s: (s.split("y_t", 3), s.split("y_i", 4), s.reorder("y_i_0", "y_t_0", "y_t_1", "y_i_1")),
    ),
    "fuse": (recurrence, lambda s: s.fuse("y_t", "y_i")),
    "unroll": (recurrence, lambda s: s.unroll("y_t")),
    "partition": (recurrence, lambda s: s.partition("y_t")),
    "cache_write": (recurrence, lambda s: s.cache_write("y")),
    "backwards": (lambda: recurrence(1, True), lambda s: (s.reorder("y_t", "y_i"), s.parallel("y_t"))),
    "backwards split": (lambda: recurrence(0, True), lambda s: s.split("y_t", 3)),
    "neighbours in lanes": (neighbours, lambda s: s.vectorize("y_i")),
    "neighbours in parallel": (neighbours, lambda s: s.parallel("y_i")),
}


@pytest.mark.parametrize("name", LEGAL)
def test_what_keeps_the_order_of_a_scan_is_legal(name: str) -> None:
    program, steps = LEGAL[name]
    s = Schedule(te.dag(program()))
    steps(s)
    check(s, 3, compiled=False)


EARLY = r"block y reads y\[.*\], and block y writes y\[t, i\]: the read is not proved to come after"
ILLEGAL: dict[str, tuple[Callable[[], list[Any]], Callable[[Schedule], Any], str]] = {
    "parallel": (recurrence, lambda s: s.parallel("y_t"), "^parallel y_t: " + EARLY),
    "vectorize": (
        recurrence,
        lambda s: (s.reorder("y_i", "y_t"), s.vectorize("y_t")),
        "^vectorize y_t: " + EARLY,
    ),
    "parts of steps": (
        recurrence,
        lambda s: (s.split("y_t", 3), s.reorder("y_t_1", "y_t_0")),
        "^reorder.*: " + EARLY,
    ),
    "neighbours": (neighbours, lambda s: s.reorder("y_i", "y_t"), "^reorder.*: " + EARLY),
    "fused": (
        recurrence,
        lambda s: (s.fuse("y_t", "y_i"), s.parallel("y_t_y_i")),
        "^parallel y_t_y_i: " + EARLY,
    ),
    "hint": (
        recurrence,
        lambda s: s.annotate("y_t", "software_pipeline", 1),
        "iterations of y_t would overlap",
    ),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_would_read_too_early_is_refused(name: str) -> None:
    program, steps, message = ILLEGAL[name]
    s = Schedule(te.dag(program()))
    with pytest.raises(ScheduleError, match=message):
        steps(s)


def test_a_block_whose_history_is_read_is_not_computed_in_parts() -> None:
    b, y = recurrence()
    z = te.compute((7, 10), lambda t, i: y[t, i] * 2.0, name="z")
    with pytest.raises(
        ScheduleError, match="compute_at y: block y makes y, which later steps of its scan read"
    ):
        Schedule(te.dag([b, z])).compute_at("y", "z_t")


def test_a_scan_without_its_check_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: no distance is looked at."""
    monkeypatch.setattr(carried, "_after", lambda *_: True)
    s = Schedule(te.dag(neighbours()))
    s.reorder("y_i", "y_t")
    with pytest.raises(AssertionError, match="scheduled nest"):
        check(s, 3, compiled=False)


def test_one_row_less_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: a state is stored where a neighbour still reads the step before."""
    b = te.placeholder((7, 10), name="b")
    left: Callable[[Any, Any], Any] = lambda t, i: y[t, te.maximum(i - 1, 0)]  # noqa: E731
    y = te.state((7, 10), init=0.0, name="y")
    out = te.scan(y, te.compute((7, 10), lambda t, i: b[t, i] - left(t - 1, i)))
    s = Schedule(te.dag([b, te.compute((10,), lambda i: out[6, i] + 1.0, name="z")]))
    monkeypatch.setattr(fold_storage, "_in_place", lambda *_: True)
    with pytest.raises(AssertionError, match="compact"):
        check(s, 3, compiled=False)


def test_states_are_as_many_rows_as_are_read() -> None:
    """A state keeps one step where each element is read before it is stored, else as many as are read."""
    from schedules.ir import Alloc, walk
    from schedules.passes.lower import lower

    def rows(program: list[Any], steps: Callable[[Schedule], Any] = lambda s: None) -> list[list[int]]:
        b, y = program
        z = te.compute((10,), lambda i: y[6, i] + 1.0, name="z")
        s = Schedule(te.dag([b, z]))
        steps(s)
        check(s, 1, compiled=True)
        allocated = [x.buffer for x in walk(lower(s.nest).body) if isinstance(x, Alloc)]
        return [[int(n.value) for n in x.shape] for x in allocated]  # type: ignore[attr-defined]

    assert rows(recurrence()) == [[1, 10]]
    assert rows(neighbours())[0][0] == 2
    inner: Callable[[Schedule], Any] = lambda s: (s.reorder("y_i", "y_t"), s.reverse_compute_at("z", "y_i"))  # noqa: E731
    assert rows(recurrence(), inner) == [[1, 1]]
    b = te.placeholder((7, 10), name="b")
    third = te.scan((7, 10), lambda y, t, i: b[t, i] - y[t - 1, i] + y[t - 3, i], init=0.0, name="y")
    assert rows([b, third]) == [[4, 10]]


def test_numbers_of_evaluation_are_those_of_the_loop() -> None:
    data = inputs(te.dag(recurrence()))
    want, row = np.empty((7, 10), np.float32), np.zeros(10, np.float32)
    for t in range(7):
        row = data[0][t] - row
        want[t] = row
    assert np.array_equal(te.evaluate(te.dag(recurrence()), data)[0], want)


def test_what_a_primitive_may_not_do_to_a_scan_its_variants_may_not() -> None:
    """Lists of primitives are of names, which a subclass does not inherit."""
    for names in (scan_order._KEEP_ORDER, scan_order._REPLACE):
        own = [
            c for c in vars(primitives).values() if isinstance(c, type) and getattr(c, "name", "") in names
        ]
        variants = {x.name for c in own for x in c.__subclasses__()}
        assert own and variants <= names
