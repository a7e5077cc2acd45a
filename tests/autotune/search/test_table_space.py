"""Neighbours in recorded tables."""

from __future__ import annotations

import numpy as np

from autotune.search.table import Sheet, TableSpace


def table(rows: np.ndarray) -> TableSpace:
    rows = rows.astype(np.int64)
    names = tuple(f"p{k}" for k in range(rows.shape[1]))
    return TableSpace([Sheet("table", names, rows, np.ones(len(rows)), rows.astype(np.float32))], names)


def test_a_parameter_that_is_constant_takes_no_mutations() -> None:
    """Two parameters that vary among eight that do not: every mutation changes one of the two."""
    grid = np.stack(np.meshgrid(np.arange(6), np.arange(5), indexing="ij"), -1).reshape(-1, 2)
    rows = np.full((30, 10), 3)
    rows[:, [2, 7]] = grid
    space = table(rows)
    asked = np.repeat(space.every(0, 100), 20, axis=0)
    differs = space.mutate(0, asked, np.random.default_rng(0)) != asked
    assert (differs.sum(axis=1) == 1).all()
    assert 0.45 < differs[:, 2].mean() < 0.55


def test_a_direction_in_which_the_table_has_nothing_takes_none() -> None:
    """A constraint leaves one way to go from the corner."""
    space = table(np.array([[0, 0], [0, 1], [0, 2], [3, 1], [3, 2]]))
    made = space.mutate(0, np.zeros((200, 2), np.int64), np.random.default_rng(0))
    assert set(map(tuple, made.tolist())) == {(0, 1), (0, 2)}


def test_half_of_the_mutations_move_to_the_next_value_that_the_table_has() -> None:
    """Of 8 among 1, 2, 4, 8, 16, 32, 64, 128 with 16 missing: to 4 or to 32."""
    values = np.array([1, 2, 4, 8, 32, 64, 128])
    space = table(np.column_stack([values, np.zeros(7)]))
    rng = np.random.default_rng(0)
    made = space.mutate(0, np.tile([[8, 0]], (4000, 1)), rng)[:, 0]
    assert set(made.tolist()) == set(values.tolist()) - {8}  # the other half goes anywhere
    near = np.isin(made, [4, 32])
    assert 0.6 < near.mean() < 0.74  # 1/2 + 1/2 of 2/6
    assert 0.45 < (made[near] == 4).mean() < 0.55
    for end, beside in ((1, 2), (128, 64)):
        made = space.mutate(0, np.tile([[end, 0]], (2000, 1)), rng)[:, 0]
        assert end not in made and 0.5 < (made == beside).mean() < 0.67  # 1/2 + 1/2 of 1/6


def test_a_row_without_neighbours_becomes_any() -> None:
    space = table(np.array([[0, 0], [1, 1], [2, 2]]))
    made = space.mutate(0, np.zeros((300, 2), np.int64), np.random.default_rng(0))
    assert set(map(tuple, made.tolist())) == {(0, 0), (1, 1), (2, 2)}
    assert space.mutate(0, np.zeros((0, 2), np.int64), np.random.default_rng(0)).shape == (0, 2)
