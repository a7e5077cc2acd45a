"""Copies and pickles of models: they compute the same, and go their own ways; a pickle is read as a file."""

from __future__ import annotations

import copy
import io
import os
import pickle
import pickletools
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from children import python_path
from default_kernels import default_kernels
from graph_cases import inputs_of, residual_net, transformer
from graph_meaning import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import each_stage, graph_of, layers, model_of, packing_kernel, whole
from needs import imported

import autotune as at
from autotune import targets
from autotune.errors import ModelError
from autotune.models import compiling, preparation
from autotune.models.module import Module
from autotune.models.origin import ModelOrigin
from autotune.models.outline import outline
from autotune.models.program import Program
from autotune.models.saved import load_model, unpickled
from autotune.run.kernels import default_kernel
from schedules import te
from schedules.dtypes import DTYPES
from schedules.graph.graph import Graph

HERE = targets.detect(1)
WAYS: list[Callable[[Any], Any]] = [
    copy.copy,
    copy.deepcopy,
    lambda x: pickle.loads(pickle.dumps(x)),
    lambda x: pickle.loads(pickle.dumps([x, x], protocol=0))[1],
]


def module_of(graph: Graph, *, packed: bool = False) -> Module:
    """A module of plain loops, or one whose first task packs its weight."""
    ol = outline(graph, each_stage(graph)[1])
    kernels = [default_kernel(w, HERE) for w in ol.tasks]
    if packed:
        kernels[0] = packing_kernel(ol.tasks[0], HERE)
    program = Program.of(ol, kernels, graph.values.__getitem__, lambda i, a: a)
    return Module(program, HERE, "net", [1e-6] * len(kernels), ModelOrigin.of("net", graph, graph))


@pytest.fixture(autouse=True)
def one_group_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "cut", each_stage)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Default kernels in the place of first picks, which take seconds."""

    monkeypatch.setattr(compiling, "untuned_kernels", default_kernels)
    return iter(())


@pytest.mark.fast(but=["False-<lambda>0", "True-deepcopy"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("read", [False, True])
def test_a_copy_of_a_module_computes_the_same(way: Callable[[Any], Any], read: bool, tmp_path: Path) -> None:
    graph, x = layers(2, n=16)
    net = module_of(graph, packed=True)
    if read:
        net.save(tmp_path / "net.at")
        net = load_model(tmp_path / "net.at")
    other = way(net)
    assert type(other) is Module and other is not net and repr(other) == repr(net)
    assert (other.name, other.target, other.tuned_s) == (net.name, net.target, net.tuned_s)
    assert [k.trace for k in other.program.kernels] == [k.trace for k in net.program.kernels]
    want = evaluate(graph, [x])[0]
    del net
    np.testing.assert_array_equal(other(x), want)
    np.testing.assert_array_equal(way(other)(x), want)


@pytest.mark.parametrize("way", WAYS)
def test_weights_that_were_loaded_go_along(way: Callable[[Any], Any]) -> None:
    graph, x = layers(1, n=16)
    net = module_of(graph, packed=True)
    other = replace(graph, values={n: np.roll(v, 1, 0) + 1 for n, v in graph.values.items()})
    net.load_weights(other.values)
    np.testing.assert_array_equal(way(net)(x), evaluate(other, [x])[0])


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_keeps_its_weights_where_the_module_loads_others(way: Callable[[Any], Any]) -> None:
    graph, x = layers(1, n=16)
    net = module_of(graph)
    was, changed = evaluate(graph, [x])[0], {n: v + 1 for n, v in graph.values.items()}
    want = evaluate(replace(graph, values=changed), [x])[0]
    kept = way(net)
    net.load_weights(changed)
    np.testing.assert_array_equal(kept(x), was)
    np.testing.assert_array_equal(net(x), want)
    if kept.weights:  # a copy, which is of a compiled model too
        kept.load_weights(changed)
        np.testing.assert_array_equal(kept(x), want)
    else:
        with pytest.raises(ModelError, match="from a file or a pickle, which has packed weights only"):
            kept.load_weights(changed)


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from([n for n, d in DTYPES.items() if d.kind != "bool"]),
    st.integers(1, 5), st.integers(1, 9), st.sampled_from(WAYS),
)  # fmt: skip
def test_copies_of_models_of_any_size_and_dtype(
    dtype: str, m: int, n: int, way: Callable[[Any], Any]
) -> None:
    x, w = te.placeholder((m, n), dtype, "x"), te.placeholder((m, n), dtype, "w")
    y = te.compute((m, n), lambda i, j: te.select(i < j, x[i, j], w[i, j]), "y")
    rng = np.random.default_rng(m * n)
    graph = graph_of([x, w, y], {"w": whole(rng, (m, n), dtype)})
    given_ = whole(rng, (m, n), dtype)
    got = way(module_of(graph))(given_)
    assert got.dtype == given_.dtype and got.tobytes() == evaluate(graph, [given_])[0].tobytes()


def test_a_pickle_holds_a_name_and_the_bytes_of_a_file(tmp_path: Path) -> None:
    net = module_of(layers(1)[0])
    net.save(tmp_path / "net.at")
    ops = [(op.name, arg) for op, arg, _ in pickletools.genops(pickle.dumps(net))]
    assert [a for name, a in ops if "UNICODE" in name] == ["autotune.models.saved", "unpickled"]
    (data,) = [a for name, a in ops if "BYTES" in name]
    assert data == (tmp_path / "net.at").read_bytes()
    kinds = {name for name, _ in ops} - {"PROTO", "FRAME", "MEMOIZE", "SHORT_BINUNICODE", "STOP"}
    assert kinds == {"STACK_GLOBAL", "BINBYTES", "TUPLE1", "REDUCE"}


@pytest.mark.slow
def test_another_process_reads_it(tmp_path: Path) -> None:
    """As a worker that was spawned does."""
    graph, x = layers(2)
    read = "import pickle, sys; net, x = pickle.load(sys.stdin.buffer)"
    code = f"{read}; sys.stdout.buffer.write(net(x).tobytes())"
    env = {**os.environ, "PYTHONPATH": python_path(__file__), "AUTOTUNE_CACHE_DIR": str(tmp_path)}
    sent = pickle.dumps((module_of(graph), x))
    done = subprocess.run([sys.executable, "-c", code], input=sent, env=env, capture_output=True, check=True)
    assert done.stdout == evaluate(graph, [x])[0].tobytes()


def test_what_a_pickle_holds_goes_through_the_checks_of_a_file() -> None:
    data = module_of(layers(1)[0]).__reduce__()[1][0]
    other = renamed(data, HERE.arch.encode(), b"q" * len(HERE.arch))
    for wrong, message in (
        (b"", "the pickled model is no saved model, or damaged"),
        (data[: len(data) // 2], "the pickled model is no saved model, or damaged"),
        (renamed(data, b"model.json", b"other.json"), r"it has no model\.json"),
        (other, r"allow it there: autotune\.load_model\(path, fallback=True\)"),
    ):
        with pytest.raises(ModelError, match=message):
            unpickled(wrong)


def renamed(data: bytes, old: bytes, new: bytes) -> bytes:
    """A saved model with other text in it, whole in every other way."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as z, zipfile.ZipFile(out, "w") as to:
        for name in z.namelist():
            to.writestr(name.encode().replace(old, new).decode(), z.read(name).replace(old, new))
    return out.getvalue()


