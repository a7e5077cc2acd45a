"""DAGs with open sizes as they come from files of others: what was changed in one is refused in words, or is
another DAG that is right."""

from __future__ import annotations

import copy
import json
import pickle
from collections import Counter
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any

import pytest
from random_open import random_open

from schedules.errors import WorkloadError
from schedules.model import Workload
from schedules.te.compute_dag import ComputeDAG
from schedules.te.flops import count_flops
from schedules.te.gathers import most_read
from schedules.te.open_sizes import at, sizes_of, untold
from schedules.te.structure import distance, structure

# What a hostile file may have in any place.
ODD: tuple[Any, ...] = (
    0, -1, 1, 2, 2**31, 2**40, 2**40 + 1, 2**63, 2**64, 10**30, -(10**30), True, None, 1.5, float("nan"),
    "n", "", "n.size", "__class__", "a b", "n\n", "é", "x" * 5000, [], {},
    ["var", "n"], ["var", "i"], ["var", "n" * 5000], ["const", "index", 10**40],
    ["*", ["var", "n"], ["var", "n"]], ["//", ["var", "n"], 0], ["ceildiv", ["var", "n"], -3],
    ["*", ["var", "n"], 10**25], ["-", 5, ["var", "n"]], ["min", ["var", "n"], 3],
    ["load", "x1", "int32", ["var", "n"]],
)  # fmt: skip


@cache
def documents() -> list[dict[str, Any]]:
    return [random_open(Random(seed)).to_json() for seed in range(20)]


def paths(v: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = v.items() if isinstance(v, dict) else enumerate(v) if isinstance(v, list) else ()
    for k, x in items:
        yield from paths(x, (*path, k))


def mutated(rng: Random) -> dict[str, Any]:
    """A document whose open part has one to three changes."""
    v = copy.deepcopy(rng.choice(documents()))
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(paths(v["open"]))
        if not places:
            break
        *above, key = rng.choice(places)
        where = v["open"]
        for k in above:
            where = where[k]
        how = rng.random()
        if how < 0.6:
            where[key] = copy.deepcopy(rng.choice(ODD))
        elif how < 0.7 and isinstance(where, list):
            where.append(copy.deepcopy(where[key]))
        elif how < 0.8:
            del where[key]
        elif type(where[key]) is int:
            where[key] += rng.choice((-1, 1, 3))
    return json.loads(json.dumps(v))


def outcome(seed: int) -> str:
    v = mutated(Random(seed))
    try:
        dag = ComputeDAG.from_json(v)
    except (ValueError, WorkloadError) as err:
        assert 10 < len(str(err)) < 1000, f"seed {seed}: {err}"
        return "refused"
    assert Workload(dag).digest
    assert ComputeDAG.from_json(dag.to_json()) == dag
    if dag.open is not None and not untold(dag):  # a size of a program alone is told by nothing here
        for end in (0, 1):
            sizes = {name: r[end] for name, r in dag.open.ranges.items()}
            assert sizes_of(dag, [t.shape for t in at(dag, sizes).inputs]) == sizes, f"seed {seed}"
    return "taken"


def test_what_reads_dags_reads_those_of_open_sizes() -> None:
    """Sizes stand in indices and in values, where axes stood alone."""
    for seed in range(24):
        dag = random_open(Random(seed))
        assert all(n > 0 for n in most_read(dag).values()) and count_flops(dag) >= 0
        assert distance(structure(dag), structure(dag.largest)) == 0
        w = Workload(dag)
        assert Workload.from_json(w.json, names=w.names).dag == pickle.loads(pickle.dumps(dag)) == dag


def test_changed_open_parts_are_refused_in_words_or_are_right() -> None:
    found = Counter(map(outcome, range(120)))
    assert found["refused"] > 90


@pytest.mark.slow
def test_many_changed_open_parts_are_refused_in_words_or_are_right() -> None:
    found = Counter(map(outcome, range(1000, 3000)))
    assert found["refused"] > 1500 and found["taken"] > 10
