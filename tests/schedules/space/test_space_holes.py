"""Decision matrices: whatever sampling, mutation and crossover make stays in the space."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from space_cases import big_space

from schedules import te
from schedules.expr import Const, Hole, ceildiv
from schedules.model import Target
from schedules.space import holes as H
from schedules.space.base import row_keys
from schedules.space.sketch_builder import SketchBuilder

SPECS = st.lists(
    st.one_of(
        st.lists(st.integers(1, 64), min_size=1, max_size=6, unique=True).map(tuple),
        st.tuples(st.integers(1, 400), st.integers(0, 3), st.sampled_from([3, 8, 1 << 40])),
    ),
    max_size=5,
)


def build(specs: list[tuple[int, ...]]) -> tuple[H.HoleSpec, ...]:
    """Holes from drawn tuples: choices, and divisors of a count that an earlier hole may set."""
    out: list[H.HoleSpec] = []
    for n, spec in enumerate(specs):
        if len(spec) == 3 and spec[2] in (3, 8, 1 << 40):
            of = Const(spec[0]) if not out else ceildiv(spec[0], Hole(out[spec[1] % len(out)].name))
            earlier = Const(1) if not out else Hole(out[spec[1] % len(out)].name)
            tile = H.EvenTile(f"h{n}", of, earlier) if spec[2] == 3 else H.PerfectTile(f"h{n}", of, spec[2])
            out.append(tile)
        else:
            out.append(H.Choice(f"h{n}", spec))
    return tuple(out)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 1)), max_size=8))
def test_rows_have_one_key_if_they_are_equal(rows: list[tuple[int, int]]) -> None:
    keys = row_keys(np.array(rows, dtype=np.int64).reshape(-1, 2))
    assert len(keys) == len(rows)
    for i, j in product(range(len(rows)), repeat=2):
        assert (keys[i] == keys[j]) == (rows[i] == rows[j])


@given(SPECS, st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_all_rows_stay_allowed(specs: list[tuple[int, ...]], n: int, seed: int) -> None:
    holes = build(specs)
    rng = np.random.default_rng(seed)
    a, b = H.sample(holes, n, rng), H.sample(holes, n, rng)
    for rows in (a, b, H.mutate(holes, a, rng), H.crossover(holes, a, b, rng)):
        assert rows.shape == (n, len(holes)) and rows.dtype == np.int64
        assert H.allowed(holes, H.columns(holes, rows)).all()


@given(SPECS, st.integers(0, 2**32 - 1))
def test_operators_do_what_they_say(specs: list[tuple[int, ...]], seed: int) -> None:
    holes = build(specs)
    rng = np.random.default_rng(seed)
    a, b = H.sample(holes, 20, rng), H.sample(holes, 20, rng)
    kept = a.copy(), b.copy()
    again = H.sample(holes, 20, np.random.default_rng(seed))
    assert np.array_equal(a, again)
    H.mutate(holes, a, rng)
    H.crossover(holes, a, b, rng)
    assert np.array_equal(a, kept[0]) and np.array_equal(b, kept[1]), "parents were changed"
    assert np.array_equal(H.crossover(holes, a, a, rng), a)


def test_rows_outside_are_refused() -> None:
    holes = (H.Choice("a", (4, 8)), H.PerfectTile("b", ceildiv(100, Hole("a")), 20))
    rows = np.array([[4, 5], [4, 25], [4, 3], [8, 13], [5, 1], [8, 0], [8, -1]])
    allowed = H.allowed(holes, H.columns(holes, rows))
    assert allowed.tolist() == [True, False, False, True, False, False, False]


@pytest.mark.parametrize("n", [1, 2, 12, 97, 1024, 3 * 5 * 7 * 11, 2**20])
def test_divisors(n: int) -> None:
    want = [d for d in range(1, n + 1) if n % d == 0] if n < 5000 else [2**k for k in range(21)]
    assert H.divisors(n, 1 << 40).tolist() == want
    assert H.divisors(n, 7).tolist() == [d for d in want if d <= 7]


def test_a_sampled_divisor_is_any_of_them() -> None:
    rows = H.sample((H.PerfectTile("t", Const(12)),), 300, np.random.default_rng(0))
    assert set(rows[:, 0].tolist()) == {1, 2, 3, 4, 6, 12}


def test_the_least_divisor_is_the_number_itself_where_that_is_less() -> None:
    holes = (H.Choice("n", (1, 6, 7)), H.PerfectTile("t", Hole("n"), least=2))
    rows = H.sample(holes, 300, np.random.default_rng(0))
    want = {(1, 1), (6, 2), (6, 3), (6, 6), (7, 7)}
    assert set(map(tuple, rows.tolist())) == want
    every = H.every(holes, 100)
    assert every is not None
    assert set(map(tuple, every.tolist())) == want
    assert H.allowed(holes, H.columns(holes, rows)).all()
    outside = np.array([[6, 1], [7, 1], [6, 4], [1, 0]])
    assert not H.allowed(holes, H.columns(holes, outside)).any()


def test_every_mutation_of_a_real_space_changes_a_row() -> None:
    space = big_space("matmul")
    rng = np.random.default_rng(0)
    rows = space.sample(0, 200, rng)
    assert (space.mutate(0, rows, rng) != rows).any(axis=1).all()


def domain(hole: H.HoleSpec, known: dict[str, np.ndarray]) -> list[int]:
    """What a hole allows after the earlier decisions of one row, by trying."""
    tried = np.arange(0, 500)
    columns = {name: np.full(len(tried), value) for name, value in known.items()}
    return tried[np.broadcast_to(hole.allowed(columns, tried), tried.shape)].tolist()


@given(SPECS, st.integers(0, 2**32 - 1))
def test_the_decisions_beside_another_are_the_next_that_are_allowed(
    specs: list[tuple[int, ...]], seed: int
) -> None:
    """Also beside decisions that are not allowed."""
    holes = build(specs)
    rng = np.random.default_rng(seed)
    row = H.sample(holes, 1, rng)[0]
    asked = rng.integers(1, 80, 12)
    for k, hole in enumerate(holes):
        known = {h.name: row[i] for i, h in enumerate(holes[:k])}
        allowed = np.array(domain(hole, known))
        below, above = hole.around({n: np.full(12, x) for n, x in known.items()}, asked)
        assert below.tolist() == [max(allowed[allowed < x], default=allowed[0]) for x in asked]
        assert above.tolist() == [min(allowed[allowed > x], default=allowed[-1]) for x in asked]


@given(SPECS, st.integers(0, 2**32 - 1))
def test_a_mutation_changes_one_decision_that_can_change(specs: list[tuple[int, ...]], seed: int) -> None:
    """The first that differs is the one that was changed: to a value that the hole has besides. What comes
    before is as it was; what comes after differs only where it would not fit."""
    holes = build(specs)
    rng = np.random.default_rng(seed)
    rows = H.sample(holes, 8, rng)
    for old, new in zip(rows.tolist(), H.mutate(holes, rows, rng).tolist()):
        changed = [k for k in range(len(holes)) if old[k] != new[k]]
        free = [
            k for k, h in enumerate(holes)
            if len(domain(h, {x.name: old[i] for i, x in enumerate(holes[:k])})) > 1
        ]  # fmt: skip
        assert bool(changed) == bool(free)
        if changed:
            assert changed[0] in free
        for k in changed[1:]:
            assert old[k] not in domain(holes[k], {x.name: new[i] for i, x in enumerate(holes[:k])})


def test_constant_holes_take_no_mutations_and_the_others_the_same_number() -> None:
    holes = (H.Choice("a", (4,)), H.Choice("b", (1, 2)), H.PerfectTile("c", Const(1)), H.Choice("d", (1, 2)))
    rows = H.sample(holes, 4000, np.random.default_rng(0))
    changed = (H.mutate(holes, rows, np.random.default_rng(1)) != rows).mean(axis=0)
    assert changed[0] == changed[2] == 0
    assert changed[1] + changed[3] == 1 and 0.45 < changed[1] < 0.55


@pytest.mark.parametrize(
    "hole",
    [
        H.Choice("h", (1, 2, 4, 8, 16, 32, 64, 128)),
        H.PerfectTile("h", Const(128)),
        H.EvenTile("h", Const(31), Const(1)),
    ],
    ids=["choice", "divisor", "even tile"],
)  # fmt: skip
def test_half_of_the_mutations_move_to_the_next_value(hole: H.HoleSpec) -> None:
    values = np.array(domain(hole, {}))
    assert len(values) >= 8
    middle = values[len(values) // 2]
    rows = np.full((4000, 1), middle)
    made = H.mutate((hole,), rows, np.random.default_rng(0))[:, 0]
    place = np.searchsorted(values, made) - len(values) // 2
    assert set(made.tolist()) == set(values.tolist()) - {middle}  # the other half goes anywhere
    assert 0.5 < (np.abs(place) == 1).mean() < 0.85
    assert 0.4 < (place[np.abs(place) == 1] > 0).mean() < 0.6
    ends = np.where(np.arange(4000) % 2 == 0, values[0], values[-1])[:, None]
    made = H.mutate((hole,), ends, np.random.default_rng(0))[:, 0]
    assert (made != ends[:, 0]).all()
    assert (made[::2] == values[1]).mean() > 0.5 and (made[1::2] == values[-2]).mean() > 0.5


def test_what_no_longer_fits_moves_with_its_unit() -> None:
    """A tile in units of a vector: a step of the vector leaves the tile about as it was."""
    holes = (H.Choice("vector", (4, 8)), H.EvenTile("tile", Const(1024), Hole("vector")))
    rows = np.tile([[4, 36]], (4000, 1))
    assert H.allowed(holes, H.columns(holes, rows)).all()
    assert [t for t in even_tiles(1024, 8) if 30 < t < 42] == [32, 40]
    made = H.mutate(holes, rows, np.random.default_rng(0))
    tiles = made[made[:, 0] == 8, 1]  # 40 is nearer by its ratio
    assert (tiles == 40).mean() > 0.45 and (tiles == 32).mean() < 0.2 and len(set(tiles.tolist())) > 5


def even_tiles(n: int, unit: int) -> list[int]:
    """What `EvenTile` allows, ascending."""
    hole = H.EvenTile("h", Const(n), Const(unit))
    sizes = np.arange(0, n + unit + 2)
    return sizes[hole.allowed({}, sizes)].tolist()


@given(st.integers(1, 500), st.integers(1, 20))
def test_even_tiles_are_multiples_that_cut_evenly(n: int, unit: int) -> None:
    tiles = even_tiles(n, unit)
    assert tiles[0] == unit
    for t in tiles[1:]:
        assert t % unit == 0 and t <= n
        parts = -(-n // t)
        assert t - unit < n / parts, "a smaller multiple would do for as many parts"


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_all_even_tiles_are_sampled_and_no_others(n: int, unit: int, seed: int) -> None:
    hole = H.EvenTile("h", Const(n), Const(unit))
    drawn = hole.sample({}, 2000, np.random.default_rng(seed))
    assert sorted(set(drawn.tolist())) == even_tiles(n, unit)


def test_a_prime_has_many_even_tiles() -> None:
    assert even_tiles(167, 1)[-6:] == [28, 34, 42, 56, 84, 167]
    assert len(even_tiles(167, 1)) > 20


def test_holes_of_a_block_have_names_of_their_own() -> None:
    """Also where a rule asks for several of one name that differ: columns go by name."""
    x = te.placeholder((12, 10), "float32", "x")
    d = SketchBuilder(
        te.dag([x, te.compute((12, 10), lambda i, j: x[i, j] + 1.0, "y")]), Target("cpu", "x86-64-v3"), ()
    )
    names = [d.divisor("y.rows", Const(n)) for n in (12, 18, 20, 24, 30)]
    assert names == [Hole(n) for n in ("y.rows", "y.rows.own", "y.rows.own2", "y.rows.own3", "y.rows.own4")]
    assert len({h.name for h in d.holes}) == len(d.holes) == 5
