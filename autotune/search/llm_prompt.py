"""What a language model is told: the computation, the machine, the holes, and the best and worst trials."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from autotune.search.base import Result
from schedules.model import Target
from schedules.space.base import Space

# Longest prompt and its parts (characters): a log keeps it whole.
MOST_PROMPT, MOST_EXPRESSION, MOST_HOLES = 16_000, 3_000, 7_000
# Rows of a sketch from which the values of its holes are taken, and most values shown of one.
SAMPLE, MOST_VALUES = 256, 16

_TASK = """You choose schedules for a tensor program, to make it run as fast as possible.
Each schedule is a sketch (its structure) and an integer for each hole of the sketch.

# Computation
{expression}

# Machine
{facts}

# Sketches and their holes, with values that occur
{holes}

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
    return json.dumps(facts)[:2000]


def holes_of(space: Space, first: Sequence[int] = ()) -> str:
    """The sketches with their holes, as many as fit; those of ``first`` before others."""
    rng = np.random.default_rng(0)
    lines: list[str] = []
    left = MOST_HOLES
    order = list(dict.fromkeys([*first, *range(len(space.sketches))]))
    for s in order:
        rows = space.sample(s, SAMPLE, rng)
        values = {h: _spread(np.unique(rows[:, k])) for k, h in enumerate(space.holes(s))}
        line = f"sketch {s} ({space.sketches[s][:200]}): {json.dumps(values)}"
        left -= len(line) + 1
        if left < 0:
            lines.append(f"and {len(order) - len(lines)} more sketches")
            break
        lines.append(line)
    return "\n".join(lines)


def _spread(values: np.ndarray) -> list[int]:
    """At most `MOST_VALUES` values, evenly distributed, first and last among them."""
    places = np.linspace(0, len(values) - 1, min(len(values), MOST_VALUES)).round().astype(int)
    return [int(v) for v in values[np.unique(places)]]


def prompt_of(
    space: Space,
    expression: str,
    target: Target | None,
    best: Sequence[Result],
    worst: Sequence[Result],
    trials: int,
    n: int,
) -> str:
    """The prompt that asks for ``n`` rows. ``best``, ``worst``: results, the best first."""
    first = [r.candidate.sketch for r in best]
    text = _TASK.format(
        expression=expression[:MOST_EXPRESSION] or "not known: a recorded table",
        facts=facts_of(target),
        holes=holes_of(space, first),
        trials=trials,
        results="\n".join([*_lines(space, "best", best), *_lines(space, "worst", worst)] or ["none yet"])[
            :3000
        ],
        n=n,
    )
    return text[:MOST_PROMPT]


def _lines(space: Space, what: str, results: Sequence[Result]) -> list[str]:
    return [f"{what}: {_line(space, r)}" for r in results]


def _line(space: Space, r: Result) -> str:
    decisions = dict(zip(space.holes(r.candidate.sketch), r.candidate.row))
    took = f"{1e6 / r.throughput:.4g} us" if r.throughput > 0 else "failed"
    return f"{json.dumps({'sketch': r.candidate.sketch, **decisions})} {took}"
