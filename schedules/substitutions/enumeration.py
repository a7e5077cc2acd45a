"""Terms up to a size, and which of them have equal values.

Terms are made level by level: an operator of smaller ones. Each is evaluated exactly, on fractions, in draws
of two sizes, and its value is its fingerprint. Of the terms of one value the simplest stands for all:
larger terms are made of such terms alone, because what is equal inside of a term is a substitution of its
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules.substitutions.operators import NUMBERS, OPERATORS, POINT, Kind, fractions
from schedules.substitutions.sizes import Numbers, Undefined
from schedules.substitutions.terms import Term, leaves, nodes, operators

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

    term: Term
    kinds: tuple[Kind, ...]
    values: tuple[Array, ...]
    used: frozenset[str]


@dataclass
class Classes:
    """``operators``: of the largest terms. ``terms``: how many were evaluated. ``pairs``: (term, the simplest
    one of its value), a term and its renamings once."""

    operators: int = 0
    terms: int = 0
    classes: int = 0
    pairs: dict[tuple[Term, Term], None] = field(default_factory=dict)


def enumerate_pairs(world: World, most: int, seed: int) -> Classes:
    """The pairs of terms of equal values with up to ``most`` operators, which a substitution may be."""
    rng = np.random.default_rng(seed)
    found = Classes(most)
    stands: dict[bytes, Term] = {}
    solver = Numbers()
    kinds: dict[Any, Kind | None] = {}

    def made(name: str, args: tuple[_Known, ...]) -> _Known | None:
        own = []
        for n in (0, 1):
            key = (name, *(a.kinds[n] for a in args))
            if key not in kinds:
                try:
                    kinds[key] = OPERATORS[name].kind(solver, *key[1:])
                except Undefined:
                    kinds[key] = None
            kind = kinds[key]
            if kind is None:
                return None
            own.append(kind)
        used = args[0].used if len(args) == 1 else args[0].used | args[1].used
        if len(used) > world.most_leaves:
            return None
        value = OPERATORS[name].value
        values = tuple(
            value(NUMBERS, [a.kinds[n] for a in args], *(a.values[draw] for a in args))
            for draw, n in enumerate(DRAWS)
        )
        return _Known(Term(name, tuple(a.term for a in args)), tuple(own), values, used)

    first = []
    for leaf, (_, shapes) in world.pool.items():
        values = tuple(fractions(rng, shapes[n]) for n in DRAWS)
        one = _Known(Term(leaf), tuple(Kind(world.kinds[leaf], s) for s in shapes), values, frozenset({leaf}))
        stands[_fingerprint(one)] = one.term
        first.append(one)
    levels = [first]
    for level in range(1, most + 1):
        fresh: dict[bytes, list[_Known]] = {}
        for name, args in _candidates(world, levels, level):
            it = made(name, args)
            if it is None:
                continue
            one = it
            found.terms += 1
            key = _fingerprint(one)
            if key in stands:
                _add(found, world, one.term, stands[key])
            else:
                fresh.setdefault(key, []).append(
                    one if level < most else _Known(one.term, (), (), frozenset())
                )
        reached = []
        for key, every in fresh.items():
            best = min(every, key=lambda k: simplicity(k.term))
            stands[key] = best.term
            reached.append(best)
            for one in every:
                if one is not best:
                    _add(found, world, one.term, best.term)
        levels.append(reached)
    found.classes = len(stands)
    return found


def simplicity(t: Term) -> tuple[Any, ...]:
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


def _add(found: Classes, world: World, source: Term, target: Term) -> None:
    if set(leaves(target)) <= set(leaves(source)):
        found.pairs[renamed(world, source, target)] = None
    elif set(leaves(source)) < set(leaves(target)):
        found.pairs[renamed(world, target, source)] = None


def renamed(world: World, source: Term, target: Term) -> tuple[Term, Term]:
    """Both with their leaves named in the order in which the source has them."""
    left: dict[Any, list[str]] = {}
    for leaf, kind in world.pool.items():
        left.setdefault(kind, []).append(leaf)
    names = {leaf: Term(left[world.pool[leaf]].pop(0)) for leaf in leaves(source)}
    return ordered(source, names), ordered(target, names)


def ordered(t: Term, names: Mapping[str, Term]) -> Term:
    """The term with leaves renamed, the operands of sums, products of elements and maxima in one order."""
    if not t.args:
        return names.get(t.head, t)
    args = tuple(ordered(a, names) for a in t.args)
    return Term(t.head, tuple(sorted(args)) if OPERATORS[t.head].commutes else args)
