"""A model's file in the place of an operator's name: tune, ops, bench."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from cli_runner import run
from default_kernels import default_kernels
from made_up import MadeUp
from model_cases import Made, each_stage, islanded, layers, model_of
from needs import imported, missing

from autotune.cli import given, models
from autotune.codegen.simt import cxx
from autotune.errors import ModelError
from autotune.models import compiling, preparation, tuned_model
from autotune.models.model import Model
from autotune.run.kernels import default_kernel
from autotune.run.warned import warn
from autotune.tuning import request
from autotune.tuning.jobs import Job
from autotune.tuning.site import Here
from autotune.tuning.tuner import OneMachine
from schedules.graph.graph import Graph, Island
from schedules.model import Target


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Graph:
    """That of a model of two equal layers, which is what every file has."""
    made, _ = layers(2)
    monkeypatch.setattr(preparation, "cut", each_stage)
    monkeypatch.setattr(models, "imported", lambda path, shape, islands=False: model_of(made))
    return made


@pytest.mark.parametrize(
    ("op", "is_one"),
    [("net.onnx", True), ("NET.ONNX", True), ("./x.pb", True), ("matmul", False), (None, False)],
)
def test_files_are_told_from_operators(op: str | None, is_one: bool) -> None:
    assert given.is_model(op) is is_one


def test_shapes_of_inputs_and_dimensions() -> None:
    found = models.shapes_of("x=1x3x224x224, batch=8,in.1=2x1")
    assert found == {"x": (1, 3, 224, 224), "batch": 8, "in.1": (2, 1)}
    assert models.shapes_of("") == {}
    found = models.shapes_of("seq=1..512,open,x=1x2..8, ids=3x1..4 , open")
    assert repr(found) == "{'seq': 1..512, 'x': (1, 2..8), 'ids': (3, 1..4)}"
    assert found["seq"].open
    for bad, message in (
        ("x", "write INPUT="),
        ("x=-1", "write"),
        ("x=1,x=2", "twice"),
        ("x=ax2", "write"),
        ("open", "write"),
        ("n=4..2", "not below"),
        ("n=0..2", "from 1 on"),
    ):
        with pytest.raises(typer.BadParameter, match=message):
            models.shapes_of(bad)


@pytest.mark.usefixtures("graph")
def test_ops_shows_what_a_model_runs() -> None:
    ran = run("ops", "net.onnx", "--json")
    assert ran.status == 0
    assert ran.json["inputs"] == [{"name": "in.x", "dtype": "float32", "shape": [4, 8]}]
    assert (ran.json["groups"], ran.json["unsupported"]) == (4, {})
    assert [(t["count"], t["nodes"]) for t in ran.json["tasks"]] == [
        (2, ["node/p0", "node/p1"]),
        (2, ["node/y0", "node/y1"]),
    ]
    assert ran.json["tasks"][0]["flops"] == 2 * 4 * 8 * 8
    text = run("ops", "net.onnx").out
    assert "4 groups of 2 tasks" in text and "node/p0, node/p1" in text and "in.x float32[4, 8]" in text


def test_ops_names_operators_without_an_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = islanded()
    seen = []

    def imported(path: str, shape: str, islands: bool = False) -> Model:
        seen.append(islands)
        return model_of(graph)

    monkeypatch.setattr(preparation, "cut", each_stage)
    monkeypatch.setattr(models, "imported", imported)
    assert run("ops", "net.onnx", "--json").json["unsupported"] == {"Negate": ["neg"]}
    text = run("ops", "net.onnx").out
    assert "without an expression: Negate 1" in text and "Negate: neg" in text and seen == [True, True]
    assert isinstance(graph.islands[0], Island)


@pytest.mark.slow
@pytest.mark.usefixtures("graph")
def test_tune_tunes_a_model_and_says_what_it_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job, seen = tuned_model.ModelJobs.job, []

    def seen_job(self: tuned_model.ModelJobs, target: Target) -> Job:
        made = job(self, target)
        seen.extend([made.options] if made.tasks else [])
        return made

    monkeypatch.setattr(tuned_model.ModelJobs, "job", seen_job)
    monkeypatch.setattr(request, "OneMachine", partial(OneMachine, site=MadeUp(lambda w: Made())))
    monkeypatch.setattr(Here, "roofline", lambda self, w, t: None)
    words = ("tune", "net.onnx", "--threads", 1, "--trials", 2, "--search", "random")
    words = (*words, "--db", tmp_path / "t.db")
    ran = run(*words, "--json")
    assert ran.status == 0
    assert ran.json["model"] == "net" and ran.json["trials"]["measured"] == 4 and ran.json["latency_s"] > 0
    assert [t["weight"] for t in ran.json["tasks"]] == [2, 2]
    assert seen[0].budget_s == 18 and seen[0].search == "random", "9 of 10 s a task"
    text = run(*words).out
    assert "2 of 2 tasks have a kernel; 0 trials" in text and "2 tasks had their share before" in text
    assert "tuned before" in text and "node/p0, node/p1" in text
    run(*words[:4], "--trials", 3, "--budget", "30s", "--db", tmp_path / "t.db")
    assert seen[1].budget_s == 27


def test_tune_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(path: str, shape: str, islands: bool = False) -> Model:
        raise ModelError(f"{path}: 2 operators have no expression: Foo (a, b)")

    monkeypatch.setattr(models, "imported", refuse)
    for command in ("tune", "ops", "bench"):
        ran = run(command, "net.onnx")
        assert ran.status == 2 and "net.onnx: 2 operators have no expression: Foo (a, b)" in ran.err
    for option in (("--dtype", "float64"), ("--layout", "NHWC"), ("--constant-weights",), ("--frozen",)):
        ran = run("tune", "net.onnx", *option)
        assert ran.status == 2 and f"{option[0]} does not go with a model" in ran.err
    assert run("ops", "matmul", "--shape", "m=1").status == 2


@pytest.mark.usefixtures("graph")
def test_bench_needs_a_tuned_model_and_peers_that_take_files(tmp_path: Path) -> None:
    ran = run("bench", "net.onnx", "--threads", 1, "--db", tmp_path / "t.db")
    assert ran.status == 1 and "2 of 2 tasks have no tuned kernel" in ran.err
    for name, why in (("torch.compile", "it compiles torch modules"), ("numpy", "it has no model files")):
        ran = run("bench", "net.onnx", "--against", name, "--db", tmp_path / "t.db")
        assert ran.status == 2 and why in ran.err
    ran = run("bench", "net.onnx", "--sizes", "3", "--db", tmp_path / "t.db")
    assert ran.status == 2 and "--sizes goes with a range, such as --shape seq=1..512" in ran.err


def onnx_file(graph: Graph, path: Path, scale: float = 1.0) -> Path:
    """The layers of a graph as an ONNX file."""
    onnx = imported("onnx")
    h = onnx.helper
    nodes, x = [], "in.x"
    weights = [onnx.numpy_helper.from_array(v * np.float32(scale), n) for n, v in graph.values.items()]
    for i in range(len(weights) // 2):
        last = i == len(weights) // 2 - 1
        nodes += [
            h.make_node("MatMul", [x, f"w{i}"], [f"p{i}"]),
            h.make_node("Add", [f"p{i}", f"b{i}"], [f"a{i}"]),
            h.make_node("Relu", [f"a{i}"], ["out.y1" if last else f"y{i}"]),
        ]
        x = f"y{i}"
    ports = [h.make_tensor_value_info(n, onnx.TensorProto.FLOAT, (4, 8)) for n in ("in.x", "out.y1")]
    made = h.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    made = h.make_model(made, opset_imports=[h.make_opsetid("", 17)])
    made.ir_version = 8
    onnx.save(made, path)
    return path


@pytest.mark.slow
def test_bench_compares_with_onnxruntime(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported("onnxruntime")
    from autotune.models import compiling

    monkeypatch.setattr(compiling, "stored", lambda w, asked: (default_kernel(w, asked.target), None))
    path = onnx_file(graph, tmp_path / "net.onnx")
    words = ("bench", path, "--threads", 1, "--duration", "300ms", "--db", tmp_path / "t.db")
    ran = run(*words, "--json")
    assert ran.status == 0, ran.err
    assert [r["impl"] for r in ran.json["rows"]] == ["autotune", "onnxruntime"]
    assert ran.json["ratio"]["onnxruntime"] > 0
    text = run(*words).out
    assert "net, 1 thread" in text and "as fast as" in text
    ran = run("bench", onnx_file(graph, tmp_path / "other.onnx", 2.0), *words[2:])
    assert ran.status == 2 and "onnxruntime and the tuned model differ in out.y1" in ran.err
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    ran = run("bench", tmp_path / "bad.onnx", *words[2:])
    assert ran.status == 2 and "onnxruntime does not run" in ran.err


def test_a_model_is_exported(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if cxx.command() is None:
        missing("c++")
    asked = ("net.onnx", tmp_path / "to", "--threads", 1, "--db", tmp_path / "t.db")
    refused = run("export", *asked)
    assert refused.status == 1 and "tune them: autotune tune net.onnx" in refused.err
    assert refused.err.rstrip().endswith("or take schedules that are not tuned: --fallback")

    def untuned(*given: Any) -> Any:
        warn("1 of 1 tasks are not tuned\ntune them: autotune.tune_model(model)")
        return default_kernels(*given)

    monkeypatch.setattr(compiling, "untuned_kernels", untuned)
    done = run("export", *asked, "--fallback", "--name", "small", "--weights", "beside", "--json")
    assert done.status == 0, done.err
    assert {k: Path(v).name for k, v in done.json.items()} == {
        "library": "small.so", "header": "small.h", "contract": "small.json", "example": "small_example.c",
        "python_example": "small_example.py", "weights": "small.weights",
    }  # fmt: skip
    assert all(Path(v).is_file() for v in done.json.values())
    tune = f"autotune tune net.onnx --threads 1 --db {asked[-1]}"
    assert done.err == f"autotune: 1 of 1 tasks are not tuned\ntune them: {tune}\n"
    elsewhere = run("export", *asked, "--fallback", "--target", "h100")
    assert elsewhere.status == 2 and "this CPU cannot run code for a cuda target" in elsewhere.err
    inside = run("export", *asked, "--fallback")
    assert inside.status == 0 and "small" not in inside.out and ".weights" not in inside.out
    for wrong, says in (
        (("export", "matmul", tmp_path, "--weights", "beside"), "--weights goes with a model alone"),
        (("export", *asked, "--weights", "none"), "--weights"),
        (("export", *asked, "--dtype", "float64"), "--dtype does not go with a model"),
    ):
        told = run(*wrong)
        assert told.status == 2 and says in told.err, told.err
