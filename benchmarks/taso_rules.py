"""TASO's published rules, and which of them follow from substitutions that were generated here.

The file is ``graph_subst.pb`` of TASO's repository: a message of protocol buffers, of which a few fields are
read. Its convolutions are of 3 x 3 with zeros around. Their weights are (outputs, channels, rows, columns).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from schedules.substitutions.implied import KnownRules, most_general
from schedules.substitutions.operators import RANKS
from schedules.substitutions.rules import Substitution
from schedules.substitutions.terms import GraphTerm, leaves

# Numbers of its operators and parameters.
INPUT_KINDS = {"matrix", "image", "kernel"}
CONV, RELU, CONCAT, SPLIT, TRANSPOSE, ADD, MUL, PRODUCT = 3, 8, 12, 13, 15, 16, 17, 18
ACTIVATION, DIMENSIONS, AXIS = 9, 10, 11


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value - (1 << 64) if value >> 63 else value, at


def fields(data: bytes) -> dict[int, list[int | bytes]]:
    """{number of a field: its values} of a message."""
    found: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value: int | bytes
        value, at = _varint(data, at)
        if key & 7 == 2:
            value, at = data[at : at + int(value)], at + int(value)
        found.setdefault(key >> 3, []).append(value)
    return found


def _terms(operators: Sequence[bytes]) -> dict[tuple[int, int], GraphTerm]:
    """{(operator, output): its term}. Inputs have numbers below 0."""
    made: dict[tuple[int, int], GraphTerm] = {}
    for n, raw in enumerate(operators):
        one = fields(raw)
        parameters = {fields(p)[1][0]: fields(p)[2][0] for p in one.get(3, ())}
        args = []
        for raw_input in one.get(2, ()):
            ref = fields(raw_input)
            place = (ref[1][0], ref[2][0])
            args.append(made[place] if place[0] >= 0 else GraphTerm(f"i{-place[0]}"))
        kind = one[1][0]
        axis = int(parameters.get(AXIS, 0))
        if kind == SPLIT:
            made[n, 0], made[n, 1] = (GraphTerm(f"{half}{axis}", tuple(args)) for half in ("first", "second"))
            continue
        if kind == CONV:
            term = GraphTerm("conv", (GraphTerm("pad", (args[0],)), args[1]))
            term = GraphTerm("relu", (term,)) if parameters.get(ACTIVATION) else term
        elif kind == CONCAT:
            term = args[0]
            for a in args[1:]:
                term = GraphTerm(f"join{axis}", (term, a))
        else:
            names = {RELU: "relu", TRANSPOSE: "transpose", ADD: "add", MUL: "mul", PRODUCT: "product"}
            term = GraphTerm(names[kind], tuple(args))
        made[n, 0] = term
    return made


def rules(data: bytes) -> Iterator[tuple[tuple[GraphTerm, GraphTerm], ...]]:
    """The pairs of equal terms of each rule, one for each of its outputs."""
    for raw in fields(data)[1]:
        rule = fields(raw)
        source, target = (_terms(rule[n]) for n in (1, 2))
        outputs = [fields(m) for m in rule[3]]
        yield tuple((source[m[1][0], m[3][0]], target[m[2][0], m[4][0]]) for m in outputs)


def follow(data: bytes, substitutions: Sequence[Substitution]) -> Iterator[str]:
    """A line for each rule that does not follow, and one with the counts."""
    known = KnownRules(most_terms=20_000, most_steps=8)
    for s in substitutions:
        if (s.source, s.target) not in known.rules:
            known.add(s)
        known.rules[s.source, s.target].forms[tuple(k.name for _, k in s.leaves)] = s
    every = found = 0
    for pairs in rules(data):
        every += 1
        missing = [p for p in pairs if not _follows(known, *p)]
        found += not missing
        for source, target in missing:
            yield f"does not follow: {source} = {target}"
    yield f"{found} of {every} rules follow"


def _follows(known: KnownRules, source: GraphTerm, target: GraphTerm) -> bool:
    """Whether it follows for each kinds of its leaves for which it holds, of one at least."""
    if not set(leaves(target)) <= set(leaves(source)):
        source, target = target, source
    source, target = _apart(source, ""), _apart(target, "")
    forms = []
    for names in product(sorted(INPUT_KINDS & RANKS.keys()), repeat=len(leaves(source))):
        s = most_general(source, target, dict(zip(leaves(source), names)), 0)
        forms += [s] if s is not None else []
    return bool(forms) and all(map(known.implied, forms))


def _apart(t: GraphTerm, suffix: str) -> GraphTerm:
    """The term with leaves of two names where they are images and kernels at once, which is more general."""
    if not t.args:
        return GraphTerm(t.head + suffix)
    if t.head == "conv":
        return GraphTerm(t.head, (_apart(t.args[0], suffix), _apart(t.args[1], suffix + "k")))
    return GraphTerm(t.head, tuple(_apart(a, suffix) for a in t.args))
