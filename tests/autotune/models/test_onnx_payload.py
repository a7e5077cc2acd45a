"""Payloads of islands in saved models: what is no island is refused when the file is read."""

from __future__ import annotations

import base64
import builtins
import json
import random
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models as nets
import pytest
from needs import imported

import autotune as at
from autotune.models import fallback
from autotune.models.module import Module
from autotune.models.outline import outline
from autotune.models.program import Program
from autotune.models.saved import load_model
from autotune.targets import detect

onnx = imported("onnx")
from onnx import AttributeProto, TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

FLOAT = TensorProto.FLOAT


def module_of(net: Any) -> Module:
    """A model that is one island."""
    model = at.import_onnx(net, islands=True)
    (island,) = model.graph.islands
    assert not model.graph.dag.stages
    ol = outline(model.graph, [island])
    program = Program.of(ol, [], model.graph.values.__getitem__, fallback.run_island)
    return Module(program, detect(1), "net", [])


def deform() -> Any:
    rng = np.random.default_rng(0)
    weights = {"w": nets.whole(rng, 4, 2, 3, 3), "u": nets.whole(rng, 1, 18, 3, 3)}
    net = [nets.node("DeformConv", "x w u", "y", kernel_shape=[3, 3])]
    return nets.model(net, [nets.value("x", [1, 2, 5, 5])], ["y"], weights, opset=19)


def det() -> Any:
    return nets.one("Det", [nets.value("x", [2, 3, 3])])


def cumulative() -> Any:
    return nets.one("CumSum", [nets.value("x", [2, 5]), nets.value("axis", [], TensorProto.INT64)])


def tree(**changes: Any) -> Any:
    """Two leafs below a node, of ai.onnx.ml."""
    attributes = {
        "n_targets": 1, "nodes_featureids": [0, 0, 0], "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values": [0.5, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0],
        "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [3.0, 4.0],
    }  # fmt: skip
    attributes |= changes
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return nets.model([node], [nets.value("x", [3, 1])], ["y"], opset_imports=imports)


@pytest.mark.parametrize("net", [deform, det, cumulative, tree])
def test_islands_are_read_back_and_run(net: Callable[[], Any], tmp_path: Path) -> None:
    proto = net()
    module_of(proto).save(tmp_path / "net.at")
    loaded = load_model(tmp_path / "net.at")
    given = nets.arrays(proto)
    if "axis" in given:
        given["axis"] = np.array(1)
    np.testing.assert_array_equal(
        loaded(*given.values()),
        ReferenceEvaluator(proto).run(None, given)[0].reshape(loaded.outputs[0].shape),
    )


def test_an_evaluator_that_cannot_be_made_names_the_island(monkeypatch: pytest.MonkeyPatch) -> None:
    (island,) = at.import_onnx(det(), islands=True).graph.islands
    with pytest.raises(at.ModelError, match=r"Det at n0 failed in onnx's reference evaluator"):
        fallback.run_island(replace(island, payload=b"\x08\x0a:\x00x"), [np.zeros((2, 3, 3), np.float32)])


# --- hostile payloads -------------------------------------------------------------------------

Change = Callable[[Any, random.Random], None]
PLACES = ("/etc/passwd", "etc/passwd", "../../etc/passwd", "secret.bin", "./secret.bin", "sub/../secret.bin")
HUGE = (2**20 + 7, 2**31, 2**40, 2**62, 2**63 - 1)


