"""Calls of compiled models: arguments by place and name, of numpy and torch, and what is refused; other
weights."""

from __future__ import annotations

import gc
import warnings
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graph_meaning import evaluate
from model_cases import biased, each_stage, graph_of, model_of, product, whole

from autotune.errors import ArgumentError, ModelError
from autotune.models import preparation
from autotune.models.compiling import compile_model
from autotune.models.module import Module
from autotune.models.origin import ModelOrigin
from schedules import te
from schedules.graph.graph import Graph

REAL = preparation.cut


@pytest.fixture(autouse=True)
def one_group_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "cut", each_stage)


@pytest.fixture(scope="module")
def net() -> Module:
    """Two inputs, two outputs, never tuned: y = x w + z and x w."""
    rng = np.random.default_rng(0)
    x, z = te.placeholder((4, 8), "float32", "x"), te.placeholder((4, 8), "float32", "z")
    w = te.placeholder((8, 8), "float32", "w")
    p = product(x, w, "p")
    y = te.compute((4, 8), lambda i, j: p[i, j] + z[i, j], "y")
    graph = graph_of([x, w, z, p, y], {"w": whole(rng, (8, 8))}, ("y", "p"))
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(preparation, "cut", each_stage)
        made = compile_model(model_of(graph), threads=1, fallback=True)
    made.graph = graph
    return made


X, Z = np.full((4, 8), 2, np.float32), np.arange(32, dtype=np.float32).reshape(4, 8)
WRONG = {
    "count": (lambda n: n(X), r"net takes 2 inputs \(in.x, in.z\), got 1"),
    "too many": (lambda n: n(X, Z, X), "got 3"),
    "shape": (lambda n: n(X, Z[:2]), r"input 'in.z' has shape \(2, 8\), but the model is.*\(4, 8\)"),
    "dtype": (lambda n: n(X.astype("float64"), Z), r"input 'in.x' is float64.*\.astype\('float32'\)"),
    "order": (lambda n: n(X.astype(">f4"), Z), "input 'in.x' has byte order '>f4'; the model takes"),
    "masked": (lambda n: n(np.ma.array(X), Z), "input 'in.x' is a masked array"),
    "no array": (lambda n: n(X, "text"), "input 'in.z' is a str"),
    "unknown": (lambda n: n(X, in_z=Z), r"there is no input 'in_z' \(did you mean 'in.z'\?\)"),
    "twice": (lambda n: n(X, Z, x=X), "input 'x' is given twice"),
    "missing": (lambda n: n(x=X), "in.z not given"),
}  # fmt: skip


@pytest.mark.fast(but=["count", "masked"])
@pytest.mark.parametrize("case", WRONG)
def test_arguments_that_do_not_fit_are_named(net: Module, case: str) -> None:
    call, message = WRONG[case]
    with pytest.raises(ArgumentError, match=message):
        call(net)


def test_inputs_are_taken_by_place_and_by_either_name(net: Module) -> None:
    y, p = net(X, Z)
    expected = evaluate(net.graph, [X, Z])
    for found in ((y, p), net(z=Z, x=X), net(X, **{"in.z": Z}), net(X, memoryview(Z))):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)
    assert not np.shares_memory(net(X, Z)[0], y), "every call returns arrays of its own"


def test_inputs_that_are_not_row_major_are_copied_and_told(net: Module) -> None:
    turned = np.asfortranarray(X)
    odd = np.frombuffer(bytes(1) + Z.tobytes(), np.uint8)[1:].view(np.float32).reshape(4, 8)
    assert not odd.flags.aligned
    y, _ = net(turned, odd)
    np.testing.assert_array_equal(y, evaluate(net.graph, [X, Z])[0])
    assert net.profile(turned, Z).copies == ("in.x",)
    assert "lie otherwise in memory than the model reads them: in.x" in str(net.profile(turned, Z))
    assert net.profile(X, Z).copies == ()


def test_torch_in_torch_out(net: Module) -> None:
    from needs import imported

    torch = imported("torch")
    x, z = torch.from_numpy(X), torch.from_numpy(Z)
    y, p = net(x, z.t().contiguous().t())
    assert type(y) is type(p) is torch.Tensor
    np.testing.assert_array_equal(y.numpy(), evaluate(net.graph, [X, Z])[0])
    with pytest.raises(ArgumentError, match="input 'in.z' requires a gradient"):
        net(x, z.clone().requires_grad_())
    with torch.no_grad():
        np.testing.assert_array_equal(net(x, torch.nn.Parameter(z))[0], y)
    with pytest.raises(ArgumentError, match=r"input 'in.z' is torch.float64|input 'in.z' is float64.*\.to\("):
        net(x, z.double())
    with pytest.raises(ArgumentError, match=r"input 'in.z' is on meta|'in.z'"):
        net(x, z.to("meta"))
    with pytest.raises(ArgumentError, match="input 'in.x' is a ndarray"):
        net(X, z)


