"""Compiled models: the whole way from a graph to arrays, against the evaluator, bit by bit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from graph_meaning import evaluate
from model_cases import (
    biased,
    each_stage,
    graph_of,
    islanded,
    layers,
    packing_kernel,
    product,
    whole,
)

from autotune.backends import parse
from autotune.codegen.llvm import compile as compile_
from autotune.codegen.runtime import aligned
from autotune.models.outline import arena, nbytes, outline, workload_of
from autotune.models.program import Program
from autotune.models.weights import Use, _places, place
from autotune.run.kernels import default_kernel
from schedules import te
from schedules.graph.graph import Argument, Graph, Group, Island
from schedules.te.compute_dag import ComputeDAG


def negated(island: Island, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """An island that negates what it reads."""
    return [-x for x in arrays]


def program_of(graph: Graph, parts=None, run_island=negated) -> Program:
    """A program of plain loops on one thread, each stage a group."""
    ol = outline(graph, each_stage(graph)[1] if parts is None else parts)
    return Program.of(
        ol, [default_kernel(w, parse("cpu", 1)) for w in ol.tasks], graph.values.__getitem__, run_island
    )


def run(program: Program, *inputs: np.ndarray) -> list[np.ndarray]:
    ol = program.outline
    outputs = [np.full(ol.tensors[n].shape, 77, ol.tensors[n].dtype) for n in ol.outputs]
    program.run(inputs, outputs)
    return outputs


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_layers_are_what_the_evaluator_says(dtype):
    graph, x = layers(3, dtype=dtype) if dtype == "float32" else integer_layers()
    program = program_of(graph)
    expected = evaluate(graph, [x])[0]
    assert expected.any()
    for _ in range(2):  # a second call finds what the first one left
        np.testing.assert_array_equal(run(program, x)[0], expected)


def integer_layers():
    rng = np.random.default_rng(1)
    x, w = te.placeholder((4, 8), "int32", "x"), te.placeholder((8, 8), "int32", "w")
    graph = graph_of([x, w, product(product(x, w, "p"), w, "q")], {"w": whole(rng, (8, 8), "int32")})
    return graph, whole(rng, (4, 8), "int32")


def test_equal_layers_are_one_task_and_the_arena_is_used_again():
    graph, _ = layers(12)
    ol = outline(graph, each_stage(graph)[1])
    assert len(ol.tasks) == 2
    assert [ol.count(0), ol.count(1)] == [12, 12]
    assert ol.nodes(0)[:2] == ("node/p0", "node/p1")
    inside = [t for n, t in ol.tensors.items() if n not in {*ol.inputs, *ol.outputs, *ol.constants}]
    assert len(inside) == 23
    assert arena(ol).nbytes == 2 * nbytes(inside[0])


def test_an_output_that_a_later_step_reads_and_several_outputs():
    rng = np.random.default_rng(2)
    x = te.placeholder((4, 8), "float32", "x")
    w, b = te.placeholder((8, 8), "float32", "w"), te.placeholder((8,), "float32", "b")
    p = product(x, w, "p")
    y = biased(p, b, "y")
    graph = graph_of([x, w, b, p, y], {"w": whole(rng, (8, 8)), "b": whole(rng, (8,))}, ("y", "p"))
    value = whole(rng, (4, 8))
    for found, expected in zip(run(program_of(graph), value), evaluate(graph, [value]), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_group_reads_from_within_a_tensor():
    """Query, key and value in one tensor; a weight too is read from its middle."""
    rng = np.random.default_rng(3)
    x, w = te.placeholder((3, 8), "float32", "x"), te.placeholder((2, 8, 8), "float32", "w")
    whole_ = te.compute((3, 8), lambda i, j: x[i, j] + w[0, i, j], "a")
    out = te.compute((2, 8), lambda i, j: whole_[i + 1, j] * w[1, i, j], "b")
    graph = graph_of([x, w, out], {"w": whole(rng, (2, 8, 8))})
    first, second = graph.dag.stages
    part, row = te.placeholder((2, 8), "float32", "p"), te.placeholder((2, 8), "float32", "q")
    dag = te.dag([part, row, te.compute((2, 8), lambda i, j: part[i, j] * row[i, j], "b")])
    parts = (
        Group(ComputeDAG(graph.dag.inputs, (first,), ("a",), ("w",)), (Argument("x"), Argument("w")), ("a",)),
        Group(replace(dag, constants=("q",)), (Argument("a", 8), Argument("w", 64)), ("b",)),
    )
    value = whole(rng, (3, 8))
    program = program_of(graph, parts)
    np.testing.assert_array_equal(run(program, value)[0], evaluate(graph, [value])[0])
    np.testing.assert_array_equal(program.weight("w"), graph.values["w"])
    assert second.name == "b"


def test_islands_run_between_kernels():
    graph, x = islanded()
    program = program_of(graph)
    y, m, z = run(program, x)
    np.testing.assert_array_equal(y, -(x @ graph.values["w"]) + graph.values["c"])
    np.testing.assert_array_equal(m, -graph.values["c"])
    np.testing.assert_array_equal(z, -2 * graph.values["c"])


@pytest.fixture
def packed():
    """A program whose product packs its weight, and its graph and input."""
    graph, x = layers(2, n=16)
    ol = outline(graph, each_stage(graph)[1])
    target = parse("cpu", 1)
    kernels = [default_kernel(w, target) for w in ol.tasks]
    kernels[0] = packing_kernel(ol.tasks[0], target)
    return Program.of(ol, kernels, graph.values.__getitem__, negated), graph, x


def test_packed_weights_are_read_and_given_back(packed):
    program, graph, x = packed
    np.testing.assert_array_equal(run(program, x)[0], evaluate(graph, [x])[0])
    for name, value in graph.values.items():
        np.testing.assert_array_equal(program.weight(name), value)
    raw = sum(v.nbytes for v in graph.values.values())
    assert raw <= program.weights_bytes <= 2 * raw, "a packed weight is not kept beside its origin"
    assert not any(np.shares_memory(a, v) for a in program.weights.values() for v in graph.values.values())


def test_other_weights_and_other_kernels_make_other_programs(packed):
    program, graph, x = packed
    rng = np.random.default_rng(9)
    new = {"w0": whole(rng, (16, 16)), "b1": whole(rng, (16,))}
    other = program.with_weights(new)
    changed = replace(graph, values=dict(graph.values) | new)
    np.testing.assert_array_equal(run(other, x)[0], evaluate(changed, [x])[0])
    np.testing.assert_array_equal(run(program, x)[0], evaluate(graph, [x])[0])
    plain = other.with_kernels({0: default_kernel(other.outline.tasks[0], parse("cpu", 1))})
    np.testing.assert_array_equal(run(plain, x)[0], evaluate(changed, [x])[0])
    assert {u.packed for u in plain.weights} == {False}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "float64"])
def test_places_are_found_in_every_dtype(dtype):
    """A digit is exact in the dtype, however few bits it has."""

    class Turning:
        packed = frozenset({0})

        def __init__(self) -> None:
            t = te.placeholder((30, 41), dtype, "w")
            y = te.compute((30, 41), lambda i, j: t[i, j], "y")
            self.workload = workload_of(te.dag([t, y]))

        def pack(self, i, x):
            made = np.zeros((41, 32), x.dtype)
            made[:, 2:] = x.T
            return made

    found = _places([Turning()], Use("w", 0, 0))
    assert (found[:, :2] == 0).all()
    np.testing.assert_array_equal(found[:, 2:].T.reshape(-1), np.arange(1, 30 * 41 + 1))


def test_calls_from_several_threads_are_independent():
    graph, _ = layers(6, m=32, n=32)
    program = program_of(graph)
    rng = np.random.default_rng(5)
    given = [whole(rng, (32, 32)) for _ in range(6)]
    expected = [evaluate(graph, [x])[0] for x in given]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(50):
            if not np.array_equal(run(program, given[i])[0], expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert 1 <= len(program._idle) <= program.memory.contexts


def test_all_kernels_share_one_scratch_memory():
    """A layer is one kernel, which keeps the product in scratch memory while it reads the layer before."""
    rng = np.random.default_rng(6)
    n = 96
    x = y = te.placeholder((n, n), "float32", "x")
    w = te.placeholder((n, n), "float32", "w")
    for layer in range(3):
        p = product(y, w, f"p{layer}")
        y = te.compute((n, n), lambda i, j, p=p, y=y: p[j, i] + p[i, j] + y[i, j], f"y{layer}")
    graph = graph_of([x, w, y], {"w": np.eye(n, dtype=np.float32)[rng.permutation(n)]})
    parts = []
    for first, second in zip(graph.dag.stages[::2], graph.dag.stages[1::2], strict=True):
        before = next(t.buffer for t in first.reads() if t.buffer != "w")
        tensors = (graph.dag.tensors[before], graph.dag.tensors["w"])
        dag = ComputeDAG(tensors, (first, second), (second.name,))
        parts.append(Group(dag, (Argument(before), Argument("w")), (second.name,)))
    program = program_of(graph, parts)
    wanted = [k.code.scratch_bytes for k in program.kernels]
    assert min(wanted) > 0 and program.layout.scratch_bytes == max(wanted)
    assert program.arena_bytes <= program.plan.nbytes + max(wanted) + 64
    value = whole(rng, (n, n))
    np.testing.assert_array_equal(run(program, value)[0], evaluate(graph, [value])[0])


def test_weights_that_belong_to_nobody_else_are_kept_as_they_are():
    mine = aligned.zeros((4, 4), "float32")
    ways = [Use("w")]
    assert place([], ways, mine, mine=True)[ways[0]] is mine
    assert not np.shares_memory(place([], ways, mine)[ways[0]], mine)
    odd = np.zeros(17, np.float32)[1:].reshape(4, 4)
    assert place([], ways, odd, mine=True)[ways[0]].ctypes.data % 64 == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: replace(c, task=9), "task 9 of 2"),
        (lambda c: replace(c, task=-1), "task -1 of 2"),
        (lambda c: replace(c, reads=c.reads[:1]), "does not fit the arguments"),
        (lambda c: replace(c, reads=(Argument("x", 1), c.reads[1])), "elements 1 to 33 of 'x'"),
        (lambda c: replace(c, reads=(Argument("x", -1), c.reads[1])), "elements -1 to 31"),
        (lambda c: replace(c, reads=(Argument("y0"), c.reads[1])), "'y0' is read before"),
        (lambda c: replace(c, reads=(Argument("gone"), c.reads[1])), "'gone' is no tensor"),
        (lambda c: replace(c, reads=(c.reads[0], Argument("x"))), "'x' is read as a weight"),
        (lambda c: replace(c, writes=("x",)), "'x' is written twice"),
        (lambda c: replace(c, writes=("b0",)), "'b0' is written twice"),
    ],
)  # fmt: skip
def test_outlines_that_would_read_or_write_elsewhere_are_refused(change, message):
    graph, _ = layers(1)
    ol = outline(graph, each_stage(graph)[1])
    with pytest.raises(ValueError, match=message):
        replace(ol, steps=(change(ol.steps[0]), *ol.steps[1:]))


def test_an_output_that_nothing_writes_is_refused():
    graph, _ = layers(1)
    ol = outline(graph, each_stage(graph)[1])
    with pytest.raises(ValueError, match="no step writes output 'y0'"):
        replace(ol, steps=ol.steps[:1])


@pytest.mark.parametrize("readable", (True, False))
def test_addresses_are_those_that_numpy_says(readable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where heads of arrays may not be read."""
    if not readable:
        monkeypatch.setattr(compile_, "_heads_are_readable", lambda: False)
    address = compile_.address_reader.__wrapped__()
    a = np.zeros((3, 5), np.float32)
    for x in (a, a[1:], a.T, a[::-1], np.array(3), np.zeros(0)):
        assert address(x) == x.ctypes.data