def outside(rng: random.Random, shape: tuple[int, ...] = (3,)) -> Any:
    """A tensor whose data lies in another file."""
    t = TensorProto(name="w", data_type=FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    t.external_data.add(key="location", value=rng.choice(PLACES))
    for key in rng.sample(["offset", "length"], rng.randint(0, 2)):
        t.external_data.add(key=key, value=str(rng.choice((0, 4, 12, 2**40, -1))))
    return t


def sparse(values: Any) -> Any:
    at = numpy_helper.from_array(np.array([0, 1, 2]), "i")
    return onnx.SparseTensorProto(values=values, indices=at, dims=[3])


def dense(n: int = 3) -> Any:
    return numpy_helper.from_array(np.ones(n, np.float32), "v")


def attribute(node: Any, name: str, kind: str) -> Any:
    made = node.attribute.add(name=name, type=getattr(AttributeProto, kind))
    return made


def inner(rng: random.Random) -> Any:
    """A graph that reads another file, or draws numbers."""
    nodes = [helper.make_node(rng.choice(("RandomNormalLike", "Identity")), ["x"], ["z"])]
    out = helper.make_tensor_value_info("z", FLOAT, None)
    return helper.make_graph(nodes, "g", [], [out], [outside(rng)] if rng.random() < 0.5 else [])


def constant_outside(m: Any, rng: random.Random) -> None:
    """The node is a Constant whose value lies in another file."""
    alone(m, helper.make_node("Constant", [], ["y"], value=outside(rng)))


def alone(m: Any, node: Any, keep: int = 0, weights: tuple[Any, ...] = ()) -> None:
    """The model of another node, with the outputs of the one before."""
    del m.graph.input[keep:], m.graph.initializer[:]
    m.graph.initializer.extend(weights)
    m.graph.node[0].CopyFrom(node)


def initializer_outside(m: Any, rng: random.Random) -> None:
    if rng.random() < 0.5 or not m.graph.input:
        m.graph.initializer.append(outside(rng))
        m.graph.node[0].input.append("w")
    else:
        t = outside(rng, tuple(d.dim_value for d in m.graph.input[-1].type.tensor_type.shape.dim))
        t.name = m.graph.input.pop().name
        m.graph.initializer.append(t)


def attribute_outside(m: Any, rng: random.Random) -> None:
    if rng.random() < 0.5:
        attribute(m.graph.node[0], "value", "TENSOR").t.CopyFrom(outside(rng))
    else:
        attribute(m.graph.node[0], "values", "TENSORS").tensors.append(outside(rng))


def sparse_data(m: Any, rng: random.Random) -> None:
    kind = rng.randrange(3)
    made = sparse(outside(rng) if rng.random() < 0.5 else dense())
    if kind == 0:
        m.graph.sparse_initializer.append(made)
    elif kind == 1:
        attribute(m.graph.node[0], "sparse_value", "SPARSE_TENSOR").sparse_tensor.CopyFrom(made)
    else:
        attribute(m.graph.node[0], "a", "SPARSE_TENSORS").sparse_tensors.append(made)


def graphs(m: Any, rng: random.Random) -> None:
    """Control flow, or a graph where no operator has one."""
    op = rng.choice(("Loop", "Scan", "If", "SequenceMap", m.graph.node[0].op_type))
    m.graph.node[0].op_type = op
    name = {"If": "then_branch"}.get(op, "body")
    if rng.random() < 0.7:
        attribute(m.graph.node[0], name, "GRAPH").g.CopyFrom(inner(rng))
    else:
        attribute(m.graph.node[0], name, rng.choice(("GRAPHS", "INT"))).graphs.append(inner(rng))


def endless_loop(m: Any, rng: random.Random) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Identity", ["a"], ["b"])],
        "g",
        [
            nets.value("i", [], TensorProto.INT64),
            nets.value("c", [], TensorProto.BOOL),
            nets.value("a", None),
        ],
        [nets.value("d", [], TensorProto.BOOL), nets.value("b", None)],
    )
    times = numpy_helper.from_array(np.array(rng.choice((2**62, 2**40))), "times")
    go_on = numpy_helper.from_array(np.array(True), "go_on")
    loop = helper.make_node("Loop", ["times", "go_on", m.graph.input[0].name], ["y"], body=body)
    alone(m, loop, 1, (times, go_on))


def functions(m: Any, rng: random.Random) -> None:
    node = helper.make_node("Identity", ["a"], ["b"])
    made = helper.make_function("", m.graph.node[0].op_type, ["a"], ["b"], [node], list(m.opset_import))
    m.functions.append(made)
    if rng.random() < 0.5:
        made.domain = m.graph.node[0].domain = "local"
        m.opset_import.append(helper.make_opsetid("local", 1))


def nodes(m: Any, rng: random.Random) -> None:
    kind = rng.randrange(3)
    if kind == 0:
        del m.graph.node[:]
    elif kind == 1:
        m.graph.node.append(helper.make_node("Identity", [m.graph.input[0].name], ["z"]))
    else:
        m.graph.node.insert(0, helper.make_node("Constant", [], ["z"], value=outside(rng)))


def domains(m: Any, rng: random.Random) -> None:
    where = rng.choice(("com.evil", "com.microsoft", "ai.onnx.preview", "ai.onnx.ml", "os", "..", "\u2028"))
    m.graph.node[0].domain = where
    if rng.random() < 0.7:
        m.opset_import[0].domain = where
    m.opset_import[0].version = rng.choice((1, 3, 22, 2**31, 2**62, 0, -1))


