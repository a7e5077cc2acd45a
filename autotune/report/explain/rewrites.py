"""What rewrites made of a model's graph: products, operations and kernels before and after, and which
rewrite did what at which nodes of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from autotune.models.graph_search import arena_bytes
from autotune.models.preparation import PreparedModel, prepared
from autotune.models.substitutions import known
from autotune.results.explanation import Row, Section
from schedules.graph.edit import is_product
from schedules.graph.graph import Graph, Group
from schedules.graph.optimize import RewriteStep, optimized
from schedules.te.flops import count_flops
from schedules.units import size, visible

NODES = 4  # that are named where a rewrite does something
TITLE = "Graph before and after its rewrites"
Numbers = dict[str, float | int | str | None]


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

    def numbers(self) -> Numbers:
        """These, by name."""
        return {"products": self.products, "operations": self.operations, "stages": self.stages}


def of_rewrites(made: PreparedModel) -> Section:
    """How a model's graph was rewritten: rows ``before``, ``after`` and ``arena``, and one for each rewrite
    that did something, in their order."""
    steps: list[RewriteStep] = []
    optimized(made.model.graph, made.choices, known, steps.append)
    first, last = GraphSize.of(made.model.graph), GraphSize.of(made.graph)
    kernels = sum(isinstance(p, Group) for p in made.parts)
    rows = [
        Row("before", f"{first}, each a kernel", "definition", first.numbers()),
        Row("after", f"{last}, in {kernels:,} kernels", "definition", last.numbers() | {"kernels": kernels}),
    ]
    own = arena_bytes(made)
    usual = arena_bytes(prepared(made.model)) if made.choices.other and not made.sizes else own
    beside = "" if usual == own else f"; {size(usual)} as it usually is rewritten"
    numbers: Numbers = {"bytes": own, "usual_bytes": usual}
    rows.append(Row("arena", f"{size(own)} between kernels{beside}", "definition", numbers))
    times: Counter[str] = Counter()
    for step in steps:
        did = _did(step)
        if did is not None:
            times[step.rewrite] += 1
            again = f" ({times[step.rewrite]})" if times[step.rewrite] > 1 else ""
            rows.append(Row(step.rewrite + again, *did))
    return Section(TITLE, tuple(rows))


def _did(step: RewriteStep) -> tuple[str, str, Numbers] | None:
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
