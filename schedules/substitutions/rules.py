"""A substitution: two terms that are equal for tensors of some shapes, with what is known of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from schedules.substitutions.operators import POINT, RANKS, TensorKind, kind_of
from schedules.substitutions.sizes import Equations, SymbolicExtent, Undefined
from schedules.substitutions.terms import GraphTerm, leaves, operators

SYMBOLS = "mnkpqrstuvwxyzabcdefghij"


@dataclass(frozen=True)
class Substitution:
    """``source`` may be replaced by ``target``. ``leaves``: (name, kind) of each leaf, its extents by
    symbols: two axes of one symbol have one extent, which is what is assumed.

    ``proof``: how it was verified (`schedules.substitutions.verify`), empty where it was not."""

    source: GraphTerm
    target: GraphTerm
    leaves: tuple[tuple[str, TensorKind], ...]
    proof: str = ""

    @property
    def kinds(self) -> Mapping[str, TensorKind]:
        """{leaf: its kind}."""
        return dict(self.leaves)

    @property
    def exact(self) -> bool:
        """Whether both make each element by the same operations, so that no rounding differs but by the order
        of one sum."""
        return self.proof == "operations"

    @property
    def both_ways(self) -> bool:
        """Whether the target may be replaced by the source too: it has every leaf."""
        return set(leaves(self.source)) == set(leaves(self.target)) and bool(self.target.args)

    @property
    def size(self) -> tuple[int, int, int]:
        """How large it is: both sides' operators, the larger side's, and how few leaves are apart."""
        both = operators(self.source), operators(self.target)
        return sum(both), max(both), -len(self.leaves)

    def __str__(self) -> str:
        return f"{self.source} = {self.target}"


def general(
    source: GraphTerm, target: GraphTerm, names: Mapping[str, str], *, paired: bool = False
) -> Substitution:
    """The substitution for the most general shapes for which both sides are defined. ``names``: {leaf: the
    name of its kind, or `POINT`}. ``paired``: see `Equations`. Raises `Undefined` where there are none."""
    used = leaves(source)
    if not set(leaves(target)) <= set(used):
        raise Undefined("the target has a leaf that the source has not")
    kinds = {leaf: _free(leaf, names[leaf]) for leaf in used}
    solver = Equations(paired=paired)
    a, b = kind_of(source, kinds, solver), kind_of(target, kinds, solver)
    if a.name != b.name:
        raise Undefined(f"one side is a {a.name}, the other a {b.name}")
    for m, n in zip(a.shape, b.shape):
        solver.equal(m, n)
    letters: dict[str, SymbolicExtent] = {}
    found = []
    for leaf, kind in kinds.items():
        shape = tuple(map(solver.now, kind.shape))
        for e in shape:
            for s, _ in e.parts:
                letters.setdefault(s, SymbolicExtent(((SYMBOLS[len(letters)], 1),)))
        found.append((leaf, TensorKind(kind.name, tuple(e.put(letters) for e in shape))))
    return Substitution(source, target, tuple(found))


def _free(leaf: str, name: str) -> TensorKind:
    """The kind of a leaf with a symbol for each axis."""
    kind = "kernel" if name == POINT else name
    shape = [SymbolicExtent(((f"{kind}.{leaf}.{d}", 1),)) for d in range(RANKS[kind])]
    return TensorKind(
        kind, (*shape[:2], SymbolicExtent((), 1), SymbolicExtent((), 1)) if name == POINT else tuple(shape)
    )


def name_of(kind: TensorKind) -> str:
    """The name of a kind, `POINT` for kernels of 1 x 1."""
    return POINT if kind.name == "kernel" and kind.shape[2:] == (SymbolicExtent((), 1),) * 2 else kind.name


def defined(t: GraphTerm, kinds: Mapping[str, TensorKind]) -> TensorKind:
    """The kind of a term, for symbols as they are. Raises `Undefined` where a symbol would have to be
    another."""
    solver = Equations()
    kind = kind_of(t, kinds, solver)
    if solver.known:
        raise Undefined(f"{t} needs " + ", ".join(f"{s} = {e}" for s, e in solver.known.items()))
    return kind
