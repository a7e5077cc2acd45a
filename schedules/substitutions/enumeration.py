"""Terms up to a size, and which of them have equal values.

Terms are made level by level: an operator of smaller ones. Each is evaluated exactly, on fractions, in draws
of two sizes, and its value is its fingerprint. Of the terms of one value the simplest stands for all:
larger terms are made of such terms alone, because what is equal inside of a term is a substitution of its
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules.substitutions.operators import NUMBERS, OPERATORS, POINT, TensorKind, fractions
from schedules.substitutions.sizes import Numbers, Undefined
from schedules.substitutions.terms import GraphTerm, leaves, nodes, operators

Array = NDArray[Any]
DRAWS = (0, 1, 1, 1, 1, 1, 1, 1)  # which shape each draw has


@dataclass(frozen=True)
class World:
    """What terms are made of. ``pool``: {leaf: (name of its kind, a shape for draws 0 and one for the
    others)}. Leaves of one kind and shape are alike. ``operators``: their names. ``most``: operators of a
    term. ``most_leaves``: of a term."""

    name: str
    pool: Mapping[str, tuple[str, tuple[tuple[int, ...], ...]]]
    operators: tuple[str, ...]
    most: int
    most_leaves: int = 4

    @property
    def kinds(self) -> dict[str, str]:
        """{leaf: the name of its kind}."""
        return {leaf: "kernel" if kind == POINT else kind for leaf, (kind, _) in self.pool.items()}

    @property
    def names(self) -> list[dict[str, str]]:
        """The names of kinds to try, the most general first: kernels of 1 x 1 as kernels of any size, and as
        what they are."""
        return [self.kinds, {leaf: kind for leaf, (kind, _) in self.pool.items()}]


_SQUARE = ("matrix", ((4, 4), (2, 2)))
_MOVES = ("join0", "join1", "first0", "second0", "first1", "second1")
_IMAGE = ("image", ((2, 2, 5, 4), (2, 4, 4, 4)))
_KERNEL, _POINT = ("kernel", ((2, 2, 3, 3), (4, 4, 3, 3))), (POINT, ((2, 2, 1, 1), (4, 4, 1, 1)))
MATRICES = World(
    "matrices",
    {**dict.fromkeys("abcd", _SQUARE), "r": ("row", ((4,), (2,))), "s": ("number", ((), ()))},
    ("product", "add", "mul", "top", "relu", "transpose", *_MOVES, "sum0", "sum1", "largest0", "largest1"),
    3,
)
IMAGES = World(
    "images",
    {
        **dict.fromkeys("xyz", _IMAGE),
        **dict.fromkeys("klm", _KERNEL),
        **dict.fromkeys("pq", _POINT),
        "r": ("row", ((2,), (4,))),
    },
    ("conv", "add", "mul", "top", "relu", "pad", "transpose", *_MOVES),
    3,
)
# Convolutions of one image side by side, whose kernels have other sizes, or are not there.
BRANCHES = World(
    "branches",
    {"x": _IMAGE, "y": _IMAGE, "k": _KERNEL, "p": _POINT},
    ("conv", "add", "pad", "unit", "join0"),
    5,
)
# Products, sums and joins of matrices alone.
SUMS = World("sums of products", dict.fromkeys("abcd", _SQUARE), ("product", "add", "join0", "join1"), 4)
WORLDS = (MATRICES, IMAGES, BRANCHES, SUMS)


@dataclass(slots=True)
class _Known:
    """A term with its kinds and values in each draw."""

    term: GraphTerm
    kinds: tuple[TensorKind, ...]
    values: tuple[Array, ...]
    used: frozenset[str]


@dataclass
class Classes:
    """``operators``: of the largest terms. ``terms``: how many were evaluated. ``pairs``: (term, the simplest
    one of its value), a term and its renamings once."""

    operators: int = 0
    terms: int = 0
    classes: int = 0
    pairs: dict[tuple[GraphTerm, GraphTerm], None] = field(default_factory=dict)


def enumerate_pairs(world: World, most: int, seed: int) -> Classes:
    """The pairs of terms of equal values with up to ``most`` operators, which a substitution may be."""
    found = Classes(most)
    makes = _Maker(world)
    first = makes.leaves(np.random.default_rng(seed))
    stands = {_fingerprint(one): one.term for one in first}
    levels = [first]
    for level in range(1, most + 1):
        fresh: dict[bytes, list[_Known]] = {}
        for name, args in _candidates(world, levels, level):
            one = makes.term(name, args)
            if one is None:
                continue
            found.terms += 1
            key = _fingerprint(one)
            if key in stands:
                _add(found, world, one.term, stands[key])
            else:  # the values of the largest are not asked for again
                fresh.setdefault(key, []).append(one if level < most else replace(one, kinds=(), values=()))
        levels.append([])
        for key, every in fresh.items():
            best = min(every, key=lambda k: simplicity(k.term))
            stands[key] = best.term
            levels[-1].append(best)
            for other in every:
                if other is not best:
                    _add(found, world, other.term, best.term)
    found.classes = len(stands)
    return found


class _Maker:
    """Makes the terms of a world, with their values."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._kinds: dict[Any, TensorKind | None] = {}

    def leaves(self, rng: np.random.Generator) -> list[_Known]:
        """The leaves, with values at random."""
        made = []
        for leaf, (_, shapes) in self.world.pool.items():
            values = tuple(fractions(rng, shapes[n]) for n in DRAWS)
            kinds = tuple(TensorKind(self.world.kinds[leaf], s) for s in shapes)
            made.append(_Known(GraphTerm(leaf), kinds, values, frozenset({leaf})))
        return made

    def _kind(self, *key: Any) -> TensorKind | None:
        if key not in self._kinds:
            try:
                self._kinds[key] = OPERATORS[key[0]].kind(Numbers(), *key[1:])
            except Undefined:
                self._kinds[key] = None
        return self._kinds[key]

    def term(self, name: str, args: tuple[_Known, ...]) -> _Known | None:
        """An operator of terms; None where it is not defined, or has too many leaves."""
        kinds = [self._kind(name, *(a.kinds[n] for a in args)) for n in (0, 1)]
        own = tuple(k for k in kinds if k is not None)
        used = args[0].used.union(*(a.used for a in args))
        if len(own) < 2 or len(used) > self.world.most_leaves:
            return None
        value = OPERATORS[name].value
        values = tuple(
            value(NUMBERS, [a.kinds[n] for a in args], *(a.values[draw] for a in args))
            for draw, n in enumerate(DRAWS)
        )
        return _Known(GraphTerm(name, tuple(a.term for a in args)), own, values, used)


