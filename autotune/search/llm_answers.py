"""Reads what a language model answers: decisions, and nothing else of the text.

An answer is untrusted. The first JSON array of objects in it is read, up to a number of rows. Each row
becomes a candidate that the space allows, or is dropped. Nothing is executed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from schedules.space.base import Candidate, Rows, Space
from schedules.space.holes import size

# Longest text that is searched for decisions (characters), and most brackets at which an array may begin.
MOST_TEXT, MOST_STARTS = 1 << 18, 64
# Largest decision: no hole has more, and its logarithm is exact.
MOST_VALUE = 1 << 40
# Changed copies of a row that the target's limits forbid, of which the nearest allowed one is taken.
MUTATIONS = 64


@dataclass
class Counters:
    """What became of rows. ``taken``: proposed to the search, of which ``repaired`` were changed to a valid
    neighbour; ``dropped``: no decisions of this space; ``repeated``: known already."""

    taken: int = 0
    repaired: int = 0
    dropped: int = 0
    repeated: int = 0


def rows_of(text: str, most: int) -> list[Any]:
    """The first ``most`` elements of the first JSON array in a text that has an object among its elements;
    empty if there is none.

    >>> rows_of('See [1]: [{"h0": 4}, {"h0": 8}]', 8)
    [{'h0': 4}, {'h0': 8}]
    """
    text = text[:MOST_TEXT]
    # NaN and the infinities are no numbers of JSON: None is no decision.
    decoder = json.JSONDecoder(parse_constant=lambda _: None)
    at = text.find("[")
    for _ in range(MOST_STARTS):
        if at < 0:
            break
        try:
            found, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            if any(isinstance(x, dict) for x in found):
                return list(found[:most])
        at = text.find("[", end)
    return []


def candidate_of(
    space: Space,
    row: Any,
    base: Callable[[int], Rows | None],
    rng: np.random.Generator,
) -> tuple[Candidate, bool] | None:
    """The candidate that a row of an answer names, and whether it was repaired; None if there is none.

    ``base``: a valid row of a sketch, from which what is missing is taken.
    """
    if not isinstance(row, dict):
        return None
    sketch = _sketch(space, row)
    if sketch is None:
        return None
    holes = space.holes(sketch)
    given = [_value(row.get(h)) for h in holes]
    if holes and all(v is None for v in given):
        return None
    old = base(sketch)
    if old is None:
        return None
    exact = np.array([[b if v is None else v for v, b in zip(given, old.tolist())]], dtype=np.int64)
    rows = space.nearest(sketch, exact)
    if not space.valid(sketch, rows)[0]:
        near = space.mutate(sketch, np.repeat(rows, MUTATIONS, axis=0), rng)
        near = near[space.valid(sketch, near)]
        if not len(near):
            return None
        rows = near[[int(np.abs(size(near) - size(rows)).sum(axis=1).argmin())]]
    said = [
        h in row and not isinstance(row[h], bool) and row[h] == v for h, v in zip(holes, rows[0].tolist())
    ]
    return Candidate(sketch, tuple(rows[0].tolist())), not all(said)


def _sketch(space: Space, row: Mapping[str, Any]) -> int | None:
    """The sketch that a row names, by number or by name. It may be left out where there is one only."""
    named = row.get("sketch", 0 if len(space.sketches) == 1 else None)
    if isinstance(named, str):
        return space.sketches.index(named) if named in space.sketches else None
    number = _value(named)
    return number if number is not None and 0 <= number < len(space.sketches) else None


def _value(x: Any) -> int | None:
    """A number of JSON as a decision, within bounds; None for anything else."""
    if isinstance(x, bool) or not isinstance(x, (int, float)):
        return None
    if isinstance(x, float) and not math.isfinite(x):
        return None
    return int(min(max(round(x), -MOST_VALUE), MOST_VALUE))
