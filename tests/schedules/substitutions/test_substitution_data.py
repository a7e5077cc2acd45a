"""Terms, extents and the file of substitutions: what is read is what was written, and all else is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schedules.documents import Malformed
from schedules.substitutions.document import from_json, to_json
from schedules.substitutions.enumeration import SUMS
from schedules.substitutions.generation import GeneratedSubstitutions, generate
from schedules.substitutions.sizes import Equations, SymbolicExtent, Undefined, read_extent
from schedules.substitutions.terms import operators, parsed, places, replaced


def test_terms_are_read_as_they_are_written() -> None:
    t = parsed("add(relu(a),relu( a ))")
    assert str(t) == "add(relu(a), relu(a))"
    assert operators(t) == 2
    ways = [way for way, _ in places(t)]
    assert ways == [(), (0,), (1,)]
    assert str(replaced(t, (1,), parsed("b"))) == "add(relu(a), b)"


@pytest.mark.parametrize(
    "text", ["", "add(", "add(a", "add(a,)", "a b", "A", "add(a))", "add()", "1", "a(" * 2000]
)
def test_other_text_is_no_term(text: str) -> None:
    with pytest.raises(ValueError):
        parsed(text)


@pytest.mark.parametrize("text", ["m", "2m", "m+n", "m-n+1", "3", "2m+n-4"])
def test_extents_are_read_as_they_are_written(text: str) -> None:
    assert str(read_extent(text)) == text


@pytest.mark.parametrize("text", ["", "+", "mn", "m+", "m*2", "1000m", "M", "m n"])
def test_other_text_is_no_extent(text: str) -> None:
    with pytest.raises(ValueError, match="is no extent, such as"):
        read_extent(text)


def _symbol(name: str) -> SymbolicExtent:
    return SymbolicExtent(((name, 1),))


def test_equations_are_solved_for_the_most_general_extents() -> None:
    m, n, k, p = (_symbol(f"matrix.{x}.0") for x in "abcd")
    solver = Equations()
    assert solver.equal(m + n, k) == m + n and solver.now(k) == m + n
    solver = Equations()
    solver.equal(m + n, k + p)  # one of four is what is left
    assert len(solver.known) == 1
    solver = Equations(paired=True)
    solver.equal(m + n, k + p)
    assert solver.now(m) == solver.now(k) and solver.now(n) == solver.now(p)
    with pytest.raises(Undefined, match="extents differ by 2"):
        Equations().equal(m, m + 2)
    solver = Equations()
    half = solver.halved(m + 1)
    assert solver.now(m) + 1 == half.times(2)


@pytest.fixture(scope="module")
def found() -> GeneratedSubstitutions:
    return generate(2, 0, (SUMS,))


def test_the_file_says_what_was_generated(found: GeneratedSubstitutions) -> None:
    assert found.substitutions
    assert from_json(to_json(found, 1.5)) == found


def _change(document: Any, way: tuple[Any, ...], value: Any) -> str:
    *before, last = way
    part = document
    for step in before:
        part = part[step]
    part[last] = value
    return json.dumps(document)


RULE = ("substitutions", 0)


@pytest.mark.parametrize(
    "way, value, words",
    [
        (("version",), 2, "version: "),
        (("seed",), -1, "seed: "),
        (("other",), 1, "other"),
        ((*RULE, "source"), "eval(a)", r"substitutions\[0\].source: eval of 1 operands is no operator"),
        ((*RULE, "source"), "product(a)", "product of 1 operands"),
        ((*RULE, "source"), "add(product, a)", "operator product has no operands"),
        ((*RULE, "target"), "z", "has a leaf that"),
        ((*RULE, "target"), "relu(" * 70 + "a" + ")" * 70, "more than 64 nodes"),
        ((*RULE, "leaves"), ["a"], "are not those of"),
        ((*RULE, "forms", 0, 0), "faith", "one of operations, polynomials, tests"),
        ((*RULE, "forms", 0, 1), ["matrix", "m"], "with its extents"),
        ((*RULE, "forms", 0, 1), ["cube", "m", "n"], "one of matrix"),
        ((*RULE, "forms", 0, 1), ["matrix", "m", "__import__"], "is no extent"),
        ((*RULE, "forms", 0, 1), ["matrix", "m", "999"], "is none of a tensor"),
        ((*RULE, "forms", 0), ["operations", ["matrix", "m", "n"]], "a form has 1 kinds"),
        ((*RULE, "forms"), [], "forms"),
    ],
)
def test_the_door_refuses_what_is_no_substitution(
    found: GeneratedSubstitutions, way: Any, value: Any, words: str
) -> None:
    text = _change(json.loads(to_json(found, 0)), way, value)
    with pytest.raises(Malformed, match=words):
        from_json(text)