def versions(m: Any, rng: random.Random) -> None:
    if rng.random() < 0.5:
        m.opset_import.append(helper.make_opsetid(rng.choice(("", "ai.onnx.ml", "x")), 1))
    else:
        m.opset_import[0].version = rng.choice((0, -1, 2**31, 2**62))


def operators(m: Any, rng: random.Random) -> None:
    """Another operator of ONNX: random numbers, strings, sequences, images."""
    m.graph.node[0].op_type = rng.choice(
        ("RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout", "RegexFullMatch",
         "ImageDecoder", "StringSplit", "SequenceConstruct", "Optional", "NonZero", "Unique", "__import__")
    )  # fmt: skip


BOMBS: tuple[tuple[str, dict[str, Any], tuple[Any, ...]], ...] = (
    ("Range", {}, (0, "N", 1)),
    ("ConstantOfShape", {}, (["N"],)),
    ("ConstantOfShape", {}, (["N", "N"],)),
    ("Expand", {}, (1.0, ["N"])),
    ("Tile", {}, ([1.0], ["N"])),
    ("Pad", {}, ([1.0], [0, "N"])),
    ("OneHot", {}, ([1], "N", [0.0, 1.0])),
    ("HannWindow", {}, ("N",)),
    ("Resize", {}, ([1.0], [], ["F"])),
    ("Upsample", {}, ([1.0], ["F"])),
    ("Col2Im", {}, ([[[1.0]]], ["N"], [1])),
    ("TfIdfVectorizer", {"max_skip_count": "N", "max_gram_length": 2, "min_gram_length": 2, "mode": "TF",
                         "ngram_counts": [0], "ngram_indexes": [0], "pool_int64s": [1]}, ([1, 2],)),
    ("AveragePool", {"kernel_shape": ["N"], "pads": ["N", "N"]}, ([[[1.0]]],)),
    ("MaxPool", {"kernel_shape": [1], "dilations": ["N"], "pads": [0, 0]}, ([[[1.0]]],)),
    ("LpPool", {"kernel_shape": ["N"], "pads": ["N", 0]}, ([[[1.0]]],)),
    ("Conv", {"pads": ["N", "N"], "strides": ["N"]}, ([[[1.0]]], [[[1.0]]])),
    ("ConvTranspose", {"pads": ["N", "N"], "strides": ["N"]}, ([[[1.0]]], [[[1.0]]])),
    ("Einsum", {"equation": "a,b,c,d,e,f,g,h->"}, tuple([1.0] * 64 for _ in range(8))),
    ("RandomNormal", {"shape": ["N"]}, ()),
    ("RandomUniform", {"shape": ["N", "N"]}, ()),
    ("EyeLike", {"dtype": 1, "k": "N"}, ([1.0],)),
    ("MelWeightMatrix", {}, ("N", "N", 8000, 0.0, 1.0)),
    ("Multinomial", {"sample_size": "N"}, ([[1.0]],)),
    ("SpaceToDepth", {"blocksize": "N"}, ([[[[1.0]]]],)),
    ("RoiAlign", {"sampling_ratio": "N"}, ([[[[1.0]]]], [[0.0, 0.0, 1.0, 1.0]], [0])),
    ("RoiAlign", {}, ([[[[1.0]]]], [[0.0, 0.0, 1e9, 1e9]], [0])),
    ("MaxUnpool", {"kernel_shape": ["N"]}, ([[[1.0]]], [[[0]]])),
    ("CenterCropPad", {}, ([1.0], ["N"])),
)  # fmt: skip


def filled(x: Any, n: int) -> Any:
    if isinstance(x, list):
        return [filled(e, n) for e in x]
    return n if x == "N" else float(min(n, 2**40)) if x == "F" else x


def bombs(m: Any, rng: random.Random) -> None:
    """Little in, and much out or much to do. What it says that it writes stays small."""
    op, attributes, inputs = rng.choice(BOMBS)
    n = rng.choice(HUGE)
    arrays = [np.asarray(filled(x, n)) for x in inputs]
    arrays = [a.astype(np.float32) if a.dtype.kind == "f" else a.astype(np.int64) for a in arrays]
    names = [f"i{k}" for k in range(len(arrays))]
    node = helper.make_node(op, names, ["y"], **{k: filled(v, n) for k, v in attributes.items()})
    held = tuple(numpy_helper.from_array(a, k) for k, a in zip(names, arrays, strict=True))
    alone(m, node, 0, held)


