"""`Rewrite`: a rewrite of graphs that may lose. Each place where it applies is a choice (`Choices`).

Most rewrites always pay, and are plain functions of a graph: dead code, folded constants, common parts.
Others make a graph of the same meaning that may be slower, such as three products as one. Those ask at each
place whether to go on, so that a search can try both ways (as in Jia et al., *TASO*, SOSP 2019, section 5).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from schedules.graph.graph import Graph

# Rewrites and names of places that a log may name in one choice, and their longest text. Models have fewer.
MOST_PLACES, MOST_TEXT = 4096, 400
Start = Literal["usual", "none"]


@dataclass(frozen=True)
class RewritePlace:
    """Where a rewrite applies in a graph. ``name``: of a stage there, which no other place of the rewrite
    has. ``alike``: equal where places do the same with equal tensors. Those are decided together.
    ``usual``: whether the rewrite is applied here where nothing was measured; None: as it says of itself."""

    name: str
    alike: Hashable = field(default="", compare=False)
    usual: bool | None = field(default=None, compare=False)


# Whether a rewrite goes on at a place.
Take = Callable[[RewritePlace], bool]


@dataclass(frozen=True)
class Rewrite:
    """A rewrite that may lose. ``run``: a graph, rewritten at those of its places for which it is told to go
    on. It asks once for each place, and its docstring says what it does. ``usual``: whether it is applied
    where nothing was measured. ``exact``: whether the results are as exact as before; otherwise a user can
    refuse it, whatever was measured. ``lazy``: no place is usual, and looking for them takes time: it is left
    out where no choice names one of its places, unless a search looks for them (`Choices.concern`).
    ``promise``: the share that was saved where it was measured, of what the machine's limit would save. A
    search tries first what may save most."""

    run: Callable[[Graph, Take], Graph]
    usual: bool = True
    exact: bool = True
    lazy: bool = False
    promise: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "__name__", self.run.__name__)
        object.__setattr__(self, "__doc__", self.run.__doc__)

    @property
    def name(self) -> str:
        """What choices call it."""
        return self.run.__name__

    def __call__(self, graph: Graph) -> Graph:
        """The graph as it usually is rewritten."""
        return self.run(graph, self.usually)

    def usually(self, place: RewritePlace) -> bool:
        """Whether it is applied at a place where nothing was measured."""
        return self.usual if place.usual is None else place.usual


def may_lose(
    *, usual: bool = True, exact: bool = True, lazy: bool = False, promise: float = 1.0
) -> Callable[[Callable[[Graph, Take], Graph]], Rewrite]:
    """A decorator: a function is a `Rewrite` of that kind."""
    return lambda run: Rewrite(run, usual, exact, lazy, promise)


@dataclass(frozen=True)
class AskedPlace:
    """A place for which a rewrite asked, and what it was told."""

    rewrite: str
    place: RewritePlace
    taken: bool


@dataclass(frozen=True)
class Choices:
    """Which rewrites that may lose are applied, and where.

    ``start``: "usual", as each rewrite says of itself, or "none". ``other``: (name of a rewrite, name of a
    place) of those that are decided the other way. Names that a graph has not are passed over. ``looks``:
    whether a search wants to know all places, those of lazy rewrites too.

    Example: ``Choices(other=frozenset({("stack_equal", "q")}))``.
    """

    start: Start = "usual"
    other: frozenset[tuple[str, str]] = frozenset()
    looks: bool = field(default=False, compare=False)

    def concern(self, rewrite: Rewrite) -> bool:
        """Whether a rewrite must look for its places."""
        return self.looks or not rewrite.lazy or any(name == rewrite.name for name, _ in self.other)

    def takes(self, rewrite: Rewrite, place: RewritePlace) -> bool:
        """Whether a rewrite is applied at a place."""
        start = self.start == "usual" and rewrite.usually(place)
        return start != ((rewrite.name, place.name) in self.other)

    def turned(self, places: Iterable[AskedPlace]) -> Choices:
        """These, with places decided the other way."""
        return Choices(self.start, self.other ^ {(a.rewrite, a.place.name) for a in places})

    def to_json(self) -> list[list[str]]:
        """What a log keeps: the places that are decided other than usual."""
        return [list(x) for x in sorted(self.other)]

    @staticmethod
    def from_json(told: object) -> Choices:
        """From what a log has, which may come from anyone. Raises ValueError for what is no such list."""
        if not isinstance(told, list) or len(told) > MOST_PLACES:
            raise ValueError("choices of rewrites are a list of pairs of names")
        pairs: set[tuple[str, str]] = set()
        for pair in told:
            if not (isinstance(pair, list) and len(pair) == 2 and all(map(_is_name, pair))):
                raise ValueError("a choice of a rewrite is its name and that of a place")
            pairs.add((pair[0], pair[1]))
        return Choices(other=frozenset(pairs))


USUAL = Choices()


@dataclass(frozen=True)
class Optimized:
    """A graph after all rewrites. ``asked``: the places where they were a choice, in order."""

    graph: Graph
    asked: tuple[AskedPlace, ...]


def _is_name(x: object) -> bool:
    return isinstance(x, str) and 0 < len(x) <= MOST_TEXT


def at_each(
    graph: Graph,
    take: Take,
    places: Callable[[Graph], Iterable[RewritePlace]],
    apply: Callable[[Graph, RewritePlace], Graph],
) -> Graph:
    """The graph with ``apply`` at each place that is taken. ``places`` are looked for again in each new
    graph, and each is asked for once."""
    seen: set[str] = set()
    todo = [*places(graph)]
    while todo:
        place = todo.pop(0)
        if place.name not in seen:
            seen.add(place.name)
            if take(place):
                graph = apply(graph, place)
                todo = [*places(graph)]
    return graph
