"""What is implied by substitutions that are known: two terms that a few of them lead from one to the
other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from schedules.substitutions.operators import OPERATORS, TensorKind, kind_of
from schedules.substitutions.rules import Substitution, defined, general, name_of
from schedules.substitutions.sizes import Equations, Undefined
from schedules.substitutions.terms import GraphTerm, operators, places, replaced, substituted
from schedules.substitutions.verify import SubstitutionRefused, verified

Bound = Mapping[str, GraphTerm]


def matches(pattern: GraphTerm, t: GraphTerm, bound: Bound) -> Iterator[Bound]:
    """Every way in which a term is a pattern with terms in place of leaves. ``bound``: leaves that are
    known."""
    if not pattern.args:
        known = bound.get(pattern.head)
        if known is None:
            yield {**bound, pattern.head: t}
        elif known == t:
            yield bound
        return
    if pattern.head != t.head:
        return
    yield from _arguments(pattern.args, t.args, bound)
    if OPERATORS[t.head].commutes:
        yield from _arguments(pattern.args, t.args[::-1], bound)


def _arguments(patterns: Sequence[GraphTerm], args: Sequence[GraphTerm], bound: Bound) -> Iterator[Bound]:
    if not patterns:
        yield bound
        return
    for one in matches(patterns[0], args[0], bound):
        yield from _arguments(patterns[1:], args[1:], one)


@dataclass
class Rule:
    """Two equal terms, and for which kinds of leaves this was asked: {names of kinds in the order of
    ``leaves``: the verified substitution, or None where it was refused}."""

    source: GraphTerm
    target: GraphTerm
    leaves: tuple[str, ...]
    forms: dict[tuple[str, ...], Substitution | None]

    def form(self, names: tuple[str, ...], seed: int) -> Substitution | None:
        """The verified substitution for kinds of leaves."""
        if names not in self.forms:
            self.forms[names] = most_general(self.source, self.target, dict(zip(self.leaves, names)), seed)
        return self.forms[names]


def most_general(
    source: GraphTerm, target: GraphTerm, names: Mapping[str, str], seed: int
) -> Substitution | None:
    """The verified substitution for the most general shapes, or for those where sums that are equal have
    equal parts; None where both are refused. ``names``: {leaf: the name of its kind}."""
    for paired in (False, True):
        try:
            return verified(general(source, target, names, paired=paired), seed)
        except (Undefined, SubstitutionRefused):
            continue
    return None


@dataclass
class KnownRules:
    """Rules that are kept, by the operator at the root of what they replace. ``most_steps``: how many of them
    may follow each other; ``most_terms``: how many terms are looked at from either side; ``larger``: how many
    operators more than both sides these may have."""

    seed: int = 0
    most_steps: int = 4
    most_terms: int = 400
    larger: int = 1
    rules: dict[tuple[GraphTerm, GraphTerm], Rule] = field(default_factory=dict)
    _by_root: dict[str, list[tuple[GraphTerm, GraphTerm, Rule]]] = field(default_factory=dict)

    def add(self, s: Substitution) -> None:
        """Keep one more."""
        names = tuple(name_of(k) for _, k in s.leaves)
        rule = Rule(s.source, s.target, tuple(leaf for leaf, _ in s.leaves), {names: s})
        self.rules[s.source, s.target] = rule
        for a, b in [(s.source, s.target)] + ([(s.target, s.source)] if s.both_ways else []):
            self._by_root.setdefault(a.head, []).append((a, b, rule))

    def drop(self, rule: Rule) -> None:
        """Keep one less."""
        del self.rules[rule.source, rule.target]
        self._by_root = {h: [x for x in every if x[2] is not rule] for h, every in self._by_root.items()}

    def neighbours(self, t: GraphTerm, most: int, kinds: Mapping[str, TensorKind]) -> Iterator[GraphTerm]:
        """The terms that one rule makes of a term, with at most so many operators. ``kinds``: of its
        leaves."""
        for way, part in places(t):
            for a, b, rule in self._by_root.get(part.head, ()):
                for bound in matches(a, part, {}):
                    made = sorted_term(replaced(t, way, substituted(b, bound)))
                    if operators(made) <= most and self._holds(rule, bound, kinds):
                        yield made

    def _holds(self, rule: Rule, bound: Bound, kinds: Mapping[str, TensorKind]) -> bool:
        try:
            names = tuple(name_of(kind_of(bound[leaf], kinds, Equations())) for leaf in rule.leaves)
        except (Undefined, KeyError):  # a leaf that the other side has alone
            return False
        return rule.form(names, self.seed) is not None

    def implied(self, s: Substitution) -> bool:
        """Whether rules lead from one side to the other, over terms that are defined for the shapes as they
        are."""
        kinds = s.kinds
        most = max(operators(s.source), operators(s.target)) + self.larger
        fronts = [[sorted_term(s.source)], [sorted_term(s.target)]]
        seen = [set(fronts[0]), set(fronts[1])]
        if seen[0] & seen[1]:
            return True
        for step in range(self.most_steps):
            n = step % 2
            front = []
            for t in fronts[n]:
                for made in self.neighbours(t, most, kinds):
                    if made not in seen[n] and _is_defined(made, kinds):
                        seen[n].add(made)
                        front.append(made)
                        if made in seen[1 - n]:
                            return True
                if len(seen[n]) > self.most_terms:
                    break
            fronts[n] = front
        return False


def sorted_term(t: GraphTerm) -> GraphTerm:
    """The term with operands that may be swapped in one order."""
    args = tuple(map(sorted_term, t.args))
    return GraphTerm(t.head, tuple(sorted(args)) if args and OPERATORS[t.head].commutes else args)


def _is_defined(t: GraphTerm, kinds: Mapping[str, TensorKind]) -> bool:
    try:
        defined(t, kinds)
    except (Undefined, KeyError):  # a leaf that neither side has
        return False
    return True
