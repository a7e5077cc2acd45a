"""Models with open sizes from the graph to tuned kernels, other weights, and what they refuse."""

from __future__ import annotations

from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from open_graphs import MODELS, inputs_at, size
from test_open_models import close, module_of

import autotune as at
from autotune.errors import ModelError
from autotune.models.model import Model, Port
from autotune.models.outline import outline
from autotune.models.preparation import prepared
from autotune.models.program import Program
from autotune.models.tasks import tasks_of
from autotune.run.kernels import default_kernel
from schedules.graph.graph import Graph, Island
from schedules.graph.partition import partition
from schedules.model import Workload
from schedules.te.compute_dag import ComputeDAG, Tensor


def model_of(graph: Graph) -> Model:
    def port(name: str) -> Port:
        t = graph.dag.tensors[name]
        return Port(name, name, t.shape, t.dtype)

    return Model(graph, tuple(map(port, graph.inputs)), tuple(map(port, graph.outputs)), "net", "net")


def perceptron(n: Any, seed: int = 0) -> Graph:
    b = cases.Builder(seed)
    x = b.input("x", n, 8)
    return b.graph(cases.dense(b, cases.relu(cases.dense(b, x, 16, "up")), 4, "down"))


def test_each_open_group_is_one_task_of_all_sizes() -> None:
    tasks = tasks_of(prepared(model_of(perceptron(size(1, 50)))).parts)
    assert [[(s.least, s.most) for s in t.workload.dag.open.sizes] for t in tasks] == [[(1, 50)]] * 2
    back = [ComputeDAG.from_json(t.workload.dag.to_json()) for t in tasks]
    assert [Workload(dag).digest for dag in back] == [t.workload.digest for t in tasks]


def test_groups_without_an_open_extent_are_the_tasks_that_they_were() -> None:
    """Of a model whose second input is fixed, what is computed of that alone has the digest of a fixed
    model."""

    def graph(n: Any) -> Graph:
        b = cases.Builder()
        x, y = b.input("x", n, 8), b.input("y", 7, 8)
        one, other = cases.dense(b, x, 16, "one"), cases.dense(b, y, 16, "other")
        return b.graph(one, other)

    opened, fixed = ([g.dag for g in prepared(model_of(graph(n))).parts] for n in (size(2, 50), 50))
    assert [d.open is None for d in opened] == [False, True] and fixed[1].open is None
    assert Workload(opened[1]).digest == Workload(fixed[1]).digest
    assert opened[1].to_json() == fixed[1].to_json() and "open" not in opened[1].to_json()


@pytest.mark.slow
def test_a_model_is_tuned_once_for_all_sizes(tmp_path: Any) -> None:
    graph = perceptron(size(1, 50))
    model, db = model_of(graph), tmp_path / "t.db"
    result = at.tune_model(model, threads=1, budget_s=60, trials=2, db=db, progress=None)
    assert [t.result.best is not None for t in result.tasks] == [True, True]
    again = at.tune_model(model, threads=1, budget_s=60, trials=2, db=db, progress=None)
    assert again.skipped == 2
    assert "2 of 2" in str(result) and "GFLOP/s" in str(at.explain(model, threads=1, db=db))
    assert result.report(tmp_path / "page.html").tasks == 2
    net = at.compile_model(model, threads=1, db=db)
    assert {k.chosen_by for k in net.program.kernels} == {"log"}
    for n in (1, 2, 37, 50):
        arrays = inputs_at(graph, {"n": n})
        close(net(*arrays), evaluate(graph, arrays))
    other = perceptron(size(1, 50), seed=5)
    net.load_weights(other.values)
    for n in (50, 3):
        arrays = inputs_at(graph, {"n": n})
        close(net(*arrays), evaluate(other, arrays))


def test_islands_run_at_one_size() -> None:
    graph = MODELS["positions"].graph()
    name = graph.dag.outputs[0]
    island = Island("odd", "Odd", (name,), (Tensor("made", (3,), "float32"),))
    dag = ComputeDAG(
        (*graph.dag.inputs, Tensor("made", (3,), "float32")), graph.dag.stages, graph.dag.outputs,
        graph.dag.constants,
    )  # fmt: skip
    whole = Graph(dag, graph.values, graph.inputs, ("made",), islands=(island,))
    with pytest.raises(ValueError, match=r"'odd' \(Odd\) is no expression, and is called at one size only; "):
        outline(whole, partition(whole))


def test_programs_of_devices_refuse_open_sizes_by_name() -> None:
    net = module_of(MODELS["positions"].graph())

    class OfDevice:
        def __init__(self, kernel: Any) -> None:
            self.kernel, self.code, self.target = kernel, self, kernel.target
            self.device = kernels

    kernels = list(net.program.kernels)
    odd: Any = [OfDevice(k) for k in kernels]
    with pytest.raises(ModelError, match=r"open sizes, n \(1 to 9\), and programs of a GPU run at one size"):
        Program.of(net.program.outline, odd, lambda name: np.zeros(()), lambda *_: [])


def test_a_group_whose_inputs_tell_no_size_is_a_kernel_of_a_program() -> None:
    """A mask of all pairs of rows reads nothing, and two kernels read it."""

    def graph(n: Any) -> Graph:
        b = cases.Builder()
        x = b.input("x", n, 4)
        k = at.te.reduce_axis(n, "k")
        counts = at.te.compute((n,), lambda i: at.te.sum(at.te.cast(i * k, "float32"), axis=k))
        y = cases.stage((n, 4), lambda i, j: x[i, j] + counts[i])
        return b.graph(cases.dense(b, y, 4, "fc"), counts)

    made = graph(size(1, 9))
    net = module_of(made)
    for n in (1, 4, 9):
        arrays = inputs_at(made, {"n": n})
        close(net(*arrays), evaluate(made, arrays))
    alone = [w for w in net.program.outline.tasks if not w.dag.inputs]
    assert len(alone) == 1
    kernel = default_kernel(alone[0], net.target)
    assert kernel().shape == (9,)  # of the largest size