def bombs_that_fit(m: Any, rng: random.Random) -> None:
    """Much to do for outputs as small as they are said to be."""
    x, y = m.graph.input[0].name, m.graph.output[0].name
    n = rng.choice(HUGE)
    op, more = rng.choice(
        (("AveragePool", {"kernel_shape": [n], "pads": [n, n - 1], "strides": [n]}),
         ("MaxPool", {"kernel_shape": [2], "dilations": [n], "pads": [n, 0]}),
         ("Einsum", {"equation": "...->..."}), ("Conv", {"pads": [n, n]}),
         ("RegexFullMatch", {"pattern": "(a+)+$"}),
         ("Col2Im", {"pads": [n, n]}), ("RoiAlign", {"sampling_ratio": n}), ("Resize", {"antialias": 1}))
    )  # fmt: skip
    del m.graph.input[1:]
    alone(m, helper.make_node(op, [x], [y], **more), 1)


def trees(m: Any, rng: random.Random) -> None:
    """A walk that comes back to where it was."""
    change: dict[str, Any] = rng.choice(
        ({"nodes_truenodeids": [0, 0, 0]}, {"nodes_falsenodeids": [0, 0, 0]},
         {"nodes_truenodeids": [2, 0, 0]}, {"nodes_modes": ["BRANCH_LEQ"] * 3}, {"nodes_nodeids": [1, 1, 1]})
    )  # fmt: skip
    m.graph.node[0].CopyFrom(tree(**change).graph.node[0])


def windows(m: Any, rng: random.Random) -> None:
    """A deformed convolution that reaches far."""
    n = rng.choice(HUGE)
    change: dict[str, Any] = rng.choice(
        ({"pads": [n, 0, 0, 0], "strides": [n, 1]}, {"dilations": [n, n], "pads": [n, n, n, n]},
         {"kernel_shape": [n, n]}, {"kernel_shape": [3, 3, 3]}, {"pads": [n]}, {"strides": [0, 1]})
    )  # fmt: skip
    kept = {a.name: helper.get_attribute_value(a) for a in m.graph.node[0].attribute}
    del m.graph.node[0].attribute[:]
    m.graph.node[0].attribute.extend(helper.make_attribute(k, v) for k, v in (kept | change).items())


def types(m: Any, rng: random.Random) -> None:
    kind = rng.randrange(7)
    port = rng.choice(list(m.graph.input))
    if kind == 0:
        port.type.tensor_type.shape.dim.add(dim_value=2)
    elif kind == 1:
        port.type.tensor_type.elem_type = rng.choice((0, 8, 16, 10, 11, 17, 2**20))
    elif kind == 2:
        port.ClearField("type")
    elif kind == 3:
        port.type.sequence_type.elem_type.tensor_type.elem_type = FLOAT
    elif kind == 4:
        port.type.tensor_type.ClearField("shape")
    elif kind == 5:
        for d in m.graph.input[0].type.tensor_type.shape.dim:
            d.dim_value = rng.choice(HUGE)
    else:
        m.graph.output[0].type.CopyFrom(helper.make_tensor_type_proto(rng.choice((1, 7)), [2, 2, 2]))


def names(m: Any, rng: random.Random) -> None:
    kind = rng.randrange(5)
    node = m.graph.node[0]
    if kind == 0:
        node.input[0] = rng.choice(("", "nothing", "y"))
    elif kind == 1:
        node.output[0] = rng.choice(("", "z"))
    elif kind == 2:
        node.output.append("more")
    elif kind == 3:
        m.graph.output.append(onnx.ValueInfoProto(name="more"))
    else:
        m.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), m.graph.input[0].name))


def weights(m: Any, rng: random.Random) -> None:
    """A known input whose values are not there."""
    t = numpy_helper.from_array(np.ones(3, np.float32), "w")
    t.dims[0] = rng.choice((*HUGE, -1))
    t.data_type = rng.choice((1, 7, 9, 22, 8, 99))
    m.graph.initializer.append(t)
    m.graph.node[0].input.append("w")


def attributes(m: Any, rng: random.Random) -> None:
    node = m.graph.node[0]
    kind = rng.randrange(3)
    if kind == 0:
        attribute(node, "made_up", "INT").i = 3
    elif kind == 1:
        attribute(node, "exclusive", "INT").ref_attr_name = "a"
    else:
        attribute(node, "t", "TYPE_PROTO").tp.tensor_type.elem_type = FLOAT


