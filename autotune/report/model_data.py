"""What a report knows of a model: its graph after each rewrite, what runs, and how long each step takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.models.graph_choices import recorded
from autotune.models.in_place import KEY, context_of
from autotune.models.model import Model
from autotune.models.outline import KernelCall, Outline
from autotune.models.preparation import prepared_programs
from autotune.models.substitutions import known
from autotune.models.tasks import tasks_of
from autotune.report.graph_drawing import Drawing, DrawnNode
from autotune.run.describing import describe
from kernels_db import lookup
from schedules.graph.graph import Graph, Island
from schedules.graph.optimize import REWRITES, RewriteStep, name_of, optimized
from schedules.graph.rewrite import Choices
from schedules.model import Target

if TYPE_CHECKING:
    from autotune.models.onnxruntime_profile import OperatorTime
    from autotune.models.profile import Profile
    from kernels_db.place import LogPlace


@dataclass(frozen=True)
class RewrittenGraph:
    """A graph after a rewrite. ``name``: of the rewrite, "imported" before any. ``does``: its first sentence.
    ``stages``, ``islands``: numbers. ``written_bytes``: of all stages' outputs. ``weight_bytes``: of
    constants. ``gone``, ``new``, ``changed``: numbers of stages that it removed, made, and gave another
    expression."""

    name: str
    does: str
    stages: int
    islands: int
    written_bytes: int
    weight_bytes: int
    gone: int
    new: int
    changed: int
    drawing: Drawing | None


@dataclass(frozen=True)
class ModelStep:
    """A step of the model. ``what``: its task or its operator. ``nodes``: of the model. ``tuned_s``: of its
    kernel when it was tuned; ``in_place_s``: inside the model; ``candidates``: kernels that were timed there
    (0: it was not timed inside)."""

    what: str
    nodes: tuple[str, ...]
    task: int | None
    tuned_s: float | None
    in_place_s: float | None
    candidates: int = 0


@dataclass(frozen=True)
class ModelData:
    """A model. ``digests``: of all its workloads. ``rewrites``: in order, the imported graph first.
    ``drawing``: of what runs. ``measured``: whether times in place are of a profile that was made for the
    report; else they are those of the log. ``call_s``: seconds of a call, where it was profiled.
    ``operators``: ONNX Runtime's."""

    name: str
    target: Target
    digests: Sequence[str]
    rewrites: Sequence[RewrittenGraph]
    steps: Sequence[ModelStep]
    drawing: Drawing
    measured: bool = False
    call_s: float | None = None
    operators: Sequence[OperatorTime] = ()


def read_model(
    model: Model,
    target: Target,
    db: str | os.PathLike[str] | LogPlace,
    profiled: bool = False,
    onnx: str | os.PathLike[str] | None = None,
) -> ModelData:
    """Rewrite a model step by step, and read what a log has of its tasks. ``profiled``: compile and run it
    too. ``onnx``: its file, for ONNX Runtime's profile. Raises `ModelError`, `LogError`, `PeerError`, and
    `KernelNotFound` where it is to be profiled but not tuned."""
    ready, *own = prepared_programs(model, lambda graph: recorded(graph, db, target, target.threads).choices)
    digests = [*dict.fromkeys(t.workload.digest for one in (ready, *own) for t in tasks_of(one.parts))]
    best = {
        d: hit.time_s
        for d in digests
        if (hit := lookup.best(db, d, lambda t: t == target, target.threads)) is not None
    }
    outline = ready.outline(lambda w: best.get(w.digest))
    inside = _in_place(outline, target, db)
    steps = [_step(s, outline, best, inside) for s in outline.steps]
    rewrites = _rewrites(model.graph, ready.choices)
    found = ModelData(model.name, target, digests, rewrites, steps, _running(outline, steps))
    if profiled:
        profile, operators = _profiled(model, target, db, onnx)
        steps = [
            replace(s, in_place_s=r.in_place_s, tuned_s=r.tuned_s)
            for s, r in zip(steps, profile.rows, strict=True)
        ]
        found = replace(
            found,
            steps=steps,
            drawing=_running(outline, steps),
            measured=True,
            call_s=profile.call_s,
            operators=operators,
        )
    return found


def _profiled(
    model: Model, target: Target, db: str | os.PathLike[str] | LogPlace, onnx: str | os.PathLike[str] | None
) -> tuple[Profile, Sequence[OperatorTime]]:
    from autotune.models.compiling import compile_model

    module = compile_model(model, target=target, threads=target.threads, db=db)  # type: ignore[arg-type]
    profile = module.profile()
    if onnx is None:
        return profile, ()
    from autotune.models.onnxruntime_profile import operator_times

    return profile, operator_times(onnx, module)


def _in_place(
    outline: Outline, target: Target, db: str | os.PathLike[str] | LogPlace
) -> Mapping[int, tuple[float, int]]:
    """{task: (seconds in the model of what is the fastest there, candidates timed)}, from the log."""
    context, found = context_of(outline), {}
    for n, workload in enumerate(outline.tasks):
        for options in lookup.run_options(db, workload.digest, target.digest):
            told = options.get(KEY)
            times = told.get("times_s") if isinstance(told, Mapping) else None
            if isinstance(told, Mapping) and isinstance(times, Mapping) and told.get("model") == context:
                chosen = times.get(str(told.get("chosen")))
                if isinstance(chosen, float) and chosen > 0:
                    found[n] = (chosen, len(times))
                    break
    return found