@pytest.mark.slow
def test_a_module_of_a_device(plain: None, tmp_path: Path) -> None:
    from grid_cases import need_cxx

    need_cxx()
    graph, x = layers(1)
    net = at.compile_model(model_of(graph), target="cuda-emulator", db=tmp_path / "t.db", fallback=True)
    want = evaluate(graph, [x])[0]
    for way in WAYS:
        np.testing.assert_array_equal(way(net)(x), want)


@pytest.mark.parametrize("make", [residual_net, transformer])
@pytest.mark.parametrize("way", WAYS)
def test_a_model_before_it_is_compiled(way: Callable[[Any], Any], make: Callable[[], Graph]) -> None:
    model = model_of(make())
    other = way(model)
    assert repr(other) == repr(model) and other.graph.dag == model.graph.dag
    assert other.graph.origins == model.graph.origins and other.inputs == model.inputs
    xs = inputs_of(model.graph)
    want = evaluate(model.graph, xs)
    if way is not copy.copy:  # which shares what it holds, as everywhere
        for v in model.graph.values.values():
            v[...] = 0
    for got, w in zip(evaluate(other.graph, xs), want, strict=True):
        np.testing.assert_array_equal(got, w)


def test_the_pickle_of_an_expression_makes_its_checks_again() -> None:
    dag = layers(1)[0].dag
    assert copy.deepcopy(dag) is dag and copy.copy(dag) is dag and pickle.loads(pickle.dumps(dag)) == dag
    read, (v,) = dag.__reduce__()
    v["stages"][0]["axes"][0][1] += 1
    v["stages"][0]["outputs"][0][1][0] += 1
    with pytest.raises(ValueError, match="stage p0"):
        read(v)


@pytest.mark.parametrize("way", WAYS)
def test_islands_go_along(way: Callable[[Any], Any], plain: None, tmp_path: Path) -> None:
    imported("onnx")
    import onnx_models as om

    net = om.one("Det", [om.value("x", [3, 2, 2])])
    om.onnx.save(net, tmp_path / "net.onnx")
    model = at.import_onnx(tmp_path / "net.onnx", islands=True)
    assert model.graph.islands and way(model).graph.islands == model.graph.islands
    compiled = at.compile_model(way(model), threads=1, db=tmp_path / "t.db", fallback=True)
    x = whole(np.random.default_rng(0), (3, 2, 2))
    np.testing.assert_allclose(way(compiled)(x), np.linalg.det(x), atol=1e-6)
