"""Functions of torch, a family of operators each, and how to compare them with what is imported."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from graph_meaning import evaluate
from needs import imported

from autotune.models.assembling import assemble
from autotune.models.model import Model
from autotune.models.operators.known import to_numpy
from autotune.models.torch_import import import_torch
from autotune.models.torch_scope import TorchLowering, shape_and_dtype
from schedules import te

torch = imported("torch")
F = torch.nn.functional
ops = torch.ops.aten


# Inputs, and functions of all of them.
Family = tuple[list[Any], list[Callable[..., Any]]]


def bundled(families: Sequence[Callable[[], Family]]) -> tuple[list[Callable[..., Any]], list[Any]]:
    """The functions of several families, each of all inputs of all families, and these inputs."""
    functions: list[Callable[..., Any]] = []
    inputs: list[Any] = []
    for family in families:
        own, some = family()
        functions += [_of(fn, len(inputs), len(own)) for fn in some]
        inputs += own
    return functions, inputs


def _of(fn: Callable[..., Any], first: int, count: int) -> Callable[..., Any]:
    """A function of some of all inputs."""
    return lambda *xs: fn(*xs[first : first + count])


class Many(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Functions of the same inputs, all their results one after the other."""

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        super().__init__()
        self.functions = list(functions)

    def forward(self, *xs: Any) -> Any:
        return tuple(fn(*xs) for fn in self.functions)


class Of(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A function as a module."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *xs: Any) -> Any:
        return self.fn(*xs)


def exported(module: Any, *args: Any, **how: Any) -> Any:
    """The exported program of a module in evaluation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own ways
        return torch.export.export(module.eval(), args, **how)


def arrays(*tensors: Any) -> list[np.ndarray]:
    return [to_numpy(t.contiguous()) for t in tensors]


def compared(module: Any, *args: Any, rtol: float = 1e-5) -> Model:
    """The imported model of a module, whose results were compared with those of torch: by their root mean
    square for floats, else exactly."""
    model = import_torch(exported(module, *args))
    with torch.no_grad():
        want = module(*args)
    results = evaluate(model.graph, arrays(*args))
    every = [
        (f"result {n}.{i} of {type(module).__name__}", x)
        for n, y in enumerate(want if isinstance(want, tuple) else (want,))
        for i, x in enumerate(y if isinstance(y, (tuple, list)) else (y,))
    ]
    for got, (what, w) in zip(results, every, strict=True):
        close(got, to_numpy(w), rtol, what)
    return model


def called(op: Any, *args: Any, **how: Any) -> list[np.ndarray]:
    """What the import makes of one call of an operator of ATen, without an export. Tensors among the
    arguments are inputs."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    graph, mode = torch.fx.Graph(), FakeTensorMode()
    lowering, inputs, given = TorchLowering("call"), {}, []

    def entered(x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return [entered(v) for v in x]
        if not isinstance(x, torch.Tensor):
            return x
        node = graph.placeholder(f"x{len(inputs)}")
        node.meta["val"] = mode.from_tensor(x)
        shape, dtype = shape_and_dtype(x, node.name)
        inputs[node.name] = lowering.values[node] = te.placeholder(shape, dtype, node.name)
        given.append(x)
        return node

    node = graph.call_function(op, tuple(entered(x) for x in args), how)
    with mode:
        fakes = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        node.meta["val"] = op(*fakes[0], **fakes[1])
    results = [node]
    if not isinstance(node.meta["val"], torch.Tensor):
        results = [graph.call_function(operator.getitem, (node, i)) for i in range(len(node.meta["val"]))]
    graph.output(results)
    lowering.run(graph, results)
    if lowering.unsupported:
        raise lowering.refusal("")
    outputs = [(f"y{i}", lowering.result(n)) for i, n in enumerate(results)]
    model = assemble(inputs, outputs, lowering.constants, lowering.origins, "call", "call")
    return evaluate(model.graph, arrays(*given))


def close(got: np.ndarray, want: np.ndarray, rtol: float, what: str) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype, f"{what}: {got.dtype}{got.shape}"
    if "float" not in got.dtype.name:
        assert np.array_equal(got, want), f"{what}: {got} is not {want}"
        return
    g, w = got.astype(np.float64), want.astype(np.float64)
    known = np.isfinite(w)
    assert np.array_equal(g[~known], w[~known], equal_nan=True), what
    if known.any():
        size = max(float(np.sqrt(np.mean(w[known] ** 2))), 1e-3)
        worst = float(np.abs(g[known] - w[known]).max())
        assert worst <= rtol * size, f"{what}: off by {worst:.3g} of {size:.3g}"