def simplicity(t: GraphTerm) -> tuple[Any, ...]:
    """The order in which terms of one value are preferred: few operators, few products among them."""
    return operators(t), sum(x.head in ("product", "conv") for x in nodes(t)), t


def _candidates(
    world: World, levels: list[list[_Known]], level: int
) -> Iterator[tuple[str, tuple[_Known, ...]]]:
    """Operators of terms whose own operators are ``level - 1`` together."""
    for name in world.operators:
        o = OPERATORS[name]
        if name == "unit":  # of a leaf: nothing but the shape counts
            yield from ((name, (a,)) for a in levels[0] if level == 1)
        elif o.arity == 1:
            yield from ((name, (a,)) for a in levels[level - 1])
        else:
            for n in range(level):
                for a in levels[n]:
                    for b in levels[level - 1 - n]:
                        if not o.commutes or a.term <= b.term:
                            yield name, (a, b)


def _fingerprint(k: _Known) -> bytes:
    made = blake2b(k.kinds[0].name.encode(), digest_size=16)
    for v in k.values:
        made.update(repr(v.shape).encode())
        made.update((v + 0.0).tobytes())  # of -0.0 it makes 0.0
    return made.digest()


def _add(found: Classes, world: World, source: GraphTerm, target: GraphTerm) -> None:
    if set(leaves(target)) <= set(leaves(source)):
        found.pairs[renamed(world, source, target)] = None
    elif set(leaves(source)) < set(leaves(target)):
        found.pairs[renamed(world, target, source)] = None


def renamed(world: World, source: GraphTerm, target: GraphTerm) -> tuple[GraphTerm, GraphTerm]:
    """Both with their leaves named in the order in which the source has them."""
    left: dict[Any, list[str]] = {}
    for leaf, kind in world.pool.items():
        left.setdefault(kind, []).append(leaf)
    names = {leaf: GraphTerm(left[world.pool[leaf]].pop(0)) for leaf in leaves(source)}
    return ordered(source, names), ordered(target, names)


def ordered(t: GraphTerm, names: Mapping[str, GraphTerm]) -> GraphTerm:
    """The term with leaves renamed, the operands of sums, products of elements and maxima in one order."""
    if not t.args:
        return names.get(t.head, t)
    args = tuple(ordered(a, names) for a in t.args)
    return GraphTerm(t.head, tuple(sorted(args)) if OPERATORS[t.head].commutes else args)
