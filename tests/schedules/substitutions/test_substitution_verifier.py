"""The verifier proves what is equal and refuses everything else: two hundred mutants of substitutions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from schedules.substitutions.operators import NUMBERS, OPERATORS, TensorKind, kind_of, value_of
from schedules.substitutions.rules import Substitution, general
from schedules.substitutions.sizes import Numbers, SymbolicExtent, Undefined
from schedules.substitutions.terms import GraphTerm, leaves, nodes, parsed, places, replaced, substituted
from schedules.substitutions.verify import SubstitutionRefused, verified

KINDS = {
    **dict.fromkeys("abcd", "matrix"), **dict.fromkeys("xy", "image"), **dict.fromkeys("klpq", "kernel"),
    "r": "row", "u": "column", "s": "number",
}  # fmt: skip

# (source, target, how it is proved)
TRUE = [
    ("product(product(a, b), c)", "product(a, product(b, c))", "polynomials"),
    ("join1(product(a, b), product(a, c))", "product(a, join1(b, c))", "operations"),
    ("join0(product(a, c), product(b, c))", "product(join0(a, b), c)", "operations"),
    ("add(product(a, b), product(c, d))", "product(join1(a, c), join0(b, d))", "polynomials"),
    ("add(product(a, b), product(a, c))", "product(a, add(b, c))", "polynomials"),
    ("product(product(a, b), u)", "product(a, product(b, u))", "polynomials"),
    ("mul(product(a, b), r)", "product(a, mul(b, r))", "polynomials"),
    ("sum0(product(a, b))", "product(sum0(a), b)", "polynomials"),
    ("product(a, transpose(r))", "sum1(mul(a, r))", "polynomials"),  # a stored product may overflow
    ("sum0(join0(a, b))", "sum0(join0(b, a))", "operations"),
    ("add(largest0(a), largest0(a))", "largest0(add(a, a))", "tests"),
    ("transpose(product(a, b))", "product(transpose(b), transpose(a))", "operations"),
    ("first0(join0(a, b))", "a", "operations"),
    ("join0(first0(a), second0(a))", "a", "operations"),
    ("join1(join0(a, b), join0(c, d))", "join0(join1(a, c), join1(b, d))", "operations"),
    ("relu(join0(a, b))", "join0(relu(a), relu(b))", "operations"),
    ("relu(top(a, b))", "top(relu(a), relu(b))", "operations"),
    ("top(add(a, c), add(b, c))", "add(top(a, b), c)", "polynomials"),
    ("relu(mul(a, a))", "mul(a, a)", "polynomials"),
    ("relu(mul(a, relu(b)))", "mul(relu(a), relu(b))", "tests"),
    ("largest0(top(a, b))", "top(largest0(a), largest0(b))", "operations"),
    ("join1(conv(x, k), conv(x, l))", "conv(x, join0(k, l))", "operations"),
    ("join0(conv(x, k), conv(y, k))", "conv(join0(x, y), k)", "operations"),
    ("add(conv(x, k), conv(x, l))", "conv(x, add(k, l))", "polynomials"),
    ("add(conv(x, k), conv(y, l))", "conv(join1(x, y), join1(k, l))", "polynomials"),
    ("add(conv(pad(x), k), conv(x, l))", "conv(pad(x), add(k, pad(l)))", "polynomials"),
    ("add(conv(pad(x), k), x)", "conv(pad(x), add(k, pad(unit(x))))", "polynomials"),
    ("mul(conv(x, k), r)", "conv(x, mul(k, transpose(r)))", "polynomials"),
]  # fmt: skip


def rule(source: str, target: str, *, paired: bool = False) -> Substitution:
    return general(parsed(source), parsed(target), KINDS, paired=paired)


@pytest.mark.slow
@pytest.mark.parametrize("source, target, proof", TRUE)
def test_what_is_equal_is_proved(source: str, target: str, proof: str) -> None:
    assert verified(rule(source, target)).proof == proof


@pytest.mark.parametrize("source, target, proof", TRUE[:2])
def test_products_are_proved(source: str, target: str, proof: str) -> None:
    assert verified(rule(source, target)).proof == proof


@pytest.mark.parametrize(
    "source, target, words",
    [
        ("product(a, b)", "product(b, a)", r"element \(0, 0\) differs at m=2"),
        ("relu(add(a, b))", "add(relu(a), relu(b))", "differs at"),
        ("top(a, mul(a, a))", "mul(a, a)", "differs at"),  # true of whole numbers
        ("join0(a, b)", "join0(b, a)", "differs at"),
        ("product(a, unit(a))", "unit(a)", "differs at"),
    ],
)
def test_what_differs_is_refused(source: str, target: str, words: str) -> None:
    with pytest.raises(SubstitutionRefused, match=words):
        verified(rule(source, target))


def test_a_lost_assumption_is_refused_by_what_is_needed() -> None:
    true = rule("first0(join0(a, b))", "a")
    assert [[str(e) for e in k.shape] for _, k in true.leaves] == [["m", "n"], ["m", "n"]]
    m, n, k = (SymbolicExtent(((x, 1),)) for x in "mnk")
    lost = replace(true, leaves=(("a", TensorKind("matrix", (m, n))), ("b", TensorKind("matrix", (k, n)))))
    with pytest.raises(SubstitutionRefused, match=re.escape("first0(join0(a, b)) needs k = m")):
        verified(lost)


def test_sums_of_joins_need_equal_parts() -> None:
    texts = "add(product(join1(a, b), c), d)", "add(product(join1(b, a), c), d)"
    with pytest.raises(SubstitutionRefused):
        verified(rule(*texts))
    texts = "add(join0(a, b), join0(c, d))", "join0(add(a, c), add(b, d))"
    assert verified(rule(*texts, paired=True)).proof == "operations"


# -- mutants ----------------------------------------------------------------------------------------------


def _swapped(t: GraphTerm) -> Iterator[GraphTerm]:
    for way, x in places(t):
        if len(x.args) == 2:
            yield replaced(t, way, GraphTerm(x.head, x.args[::-1]))
    names = leaves(t)
    for a, b in pairwise(names):
        yield substituted(t, {a: GraphTerm(b), b: GraphTerm(a)})
        yield substituted(t, {a: GraphTerm(b)})


def _other_axis(t: GraphTerm) -> Iterator[GraphTerm]:
    for way, x in places(t):
        if x.head[-1] in "01":
            yield replaced(t, way, GraphTerm(x.head[:-1] + "10"[int(x.head[-1])], x.args))


def _other_operator(t: GraphTerm) -> Iterator[GraphTerm]:
    same = {
        "add": "mul",
        "mul": "top",
        "top": "add",
        "first0": "second0",
        "second1": "first1",
        "sum0": "largest0",
    }
    for way, x in places(t):
        if x.head in same:
            yield replaced(t, way, GraphTerm(same[x.head], x.args))
        if x.head in ("relu", "transpose", "pad"):
            yield replaced(t, way, x.args[0])


def _without_assumption(s: Substitution) -> Iterator[Substitution]:
    """One axis of a leaf gets a symbol of its own, where it had that of another axis."""
    for n, (leaf, kind) in enumerate(s.leaves):
        for d in range(len(kind.shape)):
            shape = (*kind.shape[:d], SymbolicExtent((("z", 1),)), *kind.shape[d + 1 :])
            yield replace(s, leaves=(*s.leaves[:n], (leaf, TensorKind(kind.name, shape)), *s.leaves[n + 1 :]))


def _is_true(s: Substitution) -> bool:
    """Whether both sides are defined and equal where the verifier does not look: at sizes above its own."""
    symbols = sorted({x for _, k in s.leaves for e in k.shape for x, _ in e.parts})
    rng = np.random.default_rng(7)
    for first in (6, 7):
        sizes = {x: 2 * (first + n) for n, x in enumerate(symbols)}
        for x in symbols:  # kernels are smaller than images
            if all(k.name == "kernel" for _, k in s.leaves if any(x in dict(e.parts) for e in k.shape[2:])):
                sizes[x] = 3 if first == 6 else 2
        kinds = {leaf: TensorKind(k.name, tuple(e.at(sizes) for e in k.shape)) for leaf, k in s.leaves}
        values = {
            x: rng.integers(1, 99, k.shape) * rng.choice((-1, 1), k.shape) / 64 for x, k in kinds.items()
        }
        try:
            a, b = (value_of(t, kinds, values, NUMBERS) for t in (s.source, s.target))
            same = kind_of(s.source, kinds, Numbers()) == kind_of(s.target, kinds, Numbers())
        except Undefined:
            return False
        if not same or not np.array_equal(a, b):
            return False
    return True


def mutants() -> list[Substitution]:
    found: dict[Substitution, None] = {}
    for source, target, _ in TRUE:
        s = rule(source, target)
        for change in (_swapped, _other_axis, _other_operator):
            for made in change(s.target):
                found[replace(s, target=made)] = None
            for made in change(s.source):
                found[replace(s, source=made)] = None
        for one in _without_assumption(s):
            found[one] = None
    return [s for s in found if not _is_true(s)]


def test_two_hundred_mutants_are_refused() -> None:
    every = mutants()
    assert len(every) >= 200
    for s in every:
        with pytest.raises(SubstitutionRefused):
            verified(s)


def test_operators_of_the_list_are_all_verified() -> None:
    used = {
        x.head for source, target, _ in TRUE for t in (source, target) for x in nodes(parsed(t)) if x.args
    }
    assert OPERATORS.keys() - used <= {"first1", "second1", "sum1", "largest1"}


@pytest.mark.parametrize(
    "source, target",
    [
        ("top(mul(r, r), top(r, s))", "top(mul(r, r), s)"),  # not between 0 and 1
        ("top(s, sum1(top(a, s)))", "sum1(top(a, s))"),  # not for s below 0 in rows of two
        ("relu(mul(a, b))", "mul(relu(a), relu(b))"),
        ("mul(relu(a), b)", "relu(mul(a, b))"),
        ("largest0(mul(a, r))", "mul(largest0(a), r)"),
    ],
)
def test_rare_differences_of_maxima_are_found(source: str, target: str) -> None:
    with pytest.raises(SubstitutionRefused, match="differs at"):
        verified(rule(source, target))
