"""How models are called: containers in and out, as data too, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import ArgumentError, ModelError
from autotune.models.signature import Blank, Fixed, Held, Node, Signature, TensorSlot, as_json, read

NUMBERS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3))
KEYS = st.one_of(st.text(max_size=3), st.integers(-3, 3))


@st.composite
def trees(draw: st.DrawFn, count: list[int], depth: int = 2) -> Node:
    """A container or leaf, whose tensors are numbered on from ``count``."""
    kind = draw(st.sampled_from(("tensor", "fixed", "tuple", "list", "dict", "named tuple", "other")))
    if kind == "tensor" or (depth == 0 and kind != "fixed"):
        count[0] += 1
        return TensorSlot(count[0] - 1)
    if kind == "fixed":
        return Fixed(draw(NUMBERS))
    parts = tuple(draw(trees(count, depth - 1)) for _ in range(draw(st.integers(0, 3))))
    keys: tuple[Any, ...] = ()
    if kind == "named tuple":
        keys = tuple(f"f{i}" for i in range(len(parts)))
    elif kind in ("dict", "other"):
        keys = tuple(draw(st.lists(KEYS, min_size=len(parts), max_size=len(parts), unique=True)))
    name = "Pair" if kind in ("named tuple", "other") else ""
    return Held(kind, parts, keys, name)


@st.composite
def signatures(draw: st.DrawFn) -> tuple[Signature, int]:
    count = [0]
    arguments = tuple(draw(trees(count)) for _ in range(draw(st.integers(0, 3))))
    names = tuple(draw(st.sampled_from(("", f"x{i}"))) for i in range(len(arguments)))
    named = {f"k{i}": draw(trees(count)) for i in range(draw(st.integers(0, 2)))}
    result = Held("tuple", tuple(draw(trees([0])) for _ in range(draw(st.integers(0, 2)))))
    return Signature(arguments, names, named, result), count[0]


def value_of(node: Node, tensors: list[Any]) -> Any:
    if isinstance(node, TensorSlot):
        return tensors[node.number]
    if isinstance(node, Fixed):
        return node.value
    assert isinstance(node, Held)
    return node.of([value_of(x, tensors) for x in node.parts])


@pytest.mark.slow
@settings(max_examples=40)
@given(signatures(), st.randoms(use_true_random=False))
def test_what_is_written_is_read_and_finds_the_inputs_of_a_call(
    drawn: tuple[Signature, int], rng: Any
) -> None:
    signature, count = drawn
    v = json.loads(json.dumps(as_json(signature), allow_nan=False))
    back = read(v, count, 1000)
    assert as_json(back) == as_json(signature)
    tensors = [np.full(2, i) for i in range(count)]
    for one in (signature, back):
        values = [value_of(x, tensors) for x in one.arguments]
        named = {n: value_of(x, tensors) for n, x in one.named.items()}
        shuffled = dict(rng.sample([*named.items()], len(named)))
        found = one.inputs(values, shuffled, count, "net")
        assert all(a is b for a, b in zip(found, tensors, strict=True))
        while values and one.names[len(values) - 1]:  # the last ones by name
            last = values.pop()
            shuffled[one.names[len(values)]] = last
        found = one.inputs(values, shuffled, count, "net")
        assert all(a is b for a, b in zip(found, tensors, strict=True))
    outputs = [np.full(2, i) for i in range(100)]
    made = back.built(outputs, lambda shape, dtype: None)
    kinds = [type(x).__name__ for x in made]
    want = [type(value_of(x, outputs)).__name__ for x in back.result.parts]  # type: ignore[union-attr]
    assert type(made) is tuple and kinds == want


@dataclass
class Pair:
    a: Any
    b: Any = None


X = np.zeros(3, np.float32)
TREE = Held("dict", (TensorSlot(0), Held("list", (TensorSlot(1), Fixed(None)))), ("a", "b"))
CALLED = Signature(
    (TREE, Fixed(3)),
    ("x", "n"),
    {"k": TensorSlot(2), "mode": Fixed("sum"), "e": Blank((0, 3), "float32")},
    TensorSlot(0),
)
E = np.empty((0, 3), np.float32)
OK = {"a": X, "b": [X, None]}
WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "number": (lambda f: f(OK, 4, k=X, e=E), r"n is 4, and the export fixed it to 3: give that, or export"),
    "None": (lambda f: f(OK, None, k=X, e=E), "n is None, and the export fixed it to 3"),
    "bool": (lambda f: f(OK, True, k=X, e=E), "n is True, and the export fixed it to 3"),
    "text": (lambda f: f(OK, k=X, mode="max", e=E), "mode is 'max', and the export fixed it to 'sum'"),
    "not None": (lambda f: f({"a": X, "b": [X, 0]}, k=X, e=E), r"x\['b'\]\[1\] is 0, .* fixed it to None"),
    "keys": (lambda f: f({"a": X}, k=X, e=E), "x is a dict of 'a'; it takes a dict of 'a', 'b': give what"),
    "kind": (lambda f: f({"a": X, "b": (X, None)}, k=X, e=E), r"x\['b'\] is a tuple of 2; it takes a list"),
    "length": (lambda f: f({"a": X, "b": [X]}, k=X, e=E), r"x\['b'\] is a list of 1; it takes a list of 2"),
    "container": (lambda f: f(X, k=X, e=E), "x is a ndarray; it takes a dict of 'a', 'b'"),
    "no tensor": (lambda f: f({"a": 2, "b": [X, None]}, k=X, e=E), r"x\['a'\] is 2; it takes a tensor: give"),
    "missing": (lambda f: f(OK, e=E), "net takes x, n, k=, mode=, e=; k not given"),
    "unknown": (lambda f: f(OK, k=X, mod="sum", e=E), r"no argument 'mod' \(did you mean 'mode'\?\)"),
    "many": (lambda f: f(OK, 3, X, e=E), "3 arguments are given without a name, and 2 are taken so"),
    "twice": (lambda f: f(OK, x=OK, k=X, e=E), "x is given twice"),
    "elements": (lambda f: f(OK, k=X, e=X), r"e is a ndarray; it takes float32\[0, 3\]"),
}  # fmt: skip


def called(*args: Any, **named: Any) -> list[Any]:
    return CALLED.inputs(args, named, 3, "net")


@pytest.mark.parametrize("case", WRONG)
def test_calls_that_do_not_fit_are_named_with_the_remedy(case: str) -> None:
    call, message = WRONG[case]
    with pytest.raises(ArgumentError, match=message):
        call(called)


@pytest.mark.parametrize(
    ("fixed", "same"), [(3, np.int64(3)), (3, 3.0), (float("nan"), float("nan")), (1.5, np.float64(1.5))]
)
def test_numbers_are_equal_as_numbers(fixed: Any, same: Any) -> None:
    signature = Signature((Fixed(fixed), TensorSlot(0)), ("n", "x"), {}, TensorSlot(0))
    assert signature.inputs([same, X], {}, 1, "net")[0] is X
    with pytest.raises(ArgumentError, match="n is"):
        signature.inputs([2.25, X], {}, 1, "net")


def test_an_object_of_a_class_is_taken_where_the_class_is_not_known() -> None:
    signature = Signature((Held("other", (TensorSlot(0),), ("a",), "Pair"),), ("p",), {}, TensorSlot(0))
    for given_ in (Pair(X), {"a": X}):
        assert signature.inputs([given_], {}, 1, "net")[0] is X
    with pytest.raises(ArgumentError, match="p is a Pair; it takes a Pair or a dict of 'a'"):
        signature.inputs([Pair(X, X)], {}, 1, "net")


GOOD = as_json(CALLED)
LIES: dict[str, Any] = {
    "an input twice": lambda v: v["named"].update(k=["tensor", 1]),
    "an input too many": lambda v: v["named"].update(z=["tensor", 3]),
    "no such output": lambda v: v.update(result=["tensor", 1]),
    "below zero": lambda v: v.update(result=["tensor", -1]),
    "true": lambda v: v.update(result=["tensor", False]),
    "names": lambda v: v.update(names=["x"]),
    "names of numbers": lambda v: v.update(names=[1, 2]),
    "a class": lambda v: v.update(result=["os.system", [], [], ""]),
    "keys": lambda v: v.update(result=["dict", [["tensor", 0]], [], ""]),
    "equal keys": lambda v: v.update(result=["dict", [["tensor", 0]] * 2, [1, True], ""]),
    "fields": lambda v: v.update(result=["named tuple", [["tensor", 0]], ["a b"], "P"]),
    "fields that are code": lambda v: v.update(result=["named tuple", [], [], "P(), exit()"]),
    "private fields": lambda v: v.update(result=["named tuple", [["tensor", 0]], ["__class__"], "P"]),
    "a keyword": lambda v: v.update(result=["named tuple", [["tensor", 0]], ["class"], "P"]),
    "a value": lambda v: v.update(result=["fixed", ["a"]]),
    "a float": lambda v: v.update(result=["fixed", {"float": 1}]),
    "elements": lambda v: v.update(result=["blank", [2], "float32"]),
    "too many elements": lambda v: v.update(result=["blank", [0, *[1 << 40] * 2], "float32"]),
    "a dtype": lambda v: v.update(result=["blank", [0], "object"]),
    "deep": lambda v: v.update(result=json.loads('["list",[' * 300 + '["tensor",0]' + '],[],""]' * 300)),
    "text": lambda v: v.update(arguments="ab"),
    "nothing": lambda v: v.clear(),
}


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("lie", LIES)
def test_what_a_file_claims_is_checked(lie: str) -> None:
    v = json.loads(json.dumps(GOOD))
    read(v, 3, 1)
    LIES[lie](v)
    with pytest.raises((ValueError, KeyError, TypeError)):
        read(v, 3, 1)


def test_keys_that_no_file_has_are_told_when_it_is_saved() -> None:
    signature = Signature((), (), {}, Held("dict", (TensorSlot(0),), (("a", 1),)))
    with pytest.raises(ModelError, match=r"the key or value \"\('a', 1\)\" cannot be saved"):
        as_json(signature)
