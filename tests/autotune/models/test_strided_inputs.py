"""Inputs of models that lie in memory with strides: read in place, or copied and told."""

from __future__ import annotations

from random import Random
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from device_cases import program_on
from emulated_device import EmulatedDevice
from graph_meaning import evaluate
from graph_memory import layout, run_in_memory
from grid_cases import need_cxx
from hypothesis import given, settings
from hypothesis import strategies as st
from strided import written_strides
from torch_cases import Of, exported, torch

from autotune.backends import parse
from autotune.codegen.runtime.laid import laid
from autotune.errors import ModelError
from autotune.models.model import Model, Port
from autotune.models.module import Module
from autotune.models.outline import outline
from autotune.models.program import Program
from autotune.models.saved import load_model
from autotune.models.torch_import import import_torch
from autotune.run.kernels import default_kernel
from schedules.errors import WorkloadError
from schedules.graph.graph import Graph
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition


def model_of(graph: Graph, **strides: Any) -> Model:
    def port(name: str) -> Port:
        t = graph.dag.tensors[name]
        return Port(name, name, t.shape, t.dtype)

    ports = [tuple(map(port, names)) for names in (graph.inputs, graph.outputs)]
    return Model(graph, *ports, "m", "test").with_strides(strides)


def module_of(model: Model) -> Module:
    """A module of plain loops."""
    graph = optimize(model.graph)
    ol = outline(graph, partition(graph))
    kernels = [default_kernel(w, parse("cpu", 1)) for w in ol.tasks]
    program = Program.of(ol, kernels, graph.values.__getitem__, lambda island, xs: xs)
    return Module(program, parse("cpu", 1), model.name, [None] * len(kernels), signature=model.signature)


def net() -> Graph:
    """A convolution, what adds up its channels, and a map of another input, which is a product's too."""
    b = cases.Builder()
    x, y = b.input("x", 1, 3, 4, 5), b.input("y", 6, 7)
    return b.graph(cases.relu(cases.conv(b, x, 4, 3, 1, 1, "c")), cases.relu(y), cases.dense(b, y, 5, "d"))


CHANNELS_LAST, TRANSPOSED, ROWS = (3, 1, 15, 3), (1, 6), (16, 1)


@pytest.mark.parametrize(
    "strides", [{}, {"x": CHANNELS_LAST}, {"y": TRANSPOSED}, {"x": CHANNELS_LAST, "y": ROWS}]
)
def test_inputs_are_read_as_they_lie(strides: dict[str, Any]) -> None:
    graph = net()
    model = model_of(graph, **strides)
    module = module_of(model)
    inputs = cases.inputs_of(graph)
    want = evaluate(graph, inputs)
    lying = [laid(a, layout(t)) for a, t in zip(inputs, model.graph.dag.inputs, strict=False)]
    for given_, copies in ((lying, ()), (inputs, tuple(strides))):
        for x, y in zip(want, module(*given_), strict=True):
            np.testing.assert_array_equal(y, x)
        assert module.profile(*given_, repeat=1).copies == copies
    assert module.profile(repeat=1).copies == (), "random inputs lie so"
    assert {t.name: t.strides for t in module.inputs} == {"x": None, "y": None} | strides


def test_a_channels_last_input_needs_no_other_order_in_its_kernels() -> None:
    (call, *_) = optimize(model_of(net(), x=CHANNELS_LAST).graph).dag.stages
    assert [a.extent for a in call.axes][-1] in (3, 4), "channels go last"


def test_strides_that_are_read_are_kept_in_files(tmp_path: Any) -> None:
    module = module_of(model_of(net(), x=CHANNELS_LAST))
    module.save(tmp_path / "net.at")
    again = load_model(tmp_path / "net.at")
    assert again.inputs == module.inputs
    inputs = cases.inputs_of(net())
    for x, y in zip(module(*inputs), again(*inputs), strict=True):
        np.testing.assert_array_equal(x, y)


def test_strides_of_inputs_on_a_device() -> None:
    need_cxx()
    graph = optimize(model_of(net(), x=CHANNELS_LAST, y=ROWS).graph)
    program = program_on(EmulatedDevice(), graph, partition(graph))
    inputs = cases.inputs_of(graph)
    lying = [laid(a, layout(t)) for a, t in zip(inputs, graph.dag.inputs, strict=False)]
    outputs = [np.empty(program.outline.tensors[n].shape, "float32") for n in graph.outputs]
    program.run(lying, outputs)
    for x, y in zip(evaluate(graph, inputs), outputs, strict=True):
        np.testing.assert_array_equal(y, x)


def test_wrong_strides_are_refused() -> None:
    model = model_of(net())
    with pytest.raises(ModelError, match="there is no input 'z'; the inputs are x, y"):
        model.with_strides({"z": (1,)})
    with pytest.raises(ModelError, match=r"input 'y' of shape \[6, 7\] has strides \[0, 1\], with which two"):
        model.with_strides({"y": (0, 1)})
    with pytest.raises(ModelError, match="or it walks backwards: give others, or None"):
        model.with_strides({"y": (7, -1)})
    with pytest.raises(WorkloadError, match="1 strides for 2 dimensions"):
        model.with_strides({"y": (1,)})
    with pytest.raises(WorkloadError, match="stride 'a', which is no integer"):
        model.with_strides({"y": ("a", 1)})
    assert model.with_strides({"y": TRANSPOSED}).with_strides({"y": None}) == model


def test_a_torch_program_takes_what_its_example_inputs_were() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    y, z = torch.randn(7, 6).t(), torch.randn(5, 9)[:, 2:6]
    same = torch.randn(1, 4).expand(5, 4)
    every_second = torch.randn(5, 8)[:, ::2]
    module = Of(lambda x, y, z, u, v: (x * 2, y + 1, z - u + v))
    model = import_torch(exported(module, x, y, z, same, every_second))
    found = [p.strides for p in model.inputs]
    assert found == [(60, 1, 15, 3), (1, 6), (9, 1), None, None], (
        "what shares places, or lies apart, is copied"
    )
    made = module_of(model)
    given_ = (x, y, z, same, every_second)
    for got, want in zip(made(*given_), module(*given_), strict=True):
        torch.testing.assert_close(got, want)
    assert made.profile(*given_, repeat=1).copies == (model.inputs[3].name, model.inputs[4].name)
    plain = [t.contiguous() for t in given_]
    for got, want in zip(made(*plain), module(*plain), strict=True):
        torch.testing.assert_close(got, want)


def check_strides(seed: int) -> None:
    rng = Random(seed)
    graph = rng.choice([net, lambda: cases.transformer(1), cases.residual_net])()
    strides = {n: written_strides(graph.dag.tensors[n].shape, rng) for n in graph.inputs}
    after = optimize(model_of(graph, **strides).graph)
    ol = outline(after, partition(after))
    inputs = cases.inputs_of(graph)
    for x, y in zip(evaluate(graph, inputs), run_in_memory(ol, after.values, inputs), strict=True):
        np.testing.assert_allclose(y, x, rtol=2e-4, atol=2e-4 * max(1.0, float(np.abs(x).max())))


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2**32))
def test_random_strides_of_inputs(seed: int) -> None:
    check_strides(seed)


@pytest.mark.fuzz
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_many_random_strides_of_inputs(seed: int) -> None:
    check_strides(seed)
