"""Models with open sizes: one module for every size of a range."""

from __future__ import annotations

import threading
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from open_graphs import MODELS, inputs_at, size

from autotune.backends import parse
from autotune.errors import ArgumentError
from autotune.models.module import Module
from autotune.models.outline import outline
from autotune.models.program import Program
from autotune.run.kernels import default_kernel
from schedules.graph.graph import Graph
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition


def module_of(graph: Graph) -> Module:
    """A module of plain loops on one thread."""
    after = optimize(graph)
    ol = outline(after, partition(after))
    kernels = [default_kernel(w, parse("cpu", 1)) for w in ol.tasks]
    program = Program.of(ol, kernels, after.values.__getitem__, lambda *_: [])
    return Module(program, parse("cpu", 1), "net", [None] * len(kernels))


def closed_net() -> Module:
    return module_of(attention(5, 2))


def results(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


def close(found: Any, right: list[Any]) -> None:
    for y, x in zip(results(found), right, strict=True):
        assert y.shape == x.shape and np.asarray(y).flags.c_contiguous
        unit = float(np.sqrt(np.mean(np.square(x.astype("float64")))))
        np.testing.assert_allclose(y, x, rtol=0, atol=2e-5 * unit)


@pytest.mark.parametrize("name", MODELS)
def test_one_module_is_right_at_every_size(name: str) -> None:
    graph = MODELS[name].graph()
    net = module_of(graph)
    sizes = MODELS[name].sizes
    assert net.sizes == {"n": (sizes[0], sizes[-1])}
    arena = net.program.arena_bytes
    for n in (*sizes, *reversed(sizes)):
        arrays = inputs_at(graph, {"n": n})
        close(net(*arrays), evaluate(graph, arrays))
    assert net.program.arena_bytes == arena and len(net.program._idle) == 1


def attention(n: Any, batch: Any = 2) -> Graph:
    """Tokens of some sequences are mixed, and scores are returned too: sizes inside and outside of rows."""
    b = cases.Builder()
    x = b.input("x", batch, n, 6)
    scores = cases.softmax(cases.matmul(x, cases.transpose(x, 0, 2, 1)))
    return b.graph(cases.dense(b, cases.matmul(scores, x), 5, "fc"), scores)


def both(graph: Graph, batch: int, n: int, seed: int = 1) -> list[Any]:
    return inputs_at(graph, {"b": batch, "n": n}, seed)


@pytest.fixture(scope="module")
def two_sizes() -> tuple[Graph, Module]:
    graph = attention(size(1, 9), size(1, 4, "b"))
    return graph, module_of(graph)


def test_sizes_of_two_dimensions_are_told_by_one_input(two_sizes: tuple[Graph, Module]) -> None:
    graph, net = two_sizes
    assert net.sizes == {"b": (1, 4), "n": (1, 9)}
    for batch, n in ((1, 1), (3, 5), (4, 9), (1, 9), (4, 1), (2, 7)):
        arrays = both(graph, batch, n)
        close(net(*arrays), evaluate(graph, arrays))


def test_extents_are_shown_by_their_sizes(two_sizes: tuple[Graph, Module]) -> None:
    _, net = two_sizes
    assert "x: float32[b,n,6]) -> " in repr(net) and "float32[b,n,n] with b=1..4, n=1..9" in repr(net)
    assert net.inputs[0].shape == (4, 9, 6) and net.outputs[1].shape == (4, 9, 9)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((4, 10, 6), r"input 'x' has 10 elements in dimension 1; the model takes 1 to 9: give"),
        ((5, 3, 6), r"input 'x' has 5 elements in dimension 0; the model takes 1 to 4"),
        ((4, 0, 6), r"input 'x' has 0 elements in dimension 1; the model takes 1 to 9"),
        ((4, 6), r"input 'x' has shape \(4, 6\); give it 3 dimensions"),
        ((4, 3, 7), r"input 'x' has shape \(4, 3, 7\); at b = 4, n = 3, which the inputs tell, it has shape"),
    ],
)
def test_sizes_out_of_range_are_refused(
    two_sizes: tuple[Graph, Module], shape: tuple[int, ...], said: str
) -> None:
    for _ in range(2):  # a refused size is not remembered
        with pytest.raises(ArgumentError, match=said):
            two_sizes[1](np.zeros(shape, "float32"))
    with pytest.raises(ArgumentError, match=r"input 'x' is float64, but the model takes float32"):
        two_sizes[1](np.zeros((4, 3, 6)))


