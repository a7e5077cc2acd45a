"""What a language model is told: the computation, the machine, the holes and the loops that they stand in,
and the best and worst trials."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from autotune.search.base import Result
from schedules.model import Target
from schedules.space.base import Space

# Longest prompt (characters), which a log keeps whole, and its longest parts.
MOST_PROMPT = 16_000
MOST_EXPRESSION, MOST_FACTS, MOST_LOOPS = 2_800, 900, 4_000
MOST_HOLES, MOST_BEST, MOST_WORST = 3_500, 2_600, 1_200
# Rows of a sketch from which the values of its holes are taken, and most values shown of one: usually, and of
# a sketch with many holes.
SAMPLE, MOST_VALUES, FEW_VALUES = 256, 16, 3

_TASK = """You choose schedules for a tensor program, to make it run as fast as possible.
Each schedule is a sketch (its structure) and an integer for each hole of the sketch.

# Computation
{expression}

# Machine
{facts}

# Sketches and their holes, with some of the values that are allowed
The words of a sketch are choices of structure. Tensors have the names of the computation.
{holes}

# Some sketches in full: what a hole allows, and the loops
?NAME is a hole. A line under others runs inside them. Loops that run once are left out.
{loops}

# Trials so far: {trials}
{results}

# Answer
Propose {n} schedules that are not among the trials and that you expect to be fast. Answer with one JSON array
and nothing else: [{{"sketch": NUMBER, HOLE: INTEGER, ...}}, ...]
"""


def facts_of(target: Target | None) -> str:
    """What is known of the machine."""
    if target is None:
        return "not known: a recorded table"
    facts = {"kind": target.kind, "arch": target.arch, "threads": target.threads, **dict(target.limits)}
    return json.dumps(facts)[:MOST_FACTS]


def holes_of(space: Space, order: Sequence[int]) -> str:
    """The sketches with their holes and values of these, in this order, as many as fit. Of the first one
    fewer values are shown where it is large."""
    rng = np.random.default_rng(0)
    lines: list[str] = []
    left = MOST_HOLES
    for s in order:
        rows = space.sample(s, SAMPLE, rng)
        values = [np.unique(column) for column in rows.T]
        for most in (MOST_VALUES, FEW_VALUES) if not lines else (MOST_VALUES,):
            shown = dict(zip(space.holes(s), (_spread(v, most) for v in values)))
            line = f"sketch {s} ({space.sketches[s][:200]}): {_compact(shown)}"
            if len(line) < left:
                break
        left -= len(line) + 1
        if left < 0:
            lines.append(f"and {len(order) - len(lines)} more sketches")
            break
        lines.append(line)
    return "\n".join(lines)


def loops_of(space: Space, order: Sequence[int]) -> str:
    """What the holes of the first sketches of an order decide, as many as fit."""
    found: list[str] = []
    left = MOST_LOOPS
    for s in order:
        text = space.describe(s)
        if not text:
            break
        text = f"sketch {s}:\n{text}\n"
        if len(text) > left:
            if not found:
                found.append(text[: text.rindex("\n", 0, left)] + "\n...\n")
            break
        left -= len(text) + 1
        found.append(text)
    return "\n".join(found) or "not known\n"


def prompt_of(
    space: Space,
    expression: str,
    target: Target | None,
    best: Sequence[Result],
    worst: Sequence[Result],
    trials: int,
    n: int,
) -> str:
    """The prompt that asks for ``n`` rows. ``best``, ``worst``: results, the best first. The sketches of the
    best are told first."""
    order = list(dict.fromkeys([*(r.candidate.sketch for r in best), *range(len(space.sketches))]))
    results = [*_lines(space, "best", best, MOST_BEST), *_lines(space, "worst", worst, MOST_WORST)]
    text = _TASK.format(
        expression=expression[:MOST_EXPRESSION] or "not known: a recorded table",
        facts=facts_of(target),
        holes=holes_of(space, order),
        loops=loops_of(space, order),
        trials=trials,
        results="\n".join(results) or "none yet",
        n=n,
    )
    return text[:MOST_PROMPT]


def _spread(values: np.ndarray, most: int) -> list[int]:
    """At most ``most`` values, evenly distributed, first and last among them."""
    places = np.linspace(0, len(values) - 1, min(len(values), most)).round().astype(int)
    return [int(v) for v in values[np.unique(places)]]


def _lines(space: Space, what: str, results: Sequence[Result], most: int) -> list[str]:
    """Results, one a line, as many as fit into ``most`` characters."""
    lines = []
    for r in results:
        decisions = dict(zip(space.holes(r.candidate.sketch), r.candidate.row))
        took = f"{1e6 / r.throughput:.4g} us" if r.throughput > 0 else "failed"
        line = f"{what}: {_compact({'sketch': r.candidate.sketch, **decisions})} {took}"
        most -= len(line) + 1
        if most < 0:
            break
        lines.append(line)
    return lines


def _compact(x: object) -> str:
    return json.dumps(x, separators=(",", ":"))
