"""The verifier: a substitution is proved, or refused with a reason.

- Both sides are defined for the shapes that the substitution states, and for their symbols as they are.
- At several small shapes every element of both has one normal form, a polynomial over the elements of the
  leaves (`schedules.substitutions.normal_form`): proof ``polynomials``; or ``operations`` where even the
  operations are the same. An operator treats all indices of an axis alike, so that sizes at which every
  pattern of equal and different indices occurs stand for all.
- Where a maximum has several forms, both are compared on exact fractions at many shapes: proof ``tests``.
- In each case the project's evaluator runs both, as expressions of `te`, in float32, float64 and int32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules import te
from schedules.substitutions.normal_form import POLYNOMIALS, RECORDED, TooLarge, objects, variable
from schedules.substitutions.operators import (
    NUMBERS,
    OPERATORS,
    TensorKind,
    TermArithmetic,
    fractions,
    kind_of,
    value_of,
)
from schedules.substitutions.rules import Substitution, defined
from schedules.substitutions.sizes import Numbers, Undefined
from schedules.substitutions.terms import GraphTerm, nodes

Array = NDArray[Any]
PROOFS = ("operations", "polynomials", "tests")
MOST_ELEMENTS = 160  # of a leaf in normal forms
MOST_DRAWS = 4000  # of sizes, until both sides are defined
# Draws of shapes: for normal forms, for exact fractions, for those where no form is a proof, for the
# evaluator.
FORMS, TESTS, HARD_TESTS, RUNS = 3, 12, 1000, 2
DTYPES = ("float32", "float64", "int32")
# Their products overflow float32. Sums of them are exact, so that the order of a sum is free.
EXTREMES = (0.0, -0.0, 2.0**100, -(2.0**100), float("inf"), float("-inf"), float("nan"))


class SubstitutionRefused(ValueError):
    """A substitution that was not verified."""


def verified(s: Substitution, seed: int = 0) -> Substitution:
    """The substitution with its proof. Raises `SubstitutionRefused` with the reason.

    >>> wrong = general(parsed("product(a, b)"), parsed("product(b, a)"), {"a": "matrix", "b": "matrix"})
    >>> verified(wrong)
    Traceback (most recent call last):
        ...
    schedules.substitutions.verify.SubstitutionRefused: product(a, b) = product(b, a): element (0, 0) differs
    at m=2"""
    _check_kinds(s)
    rng = np.random.default_rng(seed)
    for n, sizes in enumerate(_drawn(s, rng, TESTS, most=5)):
        _compare_numbers(s, sizes, np.random.default_rng((seed, n)))
    exact = proved = True
    try:
        for sizes in _drawn(s, rng, FORMS, most=3, elements=MOST_ELEMENTS):
            exact = exact and _same_form(s, sizes, RECORDED)
            proved = proved and _same_form(s, sizes, POLYNOMIALS)
    except TooLarge:
        proved = False
    if not proved:
        if not _has_maximum(s):
            raise SubstitutionRefused(f"{s}: the polynomials of both sides differ")
        for n, sizes in enumerate(_drawn(s, rng, HARD_TESTS, most=3)):
            _compare_numbers(s, sizes, np.random.default_rng((seed, 1, n)), hard=True)
    _run(s, rng, exact)
    return replace(s, proof=PROOFS[0] if exact else PROOFS[1] if proved else PROOFS[2])


def _has_maximum(s: Substitution) -> bool:
    heads = {x.head for t in (s.source, s.target) for x in nodes(t)}
    return bool(heads & {"top", "relu", "largest0", "largest1"})


def _check_kinds(s: Substitution) -> None:
    kinds = s.kinds
    try:
        a, b = (defined(t, kinds) for t in (s.source, s.target))
    except (Undefined, KeyError) as err:
        raise SubstitutionRefused(f"{s}: {err}") from None
    if a != b:
        words = (f"{k.name}[{', '.join(map(str, k.shape))}]" for k in (a, b))
        raise SubstitutionRefused(f"{s}: the sides are {' and '.join(words)}")


def _drawn(
    s: Substitution, rng: np.random.Generator, count: int, most: int, elements: int = 4096
) -> Iterator[dict[str, int]]:
    """Sizes of the symbols for which both sides are defined: all 2, then all ``most``, then at random. So
    sums and maxima have three terms at least once: forms of two may be equal by chance."""
    symbols = sorted({x for _, k in s.leaves for e in k.shape for x, _ in e.parts})
    found = 0
    for n in range(MOST_DRAWS):
        if found == count or (found and n >= 200 + 2 * count):
            return
        sizes = {x: (2, most)[n] if n < 2 else int(rng.integers(1, most + 1)) for x in symbols}
        kinds = {leaf: TensorKind(k.name, tuple(e.at(sizes) for e in k.shape)) for leaf, k in s.leaves}
        if any(x < 1 for k in kinds.values() for x in k.shape):
            continue
        if any(prod(k.shape) > elements for k in kinds.values()):
            continue
        try:
            for t in (s.source, s.target):
                kind_of(t, kinds, Numbers())
        except Undefined:  # such as a kernel that is larger than its image
            continue
        found += 1
        yield sizes
    if not found:
        raise SubstitutionRefused(f"{s}: it is defined for no small shape")


def _at(s: Substitution, sizes: Mapping[str, int]) -> dict[str, TensorKind]:
    return {leaf: TensorKind(k.name, tuple(e.at(sizes) for e in k.shape)) for leaf, k in s.leaves}


def _words(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{x}={n}" for x, n in sizes.items())


def _compare_numbers(
    s: Substitution, sizes: Mapping[str, int], rng: np.random.Generator, *, hard: bool = False
) -> None:
    """Compare both sides on exact fractions. ``hard``: on few different ones, zeros among them, each leaf of
    one sign or of both, and of a scale of its own."""
    kinds = _at(s, sizes)
    values = {leaf: fractions(rng, k.shape) for leaf, k in kinds.items()}
    if hard:
        for leaf, k in kinds.items():
            signs = ((-1, 1), (1, 1), (-1, -1), (-1, 1))[int(rng.integers(4))]
            drawn = rng.choice((0.0, 0.25, 0.5, 1.0, 2.0), k.shape) * rng.choice(signs, k.shape)
            values[leaf] = np.asarray(drawn * 2.0 ** int(rng.integers(-2, 3)))
    try:
        a, b = (value_of(t, kinds, values, NUMBERS) for t in (s.source, s.target))
    except Undefined as err:
        raise SubstitutionRefused(f"{s}: {err} at {_words(sizes)}") from None
    if a.shape != b.shape:
        raise SubstitutionRefused(f"{s}: shapes {a.shape} and {b.shape} at {_words(sizes)}")
    if not np.array_equal(a, b):
        place = tuple(map(int, np.argwhere(a != b)[0]))
        raise SubstitutionRefused(f"{s}: element {place} differs at {_words(sizes)}")


def _same_form(s: Substitution, sizes: Mapping[str, int], r: TermArithmetic) -> bool:
    kinds = _at(s, sizes)
    values = {}
    for leaf, k in kinds.items():
        named = (f"{leaf}{n}" for n in range(prod(k.shape)))
        values[leaf] = objects(k.shape, map(variable, named) if r is POLYNOMIALS else ((n,) for n in named))
    a, b = (value_of(t, kinds, values, r) for t in (s.source, s.target))
    return a.shape == b.shape and all(x == y for x, y in zip(a.flat, b.flat))


# -- the project's evaluator ----------------------------------------------------------------------------


def expression(t: GraphTerm, kinds: Mapping[str, TensorKind], tensors: Mapping[str, te.Tensor]) -> te.Tensor:
    """A term as stages of `te`, of tensors in place of its leaves."""
    done: dict[GraphTerm, tuple[TensorKind, te.Tensor]] = {}

    def visit(x: GraphTerm) -> tuple[TensorKind, te.Tensor]:
        if x not in done:
            if not x.args:
                done[x] = kinds[x.head], tensors[x.head]
            else:
                parts = [visit(a) for a in x.args]
                own = [k for k, _ in parts]
                made = OPERATORS[x.head].stage(own, *(v for _, v in parts))
                done[x] = OPERATORS[x.head].kind(Numbers(), *own), made
        return done[x]

    return visit(t)[1]


def _evaluated(t: GraphTerm, kinds: Mapping[str, TensorKind], values: Mapping[str, Array]) -> Array:
    dtype = str(next(iter(values.values())).dtype)
    tensors = {leaf: te.placeholder(k.shape, dtype, leaf) for leaf, k in kinds.items()}
    made = expression(t, kinds, tensors)
    if not t.args:
        return values[t.head]
    used = te.inputs(made)
    return te.evaluate(te.dag([*used, made]), [values[str(x.name)] for x in used])[0]


def _run(s: Substitution, rng: np.random.Generator, exact: bool) -> None:
    """Compare both sides by the evaluator on whole numbers; where the operations are the same, at infinities
    and NaN too."""
    for sizes in _drawn(s, rng, RUNS, most=4):
        kinds = _at(s, sizes)
        for dtype in DTYPES:
            values = {x: rng.integers(-3, 4, k.shape).astype(dtype) for x, k in kinds.items()}
            _equal_runs(s, kinds, values, f"{dtype} at {_words(sizes)}")
        if exact:
            odd = {x: rng.choice(np.array(EXTREMES), k.shape).astype("float32") for x, k in kinds.items()}
            _equal_runs(s, kinds, odd, f"infinities, NaN and zeros at {_words(sizes)}")


def _equal_runs(
    s: Substitution, kinds: Mapping[str, TensorKind], values: Mapping[str, Array], where: str
) -> None:
    a, b = (_evaluated(t, kinds, values) for t in (s.source, s.target))
    if not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
        raise SubstitutionRefused(f"{s}: the evaluator's results differ in {where}")
