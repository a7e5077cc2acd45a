"""What rewrites made of a model's graph: products, operations and kernels before and after, and which
rewrite did what at which nodes of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from autotune.models.preparation import PreparedModel
from autotune.models.substitutions import known
from autotune.results.explanation import Row, Section
from schedules.graph.edit import is_product
from schedules.graph.graph import Graph, Group
from schedules.graph.optimize import RewriteStep, optimized
from schedules.te.flops import count_flops
from schedules.units import visible

NODES = 4  # that are named where a rewrite does something
TITLE = "Graph before and after its rewrites"


@dataclass(frozen=True)
class GraphSize:
    """Of a graph: stages, products among them, and operations of a call."""

    stages: int
    products: int
    operations: int

    @staticmethod
    def of(graph: Graph) -> GraphSize:
        """That of a graph."""
        stages = graph.dag.stages
        return GraphSize(len(stages), sum(map(is_product, stages)), count_flops(graph.dag))

    def __str__(self) -> str:
        return f"{self.products:,} products, {self.operations:,} operations, {self.stages:,} stages"

    def numbers(self) -> dict[str, float | int | str | None]:
        """These, by name."""
        return {"products": self.products, "operations": self.operations, "stages": self.stages}


def of_rewrites(made: PreparedModel) -> Section:
    """How a model's graph was rewritten: rows ``before`` and ``after``, and one for each rewrite that did
    something, in their order."""
    steps: list[RewriteStep] = []
    optimized(made.model.graph, made.choices, known, steps.append)
    first, last = GraphSize.of(made.model.graph), GraphSize.of(made.graph)
    kernels = sum(isinstance(p, Group) for p in made.parts)
    rows = [
        Row("before", f"{first}, each a kernel", "definition", first.numbers()),
        Row("after", f"{last}, in {kernels:,} kernels", "definition", last.numbers() | {"kernels": kernels}),
    ]
    times: Counter[str] = Counter()
    for step in steps:
        did = _did(step)
        if did is not None:
            times[step.rewrite] += 1
            again = f" ({times[step.rewrite]})" if times[step.rewrite] > 1 else ""
            rows.append(Row(step.rewrite + again, *did))
    return Section(TITLE, tuple(rows))


def _did(step: RewriteStep) -> tuple[str, str, dict[str, float | int | str | None]] | None:
    """What a rewrite did, as a row has it; None for nothing."""
    if step.after is step.before:
        return None
    nodes = [*dict.fromkeys(_nodes(step.before, step.after))]
    if not nodes:
        return None
    a, b = (GraphSize.of(g).numbers() for g in (step.before, step.after))
    changed = [f"{name} {a[name]:,} to {b[name]:,}" for name in a if a[name] != b[name]]
    more = f" and {len(nodes) - NODES} more" if len(nodes) > NODES else ""
    where = ", ".join(map(visible, nodes[:NODES])) + more
    numbers = {f"{name}_before": n for name, n in a.items()} | {f"{name}_after": n for name, n in b.items()}
    return f"{', '.join(changed) or 'as many stages'}; at {where}", "definition", numbers


def _nodes(before: Graph, after: Graph) -> Iterator[str]:
    """The nodes of stages that a rewrite changed, took out or gave a kernel of their own."""
    now = {s.name: s for s in after.dag.stages}
    for s in before.dag.stages:
        if now.get(s.name) != s or s.name in after.recut - before.recut:
            yield before.origins.get(s.name, s.name)
