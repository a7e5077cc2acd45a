"""import_onnx: ports, shapes, what is known at import, functions, branches, islands."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx_models as nets
import pytest
from graph_meaning import evaluate
from needs import imported

import autotune as at
from autotune.models import onnx_known, onnx_scope
from autotune.models.fallback import run_island
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate as evaluate_dag

onnx = imported("onnx")
from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

RELU = nets.node("Relu", "x", "y")


def expect(net: Any, seed: int = 0, **how: Any) -> Any:
    """Import a model, compare it with onnx's reference evaluator bit by bit, and return it."""
    model = at.import_onnx(net, **how)
    given = nets.arrays(net, seed)
    got = evaluate(model.graph, [given[p.name] for p in model.inputs])
    for name, have, want in zip(
        (o.name for o in model.outputs), got, ReferenceEvaluator(net).run(None, given), strict=True
    ):
        assert have.shape == want.shape and have.dtype == want.dtype, name
        np.testing.assert_array_equal(have, want, err_msg=name)
    return model


# --- ports ------------------------------------------------------------------------------------


def test_a_model_tells_its_ports_by_the_names_of_the_file() -> None:
    net = nets.model(
        [nets.node("Add", "1/x lambda", "out:0")],
        [nets.value("1/x", [2, 3]), nets.value("lambda", [3])],
        ["out:0"],
    )
    model = at.import_onnx(net)
    assert [(p.name, p.tensor, p.shape, p.dtype) for p in model.inputs] == [
        ("1/x", "_1_x", (2, 3), "float32"),
        ("lambda", "lambda_", (3,), "float32"),
    ]
    assert [p.name for p in model.outputs] == ["out:0"]
    assert model.graph.inputs == ("_1_x", "lambda_") and model.graph.outputs == (model.outputs[0].tensor,)
    assert repr(model) == (
        "<Model net: 1/x float32[2, 3], lambda float32[3] → out:0 float32[2, 3]; 1 stages, 0 constants>"
    )
    assert model.name == "net" and model.source == "model 'net'"


def test_a_path_and_bytes_are_read_too(tmp_path: Any) -> None:
    net = nets.convolutional()
    path = tmp_path / "net.onnx"
    path.write_bytes(net.SerializeToString())
    for given in (path, str(path), path.read_bytes(), net):
        model = at.import_onnx(given)
        assert model.graph.dag == at.import_onnx(net).graph.dag
    assert at.import_onnx(path).source == str(path)


def test_a_model_given_as_a_proto_is_not_changed() -> None:
    net = nets.transformer()
    before = net.SerializeToString(deterministic=True)
    at.import_onnx(net)
    assert net.SerializeToString(deterministic=True) == before


def test_inputs_that_nothing_reads_stay_inputs() -> None:
    net = nets.model([RELU], [nets.value("spare", [5]), nets.value("x", [2])], ["y"])
    model = expect(net)
    assert [p.name for p in model.inputs] == ["spare", "x"]
    assert [t.name for t in model.graph.dag.inputs] == ["spare", "x"]


def test_outputs_that_no_stage_computes_are_copies() -> None:
    """An input, a weight and another output, as outputs."""
    net = nets.model(
        [
            nets.node("Identity", "x", "a"),
            nets.node("Identity", "w", "b"),
            RELU,
            nets.node("Identity", "y", "c"),
        ],
        [nets.value("x", [2])],
        ["a", "b", "y", "c"],
        {"w": np.array([1.0, 2.0], np.float32)},
    )
    model = expect(net)
    assert len(set(model.graph.outputs)) == 4


def test_an_initializer_that_is_listed_as_an_input_is_a_weight() -> None:
    """Files of IR version 3 list both."""
    net = nets.model(
        [nets.node("Add", "x w", "y")],
        [nets.value("x", [2]), nets.value("w", [2])],
        ["y"],
        {"w": np.array([1.0, 2.0], np.float32)},
    )
    assert [p.name for p in at.import_onnx(net).inputs] == ["x"]