def _step(
    step: KernelCall | Island,
    outline: Outline,
    best: Mapping[str, float],
    inside: Mapping[int, tuple[float, int]],
) -> ModelStep:
    if isinstance(step, Island):
        return ModelStep(step.op, (step.name,), None, None, None)
    workload = outline.tasks[step.task]
    seconds, candidates = inside.get(step.task, (None, 0))
    nodes = step.origins or step.writes[:1]
    what = describe(workload).removeprefix("the expression of ")
    return ModelStep(what, nodes, step.task, best.get(workload.digest), seconds, candidates)


def _running(outline: Outline, steps: Sequence[ModelStep]) -> Drawing:
    """What runs: a node a step, warmer the longer it takes."""
    names = {n: f"input {outline.label(n)}" for n in outline.inputs}
    names |= {s.tensor: f"state {name}" for name, s in outline.states.items()}
    nodes = [DrawnNode(name, _shape(outline.tensors[n].shape), "outside") for n, name in names.items()]
    place = {n: i for i, n in enumerate(names)}
    times = [s.in_place_s or s.tuned_s or 0.0 for s in steps]
    longest = max(times, default=0.0)
    edges: list[tuple[int, int]] = []
    for step, told, seconds in zip(outline.steps, steps, times, strict=True):
        here = len(nodes)
        island = isinstance(step, Island)
        label = told.nodes[-1] if told.nodes else told.what
        under = f"{seconds * 1e3:.3g} ms" if seconds else ("in Python" if island else "")
        nodes.append(
            DrawnNode(
                label, under, "island" if island else "", seconds / longest if longest else 0.0, told.what
            )
        )
        reads = step.reads if isinstance(step, Island) else [a.tensor for a in step.reads]
        edges += dict.fromkeys((at, here) for r in reads for at in _makers(r, outline, place))
        writes = [t.name for t in step.writes] if isinstance(step, Island) else list(step.writes)
        place |= dict.fromkeys(writes, here)
    for name in dict.fromkeys(outline.outputs):
        edges += dict.fromkeys((at, len(nodes)) for at in _makers(name, outline, place))
        nodes.append(
            DrawnNode(f"output {outline.label(name)}", _shape(outline.tensors[name].shape), "outside")
        )
    return Drawing(nodes, edges)


def _makers(name: str, outline: Outline, place: Mapping[str, int]) -> list[int]:
    """The nodes that make a tensor: those of its parts where it is joined of these."""
    if name in place:
        return [place[name]]
    return [at for part in outline.joins.get(name, ()) for at in _makers(part, outline, place)]


def _rewrites(graph: Graph, choices: Choices) -> list[RewrittenGraph]:
    """The graph as imported, and after each rewrite, those that may lose by ``choices``."""
    found = [_stage("imported", "The graph as it was imported.", graph, graph)]
    does = {name_of(rewrite): _first_sentence(rewrite) for rewrite in REWRITES}

    def told(step: RewriteStep) -> None:
        found.append(_stage(step.rewrite, does[step.rewrite], step.before, step.after))

    optimized(graph, choices, known, told)
    return found


def _first_sentence(rewrite: Callable[[Graph], Graph]) -> str:
    said = " ".join((rewrite.__doc__ or "").split("\n\n")[0].split())
    return said.partition(". ")[0].removesuffix(".") + "." if said else ""


def _stage(name: str, does: str, before: Graph, after: Graph) -> RewrittenGraph:
    old = {s.name: s for s in before.dag.stages}
    new = {s.name: s for s in after.dag.stages}
    both = old.keys() & new.keys()
    changed = sum(old[n] != new[n] for n in both)
    moved = before is after or changed or old.keys() ^ new.keys()
    return RewrittenGraph(
        name=name,
        does=does,
        stages=len(new),
        islands=len(after.islands),
        written_bytes=sum(t.nbytes for s in after.dag.stages for t in s.outputs),
        weight_bytes=sum(v.nbytes for v in after.values.values()),
        gone=len(old) - len(both),
        new=len(new) - len(both),
        changed=changed,
        drawing=_drawing(after) if moved else None,
    )


def _drawing(graph: Graph) -> Drawing:
    """The stages of a graph; weights are not drawn."""
    tensors = graph.dag.tensors
    nodes = [DrawnNode(f"input {n}", _shape(tensors[n].shape), "outside") for n in graph.inputs]
    place = {n: i for i, n in enumerate(graph.inputs)}
    edges: list[tuple[int, int]] = []
    waiting: list[tuple[tuple[str, ...], int]] = []
    for island in graph.islands:
        waiting.append((island.reads, len(nodes)))
        place |= dict.fromkeys((t.name for t in island.writes), len(nodes))
        nodes.append(DrawnNode(island.name, island.op, "island"))
    for stage in graph.dag.stages:
        waiting.append((tuple(dict.fromkeys(x.buffer for x in stage.reads())), len(nodes)))
        place |= dict.fromkeys((t.name for t in stage.outputs), len(nodes))
        kind = "reduces" if stage.reducer is not None else ""
        nodes.append(
            DrawnNode(
                stage.name, _shape(stage.outputs[0].shape), kind, 0.0, graph.origins.get(stage.name, "")
            )
        )
    for reads, here in waiting:
        edges += ((place[r], here) for r in reads if r in place)
    for name in graph.outputs:
        edges.append((place[name], len(nodes)))
        nodes.append(
            DrawnNode(f"output {name}", _shape(tensors[name].shape) if name in tensors else "", "outside")
        )
    return Drawing(nodes, edges)


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)) or "scalar"
