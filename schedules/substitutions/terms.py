"""Terms: small graphs as trees. A leaf is a tensor; every other node is an operator of its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple


class GraphTerm(NamedTuple):
    """A leaf (``args`` empty) by its name, or an operator by its name with its arguments."""

    head: str
    args: tuple[GraphTerm, ...] = ()

    def __str__(self) -> str:
        return f"{self.head}({', '.join(map(str, self.args))})" if self.args else self.head


_TOKEN = re.compile(r"\s*([a-z]\w*|[(),])")
MOST_NODES = 64  # of a term in a file


def parsed(text: str) -> GraphTerm:
    """The term of its text, such as ``relu(add(a, b))``. Raises ValueError for other text.

    >>> parsed("add(a, relu(b))").args[1]
    GraphTerm(head='relu', args=(GraphTerm(head='b', args=()),))
    """
    tokens, at = [], 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"{text[at : at + 20]!r} is no part of a term")
        tokens.append(found[1])
        at = found.end()
    if len(tokens) > 4 * MOST_NODES:
        raise ValueError(f"a term has more than {MOST_NODES} nodes")
    term, end = _term(tokens, 0)
    if end != len(tokens):
        raise ValueError(f"{' '.join(tokens[end:])[:20]!r} follows the term")
    return term


def _term(tokens: list[str], at: int) -> tuple[GraphTerm, int]:
    if at >= len(tokens) or tokens[at] in "(),":
        raise ValueError("a term ends where a name is expected")
    head, at = tokens[at], at + 1
    if at == len(tokens) or tokens[at] != "(":
        return GraphTerm(head), at
    args = []
    while at < len(tokens) and tokens[at] in "(,":
        arg, at = _term(tokens, at + 1)
        args.append(arg)
        if at < len(tokens) and tokens[at] == ")":
            return GraphTerm(head, tuple(args)), at + 1
    raise ValueError("a parenthesis of a term is not closed")


def nodes(t: GraphTerm) -> Iterator[GraphTerm]:
    """The term and every term inside it, operands first."""
    for a in t.args:
        yield from nodes(a)
    yield t


def leaves(t: GraphTerm) -> tuple[str, ...]:
    """The names of its leaves, each once, from left to right."""
    return tuple(dict.fromkeys(x.head for x in nodes(t) if not x.args))


@lru_cache(maxsize=1 << 18)
def operators(t: GraphTerm) -> int:
    """How many different operators are computed: equal parts count once."""
    return len({x for x in nodes(t) if x.args})


def substituted(t: GraphTerm, by: Mapping[str, GraphTerm]) -> GraphTerm:
    """The term with terms in place of leaves."""
    if not t.args:
        return by.get(t.head, t)
    return GraphTerm(t.head, tuple(substituted(a, by) for a in t.args))


def places(t: GraphTerm) -> Iterator[tuple[tuple[int, ...], GraphTerm]]:
    """Every operator of a term with the way to it: numbers of arguments from the root."""
    if t.args:
        yield (), t
    for n, a in enumerate(t.args):
        for way, x in places(a):
            yield (n, *way), x


def replaced(t: GraphTerm, way: tuple[int, ...], by: GraphTerm) -> GraphTerm:
    """The term with the part at the end of a way replaced."""
    if not way:
        return by
    args = list(t.args)
    args[way[0]] = replaced(args[way[0]], way[1:], by)
    return GraphTerm(t.head, tuple(args))
