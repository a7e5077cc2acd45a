"""Generate substitutions: enumerate, verify, and keep what no simpler one implies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from schedules.substitutions.enumeration import WORLDS, World, enumerate_pairs
from schedules.substitutions.implied import Known, Rule, most_general
from schedules.substitutions.operators import RANKS
from schedules.substitutions.rules import Substitution, general
from schedules.substitutions.sizes import Undefined


@dataclass(frozen=True)
class Counts:
    """Of one world. ``terms``: that were evaluated; ``pairs``: of equal values, renamings once; ``implied``: by
    simpler ones; ``refused``: by the verifier, or defined for no general shapes; ``kept``: of the rest, before
    what a later world or a more general one implies was dropped."""

    world: str
    operators: int
    terms: int
    classes: int
    pairs: int
    implied: int
    refused: int
    kept: int


@dataclass(frozen=True)
class Generated:
    """What a generator found, and how. ``substitutions``: one for each kinds of leaves; those of the same two
    terms follow each other."""

    seed: int
    counts: tuple[Counts, ...]
    substitutions: tuple[Substitution, ...]


def generate(
    most: int | None = None,
    seed: int = 0,
    worlds: Sequence[World] = WORLDS,
    tell: Callable[[str], None] = lambda _: None,
) -> Generated:
    """The substitutions of terms of up to ``most`` operators a side (None: as many as each world says). The
    same arguments give the same. ``tell`` is called with a line now and then."""
    counts = []
    known = Known(seed)
    for world in worlds:
        found = enumerate_pairs(world, world.most if most is None else min(most, world.most), seed)
        tell(f"{world.name}: {found.terms} terms, {len(found.pairs)} pairs of equal values")
        before, implied, refused = len(known.rules), 0, 0
        candidates = []
        for source, target in found.pairs:
            try:
                candidates.append(general(source, target, world.kinds))
            except Undefined:
                refused += 1
        candidates.sort(key=lambda s: (s.size, s.source, s.target))
        for n, s in enumerate(candidates):
            if n % 1000 == 999:
                tell(f"{world.name}: {n + 1} of {len(candidates)} pairs, {len(known.rules)} kept")
            if known.implied(s):
                implied += 1
                continue
            one = most_general(s.source, s.target, world.kinds, seed)
            if one is None:
                refused += 1
            elif one.leaves != s.leaves and known.implied(one):
                implied += 1
            else:
                known.add(one)
        kept = len(known.rules) - before
        counts.append(
            Counts(world.name, found.operators, found.terms, found.classes, len(found.pairs), implied, refused, kept)
        )
    _drop_instances(known)
    tell(f"{len(known.rules)} kept; looking for other kinds of leaves")
    return Generated(seed, tuple(counts), tuple(s for r in known.rules.values() for s in _forms(r, seed)))


def _drop_instances(known: Known) -> None:
    """Drop the rules that a more general one implies, which was found later because it is larger."""
    once = replace(known, most_steps=2)
    for rule in list(known.rules.values()):
        own = next(s for s in rule.forms.values() if s is not None)
        once.drop(rule)
        if once.implied(own):
            continue
        once.add(own)
        once.rules[own.source, own.target].forms.update(rule.forms)
    known.rules = once.rules


def _forms(rule: Rule, seed: int) -> list[Substitution]:
    """A rule for all kinds of leaves for which it holds."""
    every = product(RANKS, repeat=len(rule.leaves))
    return [s for names in every for s in (rule.form(names, seed),) if s is not None]
