"""`Signature`: how a model is called and what it returns: containers of tensors, numbers and None.

It is that of the program that was exported. It is data, so that a saved model has one too; there nothing is
believed (`read`), and no class is looked up by its name.
"""

from __future__ import annotations

import keyword
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from math import isnan, prod
from typing import Any, cast

import numpy as np

from autotune.errors import ArgumentError, ModelError
from schedules.documents import any_text, integer, items, list_of, mapping_of, one_of, record, text, wrong
from schedules.dtypes import DTYPES
from schedules.errors import suggest

DEEPEST = 200  # containers in each other, in a file


@dataclass(frozen=True)
class TensorSlot:
    """A tensor: the number of an input or output of the model."""

    number: int


@dataclass(frozen=True)
class Fixed:
    """What the export fixed: a number, a text or None."""

    value: Any


@dataclass(frozen=True)
class Blank:
    """A tensor without elements, which the model neither reads nor computes."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Held:
    """A container. ``kind``: "tuple", "list", "dict", "named tuple", or "other" of a class that torch was
    told of. ``keys``: of each part, where it has them. ``name``: of the class. ``make`` and ``split``: an
    object of that class of its parts, and its parts, None of another object; not in a file, where a dict of
    the keys takes the place of such an object, or a tuple where it has no keys."""

    kind: str
    parts: tuple[Node, ...]
    keys: tuple[Any, ...] = ()
    name: str = ""
    make: Callable[[Sequence[Any]], Any] | None = field(default=None, compare=False, repr=False)
    split: Callable[[Any], Sequence[Any] | None] | None = field(default=None, compare=False, repr=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Held:
        return self

    def __reduce__(self) -> tuple[Callable[..., Held], tuple[Any, ...]]:
        """A pickle has what a file has: no class."""
        return plain_held, (self.kind, self.parts, self.keys, self.name)

    def of(self, parts: Sequence[Any]) -> Any:
        """The container of these parts."""
        if self.make is not None:
            return self.make(parts)
        if self.kind == "list":
            return list(parts)
        return dict(zip(self.keys, parts, strict=True)) if self.keyed else tuple(parts)

    @property
    def keyed(self) -> bool:
        """Whether it is a dict, or one takes its place."""
        return self.kind == "dict" or (self.kind == "other" and bool(self.keys))

    def part(self, n: int) -> str:
        """How a part is written after the name of the container."""
        if self.kind == "named tuple" or (self.kind == "other" and self.keys):
            return f".{self.keys[n]}"
        return f"[{self.keys[n]!r}]" if self.keys else f"[{n}]"

    @property
    def shown(self) -> str:
        """What it is, in words."""
        if self.keyed:
            what = f"a {self.name} or a dict" if self.name else "a dict"
            return f"{what} of {', '.join(map(repr, self.keys)) or 'nothing'}"
        return f"a {self.name or self.kind} of {len(self.parts)}"


Leaf = TensorSlot | Fixed | Blank
Node = Leaf | Held


@dataclass(frozen=True)
class Signature:
    """``arguments`` by place, with their ``names`` ("" where one is not known); ``named``: arguments that are
    given by name. ``result``: what a call returns."""

    arguments: tuple[Node, ...]
    names: tuple[str, ...]
    named: Mapping[str, Node]
    result: Node

    @property
    def is_plain(self) -> bool:
        """Whether a call takes the inputs of the model and nothing else, in their order."""
        each = (*self.arguments, *self.named.values())
        return all(isinstance(x, TensorSlot) and x.number == n for n, x in enumerate(each))

    @property
    def aliases(self) -> dict[str, int]:
        """{name of an argument that is a tensor: number of the input}."""
        each = {**dict(zip(self.names, self.arguments, strict=True)), **self.named}
        return {n: x.number for n, x in each.items() if n and isinstance(x, TensorSlot)}

    def inputs(self, given: Sequence[Any], named: Mapping[str, Any], count: int, model: str) -> list[Any]:
        """The ``count`` inputs of the model in the arguments of a call. What the export fixed may be left
        out. ``model``: its name. Raises ArgumentError that names the argument."""
        found: list[Any] = [None] * count
        left = dict(named)
        shown = [n or f"argument {i}" for i, n in enumerate(self.names)]
        takes = f"{model} takes {', '.join([*shown, *(f'{n}=' for n in self.named)]) or 'no arguments'}"
        if len(given) > len(self.arguments):
            raise ArgumentError(
                f"{takes}; {len(given)} arguments are given without a name, and {len(self.arguments)} are "
                "taken so: leave out the others, or give them by name"
            )
        missing = []
        every = [*zip(shown, self.arguments, strict=True), *self.named.items()]
        for i, (name, node) in enumerate(every):
            if i < len(given):
                if name in left:
                    raise ArgumentError(f"{takes}; {name} is given twice")
                _take(node, given[i], name, found)
            elif name in left:
                _take(node, left.pop(name), name, found)
            elif _needed(node):
                missing.append(name)
        if left:
            name = next(iter(left))
            raise ArgumentError(f"{takes}; there is no argument {name!r}{suggest(name, dict(every))}")
        if missing:
            raise ArgumentError(f"{takes}; {', '.join(missing)} not given")
        return found

    def built(self, outputs: Sequence[Any], blank: Callable[[tuple[int, ...], str], Any]) -> Any:
        """What a call returns. ``outputs``: of the model. ``blank``: makes a tensor without elements."""
        return _built(self.result, outputs, blank)


def _built(node: Node, outputs: Sequence[Any], blank: Callable[[tuple[int, ...], str], Any]) -> Any:
    # no function within `built` that calls itself: it would hold the outputs until garbage is collected
    if isinstance(node, TensorSlot):
        return outputs[node.number]
    if isinstance(node, Fixed):
        return node.value
    if isinstance(node, Blank):
        return blank(node.shape, node.dtype)
    return node.of([_built(x, outputs, blank) for x in node.parts])


def _needed(node: Node) -> bool:
    """Whether an argument may not be left out."""
    return any(map(_needed, node.parts)) if isinstance(node, Held) else not isinstance(node, Fixed)


def _take(node: Node, value: Any, at: str, found: list[Any]) -> None:
    """Find the inputs of the model in an argument. ``at``: what it is called."""
    if isinstance(node, TensorSlot):
        if value is None or isinstance(value, (bool, int, float, complex, str, list, tuple, dict)):
            raise ArgumentError(
                f"{at} is {_shown(value)}; it takes a tensor: give one, as the export was given"
            )
        found[node.number] = value
    elif isinstance(node, Fixed):
        if not _equal(value, node.value):
            raise ArgumentError(
                f"{at} is {_shown(value)}, and the export fixed it to {node.value!r}: give that, or export "
                f"the module with {_shown(value)}"
            )
    elif isinstance(node, Blank):
        shape, dtype = getattr(value, "shape", None), str(getattr(value, "dtype", "")).removeprefix("torch.")
        if shape is None or (tuple(shape), dtype) != (node.shape, node.dtype):
            raise ArgumentError(f"{at} is {_shown(value)}; it takes {node.dtype}{list(node.shape)}")
    else:
        parts = _parts(node, value)
        if parts is None:
            raise ArgumentError(
                f"{at} is {_shown(value)}; it takes {node.shown}: give what the export was given"
            )
        for n, (part, x) in enumerate(zip(node.parts, parts, strict=True)):
            _take(part, x, at + node.part(n), found)


def _parts(node: Held, value: Any) -> Sequence[Any] | None:
    """The parts of a container that fits; None of another."""
    parts: Sequence[Any] | None = None
    if node.split is not None:
        parts = node.split(value)
    elif node.keyed and is_dataclass(value) and not isinstance(value, (type, Mapping)):
        value = {f.name: x for f in fields(value) if (x := getattr(value, f.name)) is not None}
    if parts is None and node.keyed and isinstance(value, Mapping):
        parts = [value[k] for k in node.keys] if set(value) == set(node.keys) else None
    elif parts is None and node.kind == "list" and isinstance(value, list):
        parts = value
    elif parts is None and isinstance(value, tuple) and not node.keyed and node.kind != "list":
        own = getattr(value, "_fields", None)
        parts = value if own is None or (node.kind != "tuple" and own == node.keys) else None
    return parts if parts is not None and len(parts) == len(node.parts) else None


def _equal(value: Any, fixed: Any) -> bool:
    """Whether a number, text or None is that of the export; 2.0 is 2, True is not 1."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) is not isinstance(fixed, bool) or not isinstance(
        value, (type(None), bool, int, float, str, type(fixed))
    ):
        return False
    both_nan = isinstance(value, float) and isinstance(fixed, float) and isnan(value) and isnan(fixed)
    return both_nan or bool(value == fixed)


