"""Holes: the numeric unknowns of a sketch, and how a decision matrix fills them.

A decision matrix has a row for each candidate and a column for each hole, in the order of the sketch's holes.
A hole may depend on earlier ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import and_, or_
from typing import Any

import numpy as np

from schedules import expr as E
from schedules.expr import Expr

# (largest allowed decision below each of a column, least above). Where there is none, and the decision itself
# is allowed, it is the decision itself.
Around = tuple[np.ndarray, np.ndarray]
# Share of mutations that move a decision to the next one above or below. The others draw it again.
STEP = 0.5
# Largest divisor where no other is named.
NO_CAP = 1 << 40


class Columns(dict[str, Any]):
    """Decisions by hole name: columns of a decision matrix, or integers of one candidate. ``known``: values
    of expressions over them, cached because expressions of a nest share parts."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.known: dict[Expr, Any] = {}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few numbers."""

    name: str
    options: tuple[int, ...]

    def sample(self, known: Mapping[str, np.ndarray], n: int, rng: np.random.Generator) -> np.ndarray:
        return np.asarray(self.options, dtype=np.int64)[rng.integers(len(self.options), size=n)]

    def domains(self, known: Mapping[str, np.ndarray], n: int) -> tuple[np.ndarray, list[np.ndarray]]:
        return np.zeros(n, dtype=np.int64), [np.unique(np.asarray(self.options, dtype=np.int64))]

    def around(self, known: Mapping[str, np.ndarray], column: np.ndarray) -> Around:
        return _beside(_ascending(self.options), column)

    def allowed(self, known: Mapping[str, Any], column: Any) -> Any:
        return reduce(or_, (column == x for x in self.options))


@dataclass(frozen=True, slots=True)
class PerfectTile:
    """A divisor of ``of``, an expression over earlier holes. At most ``cap``, and at least ``least`` if
    ``of`` is."""

    name: str
    of: Expr
    cap: int = NO_CAP
    least: int = 1

    def sample(self, known: Mapping[str, np.ndarray], n: int, rng: np.random.Generator) -> np.ndarray:
        which, divisors = self.domains(known, n)
        out = np.ones(n, dtype=np.int64)
        u = rng.random(n)
        for k, d in enumerate(divisors):
            rows = which == k
            out[rows] = d[(u[rows] * len(d)).astype(np.int64)]
        return out

    def domains(self, known: Mapping[str, np.ndarray], n: int) -> tuple[np.ndarray, list[np.ndarray]]:
        total = np.broadcast_to(_whole(self.of, known), (n,))
        totals, which = np.unique(total, return_inverse=True)
        return which.reshape(-1), [self._divisors(int(t)) for t in totals]

    def around(self, known: Mapping[str, np.ndarray], column: np.ndarray) -> Around:
        which, divisors = self.domains(known, len(column))
        below, above = np.empty_like(column), np.empty_like(column)
        for k, d in enumerate(divisors):
            rows = which == k
            below[rows], above[rows] = _beside(d, column[rows])
        return below, above

    def allowed(self, known: Mapping[str, Any], column: Any) -> Any:
        total = E.evaluate(self.of, known)
        least = np.minimum(self.least, total)
        return (column >= least) & (column <= self.cap) & (total % np.maximum(column, 1) == 0)

    def _divisors(self, total: int) -> np.ndarray:
        d = divisors(total, self.cap)
        return d[d >= min(self.least, total)]


