"""Pairs of an input and an output of an ONNX model that calls keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_models as nets
import pytest
from graph_meaning import evaluate
from needs import imported

import autotune as at
from autotune.errors import ModelError
from autotune.models.outline import outline
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition

onnx = imported("onnx")
from onnx import TensorProto  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402


def scattered(rows: int = 2, length: int = 8, shape: str = "same") -> Any:
    """A cache of rows that are written from ``pos`` on, and their sums."""
    nodes = [
        nets.node("Add", "pos steps", "ids"),
        nets.node("Reshape", "ids column", "places"),
        nets.node("ScatterND", "past places x", "present"),
        nets.node("ReduceSum", "present zero", "y", keepdims=0),
    ]
    if shape == "grown":
        nodes[2] = nets.node("Concat", "past x", "present", axis=0)
    known = {"steps": np.arange(rows), "column": np.array([rows, 1]), "zero": np.array([0])}
    inputs = [
        nets.value("x", [rows, 3]),
        nets.value("past", [length, 3]),
        nets.value("pos", [1], TensorProto.INT64),
    ]
    return nets.model(nodes, inputs, ["y", "present"], known, 18)


def test_a_pair_is_kept_and_written_in_place() -> None:
    net = scattered()
    model = at.import_onnx(net, states={"past": "present"})
    assert [p.name for p in model.inputs] == ["x", "pos"] and [p.name for p in model.outputs] == ["y"]
    after = optimize(model.graph)
    ol = outline(after, partition(after))
    assert {n: ol.root(s.new) for n, s in ol.states.items()} == {"past": ol.states["past"].tensor}
    kept, past = {"past": np.zeros((8, 3), np.float32)}, np.zeros((8, 3), np.float32)
    for n in range(3):
        x = np.arange(6, dtype=np.float32).reshape(2, 3) + n
        pos = np.array([2 * n])
        (y,) = evaluate(model.graph, [x, pos], kept)
        want, past = ReferenceEvaluator(net).run(None, {"x": x, "pos": pos, "past": past})
        np.testing.assert_array_equal(y, want)
        np.testing.assert_array_equal(kept["past"], past)


WRONG = {
    "no input": ({"pasta": "present"}, r"names 'pasta', which is no input \(did you mean 'past'\?\)"),
    "no output": ({"past": "gift"}, "names 'gift', which is no output; the outputs are y, present"),
    "twice": ({"past": "present", "x": "present"}, "names output 'present' twice"),
    "another shape": ({"x": "present"}, r"state 'x' is float32\[2, 3\], and 'present' float32\[8, 3\]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_pairs_that_are_none_are_refused(case: str) -> None:
    states, message = WRONG[case]
    with pytest.raises(ModelError, match=message):
        at.import_onnx(scattered(), states=states)


def test_a_cache_that_grows_is_refused_with_the_remedy() -> None:
    with pytest.raises(ModelError, match="it grows: export a cache of fixed length"):
        at.import_onnx(scattered(shape="grown"), states={"past": "present"})


def test_a_large_pair_that_is_replaced_whole_is_refused() -> None:
    nodes = [nets.node("Add", "past past", "present"), nets.node("Add", "present x", "y")]
    net = nets.model(nodes, [nets.value("x", [1]), nets.value("past", [1 << 15])], ["y", "present"])
    with pytest.raises(ModelError, match="state 'past' of 131072 bytes is replaced by .*write rows"):
        at.import_onnx(net, states={"past": "present"})


def test_a_state_whose_size_a_call_tells_is_refused() -> None:
    nodes = [nets.node("Add", "past x", "present"), nets.node("Add", "present x", "y")]
    inputs = [nets.value("x", ["n", 3]), nets.value("past", ["n", 3])]
    net = nets.model(nodes, inputs, ["y", "present"])
    with pytest.raises(ModelError, match="state 'past' is .* what is kept from call to call has one size"):
        at.import_onnx(net, shapes={"n": at.dim(2, 9, open=True)}, states={"past": "present"})
