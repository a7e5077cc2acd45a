"""How much a term computes: the steps of its sums, and how many sums it has."""

from __future__ import annotations

from collections.abc import Container, Mapping
from math import prod

from schedules.substitutions.operators import TensorKind, kind_of
from schedules.substitutions.sizes import Numbers
from schedules.substitutions.terms import GraphTerm, leaves, nodes


def steps_of(t: GraphTerm, kinds: Mapping[str, TensorKind], known: Container[str]) -> tuple[int, int]:
    """(Steps of sums, number of sums) of a term, each part once. ``known``: leaves that are known ahead: what
    is made of them alone costs nothing.

    >>> steps_of(parsed("product(a, b)"), kinds, ())  # of 2 x 3 and 3 x 4
    (24, 1)
    """
    sums = {
        x
        for x in nodes(t)
        if x.args and x.head.startswith(_SUMS) and any(leaf not in known for leaf in leaves(x))
    }
    return sum(_steps(x, kinds) for x in sums), len(sums)


_SUMS = ("product", "conv", "sum", "largest")


def _steps(x: GraphTerm, kinds: Mapping[str, TensorKind]) -> int:
    own = [kind_of(a, kinds, Numbers()).shape for a in x.args]
    made = kind_of(x, kinds, Numbers()).shape
    match x.head:
        case "product":
            return int(prod(made) * own[1][0])
        case "conv":
            return int(prod(made) * prod(own[1][1:]))
    return int(prod(own[0]))  # each element is added once