@pytest.mark.slow
def test_a_module_keeps_no_weight_of_the_model(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, w = te.placeholder((4, 256), "float32", "x"), te.placeholder((256, 256), "float32", "w")
    model = model_of(graph_of([x, w, product(x, w, "p")], {"w": whole(rng, (256, 256))}))
    gone = weakref.ref(model.graph.values["w"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = compile_model(model, threads=1, db=tmp_path / "t.db", fallback=True)
    del model
    gc.collect()
    assert gone() is None
    assert net.program.weights_bytes == 256 * 256 * 4


def changed(graph: Graph, **values: np.ndarray) -> Graph:
    return replace(graph, values={**graph.values, **values})


def test_small_weights_may_be_changed_one_by_one(net: Module) -> None:
    other = np.eye(8, dtype=np.float32)
    before = dict(net.graph.values)
    try:
        net.load_weights({"w": other})
        other[:] = 0  # the module has its own
        np.testing.assert_array_equal(net(X, Z)[1], X)
        with pytest.raises(ArgumentError, match=r"input 'w' has shape \(3, 8\)"):
            net.load_weights({"w": other[:3]})
        with pytest.raises(ModelError, match=r"no weight 'W' \(did you mean 'w'\?\)"):
            net.load_weights({"W": other})
        np.testing.assert_array_equal(net(X, Z)[1], X)
    finally:
        net.load_weights(before)


def test_weights_are_taken_by_their_names_in_the_file() -> None:
    """Modules of torch number their layers, and identifiers do not begin with digits."""
    x, w = te.placeholder((8,), name="x"), te.placeholder((8,), name="_0_weight")
    y = te.compute((8,), lambda i: x[i] + w[i], name="y")
    graph = graph_of([x, w, y], {"_0_weight": np.zeros(8, np.float32)}, ("y",))
    before = ModelOrigin.of("net", graph, preparation.cut(graph)[0].graph)
    after, _ = before.with_weights({"0.weight": np.ones(8, np.float32)})
    assert (after.small["_0_weight"] == 1).all()


@pytest.mark.slow
def test_weights_go_through_the_rewrites_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A per-channel factor is multiplied into the weight of the product, and comes from another weight."""
    monkeypatch.setattr(preparation, "cut", REAL)
    rng = np.random.default_rng(0)
    x, w = te.placeholder((4, 160), "float32", "x"), te.placeholder((160, 160), "float32", "fc_weight")
    s, b = te.placeholder((160,), "float32", "s"), te.placeholder((160,), "float32", "b")
    p = product(x, w, "p")
    scaled = te.compute((4, 160), lambda i, j: p[i, j] * s[j], "q")
    y = biased(scaled, b, "y")
    values = {"fc_weight": whole(rng, (160, 160)), "s": whole(rng, (160,)), "b": whole(rng, (160,))}
    graph = graph_of([x, w, s, b, y], values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = compile_model(model_of(graph), threads=1, db=tmp_path / "t.db", fallback=True)
    given = whole(rng, (4, 160))
    np.testing.assert_array_equal(net(given), evaluate(graph, [given])[0])
    new = {"fc.weight": whole(rng, (160, 160)), "s": whole(rng, (160,))}
    net.load_weights(new)
    other = changed(graph, fc_weight=new["fc.weight"], s=new["s"])
    np.testing.assert_array_equal(net(given), evaluate(other, [given])[0])
    with pytest.raises(ModelError, match="large weights in packed form only: give all.*fc_weight not given"):
        net.load_weights({"s": values["s"]})
    np.testing.assert_array_equal(net(given), evaluate(other, [given])[0])


@pytest.mark.slow
def test_weights_that_change_what_is_rewritten_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small weights that are equal are one in the rewritten graph."""
    monkeypatch.setattr(preparation, "cut", REAL)
    x = te.placeholder((4, 8), "float32", "x")
    a, b = (te.placeholder((8,), "float32", n) for n in "ab")
    y = te.compute((4, 8), lambda i, j: (x[i, j] + a[j]) * b[j], "y")
    graph = graph_of([x, a, b, y], {n: np.arange(8, dtype=np.float32) for n in "ab"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = compile_model(model_of(graph), threads=1, db=tmp_path / "t.db", fallback=True)
    assert len(net.program.outline.constants) == 1
    with pytest.raises(ModelError, match="rewritten to another graph: compile it again"):
        net.load_weights({"a": np.ones(8, np.float32)})
    ones = np.ones(8, np.float32)
    net.load_weights({"a": ones, "b": ones})
    np.testing.assert_array_equal(net(X), X + 1)
