"""From a model to the outline of what runs: rewritten, cut into groups, each group a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from autotune.errors import ModelError
from autotune.models.graph_choices import ChoicesOf, just, usual
from autotune.models.model import Model
from autotune.models.outline import Outline, Part, outline, workload_of
from schedules.graph.graph import Graph, Group
from schedules.graph.rewrite import USUAL, AskedPlace, Choices, Optimized
from schedules.model import Workload

# Seconds that a workload's best known kernel takes; None where none is known.
Seconds = Callable[[Workload], float | None]


@dataclass(frozen=True)
class PreparedModel:
    """A model that was rewritten and cut. ``labels``: what users call inputs and outputs. ``choices``: of
    rewrites that may lose; ``asked``: the places that they were asked for. ``sizes``: those that have a
    program of their own, which this is."""

    model: Model
    graph: Graph
    parts: tuple[Part, ...]
    labels: dict[str, str]
    choices: Choices = USUAL
    asked: tuple[AskedPlace, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)

    def outline(self, seconds: Seconds) -> Outline:
        """What runs. Of a group that can also run as several, the way that is known to be faster. Raises
        `ModelError`."""
        try:
            return outline(self.graph, [*chosen(self.parts, seconds)], self.labels)
        except ValueError as err:
            raise ModelError(f"{self.model.source} cannot be cut into kernels: {err}") from err

    def with_choices(self, choices: Choices) -> PreparedModel:
        """The same program of the model, rewritten by other choices. Raises `ModelError`."""
        return replace(prepared(self.model, just(choices)), sizes=self.sizes)


def prepared(model: Model, choose: ChoicesOf = usual) -> PreparedModel:
    """A model, rewritten and cut. ``choose``: decides of its graph which rewrites are applied that may lose.
    Raises `ModelError`."""
    given: object = model
    if not isinstance(given, Model):
        how = (
            "autotune.import_onnx(path) or autotune.import_torch(module, inputs) "
            "makes one"
        )
        raise ModelError(f"the model is a {type(given).__name__}, not a Model: {how}")
    choices = choose(model.graph)
    try:
        made, parts = cut(model.graph, choices)
    except ValueError as err:
        raise ModelError(f"{model.source} cannot be cut into kernels: {err}") from err
    graph = made.graph
    labels = {name: port.name for name, port in zip(graph.inputs, model.inputs, strict=True)}
    labels |= {name: port.name for name, port in zip(graph.outputs, model.outputs, strict=True)}
    return PreparedModel(model, graph, parts, labels, choices, made.asked)


def prepared_programs(model: Model, choose: ChoicesOf = usual) -> list[PreparedModel]:
    """What runs of a model: at all sizes, then at each that has a program of its own. ``choose``: as of
    `prepared`. Raises `ModelError`."""
    whole = prepared(model, choose)
    return [whole, *(replace(prepared(model.at(**own), choose), sizes=own) for own in model.own_sizes)]


def cut(graph: Graph, choices: Choices = USUAL) -> tuple[Optimized, tuple[Part, ...]]:
    """(A graph of the same meaning, what runs of it in order)."""
    from autotune.models.substitutions import known
    from schedules.graph.optimize import optimized
    from schedules.graph.partition import partition

    made = optimized(graph, choices, known)
    return made, partition(made.graph)


def chosen(parts: Iterable[Part], seconds: Seconds) -> Iterator[Part]:
    """Groups and islands, with each group that has parts as one or as these, whichever is known to be faster.
    What has no kernel at all is not faster; where neither way has, the group stays one."""
    for part in parts:
        if not isinstance(part, Group) or not part.parts:
            yield part
            continue
        whole = seconds(workload_of(part.dag))
        each = [seconds(workload_of(p.dag)) for p in part.parts]
        apart = None if any(s is None for s in each) else sum(s for s in each if s is not None)
        if apart is not None and (whole is None or apart < whole):
            yield from part.parts
        else:
            yield part
