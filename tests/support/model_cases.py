"""Small models made of tensor expressions, cut into one group a stage, so that what runs is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autotune.measure.results import Measurement
from autotune.models.model import Model, Port
from autotune.models.outline import Part
from autotune.run.kernel import Kernel
from autotune.run.kernels import kernel_of
from autotune.search.columns import compile_columns
from schedules import te
from schedules.dtypes import DTYPES
from schedules.graph.graph import Argument, Graph, Group, Island
from schedules.graph.rewrite import USUAL, Choices, Optimized
from schedules.model import Target, Trace, Workload
from schedules.space import derive as derive_space
from schedules.space.base import Candidate, trace_of
from schedules.te.compute_dag import ComputeDAG, Tensor


def whole(rng: np.random.Generator, shape: Sequence[int], dtype: str = "float32") -> np.ndarray:
    """Small whole numbers, whose sums are exact in any order."""
    return rng.integers(-3, 4, shape).astype(DTYPES[dtype].numpy)


def graph_of(
    tensors: Sequence[te.Tensor],
    values: Mapping[str, np.ndarray],
    outputs: Sequence[str] | None = None,
    islands: Sequence[Island] = (),
) -> Graph:
    """A graph of tensors, inputs before outputs. ``values``: of the constants."""
    dag = te.dag([*tensors])
    constants = tuple(t.name for t in dag.inputs if t.name in values)
    dag = replace(dag, constants=constants)
    written = {t.name for i in islands for t in i.writes}
    inputs = tuple(t.name for t in dag.inputs if t.name not in values and t.name not in written)
    origins = {s.name: f"node/{s.name}" for s in dag.stages}
    return Graph(dag, dict(values), inputs, tuple(outputs or dag.outputs), origins, tuple(islands))


def each_stage(graph: Graph, choices: Choices = USUAL) -> tuple[Optimized, tuple[Part, ...]]:
    """Every stage a group, and islands where what they read is there. Nothing is rewritten."""
    parts: list[Part] = []
    ready = {*graph.inputs, *graph.values}
    waiting = list(graph.islands)
    for stage in graph.dag.stages:
        for island in [i for i in waiting if set(i.reads) <= ready]:
            parts.append(island)
            waiting.remove(island)
            ready |= {t.name for t in island.writes}
        reads = tuple(dict.fromkeys(x.buffer for x in stage.reads()))
        names = tuple(t.name for t in stage.outputs)
        constants = tuple(n for n in reads if n in graph.values)
        dag = ComputeDAG(tuple(graph.dag.tensors[n] for n in reads), (stage,), names, constants)
        parts.append(
            Group(
                dag,
                tuple(map(Argument, reads)),
                names,
                tuple(graph.origins[n] for n in names if n in graph.origins),
            )
        )
        ready |= set(names)
    return Optimized(graph, ()), (*parts, *waiting)


def model_of(graph: Graph, name: str = "net") -> Model:
    """A model whose inputs and outputs users call ``in.NAME`` and ``out.NAME``."""

    def ports(kind: str, names: Sequence[str]) -> tuple[Port, ...]:
        found = [
            next((t for i in graph.islands for t in i.writes if t.name == n), None) or graph.dag.tensors[n]
            for n in names
        ]
        return tuple(Port(f"{kind}.{t.name}", t.name, t.shape, t.dtype) for t in found)

    return Model(graph, ports("in", graph.inputs), ports("out", graph.outputs), name, f"{name}.onnx")


def layers(
    count: int, m: int = 4, n: int = 8, seed: int = 0, dtype: str = "float32"
) -> tuple[Graph, np.ndarray]:
    """``x ← max(x w + b, 0)``, ``count`` times, and an input. Two stages a layer, all layers alike."""
    rng = np.random.default_rng(seed)
    x = te.placeholder((m, n), dtype, "x")
    tensors: list[te.Tensor] = [x]
    values: dict[str, np.ndarray] = {}
    for layer in range(count):
        w = te.placeholder((n, n), dtype, f"w{layer}")
        b = te.placeholder((n,), dtype, f"b{layer}")
        # -1, 0, 1 with few ones: numbers stay small
        values |= {w.name: np.eye(n, dtype=dtype)[rng.permutation(n)], b.name: whole(rng, (n,), dtype)}
        x = product(x, w, f"p{layer}")
        x = biased(x, b, f"y{layer}")
        tensors += [w, b]
    return graph_of([*tensors, x], values), whole(rng, (m, n), dtype)


def product(x: te.Tensor, w: te.Tensor, name: str) -> te.Tensor:
    """``x w``."""
    k = te.reduce_axis(w.shape[0], f"{name}_k")
    return te.compute((x.shape[0], w.shape[1]), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name)


def biased(x: te.Tensor, b: te.Tensor, name: str) -> te.Tensor:
    """``max(x + b, 0)``."""
    return te.compute(x.shape, lambda i, j: te.maximum(x[i, j] + b[j], 0.0), name)


def packing_kernel(workload: Workload, target: Target, skip: int = 0) -> Kernel:
    """A kernel that packs the weight of a product, found among the sketches of its space; ``skip``: the first
    of them."""
    space = derive_space(workload.canonical, target, compile_columns)
    rng = np.random.default_rng(0)
    for n in range(len(space.sketches)):
        for row in space.sample(n, 4, rng):
            kernel = kernel_of(workload, target, trace_of(space, Candidate(n, row)), chosen_by="model")
            if kernel.packed and skip == 0:
                return kernel
            skip -= bool(kernel.packed)
    raise AssertionError("no sketch packs")


def islanded() -> tuple[Graph, np.ndarray]:
    """y = -(x w) + c, where an island negates; its second result is an output."""
    rng = np.random.default_rng(4)
    x, w = te.placeholder((4, 8), "float32", "x"), te.placeholder((8, 8), "float32", "w")
    n, c = te.placeholder((4, 8), "float32", "n"), te.placeholder((4, 8), "float32", "c")
    p = product(x, w, "p")
    y = te.compute((4, 8), lambda i, j: n[i, j] + c[i, j], "y")
    written = (Tensor("n", (4, 8), "float32"), Tensor("m", (4, 8), "float32"))
    island = Island("neg", "Negate", ("p", "c"), written)
    m = te.placeholder((4, 8), "float32", "m")
    z = te.compute((4, 8), lambda i, j: m[i, j] * 2.0, "z")
    values = {"w": whole(rng, (8, 8)), "c": whole(rng, (4, 8))}
    graph = graph_of([x, w, n, c, m, p, y, z], values, ("y", "m", "z"), [island])
    return graph, whole(rng, (4, 8))


class Made:
    """A measurer that builds nothing: a trace's time is told by its digest."""

    nominal = control = None

    def arrivals(
        self,
        traces: Sequence[Trace],
        best_s: float | None = None,
        deadline: float | None = None,
        latest: float | None = None,
    ) -> Iterator[tuple[int, Measurement]]:
        return ((i, self._measured(t)) for i, t in enumerate(traces))

    def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
        return [self._measured(t) for t in traces]

    def _measured(self, trace: Trace) -> Measurement:
        time_s = 1e-6 * (1 + int(trace.digest[:4], 16) / 65536)
        return Measurement("ok", "", (time_s,), time_s, 0.0, 1.0, 0.001, 0.001, 0.001)

    def object(self, trace: Trace) -> bytes:
        return b""

    def move(self) -> None:
        pass