@dataclass(frozen=True, slots=True)
class EvenTile:
    """A multiple of ``unit`` that cuts ``of`` into blocks as even as possible: ``ceildiv(of, parts * unit) *
    unit`` for some ``parts``, at most ``of``. Both are expressions over earlier holes. Unlike divisors there
    are many for every number, primes too."""

    name: str
    of: Expr
    unit: Expr

    def sample(self, known: Mapping[str, np.ndarray], n: int, rng: np.random.Generator) -> np.ndarray:
        """Columns of tiles. The number of parts is log-uniform, so that small tiles are as likely as large
        ones."""
        of, unit = _whole(self.of, known), _whole(self.unit, known)
        most = np.maximum(-(-of // unit), 1)
        parts = np.floor(np.exp(rng.random(n) * np.log(most + 1.0))).astype(np.int64)
        tile = even_tile(of, unit, np.clip(parts, 1, most))
        return np.where(tile <= of, tile, unit)

    def domains(self, known: Mapping[str, np.ndarray], n: int) -> tuple[np.ndarray, list[np.ndarray]]:
        both = np.empty((n, 2), dtype=np.int64)
        both[:, 0], both[:, 1] = _whole(self.of, known), _whole(self.unit, known)
        kinds, which = np.unique(both, axis=0, return_inverse=True)
        return which.reshape(-1), [even_tiles(int(of), int(unit)) for of, unit in kinds]

    def around(self, known: Mapping[str, np.ndarray], column: np.ndarray) -> Around:
        of, unit = _whole(self.of, known), _whole(self.unit, known)
        # The most units that are less make some number of parts, whose even tile is the next smaller one.
        most = np.maximum(np.minimum(column - 1, of) // unit * unit, unit)
        below = even_tile(of, unit, -(-of // most))
        largest = even_tile(of, unit, -(-of // np.maximum(of // unit * unit, unit)))
        # One part less than as many units as the column has make is the next larger one.
        units = column // unit
        parts = -(-of // np.maximum(units * unit, 1)) - 1
        above = even_tile(of, unit, np.maximum(parts, 1))
        above = np.where((parts < 1) | (above > of), largest, above)
        return below, np.where(units < 1, unit, above)

    def allowed(self, known: Mapping[str, Any], column: Any) -> Any:
        of, unit = E.evaluate(self.of, known), E.evaluate(self.unit, known)
        tile = np.maximum(column, 1)
        # The tile is even if the fewest parts that such tiles make lead back to it.
        even = even_tile(of, unit, -(-of // tile)) == column
        return (column >= 1) & even & ((column <= of) | (column == unit))


def _whole(e: Expr, known: Mapping[str, np.ndarray]) -> np.ndarray:
    """The values of an expression over earlier holes."""
    return np.asarray(E.evaluate(e, known), dtype=np.int64)


HoleSpec = Choice | PerfectTile | EvenTile


def words(hole: HoleSpec) -> str:
    """What a hole allows, for readers.

    >>> words(Choice("c.vec", (8, 16)))
    'one of 8, 16'
    """
    if isinstance(hole, Choice):
        return f"one of {', '.join(map(str, hole.options))}"
    if isinstance(hole, PerfectTile):
        most = f", at most {hole.cap}" if hole.cap < NO_CAP else ""
        return f"a divisor of {E.show(hole.of)}{most}"
    unit = "" if hole.unit == E.Const(1) else f", in units of {E.show(hole.unit)}"
    return f"what cuts {E.show(hole.of)} into even parts{unit}"


def _beside(domain: np.ndarray, column: np.ndarray) -> Around:
    """The values of a sorted domain beside each decision of a column, at its ends the last ones."""
    below = domain[np.maximum(np.searchsorted(domain, column) - 1, 0)]
    return below, domain[np.minimum(np.searchsorted(domain, column, side="right"), len(domain) - 1)]


@lru_cache(1 << 10)
def _ascending(options: tuple[int, ...]) -> np.ndarray:
    return np.unique(np.asarray(options, dtype=np.int64))


def even_tile(of: np.ndarray, unit: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """The least multiple of ``unit`` such that ``parts`` of it cover ``of``."""
    tile: np.ndarray = -(-of // (parts * unit)) * unit
    return tile


def even_tiles(of: int, unit: int) -> np.ndarray:
    """All even tiles of ``of``, ascending: at most ``of``, and the unit itself."""
    parts = np.arange(1, max(-(-of // unit), 1) + 1, dtype=np.int64)
    tiles = np.unique(even_tile(np.full_like(parts, of), np.full_like(parts, unit), parts))
    return np.unique(np.append(tiles[tiles <= of], unit))


def divisors(n: int, cap: int) -> np.ndarray:
    """Divisors of ``n`` up to ``cap``, ascending."""
    k = np.arange(1, int(n**0.5) + 1, dtype=np.int64)
    small = k[n % k == 0]
    both = np.unique(np.concatenate([small, n // small]))
    return both[both <= cap]


def columns(holes: tuple[HoleSpec, ...], rows: np.ndarray) -> Columns:
    """The columns of a decision matrix by hole name."""
    return Columns((h.name, np.ascontiguousarray(rows[:, n])) for n, h in enumerate(holes))


def sample(holes: tuple[HoleSpec, ...], n: int, rng: np.random.Generator) -> np.ndarray:
    """``n`` rows, each hole uniform over what the earlier ones allow."""
    known: dict[str, np.ndarray] = {}
    for h in holes:
        known[h.name] = h.sample(known, n, rng)
    return np.stack(list(known.values()), axis=1) if holes else np.zeros((n, 0), dtype=np.int64)


def mutate(holes: tuple[HoleSpec, ...], rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each row with one decision changed, of those that have another value there: `STEP` of the time to the
    next one above or below, else to any other. Later decisions that no longer fit become the nearest that
    does, or are drawn again with it. A row in which nothing can change stays as it is."""
    n = len(rows)
    if not holes or not n:
        return rows.copy()
    old = columns(holes, rows)
    around = [h.around(old, old[h.name]) for h in holes]
    varies = np.stack([below != above for below, above in around])
    pick, steps, up = _pick(varies, rng), rng.random(n) < STEP, rng.random(n) < 0.5
    known = Columns()
    for k, h in enumerate(holes):
        column = old[h.name].copy()
        if k and not isinstance(h, Choice):
            misfits = np.flatnonzero(~np.broadcast_to(h.allowed(known, column), (n,)))
            near, anew = misfits[steps[misfits]], misfits[~steps[misfits]]
            if len(near):
                column[near] = _nearest(h, _Part(known, near), column[near])
            if len(anew):
                column[anew] = h.sample(_Part(known, anew), len(anew), rng)
        mine = np.flatnonzero(pick == k)
        if len(mine):
            before, (below, above) = column[mine], around[k]
            below, above = below[mine], above[mine]
            value = np.where((below == before) | (up[mine] & (above != before)), above, below)
            again = np.flatnonzero(~steps[mine])
            if len(again):
                drawn = h.sample(_Part(known, mine[again]), len(again), rng)
                value[again] = np.where(drawn == before[again], value[again], drawn)
            column[mine] = value
        known[h.name] = column
    return np.stack(list(known.values()), axis=1)


def _pick(varies: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each row any of the holes that vary there, ``varies``: [holes, rows]; -1 where none does."""
    count = varies.cumsum(axis=0)
    wanted = (rng.random(varies.shape[1]) * count[-1]).astype(np.int64)
    return np.where(count[-1] > 0, (count <= wanted).sum(axis=0), -1)  # counts never fall


class _Part(dict[str, np.ndarray]):
    """The columns of some rows, made when they are asked for."""

    def __init__(self, known: Columns, rows: np.ndarray) -> None:
        super().__init__()
        self._known, self._rows = known, rows

    def __missing__(self, name: str) -> np.ndarray:
        column = self[name] = self._known[name][self._rows]
        return column


def _nearest(h: HoleSpec, known: Mapping[str, np.ndarray], column: np.ndarray) -> np.ndarray:
    """The nearest allowed decisions to those of a column, none of which is allowed."""
    below, above = h.around(known, column)
    here = size(column)
    return np.where(np.abs(here - size(below)) <= np.abs(here - size(above)), below, above)


def crossover(
    holes: tuple[HoleSpec, ...], a: np.ndarray, b: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Uniform crossover: each hole from either parent. What does not fit is drawn again."""
    n = len(a)
    take = rng.random(a.shape) < 0.5
    known: dict[str, np.ndarray] = {}
    for k, h in enumerate(holes):
        old = np.where(take[:, k], a[:, k], b[:, k])
        known[h.name] = np.where(h.allowed(known, old), old, h.sample(known, n, rng))
    return np.stack(list(known.values()), axis=1) if holes else a.copy()


def nearest(holes: tuple[HoleSpec, ...], rows: np.ndarray) -> np.ndarray:
    """Each decision replaced by the nearest that its hole allows after the earlier ones. Tiles are compared
    by their ratio, so that 48 is as near to 64 as 36 is."""
    known: dict[str, np.ndarray] = {}
    for k, h in enumerate(holes):
        which, domains = h.domains(known, len(rows))
        column = np.array(rows[:, k], dtype=np.int64)
        for n, domain in enumerate(domains):
            mine = np.flatnonzero(which == n)
            if len(mine):
                apart = np.abs(size(column[mine])[:, None] - size(domain)[None, :])
                column[mine] = domain[np.argsort(apart, axis=1, kind="stable")[:, 0]]
        known[h.name] = column
    return np.stack(list(known.values()), axis=1) if holes else rows.copy()


def size(x: np.ndarray) -> np.ndarray:
    """The logarithm of decisions: ratios are distances. Those below 1 keep their order below that."""
    logs: np.ndarray = np.where(x > 0, np.log2(np.maximum(x, 1)), x - 1.0)
    return logs


def every(holes: tuple[HoleSpec, ...], most: int, values: int | None = None) -> np.ndarray | None:
    """All rows in lexicographic order, with at most ``values`` values a hole, evenly distributed; None if
    they are more than ``most``."""
    rows = np.zeros((1, 0), dtype=np.int64)
    for h in holes:
        which, domains = h.domains(columns(holes[: rows.shape[1]], rows), len(rows))
        if values is not None:
            domains = [d[_spread(len(d), values)] for d in domains]
        counts = np.array([len(d) for d in domains])[which]
        if counts.sum() > most:
            return None
        column = np.concatenate([domains[k] for k in which]) if len(rows) else np.zeros(0, dtype=np.int64)
        rows = np.column_stack([np.repeat(rows, counts, axis=0), column])
    return rows


def _spread(n: int, k: int) -> np.ndarray:
    """At most ``k`` of ``n`` places, evenly distributed, first and last among them."""
    return np.unique(np.round(np.linspace(0, n - 1, min(n, k))).astype(np.int64))


def allowed(holes: tuple[HoleSpec, ...], env: Columns) -> Any:
    """Whether decisions lie in the space, or a column of such truths."""
    return reduce(and_, (h.allowed(env, env[h.name]) for h in holes), np.True_)