def test_inputs_of_two_extents_must_agree() -> None:
    def graph(n: Any) -> Graph:
        b = cases.Builder()
        x, y = b.input("x", n, 3), b.input("y", 2 * n, 3)
        return b.graph(cases.stage((n, 3), lambda i, j: x[i, j] + y[2 * i, j] - y[2 * i + 1, j]))

    net = module_of(graph(size(2, 6)))
    net(np.zeros((4, 3), "float32"), np.zeros((8, 3), "float32"))
    with pytest.raises(ArgumentError, match=r"input 'y' has shape \(7, 3\); at n = 4, .* shape \(8, 3\)"):
        net(np.zeros((4, 3), "float32"), np.zeros((7, 3), "float32"))


def test_a_size_is_told_by_a_multiple_of_it() -> None:
    graph = MODELS["doubled"].graph()
    net = module_of(graph)
    said = r"input 'x' has 5 elements in dimension 0; the model takes 2 to 16 \(the size n: 1 to 8\)"
    with pytest.raises(ArgumentError, match=said):
        net(np.zeros((5, 3), "float32"))


def test_arrays_that_lie_otherwise_and_those_with_room(two_sizes: tuple[Graph, Module]) -> None:
    graph, net = two_sizes
    (x,) = both(graph, 3, 5)
    right = evaluate(graph, [x])
    roomy = np.full((4, 9, 6), np.nan, "float32")
    roomy[:3, :5] = x
    turned = np.ascontiguousarray(x.transpose(2, 1, 0)).transpose(2, 1, 0)
    for given in (roomy[:3, :5], turned, x[::-1][::-1], x):
        close(net(given), right)
    assert net.profile(roomy[:3, :5], repeat=1).copies == ()  # it lies as the program has it
    assert net.profile(x, repeat=1).copies == ("x",)
    assert len(net.profile(repeat=1).rows) == len(net.program.outline.calls)


def test_torch_tensors_of_every_size(two_sizes: tuple[Graph, Module]) -> None:
    torch = pytest.importorskip("torch")
    graph, net = two_sizes
    for batch, n in ((3, 5), (1, 1), (3, 5), (4, 9)):
        arrays = both(graph, batch, n)
        made = net(torch.from_numpy(arrays[0]))
        assert all(isinstance(y, torch.Tensor) and y.is_contiguous() for y in made)
        close(tuple(y.numpy() for y in made), evaluate(graph, arrays))
        close(tuple(y.numpy() for y in net.tensors([torch.from_numpy(arrays[0])])), evaluate(graph, arrays))


def test_results_share_no_memory_and_calls_see_their_own_size(two_sizes: tuple[Graph, Module]) -> None:
    graph, net = two_sizes
    given = [both(graph, batch, n, seed=n) for batch, n in ((3, 5), (4, 9), (1, 2), (3, 5))]
    made = [net(*arrays) for arrays in given]
    for arrays, found in zip(given, made, strict=True):
        close(found, evaluate(graph, arrays))


def test_threads_call_at_different_sizes_at_once(two_sizes: tuple[Graph, Module]) -> None:
    graph, net = two_sizes
    cases_ = [both(graph, batch, n, seed=n) for batch, n in ((1, 1), (3, 5), (4, 9), (2, 7))]
    right = [evaluate(graph, arrays) for arrays in cases_]
    failed: list[BaseException] = []

    def call(k: int) -> None:
        try:
            for i in range(60):
                close(net(*cases_[(i + k) % 4]), right[(i + k) % 4])
        except BaseException as err:
            failed.append(err)

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed[0]


def test_forms_of_many_sizes_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.models.call_forms.MOST_KEPT", 3)
    graph = MODELS["positions"].graph()
    net = module_of(graph)
    for n in (1, 2, 3, 4, 5, 1, 5):
        arrays = inputs_at(graph, {"n": n})
        close(net(*arrays), evaluate(graph, arrays))
    assert net._sized is not None and len(net._sized._kept) == 3
