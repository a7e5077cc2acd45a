"""Operators of ONNX whose places are data, and recurrent ones: forms that its own cases leave out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_models as nets
import pytest
from graph_meaning import evaluate
from needs import imported
from onnx_cases import cases_of
from onnx_cases import check as check_case

import autotune as at

onnx = imported("onnx")
from onnx import TensorProto, helper  # noqa: E402

RNG = np.random.default_rng(0)
INT64 = TensorProto.INT64


def compared(net: Any, given: dict[str, np.ndarray]) -> None:
    """Import a model and compare it with ONNX Runtime."""
    runtime = imported("onnxruntime")
    model = at.import_onnx(net)
    got = evaluate(model.graph, [given[p.name] for p in model.inputs])
    session = runtime.InferenceSession(net.SerializeToString(), providers=["CPUExecutionProvider"])
    for have, want in zip(got, session.run(None, given), strict=True):
        assert (have.shape, have.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)


def refused(net: Any) -> str:
    with pytest.raises(at.ModelError) as err:
        at.import_onnx(net)
    return str(err.value)


# --- ONNX's own cases -------------------------------------------------------------------------

# {module of onnx: operator}.
CASES = {
    "topk": "TopK", "scatternd": "ScatterND", "scatterelements": "ScatterElements", "scatter": "Scatter",
    "tensorscatter": "TensorScatter", "maxunpool": "MaxUnpool", "maxpool": "MaxPool", "col2im": "Col2Im",
    "gridsample": "GridSample", "affinegrid": "AffineGrid", "lstm": "LSTM", "gru": "GRU", "rnn": "RNN",
    "cumsum": "CumSum", "dft": "DFT", "stft": "STFT", "asin": "Asin", "acos": "Acos", "atan": "Atan",
    "mod": "Mod",
}  # fmt: skip


@pytest.mark.slow
def test_onnx_has_no_case_that_is_not_right() -> None:
    refused_: dict[str, str] = {}
    seen = set()
    for case in cases_of(CASES):
        outcome = check_case(case)
        seen.add(case.model.graph.node[0].op_type)
        if outcome not in ("ok", "bound"):
            refused_[case.name] = outcome
    assert seen == set(CASES.values())
    assert all("which is not supported; use one of" in why for why in refused_.values()), refused_  # uint64


# --- recurrent --------------------------------------------------------------------------------

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent(
    op: str, *, lengths: Any = None, bias: bool = True, first: bool = True, peephole: bool = False,
    steps: int = 4, known_lengths: bool = False, **how: Any,
) -> tuple[Any, dict[str, np.ndarray]]:  # fmt: skip
    """A model of one node, and arrays for its inputs."""
    batch, inside, n = 3, 5, 2
    d = 2 if how.get("direction") == "bidirectional" else 1

    def some(*shape: int) -> np.ndarray:
        return RNG.standard_normal(shape).astype(np.float32)

    w = {"w": some(d, GATES[op] * n, inside), "r": some(d, GATES[op] * n, n)}
    names, inputs = ["x", "w", "r"], [nets.value("x", [steps, batch, inside])]
    given = {"x": some(steps, batch, inside)}

    def add(name: str, there: bool, array: np.ndarray, port: bool = False) -> None:
        names.append(name if there else "")
        if there and port:
            inputs.append(
                nets.value(name, array.shape, TensorProto.INT32 if name == "n" else TensorProto.FLOAT)
            )
            given[name] = array
        elif there:
            w[name] = array

    add("b", bias, some(d, 2 * GATES[op] * n))
    add("n", lengths is not None, np.asarray(lengths or [], np.int32), port=not known_lengths)
    add("h0", first, some(d, batch, n), port=True)
    if op == "LSTM":
        add("c0", first, some(d, batch, n), port=True)
        add("p", peephole, some(d, 3 * n))
    outputs = ["y", "h", "c"][: 3 if op == "LSTM" else 2]
    node = helper.make_node(op, names, outputs, name="layer", hidden_size=n, **how)
    return nets.model([node], inputs, outputs, w), given


@pytest.mark.parametrize(
    ("op", "how"),
    [
        ("RNN", {"direction": "bidirectional"}),
        ("RNN", {"activations": ["Relu"], "clip": 0.5, "first": False}),
        ("GRU", {"direction": "bidirectional", "linear_before_reset": 1}),
        ("GRU", {"direction": "reverse", "bias": False, "lengths": [4, 2, 1]}),
        ("GRU", {"activations": ["HardSigmoid", "Softsign"], "lengths": [1, 4, 3], "clip": 0.7}),
        ("LSTM", {"direction": "bidirectional", "lengths": [4, 2, 1]}),
        ("LSTM", {"direction": "bidirectional", "lengths": [4, 4, 4], "known_lengths": True}),
        ("LSTM", {"peephole": True, "clip": 0.6}),
        ("LSTM", {"input_forget": 1, "bias": False, "first": False}),
        (
            "LSTM",
            {
                "activations": ["HardSigmoid", "ScaledTanh", "LeakyRelu"],
                "activation_alpha": [0.3, 1.5, 0.1],
                "activation_beta": [0.4, 0.8],
            },
        ),
    ],
)
def test_recurrent_layers_are_those_of_onnx_runtime(op: str, how: dict[str, Any]) -> None:
    compared(*recurrent(op, **how))


def test_recurrent_layers_that_do_not_fit_are_refused() -> None:
    assert "activation foo is not supported" in refused(recurrent("RNN", activations=["Foo"])[0])
    net, _ = recurrent("GRU")
    net.graph.node[0].attribute.append(helper.make_attribute("direction", "bidirectional"))
    assert "for direction 'bidirectional'" in refused(net)


# --- places -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_updates_of_one_place_are_folded(reduction: str) -> None:
    ids = np.array([[0, -1], [2, 0], [2, 2]])
    x, i = nets.value("x", [3, 4]), nets.value("i", [3, 2], INT64)
    u = nets.value("u", [3, 2])
    net = nets.one("ScatterElements", [x, i, u], axis=1, reduction=reduction, opset=18)
    given = {"x": nets.whole(RNG, 3, 4), "i": ids, "u": nets.whole(RNG, 3, 2)}
    compared(net, given)
    net = nets.one("ScatterND", [x, i, nets.value("u", [3])], reduction=reduction, opset=18)
    compared(net, {**given, "u": nets.whole(RNG, 3), "i": np.array([[0, 1], [0, -3], [2, 3]])})


def test_known_elements_are_gathered_of_a_part() -> None:
    """As exporters write the types of tokens: fewer indices than the known data has."""
    data, ids = nets.whole(RNG, 3, 8), np.array([[5, -8, 7], [0, 1, 1]])
    nodes = [nets.node("GatherElements", "d i", "g", axis=1), nets.node("Add", "x g", "y")]
    net = nets.model(nodes, [nets.value("x", [2, 3])], ["y"], {"d": data, "i": ids})
    (got,) = evaluate(at.import_onnx(net).graph, [np.zeros((2, 3), np.float32)])
    np.testing.assert_array_equal(got, np.take_along_axis(data[:2], ids, 1))
    net = nets.model(nodes, [nets.value("x", [2, 3])], ["y"], {"d": data, "i": ids + 3})
    assert "GatherElements): it cannot be evaluated: index 8 is out of bounds" in refused(net)


def test_the_largest_of_an_older_version() -> None:
    """How many is an attribute, and of equals the first ones count."""
    net = nets.one("TopK", [nets.value("x", [2, 6])], opset=9, k=3, axis=1)
    net.graph.node[0].output.append("i")
    net.graph.output.append(nets.value("i", [2, 3], INT64))
    model = at.import_onnx(net)
    x = np.array([[1, 3, 3, 0, 3, 2], [np.nan, 1, np.inf, 1, -np.inf, 1]], np.float32)
    values, places = evaluate(model.graph, [x])
    assert places.tolist() == [[1, 2, 4], [0, 2, 1]]
    np.testing.assert_array_equal(values, np.take_along_axis(x, places, 1))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("length", [None, 4, 8])
def test_transforms_of_other_lengths_are_cut_or_padded(parts: int, length: int | None) -> None:
    x = RNG.standard_normal((2, 5, parts)).astype(np.float32)
    z = (x[..., 0] + 1j * x[..., 1]) if parts == 2 else x[..., 0]
    known = {} if length is None else {"n": np.array(length)}
    net = nets.one("DFT", [nets.value("x", [2, 5, parts])], known, axis=1)
    (got,) = evaluate(at.import_onnx(net).graph, [x])
    want = np.fft.fft(z, length, axis=1)
    np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [6, 7])
def test_the_inverse_of_one_side_is_real(n: int) -> None:
    x = RNG.standard_normal((2, 4, 2)).astype(np.float32)
    known = {"n": np.array(n), "axis": np.array(1)}
    net = nets.one("DFT", [nets.value("x", [2, 4, 2])], known, 20, inverse=1, onesided=1)
    (got,) = evaluate(at.import_onnx(net).graph, [x])
    want = np.fft.irfft(x[..., 0] + 1j * x[..., 1], n, axis=1)
    np.testing.assert_allclose(got[..., 0], want, rtol=1e-5, atol=1e-5)


def top(n: int, *more: Any, **known: Any) -> Any:
    """The k largest of n."""
    names = " ".join(["x", *(m.name for m in more), *known])
    node = nets.node("TopK", names, "y i")
    return nets.model([node], [nets.value("x", [n]), *more], ["y"], known)


@pytest.mark.parametrize(
    ("net", "why"),
    [
        (lambda: top(4, k=np.array([5])), "K is 5, of 4 elements"),
        (lambda: nets.one("DFT", [nets.value("x", [2, 5000, 1])], axis=1), "5000 elements, more than 4096"),
        (lambda: nets.one("DFT", [nets.value("x", [2, 5, 3])], axis=1), "not end with an axis of 1 or 2"),
        (
            lambda: top(2**15, k=np.array([5])),
            r"TopK \(1\): topk_y: its axis has 32768 elements, more than 16384",
        ),
        (
            lambda: top(4, nets.value("k", [1], INT64)),
            "its K must be known at import",
        ),
        (
            lambda: nets.one(
                "ScatterND", [nets.value("x", [2**12, 2**9]), nets.value("u", [2**12, 2**9])][:1],
                {"i": np.zeros((2**12, 1), np.int64), "u": np.zeros((2**12, 2**9), np.float32)},
            ),
            r"ScatterND \(1\): n0: its 2097152 elements would each be compared with 4096 updates",
        ),
        (
            lambda: nets.one(
                "ScatterElements", [nets.value("x", [3])],
                {"i": np.zeros(2, np.int64), "u": np.zeros(3, np.float32)},
            ),
            r"updates of \[3\] at indices of \[2\]",
        ),
        (
            lambda: nets.one(
                "GridSample", [nets.value("x", [1, 1, 2, 2]), nets.value("g", [1, 2, 2, 3])]
            ),
            r"a grid of \[1, 2, 2, 3\] for data of \[1, 1, 2, 2\]",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(net: Any, why: str) -> None:
    with pytest.raises(at.ModelError, match=why):
        at.import_onnx(net())