def test_stages_know_the_node_that_they_are_from() -> None:
    model = at.import_onnx(nets.convolutional())
    origins = model.graph.origins
    assert set(origins) == {s.name for s in model.graph.dag.stages}
    assert origins["pad"] == origins["conv"] == origins["bias_add"] == "conv_c0"
    assert origins["bn_factor"] == origins["batch_norm"] == "batchnormalization_n0"


# --- the whole nets ---------------------------------------------------------------------------


def test_a_convolutional_net_is_what_the_reference_computes() -> None:
    expect(nets.convolutional())


def test_arithmetic_on_shapes_vanishes() -> None:
    ops = {"Shape", "Gather", "Unsqueeze", "Concat"}
    net = nets.convolutional()
    assert ops < {n.op_type for n in net.graph.node}
    dag = at.import_onnx(net).graph.dag
    assert all(t.dtype == "float32" for t in dag.tensors.values())


def test_a_transformer_is_what_the_reference_computes() -> None:
    net = nets.transformer()
    model = at.import_onnx(net)
    given = nets.arrays(net)
    (want,) = ReferenceEvaluator(net).run(None, given)
    (got,) = evaluate(model.graph, list(given.values()))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


# --- shapes -----------------------------------------------------------------------------------


def test_open_dimensions_are_given_by_input_or_by_name() -> None:
    net = nets.model([RELU], [nets.value("x", ["batch", 3, None])], ["y"])
    with pytest.raises(at.ModelError) as err:
        at.import_onnx(net)
    assert str(err.value) == (
        "model 'net': input 'x' has shape [batch, 3, ?]; give every size: shapes={'x': (1, 3, 1)}, "
        "on the command line --shape x=1x3x1; or a range, as shapes={'batch': autotune.dim(1, 512)}, "
        "--shape batch=1..512"
    )
    assert at.import_onnx(net, shapes={"x": (4, 3, 5)}).inputs[0].shape == (4, 3, 5)
    named = nets.model([RELU], [nets.value("x", ["batch", 3])], ["y"])
    assert at.import_onnx(named, shapes={"batch": 7}).inputs[0].shape == (7, 3)
    opened = at.import_onnx(named, shapes={"batch": at.dim(1, 9)})
    assert "x float32[batch, 3] → y float32[batch, 3] with batch=1..9; " in repr(opened)
    with pytest.raises(at.ModelError, match="names 'bach', .* the inputs are x; open dimensions are batch$"):
        at.import_onnx(named, shapes={"bach": 7})
    with pytest.raises(at.ModelError, match="names 'bach', .* the inputs are x; open dimensions are batch"):
        at.import_onnx(named, shapes={"bach": at.dim(1, 9)})


def test_all_open_inputs_are_named_at_once() -> None:
    net = nets.model([nets.node("Add", "a b", "y")], [nets.value("a", ["n"]), nets.value("b", ["m"])], ["y"])
    with pytest.raises(at.ModelError, match=r"input 'a' has shape \[n\]; input 'b' has shape \[m\]"):
        at.import_onnx(net)


def test_a_rank_may_be_open() -> None:
    net = nets.model([RELU], [nets.value("x", None)], ["y"])
    with pytest.raises(at.ModelError, match="input 'x': its rank is not known; give every size"):
        at.import_onnx(net)
    assert at.import_onnx(net, shapes={"x": (2, 2)}).outputs[0].shape == (2, 2)


