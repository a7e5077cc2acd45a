"""Every primitive says in a sentence what it does, and names all that it is about."""

import dataclasses
import re
import typing

import pytest

from schedules.expr import Hole
from schedules.instructions import INSTRUCTIONS, Instruction
from schedules.model import Step
from schedules.primitives import PRIMITIVES
from schedules.primitives.base import Primitive


def _values(cls, number):
    """An argument of each field, which stands nowhere else."""
    hints = typing.get_type_hints(cls)
    values = {}
    for f in dataclasses.fields(cls):
        hint = str(hints[f.name])
        if hints[f.name] is Instruction:
            values[f.name] = [*INSTRUCTIONS.values()][number]
        elif f.name == "tail":
            values[f.name] = ("guard", "shift")[number]
        elif f.name in ("scope",):
            values[f.name] = ("shared", "local")[number]
        elif "tuple" in hint:
            named = "str" in hint
            values[f.name] = tuple(f"{f.name}{n}{number}" if named else 40 + 7 * n + number for n in range(3))
        elif hints[f.name] is str:
            values[f.name] = f"{f.name}{number}"
        else:
            values[f.name] = 60 + number
    return values


@pytest.mark.parametrize("name", PRIMITIVES)
def test_has_a_sentence_that_names_its_arguments(name):
    cls = PRIMITIVES[name]
    assert cls.sentence is not Primitive.sentence, f"{name} has no sentence of its own"
    one, two = (cls(**_values(cls, n)) for n in (0, 1))
    text = one.sentence()
    assert re.fullmatch(r"[A-Z][^\n]*\.", text) and text != two.sentence()
    for field in dataclasses.fields(cls):
        changed = dataclasses.replace(one, **{field.name: getattr(two, field.name)})
        assert changed.sentence() != text, f"{name}: its sentence does not depend on {field.name}"
    for value in vars(one).values():
        for x in value if isinstance(value, tuple) else (value,):
            if isinstance(x, str) and x not in ("guard", "shift", "shared", "local"):
                assert x in text


def test_a_split_in_words():
    split = PRIMITIVES["split"]
    assert split("i", (None, 8)).sentence() == (
        "Split loop `i` into tiles of 8; iterations beyond the end are guarded off."
    )
    assert split("i", (None, 4, Hole("v")), "shift").sentence() == (
        "Split loop `i` into 3 nested loops of the rest × 4 × ?v iterations; "
        "a last tile that would not be full is moved back, and computes some elements twice."
    )


def test_a_step_of_a_trace_has_the_sentence_of_its_primitive():
    step = Step("fuse", (("loops", ("i", "j", "k")),))
    assert PRIMITIVES["fuse"].from_step(step).sentence() == (
        "Fuse loops `i`, `j` and `k` into one loop, `i_j_k`."
    )
