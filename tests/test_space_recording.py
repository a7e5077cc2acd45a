"""Recorded formulas: the values that numpy gives, each different operation once."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from schedules import expr as E
from schedules.expr import Const, Hole
from schedules.space.holes import Columns
from schedules.space.recording import CHUNK, Program, Recorded


def formulas(env: Columns) -> list[object]:
    a, b = Hole("a"), Hole("b")
    up = E.evaluate(E.ceildiv(a, b), env, env.known)
    mod = E.evaluate((a * 3) % b + a // b, env, env.known)
    small = E.evaluate(E.minimum(a * b, Const(100)), env, env.known)
    x, y = env["a"], env["b"]
    bits = x.astype(np.int64) & -x.astype(np.int64)
    either = np.where((x > y) & ~(x == 7), np.clip(bits, 2.0, y), np.zeros_like(x))
    return [up, mod, small, bits, either, 2 * x * 0.0 + 1.0 * y + 0.0, np.ceil(x / y) - np.maximum(3, y), 5.0]


def columns(rows: np.ndarray) -> Columns:
    return Columns({"a": rows[:, 0], "b": rows[:, 1]})


@pytest.mark.parametrize("n", [0, 1, 100, CHUNK + 3])
def test_a_program_gives_what_numpy_gives(n: int) -> None:
    rows = np.random.default_rng(0).integers(1, 1 << 20, (n, 2))
    rows[::2] %= 13
    rows += 1
    program = Program(["a", "b"], lambda env: [formulas(env)])
    want = [np.broadcast_to(np.asarray(x, np.float64), n) for x in formulas(columns(rows))]
    got = np.empty((len(want), n))
    for part, found, _ in program.run(rows):
        for k, x in enumerate(found):
            got[k, part] = x
    assert np.array_equal(got, np.stack(want))


@pytest.mark.parametrize("asked", [[], [1], [2], [2, 1, 3], [3, 1, 2, 2]])
def test_groups_are_worked_out_where_they_are_asked_for(asked: list[int]) -> None:
    """Whatever was asked for before, and whether another group or the first one needs the same columns."""

    def groups(env: Columns) -> list[list[object]]:
        a, b = env["a"], env["b"]
        c, d = a * b + 1, np.sqrt(a)
        return [[c / 2, 3.0], [c - d, (c - d) * b], [(c - d) * (a + 2), c / 2, d + 4], [a, 7.0]]

    rows = np.random.default_rng(1).integers(1, 100, (CHUNK + 5, 2))
    want = groups(columns(rows.astype(np.float64)))
    for part, first, group in Program(["a", "b"], groups).run(rows):
        found = {0: first, **{k: group(k) for k in asked}}
        for k, got in found.items():
            assert len(got) == len(want[k])
            for x, y in zip(got, want[k], strict=True):
                assert np.array_equal(
                    np.broadcast_to(x, len(rows[part])), np.broadcast_to(y, len(rows))[part]
                )


def test_what_only_another_group_needs_is_not_done_for_the_first() -> None:
    def groups(env: Columns) -> list[list[object]]:
        c = env["a"] * env["b"]
        return [[c + 1], [np.sqrt(c), c + 1], [np.sqrt(c) - 2]]

    done = [[f.__name__ for f, *_ in steps] for steps in Program(["a", "b"], groups)._steps]
    assert done == [["multiply", "add"], ["sqrt"], ["sqrt", "subtract"]]


def test_an_operation_is_done_once_and_only_if_it_is_needed() -> None:
    done: list[str] = []

    def counted(env: Columns) -> list[list[object]]:
        a, b = env["a"], env["b"]
        np.sqrt(a)  # of no use to anyone
        return [[a * b + 1, 1 + b * a, (a * b) * 1.0, b * 0.0]]

    program = Program(["a", "b"], counted)
    done = [f.__name__ for f, *_ in program._steps[0]]
    assert sorted(done) == ["add", "multiply"]


def test_nothing_is_left_for_the_garbage_collector() -> None:
    """Hundreds of programs are made before a search's first pick: their columns took it a tenth of that."""

    def alive() -> int:
        return sum(type(x) is Recorded for x in gc.get_objects())  # isinstance asks proxies for their class

    gc.collect()
    gc.disable()
    try:
        before = alive()
        program = Program(["a", "b"], lambda env: [[env["a"] * env["b"]], [np.sqrt(env["a"])]])
        assert alive() == before
    finally:
        gc.enable()
    assert [len(steps) for steps in program._steps] == [1, 1]


def test_large_products_and_quotients_are_exact() -> None:
    """Below 2**53, where floats still tell neighbours apart."""
    rows = np.array([[2**52 - 1, 3], [2**52, 3], [2**50 + 1, 2**25], [2**50, 2**25], [3 * 2**40 - 1, 3]])
    a, b = Hole("a"), Hole("b")
    program = Program(
        ["a", "b"], lambda env: [[E.evaluate(e, env, env.known) for e in (a // b, E.ceildiv(a, b), a % b)]]
    )
    ((_, found, _),) = program.run(rows)
    want = [[x // y for x, y in rows.tolist()], [-(-x // y) for x, y in rows.tolist()]]
    want.append([x % y for x, y in rows.tolist()])
    assert [x.astype(np.int64).tolist() for x in found] == want