@pytest.mark.parametrize(
    ("shapes", "match"),
    [
        ({"x": (4, 4)}, r"input 'x': shape \[4, 4\] does not fit that of the file, \[batch, 3\]"),
        ({"x": (4,)}, r"input 'x': shape \[4\] does not fit"),
        ({"x": (0, 3)}, r"input 'x' has shape \[0, 3\]: 0 is below 1"),
        ({"x": (-1, 3)}, r"-1 is below 1"),
        ({"batch": 0}, r"input 'x' has shape \[0, 3\]: 0 is below 1"),
        ({"x": (1.5, 3)}, r"shape \(1.5, 3\) is not a sequence of integers"),
        ({"x": (1, 3), "z": (1,)}, "shapes= names 'z', which is neither an input nor a named dimension"),
        ({"x": (2**20, 3, 5)}, "does not fit"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: dict[str, Any], match: str) -> None:
    net = nets.model([RELU], [nets.value("x", ["batch", 3])], ["y"])
    with pytest.raises(at.ModelError, match=match):
        at.import_onnx(net, shapes=shapes)


def test_one_and_no_dimensions() -> None:
    expect(nets.model([RELU], [nets.value("x", [])], ["y"]))
    net = nets.model([RELU], [nets.value("x", [2, 0])], ["y"])
    with pytest.raises(at.ModelError, match=r"\[2, 0\]: 0 is below 1"):
        at.import_onnx(net)


# --- what is known ----------------------------------------------------------------------------


def test_what_is_known_is_computed_at_import() -> None:
    net = nets.model(
        [nets.node("Mul", "w w", "square"), nets.node("Exp", "square", "e"), nets.node("Add", "x e", "y")],
        [nets.value("x", [2])],
        ["y"],
        {"w": np.array([1.0, 2.0], np.float32)},
    )
    model = at.import_onnx(net)
    assert [s.name for s in model.graph.dag.stages] == ["add"]
    ((name, known),) = model.graph.values.items()
    assert name == "e"
    np.testing.assert_array_equal(known, np.exp(np.array([1, 4], np.float32)))


def test_one_number_is_a_literal() -> None:
    net = nets.one("Mul", [nets.value("x", [2])], {"half": np.array([0.5], np.float32)})
    model = expect(net)
    assert not model.graph.values and "0.5" in str(model.graph.dag.stages[0].values)


def test_weights_are_not_copied_beside_the_file() -> None:
    """What a graph has of a weight is the bytes that protobuf gave, and one weight is one constant."""
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    net = nets.model(
        [nets.node("Add", "x w", "a"), nets.node("Mul", "a w", "y")],
        [nets.value("x", [2, 3])],
        ["y"],
        {"w": w},
    )
    (known,) = expect(net).graph.values.values()
    assert not known.flags.owndata and not known.flags.writeable


def test_unused_weights_and_dead_nodes_are_no_part_of_the_graph() -> None:
    net = nets.model(
        [nets.node("LSTM", "x w w", "dead"), RELU],
        [nets.value("x", [1, 2, 3])],
        ["y"],
        {"w": np.zeros((1, 2), np.float32)},
    )
    model = at.import_onnx(net)
    assert len(model.graph.dag.stages) == 1 and not model.graph.values


@pytest.mark.parametrize(
    "nodes",
    [
        [nets.node("ConstantOfShape", "n", "z")],
        [nets.node("Expand", "one n", "z")],
        [nets.node("Tile", "one n", "z")],
        [nets.node("Range", "zero big step", "z")],
        [nets.node("Pad", "one n2", "z")],
        [nets.node("Mul", "col row", "z")],
    ],
    ids=lambda nodes: nodes[0].op_type,
)  # fmt: skip
def test_absurd_sizes_are_refused_not_allocated(nodes: list[Any]) -> None:
    weights = {
        "n": np.array([2**40]), "one": np.ones(1, np.float32), "zero": np.array(0), "step": np.array(1),
        "big": np.array(2**40), "n2": np.array([0, 2**40]), "col": np.ones((2**17, 1), np.float32),
        "row": np.ones((1, 2**17), np.float32),
    }  # fmt: skip
    net = nets.model([*nodes, nets.node("Slice", "z zero1 one1", "s"), nets.node("Cast", "s", "f", to=1),
                      nets.node("Add", "x f", "y")], [nets.value("x", [1])], ["y"],
                     {**weights, "zero1": np.array([0]), "one1": np.array([1])})  # fmt: skip
    with pytest.raises(at.ModelError, match="too large to keep"):
        at.import_onnx(net)


def test_all_that_is_computed_at_import_together_may_not_be_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 40 values is small enough, all are not."""
    many = [f"z{i}" for i in range(40)]
    nodes = [nets.node("Expand", "one m", z) for z in many]
    nodes += [nets.node("Sum", " ".join(many), "z"), nets.node("Add", "x z", "y")]
    weights = {"one": np.ones(1, np.float32), "m": np.array([1000])}
    net = nets.model(nodes, [nets.value("x", [1000])], ["y"], weights)
    at.import_onnx(net)
    monkeypatch.setattr(onnx_known, "MAX_BYTES", 10_000)
    with pytest.raises(
        at.ModelError, match=r"node expand_z2 \(Expand\): its output of shape \[1000\] .* too large"
    ):
        at.import_onnx(net)


def test_absurd_shapes_of_inputs_and_results_are_refused() -> None:
    with pytest.raises(at.ModelError, match=r"input 'x' has shape \[1099511627776\], 4096 GB of float32"):
        at.import_onnx(nets.model([RELU], [nets.value("x", [2**40])], ["y"]))
    net = nets.one("Expand", [nets.value("x", [1])], {"n": np.array([2**40])})
    with pytest.raises(at.ModelError, match=r"node n0 \(Expand\): .*\[1099511627776\]"):
        at.import_onnx(net)


def test_a_file_may_have_as_many_nodes_as_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_scope, "MAX_NODES", 10)
    names = ["x", *(f"a{i}" for i in range(2000))]
    nodes = [
        helper.make_node("Identity" if i % 2 else "Add", [a] if i % 2 else [a, "x"], [b])
        for i, (a, b) in enumerate(pairwise(names))
    ]
    model = at.import_onnx(nets.model(nodes, [nets.value("x", [2])], [names[-1]]))
    assert len(model.graph.dag.stages) == 1000


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_too_many_open_files_are_told_with_a_remedy(
    code: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.onnx").write_bytes(nets.convolutional().SerializeToString())

    def refuse(*_: Any) -> Any:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("autotune.models.onnx_file.open_regular", refuse)
    with pytest.raises(
        at.ModelError, match=r"net\.onnx cannot be read: Too many open files.*; allow more: ulimit -n"
    ):
        at.import_onnx(tmp_path / "net.onnx")


def test_functions_that_call_each_other_many_times_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """2^21 nodes from 22 functions."""
    monkeypatch.setattr(onnx_scope, "MAX_NODES", 1000)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    body = [helper.make_node("Neg", ["a"], ["b"])]
    functions = [helper.make_function("local", "f0", ["a"], ["b"], body, opsets)]
    for i in range(1, 22):
        calls = [
            helper.make_node(f"f{i - 1}", ["a"], ["m"], domain="local"),
            helper.make_node(f"f{i - 1}", ["m"], ["b"], domain="local"),
        ]
        functions.append(helper.make_function("local", f"f{i}", ["a"], ["b"], calls, opsets))
    call = helper.make_node("f21", ["x"], ["y"], domain="local")
    net = nets.model([call], [nets.value("x", [])], ["y"], functions=functions, opset_imports=opsets)
    with pytest.raises(at.ModelError, match="functions and branches have more than 1000 nodes in all"):
        at.import_onnx(net)


# --- functions and branches -------------------------------------------------------------------


def test_operators_that_onnx_defines_by_others_are_lowered_by_these() -> None:
    """There is no row for MeanVarianceNormalization."""
    net = nets.one("MeanVarianceNormalization", [nets.value("x", [2, 3, 4, 4])])
    model = at.import_onnx(net)
    given = nets.arrays(net)
    (want,) = ReferenceEvaluator(net).run(None, given)
    (got,) = evaluate(model.graph, list(given.values()))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert "n0/EX_squared" in model.graph.origins.values()


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_whose_condition_is_known_is_taken(taken: bool) -> None:
    branches = {
        f"{name}_branch": helper.make_graph([nets.node(op, "x", "r")], name, [], [nets.value("r", [2])])
        for name, op in (("then", "Neg"), ("else", "Abs"))
    }
    nodes = [helper.make_node("If", ["c"], ["y"], **branches)]
    expect(nets.model(nodes, [nets.value("x", [2])], ["y"], {"c": np.array(taken)}))


# --- islands ----------------------------------------------------------------------------------


def run(model: Any, given: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What a model with islands computes: stages are evaluated again after every island."""
    graph = model.graph
    known = {**graph.values, **dict(zip(graph.inputs, given, strict=True))}
    for island in graph.islands:
        needed = [n for n in island.reads if n not in known]
        if needed:
            known |= _stages(graph.dag, needed, known)
        made = run_island(island, [known[n] for n in island.reads])
        known |= dict(zip((t.name for t in island.writes), made, strict=True))
    left = [n for n in graph.outputs if n not in known]
    if left:
        known |= _stages(graph.dag, left, known)
    return [known[n] for n in graph.outputs]


def _stages(dag: ComputeDAG, names: list[str], known: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors that stages compute of what is known."""
    wanted, stages = set(names), []
    for s in reversed(dag.stages):
        if any(o.name in wanted for o in s.outputs):
            stages.append(s)
            wanted |= {r.buffer for r in s.reads()}
    inputs = tuple(t for t in dag.inputs if t.name in wanted)
    part = ComputeDAG(inputs, tuple(reversed(stages)), tuple(names))
    return dict(zip(names, evaluate_dag(part, [known[t.name] for t in inputs]), strict=True))


def island_between() -> Any:
    """Relu, DeformConv, Neg. One weight is large enough to be a constant of the graph."""
    rng = np.random.default_rng(0)
    nodes = [
        nets.node("Relu", "x", "r"),
        nets.node("DeformConv", "r w u", "last", kernel_shape=[3, 3]),
        nets.node("Neg", "last", "y"),
    ]
    weights = {"w": nets.whole(rng, 16, 2, 3, 3), "u": nets.whole(rng, 1, 18, 3, 3)}
    return nets.model(nodes, [nets.value("x", [1, 2, 5, 5])], ["y"], weights, opset=19)


def test_an_operator_without_an_expression_becomes_an_island() -> None:
    net = island_between()
    with pytest.raises(
        at.ModelError, match=r"1 node cannot be imported:\n  DeformConv \(1\): deformconv_last: no expression"
    ):
        at.import_onnx(net)
    model = at.import_onnx(net, islands=True)
    (island,) = model.graph.islands
    assert (island.op, island.name) == ("DeformConv", "deformconv_last")
    assert [(t.shape, t.dtype) for t in island.writes] == [((1, 16, 3, 3), "float32")]
    assert len(island.reads) == 2 and list(model.graph.values) == ["w"]
    assert "1 islands" in repr(model)
    with pytest.raises(ValueError, match="island deformconv_last is not an expression"):
        evaluate(model.graph, [])
    given = nets.arrays(net)
    (want,) = ReferenceEvaluator(net).run(None, given)
    np.testing.assert_allclose(run(model, list(given.values()))[0], want, rtol=1e-6)


def test_a_model_may_be_one_island() -> None:
    net = nets.one("Det", [nets.value("x", [2, 3, 3])])
    model = at.import_onnx(net, islands=True)
    assert not model.graph.dag.stages and model.graph.outputs == ("y",)
    assert [t.name for t in model.graph.islands[0].writes] == ["y"]
    given = nets.arrays(net)
    np.testing.assert_array_equal(
        run(model, list(given.values()))[0], ReferenceEvaluator(net).run(None, given)[0]
    )


def test_an_island_that_fails_names_its_node() -> None:
    (island,) = at.import_onnx(island_between(), islands=True).graph.islands
    with pytest.raises(
        at.ModelError, match="DeformConv at deformconv_last failed in onnx's reference evaluator"
    ):
        run_island(island, [np.zeros((1, 2, 3), np.float32)] * len(island.reads))


@pytest.mark.parametrize(
    ("net", "match"),
    [
        (lambda: nets.one("NonZero", [nets.value("x", [3])]), "NonZero.*depends on data"),
        (
            lambda: nets.model(
                [helper.make_node("Thing", ["x"], ["y"], domain="com.other")], [nets.value("x", [3])], ["y"],
                opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.other", 1)],
            ),
            r"Thing of domain com.other \(1\): y: domain 'com.other' is not ONNX's",
        ),
        (lambda: nets.one("RandomNormalLike", [nets.value("x", [3])]), "it makes random numbers"),
        (
            lambda: nets.model(
                [nets.node("SequenceConstruct", "x", "s"), nets.node("SequenceLength", "s", "y")],
                [nets.value("x", [3])],
                ["y"],
            ),
            r"SequenceConstruct \(1\): .*: sequences and optional values are not supported",
        ),
    ],
    ids=["data", "domain", "random", "sequence"],
)  # fmt: skip
def test_what_cannot_be_an_island_is_refused_with_islands_too(net: Any, match: str) -> None:
    for islands in (False, True):
        with pytest.raises(at.ModelError, match=match):
            at.import_onnx(net(), islands=islands)


# --- refusals ---------------------------------------------------------------------------------


def test_all_unsupported_operators_are_told_at_once() -> None:
    """Also those that read what another unsupported one would make."""
    nodes = [
        helper.make_node("Det", ["x"], ["a"], name="first"),
        helper.make_node("Det", ["x"], ["b"], name="second"),
        helper.make_node("Add", ["a", "b"], ["c"], name="sum"),
        helper.make_node("DeformConv", ["x4", "g", "o"], ["d"], name="grid"),
        helper.make_node("Unique", ["c"], ["e"], name="after"),
        helper.make_node("Loop", ["", "t"], ["l"], name="turns", body=helper.make_graph(
            [nets.node("Identity", "cond", "again"), nets.node("Identity", "t2", "scan")], "body",
            [nets.value("i", [], TensorProto.INT64), nets.value("cond", [], TensorProto.BOOL)],
            [nets.value("again", [], TensorProto.BOOL), nets.value("scan", [])])),
    ]  # fmt: skip
    nodes.insert(0, nets.node("Neg", "one", "t2"))
    inputs = [
        nets.value("x", [1, 2, 2]),
        nets.value("x4", [1, 1, 2, 2]),
        nets.value("g", [1, 1, 1, 1]),
        nets.value("o", [1, 2, 2, 2]),
    ]
    weights = {"t": np.array(True), "one": np.array(1.0, np.float32)}
    net = nets.model(nodes, inputs, ["e", "d", "l"], weights, opset=19)
    with pytest.raises(at.ModelError) as err:
        at.import_onnx(net)
    text = str(err.value)
    assert text.startswith("model 'net': 5 nodes cannot be imported:\n")
    for line in (
        "  Det (2): first, second: no expression for it",
        "  DeformConv (1): grid: ",
        "  Unique (1): after: ",
        "  Loop (1): turns: control flow is not supported",
    ):
        assert line in text, text
    assert "islands=True" in text


@pytest.mark.parametrize(
    ("elem", "name"),
    [(TensorProto.UINT64, "uint64"), (TensorProto.STRING, "string"), (TensorProto.COMPLEX64, "complex64"),
     (TensorProto.FLOAT8E4M3FNUZ, "float8e4m3fnuz"), (TensorProto.UINT4, "uint4")],
)  # fmt: skip
def test_types_that_are_not_supported_are_named(elem: int, name: str) -> None:
    net = nets.model([nets.node("Identity", "x", "y")], [nets.value("x", [2], elem)], ["y"])
    with pytest.raises(at.ModelError, match=f"input 'x' has type {name}, which is not supported; use one of"):
        at.import_onnx(net)
    cast = nets.one("Cast", [nets.value("x", [2])], to=elem)
    with pytest.raises(at.ModelError, match=r"Cast \(1\): n0: type .* is not supported"):
        at.import_onnx(cast)


def test_a_shape_that_is_an_input_is_refused_by_name() -> None:
    net = nets.one("Reshape", [nets.value("x", [4]), nets.value("s", [2], TensorProto.INT64)])
    with pytest.raises(at.ModelError, match=r"Reshape \(1\): n0: its shape must be known at import"):
        at.import_onnx(net)


def test_control_flow_on_data_is_refused() -> None:
    branches = {
        f"{name}_branch": helper.make_graph([nets.node("Neg", "x", "r")], name, [], [nets.value("r", [2])])
        for name in ("then", "else")
    }
    net = nets.model(
        [helper.make_node("If", ["c"], ["y"], name="which", **branches)],
        [nets.value("x", [2]), nets.value("c", [], TensorProto.BOOL)],
        ["y"],
    )
    for islands in (False, True):
        with pytest.raises(at.ModelError, match=r"If \(1\): which: control flow is not supported"):
            at.import_onnx(net, islands=islands)


@pytest.mark.parametrize(
    ("op", "inputs", "weights", "attributes", "match"),
    [
        ("Conv", [(1, 3, 4, 4)], {"w": np.zeros((2, 4, 3, 3), np.float32)}, {}, "3 channels do not fit"),
        ("Conv", [(1, 3, 4, 4)], {"w": np.zeros((2, 3, 3, 3), np.float32)}, {"strides": [0, 1]}, "above 0"),
        ("Conv", [(1, 3, 2, 2)], {"w": np.zeros((2, 3, 3, 3), np.float32)}, {}, "no window"),
        ("MatMul", [(2, 3), (4, 5)], {}, {}, "inner extents differ"),
        ("Reshape", [(2, 3)], {"s": np.array([4])}, {}, "has 6 elements, which do not fit"),
        ("Reshape", [(2, 3)], {"s": np.array([-1, 4])}, {}, r"\[2, 3\] does not fit shape \[-1, 4\]"),
        ("Transpose", [(2, 3)], {}, {"perm": [0, 0]}, "does not permute"),
        ("Concat", [(2, 3), (3, 3)], {}, {"axis": 1}, "does not join"),
        ("Softmax", [(2, 3)], {}, {"axis": 5}, "axis 5 is outside -2..1"),
        ("Squeeze", [(2, 3)], {"a": np.array([0])}, {}, "is not of extent 1"),
        ("Add", [(2, 3), (4,)], {}, {}, "broadcast"),
        ("Split", [(4,)], {"n": np.array([1, 2])}, {}, "do not split"),
    ],
)
def test_nodes_that_do_not_fit_their_inputs_are_named(
    op: str, inputs: list[Any], weights: dict[str, Any], attributes: dict[str, Any], match: str
) -> None:
    net = nets.one(op, [nets.value(f"x{i}", s) for i, s in enumerate(inputs)], weights, **attributes)
    with pytest.raises(at.ModelError, match=rf"^model 'net': node n0 \({op}\): .*{match}"):
        at.import_onnx(net)


@pytest.mark.parametrize("op", ["Shape", "Relu", "Dropout", "Size", "Where"])
def test_inputs_that_a_call_of_a_function_leaves_out_are_named(op: str) -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    body = [helper.make_node(op, ["b", "a", "a"] if op == "Where" else ["b"], ["s"], name="n0")]
    function = helper.make_function("local", "f", ["a", "b"], ["s"], body, opsets)
    call = helper.make_node("f", ["x"], ["y"], domain="local", name="call")
    net = nets.model([call], [nets.value("x", [1])], ["y"], functions=[function], opset_imports=opsets)
    with pytest.raises(at.ModelError, match=rf"node call/n0 \({op}\): its input .* is missing"):
        at.import_onnx(net)


def test_a_weight_behind_an_identity_is_not_copied() -> None:
    nodes = [nets.node("Identity", "w", "v"), nets.node("Dropout", "v", "u"), nets.node("Add", "x u", "y")]
    net = nets.model(nodes, [nets.value("x", [3])], ["y"], {"w": np.arange(3, dtype=np.float32)})
    (known,) = expect(net).graph.values.values()
    assert not known.flags.owndata


def test_without_onnx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "autotune.models.onnx_file", None)
    with pytest.raises(ImportError, match=r"needs the extra onnx: pip install 'autotune-compiler\[onnx\]'"):
        at.import_onnx(b"")


def test_importing_autotune_imports_no_onnx() -> None:
    code = "import sys, autotune; autotune.ModelError; assert 'onnx' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
