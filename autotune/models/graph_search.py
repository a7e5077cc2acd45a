"""Which graph of a model is the fastest: rewrites that may lose are tried, and timed (ADR 114).

Places of a rewrite where the same tensors meet are one *alternative*: the graph with all of them decided the
other way. An alternative differs from the usual graph in a few tasks. Both sides of each are tuned for a part
of the budget, and of the alternatives that are faster by the log one after another is taken, as long as the
whole graph becomes faster. In the end both graphs run in turns, and the usual one stays unless it is slower.

The graph of a real model has hundreds of places and a few kinds of them, so that enumerating kinds is cheap,
where a search over single substitutions (Jia et al., *TASO*, SOSP 2019, section 5) prunes by a bound.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.models.graph_choices import ToldTry
from autotune.models.outline import arena
from autotune.models.preparation import PreparedModel, Seconds
from autotune.models.tasks import tasks_of
from schedules.errors import AutotuneError
from schedules.graph.rewrite import AskedPlace, Choices
from schedules.model import Target, Workload

# Share of the budget in which both sides of alternatives are tuned, and of that in which they are looked for.
SHARE, LOOKING = 0.25, 0.2
# The tasks of a side of an alternative must be faster than those of the usual graph by this factor.
FASTER = 0.98
# The same where the whole graph cannot be timed: on a device, and on other machines.
FASTER_UNSEEN = 0.9
# The same where an arena becomes larger than the caches: kernels alone are timed with what they read in them.
FASTER_COLD = 0.95
# Of a kernel, the share of its time that another form of it may save beyond what the machine's limit tells.
AT_STAKE = 0.1
# Least seconds for a task.
LEAST_S = 2.0


@dataclass(frozen=True)
class ArenaLimits:
    """When the memory between kernels counts. ``cached``: bytes of a target's caches; of smaller arenas
    nothing is said. ``most``: bytes that no rewrite may pass, None for any number."""

    cached: float = math.inf
    most: int | None = None

    @staticmethod
    def of(target: Target, most: int | None = None) -> ArenaLimits:
        """Those of a target, whose threads have their caches together."""
        own = target.limit("l3_bytes") or target.limit("l2_bytes")
        return ArenaLimits(own * target.threads or math.inf, most)

    def factor(self, before: int, after: int, faster: float) -> float:
        """By which a side must be faster, where an arena of ``before`` bytes becomes one of ``after``.
        ``faster``: where memory does not count."""
        if after > before and self.most is not None and after > self.most:
            return 0.0
        if after > max(before, self.cached):
            return min(faster, FASTER_COLD)
        if before > max(after, self.cached):
            return 1.0  # it may be level
        return faster


NO_LIMITS = ArenaLimits()


def arena_bytes(ready: PreparedModel, of: Seconds = lambda workload: None) -> int:
    """Bytes of what lies between the kernels of a graph. ``of``: seconds of tasks, where they are known."""
    return arena(ready.outline(of)).nbytes


@dataclass(frozen=True)
class Alternative:
    """Places that are decided other than usual, all of one kind. ``usual``, ``other``: how often each side
    runs the tasks that the other side does not, by digest. ``workloads``: these tasks. ``arenas``: bytes
    between kernels, as usual and in the other way."""

    places: tuple[AskedPlace, ...]
    usual: Mapping[str, int]
    other: Mapping[str, int]
    workloads: Mapping[str, Workload] = field(repr=False)
    arenas: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        """What people call it: the rewrite, the first place, and whether it is done there."""
        first, more = self.places[0], len(self.places) - 1
        where = first.place.name + (f" and {more} more" if more else "")
        return f"{'without' if first.taken else 'with'} {first.rewrite} at {where}"

    def seconds(self, of: Seconds) -> tuple[float | None, float | None]:
        """Seconds of a call in these tasks: as usual, and in the other way."""
        return _sum(self.usual, self.workloads, of), _sum(self.other, self.workloads, of)


@dataclass(frozen=True)
class Tried:
    """An alternative after it was timed. ``usual_s``, ``other_s``: seconds of a call in what differs, None
    where that has no kernel. ``taken``: whether it is a part of the choice."""

    alternative: Alternative
    usual_s: float | None
    other_s: float | None
    taken: bool

    def __str__(self) -> str:
        return str(self.told)

    def under(self, choices: Choices) -> Tried:
        """The same, told by choices that were made later."""
        turned = {(a.rewrite, a.place.name) for a in self.alternative.places}
        return replace(self, taken=turned <= choices.other)

    @property
    def told(self) -> ToldTry:
        """What a log keeps for people."""
        return ToldTry(self.alternative.name, self.usual_s, self.other_s, self.taken, self.alternative.arenas)


def _sum(counts: Mapping[str, int], workloads: Mapping[str, Workload], of: Seconds) -> float | None:
    times = [(n, of(workloads[d])) for d, n in counts.items()]
    return None if any(t is None for _, t in times) else sum(n * t for n, t in times if t is not None)


def kinds(asked: Iterable[AskedPlace]) -> list[tuple[AskedPlace, ...]]:
    """Places that are decided together, in their order."""
    found: dict[object, list[AskedPlace]] = {}
    for a in asked:
        found.setdefault((a.rewrite, a.place.alike, a.taken), []).append(a)
    return [tuple(x) for x in found.values()]


@dataclass(frozen=True)
class Looked:
    """What was found in a program. ``seen``: of the ``kinds`` of its places, how many there was time for."""

    found: tuple[Alternative, ...]
    seen: int
    kinds: int


def alternatives(base: PreparedModel, refused: Callable[[AskedPlace], bool], until: float) -> Looked:
    """What could be decided the other way, one kind of places at a time, looked for until about ``until``
    (`time.monotonic`), one at least. Of those that run the same tasks the first is kept; lazy rewrites are
    the last. ``refused``: whether a place must stay as it is."""
    from schedules.graph.optimize import MAY_LOSE

    found: list[Alternative] = []
    every = sorted(kinds(a for a in base.asked if not refused(a)), key=lambda k: MAY_LOSE[k[0].rewrite].lazy)
    seen = 0
    for places in every:
        one = _turned(base, places)
        seen += 1
        if one is not None and not any((one.usual, one.other) == (x.usual, x.other) for x in found):
            found.append(one)
        if time.monotonic() > until:
            break
    return Looked(tuple(found), seen, len(every))


def _turned(base: PreparedModel, places: tuple[AskedPlace, ...]) -> Alternative | None:
    """A graph with places decided the other way; None where that cannot be cut, or runs the same tasks."""
    try:
        return _difference(places, base, base.with_choices(base.choices.turned(places)))
    except AutotuneError:
        return None


def _difference(
    places: tuple[AskedPlace, ...], base: PreparedModel, other: PreparedModel
) -> Alternative | None:
    """What differs between two graphs of a model; None where they run the same tasks."""
    (a, known), (b, more) = _counted(base), _counted(other)
    usual, changed = a - b, b - a
    if not usual and not changed:
        return None
    workloads = known | more
    arenas = arena_bytes(base), arena_bytes(other)
    return Alternative(places, usual, changed, {d: workloads[d] for d in (*usual, *changed)}, arenas)


def _counted(ready: PreparedModel) -> tuple[Counter[str], dict[str, Workload]]:
    """How often a call runs each task, by digest, and the tasks. Of groups that can run as several, both."""
    found = tasks_of(ready.parts)
    return Counter({t.workload.digest: t.count for t in found}), {
        t.workload.digest: t.workload for t in found
    }


def hopeful(
    found: Sequence[Alternative], least_s: Seconds, budget_s: float, known_s: Seconds = lambda _: None
) -> list[Alternative]:
    """The alternatives for which there is time, those first that may gain most: by ``known_s`` where both
    sides have it; else by the seconds that the machine needs at least for each side, of which a rewrite keeps
    what it promises. ``least_s``: these, None where nobody knows."""
    from schedules.graph.optimize import MAY_LOSE

    def gain(one: Alternative) -> float:
        usual, other = one.seconds(known_s)
        if usual is not None and other is not None:
            return usual - other
        usual, other = one.seconds(least_s)
        if usual is None or other is None:
            return math.inf
        return MAY_LOSE[one.places[0].rewrite].promise * (usual - other) + AT_STAKE * usual

    chosen: list[Alternative] = []
    tasks: set[str] = set()
    for one in sorted(found, key=gain, reverse=True):
        more = tasks | one.workloads.keys()
        if len(more) * LEAST_S <= budget_s:
            chosen.append(one)
            tasks = more
    return chosen


def change_s(before: PreparedModel, after: PreparedModel, of: Seconds) -> float | None:
    """Seconds that a call takes more with one graph than with another, each kernel alone; None where a kernel
    that only one of them runs is not known."""
    runs = [_running(one, of) for one in (before, after)]
    less, more = (_sum(a - b, known, of) for (a, known), (b, _) in (runs, reversed(runs)))
    return None if less is None or more is None else more - less


def _running(ready: PreparedModel, of: Seconds) -> tuple[Counter[str], dict[str, Workload]]:
    """How often a call runs each task, by digest, and the tasks. Of groups that can run as several, the way
    that is faster."""
    outline = ready.outline(of)
    return (
        Counter({w.digest: outline.count(i) for i, w in enumerate(outline.tasks)}),
        {w.digest: w for w in outline.tasks},
    )


def total(ready: PreparedModel, of: Seconds) -> float | None:
    """Seconds of all kernels that a call runs, each alone; None while one is missing."""
    counts, workloads = _running(ready, of)
    return _sum(counts, workloads, of)


def decided(
    base: PreparedModel,
    found: Sequence[Alternative],
    of: Seconds,
    faster: float = FASTER,
    limits: ArenaLimits = NO_LIMITS,
) -> tuple[PreparedModel, list[Tried]]:
    """(The fastest graph by what is known, what became of each alternative). Alternatives are taken one after
    another, those that gain most first, each if the whole graph becomes faster by it, or is as fast with a
    smaller arena where that counts. ``faster``: the factor by which its tasks must be faster."""
    best, tried = base, list[Tried]()
    for one in sorted(found, key=lambda one: _gain(one, of), reverse=True):
        usual, other = one.seconds(of)
        taken = False
        if usual is not None and other is not None and other <= max(faster, 1.0) * usual:
            with_it = _with(best, one)
            change = None if with_it is None else change_s(best, with_it, of)
            if with_it is not None and change is not None:
                before, after = arena_bytes(best, of), arena_bytes(with_it, of)
                factor = limits.factor(before, after, faster)
                if other <= factor * usual and (change < 0 or (change == 0 and after < before)):
                    best, taken = with_it, True
        tried.append(Tried(one, usual, other, taken))
    return best, tried


def _with(best: PreparedModel, one: Alternative) -> PreparedModel | None:
    """A graph with an alternative more; None where that cannot be cut."""
    try:
        return best.with_choices(best.choices.turned(one.places))
    except AutotuneError:
        return None


def _gain(one: Alternative, of: Seconds) -> float:
    usual, other = one.seconds(of)
    return -math.inf if usual is None or other is None else usual - other
