"""Which rewrites of a model's graph are applied, as a tuning log has it.

`autotune.tune_model` finds it (`autotune.models.graph_search`), and all that runs or shows the model does the
same. It is kept as an option of a run of the model's first stage, as an expression of its own: so it travels
with the log, and costs one look at it. What a log says is data of a bounded form, and names alone: it decides
which of our own rewrites are applied, each of which keeps what the model means.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, get_args

from autotune.models.outline import workload_of
from autotune.run.asked import Asked
from autotune.settings import SettingsError
from kernels_db import lookup
from schedules.errors import suggest
from schedules.graph.graph import Graph
from schedules.graph.group import group_of
from schedules.graph.rewrite import MOST_TEXT, USUAL, Choices
from schedules.model import Target, Workload, canonical, digest
from schedules.te.compute_dag import MOST_BYTES
from schedules.units import seconds, size, visible

if TYPE_CHECKING:
    from kernels_db.store import Log

# The key in the options of a run.
KEY = "rewrites"
MOST_TRIED = 64  # of a log's lines that are shown
LONGEST_S = 1e9  # that a line may tell
# Rewrites that may lose: as they usually are, as was measured, or none of them.
Rewrites = Literal["always", "measured", "none"]
ChoicesOf = Callable[[Graph], Choices]


def usual(graph: Graph) -> Choices:
    """Every rewrite where it usually is applied."""
    return Choices()


def looking(graph: Graph) -> Choices:
    """Every rewrite where it usually is applied; a search is told all places."""
    return Choices(looks=True)


def just(choices: Choices) -> ChoicesOf:
    """These choices, whatever the graph."""
    return lambda graph: choices


def policy(given: object) -> Rewrites:
    """What a caller gave for ``rewrites``. Raises `SettingsError`."""
    known = get_args(Rewrites)
    if given not in known:
        hint = suggest(str(given), known)
        raise SettingsError(f"rewrites is {given!r}; it is one of {', '.join(map(repr, known))}{hint}")
    return given  # type: ignore[return-value]


def choices_of(rewrites: Rewrites, asked: Asked, exact: bool = False) -> ChoicesOf:
    """What decides for a graph. ``exact``: rewrites whose results are less exact stay out, whatever was
    measured. Raises `SettingsError`."""
    match policy(rewrites):
        case "none":
            return lambda graph: Choices("none")
        case "always":
            return usual

    def of(graph: Graph) -> Choices:
        found = recorded(graph, asked.where, asked.target, asked.exactly).choices
        return exactly(found) if exact else found

    return of


def exactly(choices: Choices) -> Choices:
    """The choices without rewrites that are not exact. None of these is usual."""
    from schedules.graph.optimize import MAY_LOSE

    known = {name for name, rewrite in MAY_LOSE.items() if rewrite.exact}
    return replace(choices, other=frozenset(x for x in choices.other if x[0] in known))


@dataclass(frozen=True)
class ModelKey:
    """What a log keeps choices of a model under. ``model``: the digest of its graph before any rewrite.
    ``anchor``: its first stage, as a task."""

    model: str
    anchor: Workload

    @staticmethod
    def of(graph: Graph) -> ModelKey | None:
        """Of a graph before any rewrite; None for one without a stage that could be a kernel alone."""
        first = next((s for s in graph.dag.stages if s.plain), None)
        if first is None:
            return None
        try:
            anchor = workload_of(group_of(graph, [first], [t.name for t in first.outputs]).dag)
        except ValueError:
            return None
        return ModelKey(digest(canonical(graph.dag.to_json())), anchor)


@dataclass(frozen=True)
class ToldTry:
    """A rewrite that a run tried, as a log has it for people. ``usual_s``, ``other_s``: seconds of a call in
    what differs, as usual and the other way, None where that has no kernel. ``taken``: whether the model is
    rewritten that other way. ``arenas``: bytes between kernels, as usual and the other way."""

    what: str
    usual_s: float | None
    other_s: float | None
    taken: bool
    arenas: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        sides = zip((self.other_s, self.usual_s), map(size, reversed(self.arenas)), strict=True)
        (time, arena), (usual, beside) = (("not timed" if s is None else seconds(s), m) for s, m in sides)
        turned = "with it" if self.what.startswith("without ") else "without"
        memory = f", arena {arena} ({turned}: {beside})" if arena != beside else ""
        verdict = "taken" if self.taken else "not taken"
        return f"{visible(self.what)}: {time} ({turned}: {usual}){memory}, {verdict}"

    @staticmethod
    def from_json(told: object) -> ToldTry | None:
        """From what a log has; None for what is no such object."""
        if not isinstance(told, Mapping) or not isinstance(told.get("what"), str):
            return None
        times = [told.get("usual_s"), told.get("other_s")]
        if not all(s is None or _is_time(s) for s in times):
            return None
        taken, arenas = told.get("taken") is True, told.get("arenas")
        usual = other = 0
        if isinstance(arenas, list) and len(arenas) == 2 and all(map(_is_size, arenas)):
            usual, other = arenas
        return ToldTry(told["what"][:MOST_TEXT], times[0], times[1], taken, (usual, other))


def _is_size(n: object) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and 0 <= n < MOST_BYTES


def _is_time(s: object) -> TypeGuard[float]:
    return isinstance(s, (int, float)) and not isinstance(s, bool) and 0 <= s < LONGEST_S


@dataclass(frozen=True)
class RecordedChoices:
    """What a log has of the graph of a model: how it is rewritten, and what was tried. ``looked_s``: the
    budget in which alternatives were tuned; ``known``: the rewrites that might have been tried."""

    choices: Choices = USUAL
    tried: tuple[ToldTry, ...] = ()
    looked_s: float = 0.0
    known: frozenset[str] = frozenset()


def recorded(graph: Graph, where: lookup.Where, target: Target, threads: int | None) -> RecordedChoices:
    """What the newest run of a log found for a graph on a target, with that number of ``threads`` (None:
    any); usual choices where there is none. Raises `LogError`."""
    return found_choices(graph, where, target, threads) or RecordedChoices()


def found_choices(
    graph: Graph, where: lookup.Where, target: Target, threads: int | None
) -> RecordedChoices | None:
    """`recorded`, None where a log has none. Raises `LogError`."""
    key = ModelKey.of(graph)
    if key is None:
        return None
    for text, options in lookup.runs_of(where, key.anchor.digest):
        told = options.get(KEY)
        if (
            not isinstance(told, Mapping)
            or told.get("model") != key.model
            or not _fits(text, target, threads)
        ):
            continue
        with suppress(ValueError):
            choices, tried = Choices.from_json(told.get("other")), told.get("tried")
            lines = tried[:MOST_TRIED] if isinstance(tried, list) else []
            shown = tuple(x for x in map(ToldTry.from_json, lines) if x is not None)
            looked_s, names = told.get("looked_s"), told.get("known")
            known = frozenset(x for x in names if isinstance(x, str)) if isinstance(names, list) else ()
            return RecordedChoices(choices, shown, looked_s if _is_time(looked_s) else 0.0, frozenset(known))
    return None


def _fits(text: str, target: Target, threads: int | None) -> bool:
    """Whether choices that were found for a target, as text, are those that are asked for."""
    try:
        t = Target.from_json(text)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return False
    return replace(t, threads=target.threads) == target and threads in (None, t.threads)


def keep(
    log: Log,
    key: ModelKey,
    target: Target,
    machine: Mapping[str, Any],
    choices: Choices,
    told: Mapping[str, Any],
) -> None:
    """Log choices of a model, as an option of a run without trials. ``told``: more of it, for people."""
    options = {KEY: {"model": key.model, "other": choices.to_json(), **told}}
    json.dumps(options)  # a bad value is a fault here, not in the log
    log.finish_run(log.start_run(key.anchor, target, machine, seed=0, options=options))
