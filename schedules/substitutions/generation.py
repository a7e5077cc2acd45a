"""Generate substitutions: enumerate, verify, and keep what no simpler one implies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from schedules.substitutions.enumeration import WORLDS, World, enumerate_pairs
from schedules.substitutions.implied import KnownRules, Rule, most_general
from schedules.substitutions.operators import POINT, RANKS
from schedules.substitutions.rules import Substitution, general
from schedules.substitutions.sizes import Undefined
from schedules.substitutions.terms import GraphTerm, leaves, nodes, operators


@dataclass(frozen=True)
class Counts:
    """Of one world. ``terms``: that were evaluated; ``pairs``: of equal values, renamings once; ``implied``:
    by simpler ones; ``refused``: by the verifier, or defined for no general shapes; ``kept``: of the rest,
    before what a later world or a more general one implies was dropped."""

    world: str
    operators: int
    terms: int
    classes: int
    pairs: int
    implied: int
    refused: int
    kept: int


@dataclass(frozen=True)
class GeneratedSubstitutions:
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
) -> GeneratedSubstitutions:
    """The substitutions of terms of up to ``most`` operators a side (None: as many as each world says). The
    same arguments give the same. ``tell`` is called with a line now and then."""
    counts = []
    known = KnownRules(seed)
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
            once = replace(known, most_steps=1)
            if known.implied(s) and not (_saves(s) and not once.implied(s)):
                implied += 1
                continue
            one = next(
                filter(None, (most_general(s.source, s.target, names, seed) for names in world.names)), None
            )
            if one is None:
                refused += 1
            elif (
                one.leaves != s.leaves and known.implied(one) and not (_saves(one) and not once.implied(one))
            ):
                implied += 1
            else:
                known.add(one)
        kept = len(known.rules) - before
        counts.append(
            Counts(
                world.name,
                found.operators,
                found.terms,
                found.classes,
                len(found.pairs),
                implied,
                refused,
                kept,
            )
        )
    _drop_instances(known)
    tell(f"{len(known.rules)} kept; looking for other kinds of leaves")
    return GeneratedSubstitutions(
        seed, tuple(counts), tuple(s for r in known.rules.values() for s in _forms(r, seed))
    )


def _saves(s: Substitution) -> bool:
    """Whether one side has fewer products, or computes less where kernels are known ahead though it has more
    operators. A search must see this in one step: what leads there costs more on the way."""
    (a, fewer), (b, less) = (_cost(t, s) for t in (s.source, s.target))
    return a != b or (fewer - less) * (operators(s.source) - operators(s.target)) < 0


def _cost(t: GraphTerm, s: Substitution) -> tuple[int, int]:
    """(products, operators) that depend on more than kernels."""
    fixed = {leaf for leaf, k in s.leaves if k.name == "kernel"}
    live = {x for x in nodes(t) if x.args and x.head != "unit" and not set(leaves(x)) <= fixed}
    return sum(x.head in ("product", "conv") for x in live), len(live)


def _drop_instances(known: KnownRules) -> None:
    """Drop the rules that others imply which were found later, because they are larger. The largest go
    first."""
    once = replace(known, most_steps=6, most_terms=1500, larger=2, rules=dict(known.rules))
    for rule in reversed(list(known.rules.values())):
        own = next(s for s in rule.forms.values() if s is not None)
        once.drop(rule)
        if (replace(once, most_steps=1) if _saves(own) else once).implied(own):
            continue
        once.add(own)
        once.rules[own.source, own.target].forms.update(rule.forms)
    known.rules = {key: once.rules[key] for key in known.rules if key in once.rules}


def _forms(rule: Rule, seed: int) -> list[Substitution]:
    """A rule for all kinds of leaves for which it holds. Kernels of 1 x 1 are named where others are
    refused."""
    found: dict[tuple[str, ...], Substitution] = {}
    for names in product((*RANKS, POINT), repeat=len(rule.leaves)):
        wider = product(*(("kernel", POINT) if n == POINT else (n,) for n in names))
        if not any(other in found for other in wider):
            s = rule.form(names, seed)
            if s is not None:
                found[names] = s
    return list(found.values())
