"""Random models with open sizes, and with states that calls keep, against the evaluator.

    python tests/support/random_models.py FIRST LAST

tries seeds, and prints what was tried and what is wrong."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import graph_cases as cases
import joined_models
import numpy as np
from graph_meaning import evaluate
from graph_memory import run_in_memory
from open_graphs import inputs_at, size
from state_models import StateBuilder, new_states, put

from autotune.models.outline import Outline, outline
from schedules import te
from schedules.errors import AutotuneError
from schedules.graph.graph import Graph
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition
from schedules.te.extent import is_open

LENGTH = 12  # rows of a state
CALLS = 3


class ModelWriter:
    """A model while it is drawn."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.b, self.count = rng, StateBuilder(rng.randrange(1000)), 0
        self.made: list[Any] = []
        self.sizes = [self.size(n) for n in "nm"[: rng.choice((0, 1, 1, 1, 2))]]

    def size(self, name: str) -> Any:
        least = self.rng.choice((1, 1, 2))
        return size(least, least + self.rng.randint(2, 6), name)

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def extent(self) -> Any:
        return self.rng.choice((*self.sizes, *self.sizes, 2, 3, 4))

    def input(self) -> None:
        shape = [self.extent() for _ in range(self.rng.choice((2, 2, 3)))]
        if self.sizes and not self.made:
            shape[self.rng.randrange(len(shape))] = self.rng.choice(self.sizes)
        self.made.append(self.b.input(self.name("x"), *shape))

    def some(self) -> Any:
        return self.rng.choice(self.made[-4:])

    # -- operations --------------------------------------------------------------------------

    def step(self) -> None:
        rng = self.rng
        ways: list[Callable[[], Any]] = [
            lambda: cases.relu(self.some()), self.added, self.added, self.turned, self.merged, self.split,
            self.dense, self.dense, self.scores, lambda: cases.softmax(self.some()), self.joined, self.cut,
            self.total, self.scaled, self.normed,
        ]  # fmt: skip
        x = rng.choice(ways)()
        if x is not None:
            small = cases.stage(x.shape, lambda *i: te.clip(x[i], -8.0, 8.0))
            self.made.append(small)

    def added(self) -> Any:
        x = self.some()
        alike = [t for t in self.made if len(t.shape) == len(x.shape) and same(t.shape, x.shape)]
        return cases.add(x, self.rng.choice(alike))

    def turned(self) -> Any:
        x = self.some()
        order = list(range(len(x.shape)))
        self.rng.shuffle(order)
        return cases.transpose(x, *order)

    def merged(self) -> Any:
        x = self.some()
        if len(x.shape) < 2:
            return None
        k = self.rng.randrange(len(x.shape) - 1)
        if is_open(x.shape[k]) and is_open(x.shape[k + 1]):
            return None
        return cases.reshape(x, *x.shape[:k], x.shape[k] * x.shape[k + 1], *x.shape[k + 2 :])

    def split(self) -> Any:
        x = self.some()
        for k, n in enumerate(x.shape):
            if not is_open(n) and n in (4, 6, 8, 12):
                return cases.reshape(x, *x.shape[:k], n // 2, 2, *x.shape[k + 1 :])
        return None

    def dense(self) -> Any:
        x = self.some()
        if is_open(x.shape[-1]):
            return None
        return cases.dense(self.b, x, self.rng.choice((3, 4, 5, 8)), self.name("fc"))

    def scores(self) -> Any:
        x = self.some()
        turned = list(range(len(x.shape)))
        turned[-2:] = turned[-2:][::-1]
        return cases.matmul(x, cases.transpose(x, *turned)) if len(x.shape) > 1 else None

    def joined(self) -> Any:
        x = self.some()
        axis = self.rng.randrange(len(x.shape))
        if is_open(x.shape[axis]):
            return None
        return joined_models.concat(x, cases.relu(x), axis=axis)

    def cut(self) -> Any:
        x = self.some()
        axis = self.rng.randrange(len(x.shape))
        n = x.shape[axis]
        if is_open(n) or n < 2:
            return None
        count = self.rng.randint(1, n - 1)
        return joined_models.cut(x, axis, self.rng.randint(0, n - count), count)

    def total(self) -> Any:
        x = self.some()
        if len(x.shape) < 2:
            return None
        r = te.reduce_axis(x.shape[-1], self.name("r"))
        how = getattr(te, self.rng.choice(("sum", "max")))
        return cases.stage(x.shape[:-1], lambda *i: how(x[(*i, r)], axis=r))

    def scaled(self) -> Any:
        x = self.some()
        if is_open(x.shape[-1]):
            return None
        w = self.b.constant(self.name("w"), x.shape[-1])
        return cases.stage(x.shape, lambda *i: x[i] * w[i[-1]] + 1.0)

    def normed(self) -> Any:
        x = self.some()
        return None if is_open(x.shape[-1]) else cases.layer_norm(self.b, x, self.name("ln"))

    # -- states ------------------------------------------------------------------------------

    def state(self) -> None:
        """Rows of something of two dimensions are written to a state where an input says, and read."""
        rng = self.rng
        able = [t for t in self.made if len(t.shape) == 2 and not is_open(t.shape[1])]
        rows = rng.choice(able) if able else None
        if rows is None or (not is_open(rows.shape[0]) and rows.shape[0] > 4):
            return
        name, axis = self.name("s"), rng.choice((0, 0, 1))
        own = rows if axis == 0 else cases.transpose(rows, 1, 0)
        shape = [LENGTH, rows.shape[1]] if axis == 0 else [rows.shape[1], LENGTH]
        old = self.b.state(name, *shape)
        start = self.b.input(self.name("pos"), 1, dtype="int64")
        how = "range" if is_open(rows.shape[0]) else rng.choice(("range", "latest", "equal"))
        new = put(old, own, start[0], axis, how)
        self.b.becomes(name, new)
        self.made.append(cases.stage(new.shape, lambda *i: te.clip(new[i] + 1.0, -8.0, 8.0)))


def same(a: Any, b: Any) -> bool:
    """Whether two shapes are alike at every size."""
    return all(x is y or (not is_open(x) and not is_open(y) and x == y) for x, y in zip(a, b, strict=True))


def random_model(rng: Random) -> Graph:
    w = ModelWriter(rng)
    for _ in range(rng.choice((1, 1, 2))):
        w.input()
    kept = rng.random() < 0.5
    for k in range(rng.randint(2, 8)):
        w.step()
        if kept and k in (0, 3):
            w.state()
    if not w.b.states:
        return w.b.graph(*w.made[-1:])
    return w.b.model(*w.made[-1:])


def call_inputs(graph: Graph, sizes: dict[str, int], seed: int) -> list[Any]:
    """Whole numbers; places of rows are inside of states."""
    rng = np.random.default_rng(seed)
    made = inputs_at(graph, sizes, seed)
    return [rng.integers(0, LENGTH - 8, x.shape) if x.dtype == np.int64 else x for x in made]


def wrong_at(graph: Graph, ol: Outline, values: Any, sizes: dict[str, int], seed: int) -> str:
    """What is wrong with some calls at sizes."""
    want, got = (new_states(graph), new_states(graph)) if graph.states else ({}, {})
    for n in range(CALLS if graph.states else 1):
        inputs = call_inputs(graph, sizes, seed + n)
        right = evaluate(graph, inputs, want)
        found = run_in_memory(ol, values, inputs, sizes, states=got)
        pairs = [*zip(found, right, strict=True), *((got[k], want[k]) for k in want)]
        for k, (y, x) in enumerate(pairs):
            if y.shape != x.shape or not np.allclose(y, x, rtol=1e-4, atol=1e-3):
                return f"call {n}, {sizes}, output {k}"
    return ""


def tried(seed: int) -> tuple[Counter[str], list[str]]:
    """What was tried of a seed, and what is wrong."""
    rng = Random(seed)
    count: Counter[str] = Counter()
    try:
        graph = random_model(rng)
    except AutotuneError as err:  # of the drawing
        return Counter({f"not drawn: {str(err)[:60]}": 1}), []
    try:
        after = optimize(graph)
        ol = outline(after, partition(after))
    except AutotuneError as err:
        return Counter({f"refused: {str(err)[:110]}": 1}), []
    count["models"] += 1
    count["with states"] += bool(graph.states)
    ranges = graph.dag.open.ranges if graph.dag.open is not None else {}
    count["with sizes"] += bool(ranges)
    every = [{n: r[end] for n, r in ranges.items()} for end in (0, 1)]
    every += [{n: rng.randint(*r) for n, r in ranges.items()} for _ in range(3)] if ranges else []
    for sizes in every:
        count["cases"] += 1
        if what := wrong_at(graph, ol, after.values, sizes, seed):
            return count, [f"seed {seed}: {what}"]
    return count, []


def main(first: int, last: int) -> None:
    warnings.simplefilter("ignore")
    total: Counter[str] = Counter()
    for seed in range(first, last):
        try:
            count, wrong = tried(seed)
        except Exception as err:  # a fault of the program: told, and the next seed is tried
            count, wrong = Counter(faults=1), [f"seed {seed}: {type(err).__name__}: {err}"]
        total += count
        for line in wrong:
            print(line, flush=True)
    print(dict(total))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
