"""The file of substitutions: JSON, checked when it is read. It holds data alone: terms as texts, extents as
texts, and how they were found."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from itertools import groupby
from typing import Any

from schedules.documents import (
    Check,
    Malformed,
    integer,
    list_of,
    number,
    one_of,
    parsed_object,
    record,
    text,
    wrong,
)
from schedules.substitutions.generation import Counts, GeneratedSubstitutions
from schedules.substitutions.operators import OPERATORS, RANKS, TensorKind
from schedules.substitutions.rules import Substitution
from schedules.substitutions.sizes import SymbolicExtent, read_extent
from schedules.substitutions.terms import MOST_NODES, GraphTerm, leaves, nodes, parsed
from schedules.substitutions.verify import PROOFS

VERSION = 1
MOST_RULES, MOST_FORMS = 10_000, 1_000
_COUNT = integer(0, 10**9)


def to_json(g: GeneratedSubstitutions, seconds: float) -> str:
    """The text of a file. ``seconds``: of the processor that it took.

    >>> from_json(to_json(generated, 1.0)) == generated
    True
    """
    rules = [
        {
            "source": str(source),
            "target": str(target),
            "leaves": [leaf for leaf, _ in every[0].leaves],
            "forms": [_form(s) for s in every],
        }
        for (source, target), group in groupby(g.substitutions, lambda s: (s.source, s.target))
        for every in (list(group),)
    ]
    lines = ",\n  ".join(json.dumps(r) for r in rules)
    head = {
        "version": VERSION,
        "seed": g.seed,
        "seconds": round(seconds, 1),
        "counts": [asdict(c) for c in g.counts],
    }
    return json.dumps(head, indent=1)[:-2] + f',\n "substitutions": [\n  {lines}\n ]\n}}\n'


def _form(s: Substitution) -> list[Any]:
    return [s.proof, *([k.name, *map(str, k.shape)] for _, k in s.leaves)]


def from_json(value: str) -> GeneratedSubstitutions:
    """What a file says. Raises `Malformed`, which names the place, for anything that is no such file: unknown
    operators and kinds, terms that are too large, extents of the wrong number. What it says is not verified
    again (`schedules.substitutions.verify`)."""
    found = _DOCUMENT(parsed_object(value))
    every: list[Substitution] = []
    for n, rule in enumerate(found["substitutions"]):
        try:
            every += _substitutions(rule)
        except ValueError as err:
            raise Malformed(str(err), ("substitutions", n)) from None
    return GeneratedSubstitutions(found["seed"], tuple(Counts(**c) for c in found["counts"]), tuple(every))


def _term(value: Any) -> GraphTerm:
    made = parsed(text(2000)(value))
    every = list(nodes(made))
    if len(every) > MOST_NODES:
        raise ValueError(f"the term has more than {MOST_NODES} nodes")
    for x in every:
        if x.args and (x.head not in OPERATORS or len(x.args) != OPERATORS[x.head].arity):
            raise ValueError(f"{x.head} of {len(x.args)} operands is no operator")
        if not x.args and x.head in OPERATORS:
            raise ValueError(f"operator {x.head} has no operands")
    return made


def _kind(value: Any) -> TensorKind:
    name, *shape = list_of(text(40), 5, 1)(value)
    if name not in RANKS or len(shape) != RANKS[name]:
        raise wrong(value, f"one of {', '.join(RANKS)} with its extents")
    extents = tuple(map(read_extent, shape))
    for e in extents:
        if not _is_bounded(e):
            raise ValueError(f"extent {e} is none of a tensor")
    return TensorKind(name, extents)


def _is_bounded(e: SymbolicExtent) -> bool:
    return abs(e.constant) < 100 and len(e.parts) < 8 and all(abs(n) < 100 for _, n in e.parts)


def _read_form(value: Any) -> tuple[str, tuple[TensorKind, ...]]:
    proof, *kinds = _PARTS(value)
    return one_of(*PROOFS)(proof), tuple(map(_kind, kinds))


def _substitutions(rule: dict[str, Any]) -> Iterable[Substitution]:
    source, target, names = rule["source"], rule["target"], rule["leaves"]
    if set(names) != set(leaves(source)) or len(set(names)) != len(names):
        raise ValueError(f"leaves {', '.join(names)} are not those of {source}")
    if not set(leaves(target)) <= set(names):
        raise ValueError(f"{target} has a leaf that {source} has not")
    for proof, kinds in rule["forms"]:
        if len(kinds) != len(names):
            raise ValueError(f"a form has {len(kinds)} kinds for {len(names)} leaves")
        yield Substitution(source, target, tuple(zip(names, kinds)), proof)


def _any(value: Any) -> Any:
    return value


_PARTS = list_of(_any, 9, 2)
_RULE = record(
    {
        "source": _term,
        "target": _term,
        "leaves": list_of(text(40, "[a-z]\\w*", "the name of a leaf"), 8, 1),
        "forms": list_of(_read_form, MOST_FORMS, 1),
    }
)
_COUNTS: dict[str, Check[Any]] = {f.name: _COUNT for f in fields(Counts)}
_DOCUMENT = record(
    {
        "version": integer(VERSION, VERSION),
        "seed": integer(0, 2**31),
        "seconds": number(0, 1e7),
        "counts": list_of(record({**_COUNTS, "world": text(40)}), 20),
        "substitutions": list_of(_RULE, MOST_RULES),
    }
)
