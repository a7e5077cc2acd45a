"""What the methods of a schedule take for arguments, and what they say of others."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from programs import matmul

from schedules import te
from schedules.errors import ScheduleError
from schedules.model import Trace
from schedules.primitives import PRIMITIVES
from schedules.schedule import Schedule

Do = Callable[[Any], object]


@pytest.mark.parametrize(
    "factors",
    [4, np.int64(4), [None, 4], (None, np.uint8(4)), [None, np.int32(4)]],
    ids=repr,
)
def test_one_number_is_the_inner_factor_and_integers_of_numpy_are_integers(factors: Any) -> None:
    s = Schedule(matmul())
    assert s.split("C_i", factors) == ["C_i_0", "C_i_1"]
    (step,) = s.trace.steps
    given = dict(step.args)["factors"]
    assert given == (None, 4) and type(given[1]) is int
    assert Trace.from_json(s.trace.to_json()) == s.trace
    plain = Schedule(matmul())
    plain.split("C_i", [None, 4])
    assert str(s) == str(plain)


def test_an_array_is_a_list() -> None:
    s = Schedule(matmul())
    s.tile(np.array(["C_i", "C_j"]), np.array([2, 3]))  # type: ignore[arg-type]
    assert dict(s.trace.steps[0].args) == {"loops": ("C_i", "C_j"), "factors": (2, 3)}


CASES: list[tuple[Do, str]] = [
    (lambda s: s.split("C_i", 4.0), "split C_i: factors: 4.0 is of type float; give an integer or None"),
    (lambda s: s.split("C_i", [None, 4.0]), "split C_i: factors: 4.0 is of type float; give an integer"),
    (lambda s: s.split("C_i", [None, np.float32(4)]), "is of type float32; give an integer or None"),
    (lambda s: s.split("C_i", [None, True]), "split C_i: factors: True is of type bool; give an integer"),
    (lambda s: s.split("C_i", "4"), "split C_i: factors: '4' is of type str; give a list of integers"),
    (lambda s: s.split("C_i", [None, 4], 1), "split C_i: tail: 1 is of type int; give a string"),
    (lambda s: s.split(0, 4), "split: loop: 0 is of type int; give the name of a loop, a string"),
    (lambda s: s.split(te.reduce_axis(3, "k"), 4), "split: loop: k is of type IterVar; give the name"),
    (lambda s: s.split("C_i"), "split(loop, factors, tail='guard'): missing a required argument: 'factors'"),
    (lambda s: s.split("C_i", factor=4), "split(loop, factors, tail='guard'): missing a required argument"),
    (lambda s: s.vectorize("C_i", 4), "vectorize(loop): too many positional arguments"),
    (lambda s: s.vectorize(lop="C_i"), "vectorize(loop): missing a required argument: 'loop'"),
    (lambda s: s.reorder(["C_j", "C_i"]), "reorder: loops: ['C_j', 'C_i'] is of type list; give the"),
    (lambda s: s.fuse(1, 2), "fuse: loops: 1 is of type int; give the name of a loop, a string"),
    (lambda s: s.tile("C_i", [4]), "tile: loops: 'C_i' is of type str; give a list of names"),
    (lambda s: s.tile(["C_i"], 4), "tile: factors: 4 is of type int; give a list of integers"),
    (lambda s: s.pack("A", 4, [0]), "pack A: tiles: 4 is of type int; give a list of integers"),
    (lambda s: s.annotate("C_i", "prefetch", 1.5), "annotate C_i: value: 1.5 is of type float; give an"),
    (lambda s: s.tensorize("C_i", ["x"]), "tensorize(loop, instruction): unhashable type: 'list'"),
    (lambda s: Schedule(s.dag, "cpu"), "the target 'cpu' is no Target; leave it out"),  # type: ignore[arg-type]
    (lambda s: Schedule.replay(s.dag, "[]"), "a str is no trace; Trace.from_json makes one of text"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("do", "message"), CASES, ids=[m for _, m in CASES])
def test_a_wrong_argument_is_named_with_a_remedy(do: Do, message: str) -> None:
    s = Schedule(matmul())
    before = str(s)
    with pytest.raises(ScheduleError, match=re.escape(message)):
        do(s)
    assert str(s) == before and not s.trace.steps


@pytest.mark.parametrize("name", PRIMITIVES)
def test_no_primitive_takes_what_is_no_argument(name: str) -> None:
    """Every argument of every primitive, in turn, is something that none can be."""
    method = getattr(Schedule, name)
    parameters = list(inspect.signature(method).parameters.values())
    for wrong in parameters:
        given = ["C" if p is not wrong else 1.5 for p in parameters if p.default is p.empty or p is wrong]
        s = Schedule(matmul())
        with pytest.raises(ScheduleError, match=rf"^{name}\b.*(give|there are|string|integer)"):
            getattr(s, name)(*given)
        assert not s.trace.steps
