"""Random models of what rewrites look for, each under many choices of those that may lose, against the
evaluator.

    python tests/support/random_rewrites.py FIRST LAST

tries seeds, and prints what was tried and what is wrong."""

from __future__ import annotations

import math
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import graph_cases as cases
import joined_models
import numpy as np
from graph_meaning import evaluate
from graph_memory import run_in_memory
from model_cases import model_of
from random_models import ModelWriter, call_inputs, same
from state_models import new_states

from autotune.models.graph_choices import ModelKey
from autotune.models.graph_search import alternatives, change_s, decided, hopeful, kinds
from autotune.models.outline import outline
from autotune.models.preparation import prepared
from schedules import te
from schedules.errors import AutotuneError
from schedules.graph.graph import Graph
from schedules.graph.optimize import MAY_LOSE, optimized
from schedules.graph.partition import partition
from schedules.graph.rewrite import USUAL, AskedPlace, Choices
from schedules.te.compute_dag import ComputeDAG
from schedules.te.extent import is_open
from schedules.te.rounding import evaluate_with_bounds

STORED = ("float16", "bfloat16", "int8")
Ways = Iterator[tuple[str, Choices]]


class RewriteWriter(ModelWriter):
    """A model with products in chains, products and convolutions side by side, and maps of several
    readers. ``wide``: float64 in place of float32."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        if rng.random() < 0.7:
            self.sizes = []
        self.images, self.matrices = rng.random() < 0.4, rng.random() < 0.7
        self.rough = False  # whether functions make results that are no integers
        self.stored = False

    def input(self) -> None:
        if self.images:
            self.made.append(
                self.b.input(
                    self.name("x"), self.rng.choice((1, 1, 2)), self.rng.choice((1, 2, 3)),
                    self.rng.choice((1, 4, 5, 7)), self.rng.choice((3, 5, 8)),
                )
            )  # fmt: skip
        elif self.matrices and not self.sizes:
            self.made.append(self.b.input(self.name("x"), self.some_extent(), self.some_extent()))
        else:
            super().input()

    def some_extent(self) -> int:
        return self.rng.choice((1, 1, 2, 3, 5, 6, 9))

    def keep(self, x: Any) -> Any:
        """A tensor of small values."""
        made = cases.stage(x.shape, lambda *i: te.clip(x[i], -8.0, 8.0))
        self.made.append(made)
        return made

    def step(self) -> None:
        rng = self.rng
        ways: list[Callable[[], Any]] = [self.added, self.turned, self.joined, self.cut, self.several]
        ways += [
            self.relu,
            self.beside,
            self.beside,
            self.beside,
            *[self.chain] * 4,
            self.several,
            self.total,
            self.split,
            self.merged,
        ]
        ways += [self.soft, self.stored_product, self.scan, self.guarded, self.dense, self.scores]
        if any(len(t.shape) == 4 for t in self.made):
            ways += [*[self.conv] * 4, *[self.convs] * 5, self.depthwise, self.pool, self.bn]
        x = rng.choice(ways)()
        if x is not None:
            self.keep(x)

    def relu(self) -> Any:
        return cases.relu(self.some())

    def soft(self) -> Any:
        x = self.some()
        if is_open(x.shape[-1]):
            return None
        self.rough = True
        return self.rng.choice((cases.softmax, lambda t: cases.layer_norm(self.b, t, self.name("ln"))))(x)

    # -- products --------------------------------------------------------------------------------

    def weight(self, *shape: Any) -> Any:
        """A weight, perhaps one that is there already, or an input."""
        old = [t for t, _ in self.b.constants.values() if tuple(t.shape) == shape and t.dtype == "float32"]
        if old and self.rng.random() < 0.3:
            return self.rng.choice(old)
        if self.rng.random() < 0.2:
            return self.b.input(self.name("y"), *shape)
        return self.b.constant(self.name("w"), *shape)

    def times(self, x: Any, w: Any, turned: bool = False) -> Any:
        """x @ w over the last axis of x, w perhaps written the other way; either factor first."""
        k = te.reduce_axis(x.shape[-1], self.name("k"))
        out = w.shape[0] if turned else w.shape[1]
        first = self.rng.random() < 0.5

        def value(*i: Any) -> Any:
            a, b = x[(*i[:-1], k)], (w[i[-1], k] if turned else w[k, i[-1]])
            return te.sum(a * b if first else b * a, axis=k)

        return cases.stage((*x.shape[:-1], out), value, self.name("p"))

    def chain(self) -> Any:
        """Products of products, of weights or of inputs, from the left or from the right."""
        x = self.some()
        if is_open(x.shape[-1]):
            return None
        k, m, n = x.shape[-1], self.some_extent(), self.some_extent()
        v, w = self.weight(k, m), self.weight(m, n)
        if self.rng.random() < 0.3:
            return self.times(x, self.times(v, w))
        inner = self.times(x, v)
        if self.rng.random() < 0.15:
            self.made.append(inner)
        y = self.times(inner, w)
        return self.times(y, self.weight(n, self.some_extent())) if self.rng.random() < 0.3 else y

    def beside(self) -> Any:
        """Products of one tensor, of equal or other widths, and what follows."""
        x = self.some()
        if is_open(x.shape[-1]):
            return None
        width, rng = self.some_extent(), self.rng
        widths = [width if rng.random() < 0.6 else self.some_extent() for _ in range(rng.choice((2, 2, 3)))]
        turned = rng.random() < 0.5
        made = []
        for n in widths:
            y = self.times(x, self.weight(*((n, x.shape[-1]) if turned else (x.shape[-1], n))), turned)
            if rng.random() < 0.5:
                bias = self.b.constant(self.name("b"), n)
                y = cases.stage(y.shape, lambda *i, y=y, bias=bias: y[i] + bias[i[-1]])
            made.append(y)
        self.made += [y for y in made if rng.random() < 0.3]
        if rng.random() < 0.3 and len(x.shape) > 1:
            return joined_models.concat(*made, axis=len(x.shape) - 1)
        alike = [y for y in made if same(y.shape, made[0].shape)]
        y = alike[0]
        for z in alike[1:]:
            y = cases.add(y, z)
        for z in made:
            if z not in alike:
                self.keep(z)
        return y

    def guarded(self) -> Any:
        """A product of which a condition on axes makes a part 0."""
        x = self.some()
        if is_open(x.shape[-1]) or len(x.shape) < 2:
            return None
        k, w = te.reduce_axis(x.shape[-1], self.name("k")), self.weight(x.shape[-1], self.some_extent())
        return cases.stage(
            (*x.shape[:-1], w.shape[1]),
            lambda *i: te.sum(te.select(k <= i[-1] + 1, x[(*i[:-1], k)] * w[k, i[-1]], 0.0), axis=k),
        )

    def stored_product(self) -> Any:
        """A product of what is stored in fewer bits, summed in float32 and stored so again, or not."""
        x = self.some()
        if is_open(x.shape[-1]):
            return None
        dtype, self.stored = self.rng.choice(STORED), True
        t = cases.stage(x.shape, lambda *i: te.cast(x[i], dtype))
        y = t
        for _ in range(self.rng.choice((1, 2))):
            w, k = self.weight(y.shape[-1], self.some_extent()), te.reduce_axis(y.shape[-1], self.name("k"))
            narrow = cases.stage(w.shape, lambda *i, w=w: te.cast(w[i], dtype))
            y = cases.stage(
                (*y.shape[:-1], w.shape[1]),
                lambda *i, y=y, k=k, narrow=narrow: te.sum(
                    te.cast(y[(*i[:-1], k)], "float32") * te.cast(narrow[k, i[-1]], "float32"), axis=k
                ),
            )
            if self.rng.random() < 0.5:
                y = cases.stage(y.shape, lambda *i, y=y: te.cast(te.clip(y[i], -8.0, 8.0), dtype))
        return y if y.dtype == "float32" else cases.stage(y.shape, lambda *i: te.cast(y[i], "float32"))

    # -- convolutions ----------------------------------------------------------------------------

    def image(self) -> Any:
        return self.rng.choice([t for t in self.made if len(t.shape) == 4])

    def conv(self, x: Any = None, k: int | None = None, stride: int | None = None, out: int = 0) -> Any:
        rng = self.rng
        x = self.image() if x is None else x
        if any(map(is_open, x.shape)):
            return None
        k = rng.choice((1, 2, 3, 3, 3, 5)) if k is None else k
        stride = rng.choice((1, 1, 1, 2)) if stride is None else stride
        pad = k // 2 if k % 2 and rng.random() < 0.8 else rng.choice((0, 1)) if k > 1 else 0
        if min(x.shape[2:]) + 2 * pad < k:
            return None
        return cases.conv(self.b, x, out or rng.choice((1, 2, 3, 4)), k, stride, pad, self.name("c"))

    def convs(self) -> Any:
        """Convolutions of one image, added or joined."""
        rng, x = self.rng, self.image()
        out = rng.choice((1, 2, 3))
        made = [self.conv(x, k, 1, out if rng.random() < 0.7 else 0) for k in rng.sample((1, 3, 3, 5), 2)]
        made = [y for y in made if y is not None]
        if not made:
            return None
        first, *rest = made
        for y in rest:
            if same(y.shape, first.shape):
                first = cases.add(first, y)
            elif same((*y.shape[:1], *y.shape[2:]), (*first.shape[:1], *first.shape[2:])):
                first = joined_models.concat(first, y)
            else:
                self.keep(y)
        return cases.add(first, x) if same(first.shape, x.shape) else first

    def depthwise(self) -> Any:
        x, k = self.image(), self.rng.choice((1, 3))
        if any(map(is_open, x.shape)) or min(x.shape[2:]) < k:
            return None
        w, name = self.b.constant(self.name("w"), x.shape[1], k, k), self.name
        r, s = te.reduce_axis(k, name("r")), te.reduce_axis(k, name("s"))
        shape = (*x.shape[:2], x.shape[2] - k + 1, x.shape[3] - k + 1)
        return cases.stage(shape, lambda n, c, i, j: te.sum(x[n, c, i + r, j + s] * w[c, r, s], axis=(r, s)))

    def pool(self) -> Any:
        x = self.image()
        closed = not any(map(is_open, x.shape)) and min(x.shape[2:]) >= 2
        return cases.max_pool(x, 2, self.rng.choice((1, 2))) if closed else None

    def bn(self) -> Any:
        self.rough = True
        x = self.image()
        return None if is_open(x.shape[1]) else cases.batch_norm(self.b, x, self.name("bn"))

    # -- others ----------------------------------------------------------------------------------

    def several(self) -> Any:
        """A cheap map that several read."""
        x, rng = self.some(), self.rng
        m = cases.stage(x.shape, lambda *i: te.clip(x[i] * 2.0 + 1.0, -8.0, 8.0), self.name("m"))
        for _ in range(rng.choice((1, 2, 3))):
            axis = rng.randrange(len(m.shape))
            r = te.reduce_axis(m.shape[axis], self.name("r"))
            rest = (*m.shape[:axis], *m.shape[axis + 1 :])
            if rest:
                y = cases.stage(rest, lambda *i, axis=axis, r=r: te.sum(m[(*i[:axis], r, *i[axis:])], axis=r))
                self.keep(y)
        self.made.append(m)
        return cases.relu(m)

    def scan(self) -> Any:
        """Running sums, which rewrites do not see into."""
        x = self.some()
        if any(map(is_open, x.shape)) or len(x.shape) != 2 or self.rng.random() < 0.5:
            return None
        y = te.scan(
            tuple(x.shape),
            lambda y, i, j: te.clip(y[i - 1, j] + x[i, j], -8.0, 8.0),
            init=0.0,
            axis=0,
            name=self.name("s"),
        )
        return y


def random_rewritable(rng: Random) -> tuple[Graph, bool]:
    """(A graph, whether all it computes is integers)."""
    w = RewriteWriter(rng)
    for _ in range(rng.choice((1, 1, 2))):
        w.input()
    kept = rng.random() < 0.2
    for k in range(rng.randint(2, 8)):
        w.step()
        if kept and k in (0, 3):
            w.state()
    read = {t for x in w.made if x.op is not None for t in x.op.reads()}
    more = rng.sample(w.made, min(len(w.made), rng.choice((0, 0, 0, 1, 2))))
    outputs = [t for t in dict.fromkeys((*(t for t in w.made if t not in read), *more)) if t.op is not None]
    w.b.inputs = [t for t in w.b.inputs if t in _behind(outputs)]
    graph = w.b.model(*outputs) if w.b.states else w.b.graph(*outputs)
    if not w.stored and not w.b.states and rng.random() < 0.3:
        graph = in_float64(graph)
    return graph, not w.rough


def _behind(outputs: Sequence[Any]) -> set[Any]:
    """All tensors that some are made of."""
    found, todo = set[Any](), [*outputs]
    while todo:
        t = todo.pop()
        if t not in found:
            found.add(t)
            todo += t.op.reads() if t.op is not None else ()
    return found


def in_float64(graph: Graph) -> Graph:
    """A graph of float32 in float64."""

    def retyped(x: Any) -> Any:
        if isinstance(x, dict):
            return {k: retyped(v) for k, v in x.items()}
        if isinstance(x, list):
            return [retyped(v) for v in x]
        return "float64" if x == "float32" else x

    dag = ComputeDAG.from_json(retyped(graph.dag.to_json()))
    return replace(graph, dag=dag, values={n: v.astype("float64") for n, v in graph.values.items()})


def ways(asked: tuple[AskedPlace, ...], rng: Random) -> Ways:
    """Choices: each place alone, each kind, all the other way, none, and random ones."""
    yield "usual", USUAL
    yield "none", Choices("none")
    turned = USUAL.turned
    yield "all", turned(asked)
    for a in asked[:24]:
        yield f"{a.rewrite} at {a.place.name}", turned([a])
    for places in kinds(asked)[:12]:
        if len(places) > 1:
            yield f"{places[0].rewrite} at {len(places)}", turned(places)
    odd = frozenset({("stack_equal", "of another graph"), ("no such", asked[0].place.name if asked else "x")})
    yield "odd names", Choices(other=odd)
    for n in range(3):
        some = [a for a in asked if rng.random() < 0.5]
        yield f"some {n}", Choices(rng.choice(("usual", "none")), turned(some).other)


def bounds_of(graph: Graph, inputs: Sequence[Any]) -> Sequence[Any]:
    """How far right results may be from those of exact numbers, steps at both ends of what they decide."""
    given = dict(zip(graph.inputs, inputs, strict=True)) | dict(graph.values)
    made = evaluate_with_bounds(graph.dag, [given[t.name] for t in graph.dag.inputs])
    found = dict(zip(graph.dag.outputs, made.bounds, strict=True))
    return [found[name] for name in graph.outputs]


def wrong(graph: Graph, whole: bool, choices: Choices, seed: int, rng: Random) -> str:
    """What is wrong with a graph that is rewritten by choices; empty: nothing."""
    made = optimized(graph, choices)
    names = [(a.rewrite, a.place.name) for a in made.asked]
    if len(names) > len(set(names)):
        return f"asked twice: {Counter(names).most_common(1)}"
    exact = all(MAY_LOSE[a.rewrite].exact for a in made.asked if a.taken) and whole
    wide = any(t.dtype == "float64" for t in graph.dag.tensors.values())
    bound = 0.0 if exact else 1e-7 if wide else 1e-3 if whole else 3e-2
    ol = outline(made.graph, partition(made.graph))
    ranges = graph.dag.open.ranges if graph.dag.open is not None else {}
    every = [{n: r[end] for n, r in ranges.items()} for end in ((0, 1) if ranges else (0,))]
    for sizes in every:
        want, got, kept = ({}, {}, {})
        if graph.states:
            want, got, kept = new_states(graph), new_states(graph), new_states(graph)
        for n in range(2 if graph.states else 1):
            inputs = call_inputs(graph, sizes, seed + n)
            right = evaluate(graph, inputs, want)
            again = right if made.graph.states else evaluate(made.graph, inputs, kept)
            found = run_in_memory(ol, made.graph.values, inputs, sizes, states=got)
            for what, ys in (("graph", again), ("groups", found)):
                for k, (y, x) in enumerate(zip(ys, right, strict=True)):
                    if y.shape != x.shape or y.dtype != x.dtype:
                        return f"{what}, {sizes}, output {k}: {y.dtype}{y.shape} for {x.dtype}{x.shape}"
                    away = np.abs(y.astype("float64") - x.astype("float64"))
                    if away.max(initial=0.0) <= bound * max(1.0, float(np.abs(x).max(initial=0.0))):
                        continue
                    may = 0.0 if exact or graph.states else bounds_of(graph, inputs)[k]
                    may = may + bounds_of(made.graph, inputs)[k] if np.any(may) else may
                    if not (away <= may).all():
                        most = away.max()
                        return f"{what}, call {n}, {sizes}, output {k}: away {most:.3g}, bound {bound:g}"
            for k in want:
                if not np.allclose(got[k], want[k], rtol=0, atol=bound * 8):
                    return f"state {k}, call {n}, {sizes}"
    return ""


def searched(graph: Graph, rng: Random) -> str:
    """What is wrong with the search over the graphs of a model, with seconds that are drawn."""
    base = prepared(model_of(graph))
    if ModelKey.of(graph) is None:
        return "the log has no key for it"
    found = alternatives(base, lambda a: False, math.inf).found
    for _ in range(2):
        seconds: dict[str, float | None] = {}

        def of(w: Any, seconds: dict[str, float | None] = seconds) -> float | None:
            drawn = None if rng.random() < 0.1 else rng.choice((1e-6, 2e-6, 5e-6, float(rng.random())))
            return seconds.setdefault(w.digest, drawn)

        hopeful(found, of, rng.choice((0.0, 5.0, 100.0)))
        best, tried = decided(base, found, of)
        change = change_s(base, best, of)
        if len(tried) != len(found) or (best is not base and (change is None or change >= 0.0)):
            return f"decided: {change} s more"
    return ""


def tried_rewrites(seed: int) -> tuple[Counter[str], list[str]]:
    """What was tried of a seed, and what is wrong."""
    rng, count = Random(seed), Counter[str]()
    try:
        graph, whole = random_rewritable(rng)
    except AutotuneError as err:  # of the drawing
        return Counter({f"not drawn: {str(err)[:60]}": 1}), []
    asked = optimized(graph, Choices(looks=True)).asked
    count["models"] += 1
    count["exact"] += whole
    count["with states"] += bool(graph.states)
    count["with places"] += bool(asked)
    seen: set[Choices] = set()
    for name, choices in ways(asked, rng):
        if choices in seen:
            continue
        seen.add(choices)
        count["graphs"] += 1
        for a in asked:
            count[f"{a.rewrite}"] += choices != USUAL
        try:
            what = wrong(graph, whole, choices, seed, rng)
        except Exception as err:
            where = traceback.extract_tb(err.__traceback__)[-1]
            what = f"{type(err).__name__}: {err} ({where.filename.rsplit('/', 1)[-1]}:{where.lineno})"
        if what:
            return count, [f"seed {seed}, {name}: {what}"]
    if what := searched(graph, rng):
        return count, [f"seed {seed}: {what}"]
    return count, []


def main(first: int, last: int) -> None:
    warnings.simplefilter("ignore")
    every: Counter[str] = Counter()
    for seed in range(first, last):
        try:
            count, said = tried_rewrites(seed)
        except Exception as err:  # a fault of the program: told, and the next seed is tried
            where = traceback.extract_tb(err.__traceback__)[-1]
            count = Counter(faults=1)
            said = [f"seed {seed}: {type(err).__name__}: {err} ({where.filename}:{where.lineno})"]
        every += count
        for line in said:
            print(line, flush=True)
    print(dict(every))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