# {what is done: what must be told}.
KINDS: dict[Change, str] = {
    constant_outside: "lies in another file",
    initializer_outside: "lies in another file",
    attribute_outside: "lies in another file|has a field 'tensors'",
    sparse_data: "has a field 'sparse_",
    graphs: "has a field 'g",
    endless_loop: "has a field 'g'",
    functions: "has a field 'functions'",
    nodes: "nodes, not one",
    domains: "does not run as an island|imports other domains",
    versions: "imports other domains|version .* of domain .* has no",
    operators: "does not run as an island|makes random numbers",
    bombs: "does not run as an island|it writes .*, and the island|its (sampling_ratio|max_skip_count) is not"
    "|has no|makes random|is no tensor, or whose shape depends on data",
    bombs_that_fit: "does not run as an island|its (sampling_ratio|max_skip_count) is not|depends on data",
    trees: "are no trees",
    windows: "windows|it writes .*, and the island",
    types: "it (reads|writes) .*, and the island|is no tensor, or whose shape|is not supported",
    names: "does not read exactly|does not write exactly|have one name",
    weights: "needs|cannot be read|not negative|does not have",
    attributes: "Unrecognized attribute|has a field",
}
OWN = {trees: "tree", windows: "deform"}  # kinds that need a payload of their own


def hostile(payload: bytes, kind: Change, seed: int) -> bytes:
    """A payload that is none."""
    model = onnx.ModelProto.FromString(payload)
    kind(model, random.Random(seed))
    return bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Saved models of one island each."""
    folder = tmp_path_factory.mktemp("islands")
    made = {net.__name__: folder / f"{net.__name__}.at" for net in (deform, det, cumulative, tree)}
    for name, path in made.items():
        module_of(globals()[name]()).save(path)
    return made


def rewritten(file: Path, to: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The file with the step of its island changed."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(to, "w") as new:
        v = json.loads(old.read("model.json"))
        change(v["steps"][0])
        new.writestr("model.json", json.dumps(v))
        for name in set(old.namelist()) - {"model.json"}:
            new.writestr(name, old.read(name))
    return to


@pytest.fixture
def nothing_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with files that are none of a payload's business. Nothing is evaluated."""
    (tmp_path / "etc").mkdir()
    for name in ("secret.bin", "etc/passwd"):
        np.zeros(16, np.float32).tofile(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    real = builtins.open

    def opened(path: Any, *rest: Any, **more: Any) -> Any:
        assert not re.search("secret|passwd", str(path)), path
        return real(path, *rest, **more)

    def evaluated(*_: Any, **__: Any) -> Any:
        raise AssertionError("a payload is evaluated")

    monkeypatch.setattr(builtins, "open", opened)
    monkeypatch.setattr("onnx.reference.ReferenceEvaluator.__init__", evaluated)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_hostile_payloads_are_refused_when_the_file_is_read(
    files: dict[str, Path], nothing_read: Path, kind: Change
) -> None:
    for seed in range(12):
        file = files[OWN.get(kind, ("det", "cumulative", "deform")[seed % 3])]

        def change(step: dict[str, Any], seed: int = seed) -> None:
            data = hostile(base64.b64decode(step["payload"]), kind, seed)
            step["payload"] = base64.b64encode(data).decode()
            graph = onnx.ModelProto.FromString(data).graph
            step["op"] = next((n.op_type for n in graph.node), "none")
            if kind not in (types, names):  # what is read is not what is wrong
                del step["reads"][len(graph.input) :]

        path = rewritten(file, nothing_read / "net.at", change)
        with pytest.raises(at.ModelError, match=f"the payload of island .* is refused: .*({KINDS[kind]})"):
            load_model(path)


def test_payloads_that_are_no_models_are_refused(files: dict[str, Path], nothing_read: Path) -> None:
    def refused(change: Callable[[dict[str, Any]], None], match: str) -> None:
        with pytest.raises(at.ModelError, match=match):
            load_model(rewritten(files["det"], nothing_read / "net.at", change))

    for data in (b"", b"\0", b"not a model", bytes(1000)):
        text = base64.b64encode(data).decode()
        refused(
            lambda step, text=text: step.update(payload=text), "is refused: it (is no ONNX model|has 0 nodes)"
        )
    refused(lambda step: step.update(op="Neg"), "the payload of island Neg is refused: its node is 'Det'")
    refused(lambda step: step["writes"][0].__setitem__(1, [1, 2]), "it writes float32|written as float32")
    refused(lambda step: step["reads"].clear(), r"it reads float32\[2, 3, 3\], and the island $|it reads")