def _shown(value: Any) -> str:
    """A value in a message."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)[:60]
    kind = type(value).__name__
    if isinstance(value, Mapping):
        return f"a {kind} of {', '.join(map(repr, value))}"[:200]
    return f"a {kind} of {len(value)}" if isinstance(value, (list, tuple)) else f"a {kind}"


# --- as data ----------------------------------------------------------------------------------


def as_json(signature: Signature) -> dict[str, Any]:
    """A signature as plain JSON. Raises ModelError for keys and values that it has not."""
    return {
        "arguments": [_node_json(x) for x in signature.arguments],
        "names": list(signature.names),
        "named": {n: _node_json(x) for n, x in signature.named.items()},
        "result": _node_json(signature.result),
    }


def _node_json(node: Node) -> list[Any]:
    if isinstance(node, TensorSlot):
        return ["tensor", node.number]
    if isinstance(node, Fixed):
        return ["fixed", _plain(node.value)]
    if isinstance(node, Blank):
        return ["blank", list(node.shape), node.dtype]
    return [node.kind, [_node_json(x) for x in node.parts], [_plain(k) for k in node.keys], node.name]


def _plain(x: Any) -> Any:
    if isinstance(x, float):
        return {"float": x.hex()}
    if x is None or isinstance(x, (bool, int, str)):
        return x
    raise ModelError(
        f"a model that takes or returns the key or value {str(x)[:60]!r} cannot be saved: a file has "
        "numbers, texts and None; export the module without it"
    )


def read(v: Any, inputs: int, outputs: int) -> Signature:
    """A signature of a file, of a model with so many inputs and outputs. Raises ValueError for what
    is none."""
    found = Signature(**_SIGNATURE(v))
    arguments, names, named, result = found.arguments, found.names, found.named, found.result
    if len(names) != len(arguments):
        raise ValueError("names of arguments do not fit")
    slots = sorted(n for x in (*arguments, *named.values()) for n in _slots(x))
    if slots != list(range(inputs)):
        raise ValueError("the arguments of a call are not the inputs of the model")
    if any(n >= outputs for n in _slots(result)):
        raise ValueError("a call returns more than the model computes")
    return found


def _slots(node: Node) -> list[int]:
    if isinstance(node, Held):
        return [n for x in node.parts for n in _slots(x)]
    return [node.number] if isinstance(node, TensorSlot) else []


def _read_node(v: Any, depth: int = 0) -> Node:
    kind = v[0] if isinstance(v, list) and v else None
    if kind == "tensor":
        return TensorSlot(_SLOT(v)[1])
    if kind == "fixed":
        return Fixed(_FIXED(v)[1])
    if kind == "blank":
        _, extents, dtype = _BLANK(v)
        if 0 not in extents or prod(n or 1 for n in extents) >= 1 << 48:
            raise ValueError("a tensor without elements is malformed")
        return Blank(extents, dtype)
    if depth >= DEEPEST:
        raise ValueError(f"more than {DEEPEST} containers in each other")
    parts = list_of(lambda x: _read_node(x, depth + 1))
    kind, nodes, plain, name = items(_KIND, parts, _PLAINS, any_text)(v)
    if kind in ("tuple", "list"):
        fits = not plain
    else:
        fits = len(plain) == len(nodes) or (kind == "other" and not plain)
    if not fits or len(set(plain)) != len(plain):
        raise ValueError(f"a {kind} is malformed")
    return plain_held(kind, nodes, plain, name)


def plain_held(kind: str, parts: tuple[Node, ...], keys: tuple[Any, ...], name: str) -> Held:
    """A container without its class. Raises ValueError for a named tuple whose names are none."""
    return Held(kind, parts, keys, name, named_tuple(name, keys) if kind == "named tuple" else None)


def named_tuple(name: str, keys: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    """What makes named tuples of a class of this name, which is new. Raises ValueError for names that are
    none."""
    for x in (name, *keys):
        if not (isinstance(x, str) and x.isascii() and x.isidentifier()) or keyword.iskeyword(x):
            raise ValueError(f"{str(x)[:40]!r} is no name of a field")
    made: Any = namedtuple(name, tuple(keys))  # type: ignore[misc]
    return cast(Callable[[Sequence[Any]], Any], made._make)


def _read_plain(x: Any) -> Any:
    if isinstance(x, dict):
        return float.fromhex(_FLOAT(x)["float"])
    if x is None or isinstance(x, (bool, int, str)):
        return x
    raise wrong(x, "a number, text or null")


_FLOAT = record({"float": text(100)})
_PLAINS = list_of(_read_plain)
_COUNT = integer(0, (1 << 48) - 1, "a number from 0 on")
_SLOT = items(any_text, _COUNT)
_FIXED = items(any_text, _read_plain)
_BLANK = items(any_text, list_of(_COUNT, 32), one_of(*DTYPES))
_KIND = one_of("tuple", "list", "dict", "named tuple", "other")
_SIGNATURE = record(
    {
        "arguments": list_of(_read_node),
        "names": list_of(any_text),
        "named": mapping_of(_read_node),
        "result": _read_node,
    }
)
