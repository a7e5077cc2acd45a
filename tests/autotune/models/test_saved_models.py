"""Models in files: read back as they were, and nothing that a file claims is believed."""

from __future__ import annotations

import io
import json
import pickle
import struct
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_cases import inputs_of
from graph_meaning import evaluate
from joined_models import fire
from model_cases import each_stage, graph_of, layers, packing_kernel, whole

from autotune.errors import ModelError
from autotune.models import archive
from autotune.models.module import Module
from autotune.models.outline import Part, outline
from autotune.models.program import Program
from autotune.models.saved import load_model
from autotune.run.kernels import default_kernel
from autotune.targets import detect
from kernels_db import Log
from schedules import te
from schedules.graph.graph import Graph
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition
from schedules.model import Target

HERE = detect(1)


def module_of(
    graph: Graph, *, packed: bool = False, target: Target = HERE, parts: Sequence[Part] | None = None
) -> Module:
    """A module of plain loops, each stage or ``parts`` a kernel, or one whose first task packs its weight."""
    labels = {graph.inputs[0]: "the input"}
    ol = outline(graph, each_stage(graph)[1] if parts is None else parts, labels)
    kernels = [default_kernel(w, HERE) for w in ol.tasks]
    if packed:
        kernels[0] = packing_kernel(ol.tasks[0], HERE)
    return Module(
        Program.of(ol, kernels, graph.values.__getitem__, lambda i, a: a),
        target,
        "net",
        [1e-6, *[None] * (len(kernels) - 1)],
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph, _ = layers(2, n=16)
    path = tmp_path_factory.mktemp("saved") / "net.at"
    module_of(graph, packed=True).save(path)
    return path


def test_a_model_is_read_back_as_it_was(file: Path) -> None:
    graph, x = layers(2, n=16)
    net = load_model(file)
    np.testing.assert_array_equal(net(x), evaluate(graph, [x])[0])
    assert (net.name, net.inputs[0].name, net.target) == ("net", "the input", HERE)
    for name, value in graph.values.items():
        np.testing.assert_array_equal(net.program.weight(name), value)
    assert net.program.kernels[0].packed == {1}
    assert [k.chosen_by for k in net.program.kernels] == ["model", "default"]


def test_saving_again_gives_the_same_bytes(file: Path, tmp_path: Path) -> None:
    load_model(file).save(tmp_path / "again.at")
    assert (tmp_path / "again.at").read_bytes() == file.read_bytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "int8", "bool"])
def test_weights_of_every_dtype_are_kept_to_the_bit(dtype: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, w = te.placeholder((4, 8), dtype, "x"), te.placeholder((4, 8), dtype, "w")
    y = te.compute((4, 8), lambda i, j: te.select(i < j, x[i, j], w[i, j]), "y")
    values = {"w": rng.integers(0, 2, (4, 8)).astype(np.dtype(dtype))}
    graph = graph_of([x, w, y], values)
    module_of(graph).save(tmp_path / "net.at")
    net = load_model(tmp_path / "net.at")
    found = net.program.weight("w")
    assert found.dtype == values["w"].dtype and found.tobytes() == values["w"].tobytes()
    given = values["w"][::-1].copy()
    np.testing.assert_array_equal(net(given), evaluate(graph, [given])[0])


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = layers(1)
    net = module_of(graph)
    path = tmp_path / "net.at"
    path.write_text("before")

    def fail(program: Program, name: str) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Program, "weight", fail)
    with pytest.raises(ModelError, match=r"net\.at cannot be written: No space left"):
        net.save(path)
    assert path.read_text() == "before" and [p.name for p in tmp_path.iterdir()] == ["net.at"]
    with pytest.raises(ModelError, match="cannot be written: No such file"):
        net.save(tmp_path / "none" / "net.at")


def test_others_may_read_a_file_as_they_may_read_any_new_one(tmp_path: Path) -> None:
    """An image is made by one user, and run by another."""
    (tmp_path / "other").touch()
    module_of(layers(1)[0]).save(tmp_path / "net.at")
    assert (tmp_path / "net.at").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_log_is_not_replaced_by_a_model(tmp_path: Path) -> None:
    Log(tmp_path / "t.db").close()
    net = module_of(layers(1)[0])
    with pytest.raises(ModelError, match=r"t\.db is a database and would be overwritten"):
        net.save(tmp_path / "t.db")
    Log(tmp_path / "t.db", read_only=True).close()


# -- other machines --------------------------------------------------------------------------


def of_another_machine(file: Path, to: Path, **changes: Any) -> None:
    """The file with every target changed."""
    other = replace(HERE, **changes)

    def change(v: dict[str, Any]) -> None:
        v["target"] = other.json
        for k in v["kernels"]:
            text = json.loads(k["text"])
            k["text"] = json.dumps({**text, "target": other.json})

    rewritten(file, to, change)


def test_a_model_of_another_machine_is_refused_by_name(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.at"
    of_another_machine(file, path, limits=(*HERE.limits, ("l9_bytes", 1)))
    with pytest.raises(ModelError, match=rf"net\.at was tuned for cpu {HERE.arch}.*fallback=True"):
        load_model(path)
    with pytest.warns(UserWarning, match="not for this machine: tune it here") as told:
        net = load_model(path, fallback=True)
    assert len(told) == 1
    graph, x = layers(2, n=16)
    np.testing.assert_array_equal(net(x), evaluate(graph, [x])[0])
    assert net.program.kernels[0].packed, "its schedules run here"


@pytest.mark.slow
def test_a_model_that_cannot_run_here_gets_other_kernels(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.at"
    of_another_machine(file, path, triple="aarch64-unknown-linux-gnu", arch="other", features=("sve",))
    with pytest.raises(ModelError, match="was tuned for cpu other, 1 thread, and this machine cannot run it"):
        load_model(path)
    with pytest.warns(UserWarning) as told:
        net = load_model(path, fallback=True, db=tmp_path / "t.db")
    assert any("kernels that are not tuned" in str(w.message) for w in told)
    graph, x = layers(2, n=16)
    np.testing.assert_array_equal(net(x), evaluate(graph, [x])[0])
    assert {k.target for k in net.program.kernels} == {HERE}


# -- files that lie --------------------------------------------------------------------------


def rewritten(file: Path, to: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """The file with its document changed."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "model.json":
                v = json.loads(data)
                data = json.dumps(change(v) or v).encode()
            new.writestr(name, data)


def _kernel(v: dict[str, Any], **changes: Any) -> None:
    v["kernels"][0]["text"] = json.dumps({**json.loads(v["kernels"][0]["text"]), **changes})


def _trace(*steps: Any) -> str:
    return json.dumps({"version": 1, "steps": list(steps)})


LIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another document": (lambda v: {"a": 1}, "no saved model: model.json is another document"),
    "a later version": (lambda v: v.update(version=5), "has version 5, and this autotune reads 1 to 4"),
    "no steps": (lambda v: {k: x for k, x in v.items() if k != "steps"}, "damaged: steps: it is missing"),
    "reads outside": (lambda v: v["steps"][0]["reads"][0].__setitem__(1, 9), "elements 9 to 73 of 'x'"),
    "reads before": (lambda v: v["steps"][0]["reads"][0].__setitem__(1, -1), "expected a size, got -1"),
    "reads what is not there": (lambda v: v["steps"][0]["reads"][0].__setitem__(0, "../x"), "no tensor"),
    "runs another task": (lambda v: v["steps"][0].update(task=7), "task 7 of 2"),
    "other shapes": (lambda v: v["tensors"][0].__setitem__(1, [1 << 40, 16]), "GiB|is no|read as"),
    "no extent": (lambda v: v["tensors"][0].__setitem__(1, [0, 16]), "expected a size of at least 1, got 0"),
    "true for a size": (
        lambda v: v["tensors"][0].__setitem__(1, [True, 16]),
        "expected a size of at least 1, got True",
    ),
    "two of a name": (lambda v: v["tensors"].append(v["tensors"][0]), "two tensors have one name"),
    "other dtype": (
        lambda v: v["tensors"][0].__setitem__(2, "object"),
        "expected one of float16.* got 'object'",
    ),
    "missing output": (lambda v: v.update(outputs=["nothing"]), "output 'nothing' is no tensor"),
    "a weight that nobody reads": (
        lambda v: v["steps"][1]["reads"].__setitem__(1, v["steps"][0]["reads"][1]), "no step reads weight"
    ),
    "an input is an output": (lambda v: v.update(outputs=["x"]), "no step writes output 'x'"),
    "swapped weights": (lambda v: v.update(weights=v["weights"][::-1]), "weight '.*' is (larger|float32)"),
    "seconds": (lambda v: v["kernels"][0].update(tuned_s="now"), "expected seconds, got 'now'"),
    "no primitive": (lambda v: _kernel(v, trace=_trace(["run", {}])), "schedule of .* is not legal"),
    "not legal": (
        lambda v: _kernel(v, trace=_trace(["parallel", {"loop": "no_such"}])), "schedule of .* is not legal"
    ),
    "no trace": (lambda v: _kernel(v, trace="[]"), "damaged"),
    "no workload": (lambda v: _kernel(v, workload="{}"), "damaged"),
    "chosen by": (lambda v: _kernel(v, chosen_by="me"), "chosen by 'me'"),
    "deep": (lambda v: v.update(labels={"x": [[]]}), "expected a text"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_document_that_lies_is_refused(file: Path, tmp_path: Path, lie: str) -> None:
    change, message = LIES[lie]
    path = tmp_path / "net.at"
    rewritten(file, path, change)
    with pytest.raises(ModelError, match=message):
        load_model(path)


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of which two tensors lie in a third one."""
    graph = optimize(fire())
    path = tmp_path_factory.mktemp("joined") / "net.at"
    module_of(graph, parts=partition(graph)).save(path)
    return path


def test_a_model_whose_tensors_lie_in_another_is_read_back(joined: Path, tmp_path: Path) -> None:
    graph = fire()
    net = load_model(joined)
    (x,) = inputs_of(graph)
    np.testing.assert_array_equal(net(x), evaluate(graph, [x])[0])
    assert len(net.program.outline.views) == 2
    net.save(tmp_path / "again.at")
    assert (tmp_path / "again.at").read_bytes() == joined.read_bytes()
    pickled = pickle.loads(pickle.dumps(net))
    np.testing.assert_array_equal(pickled(x), net(x))


VIEWS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "an older version": (lambda v: v.update(version=0), "has version 0, and this autotune reads 1 to 4"),
    "outside": (lambda v: v["views"][1].__setitem__(2, 1000), "does not lie inside of"),
    "before": (lambda v: v["views"][1].__setitem__(2, -1), "expected a size, got -1"),
    "in nothing": (lambda v: v["views"][1].__setitem__(1, "z"), "'z' is no tensor of the model"),
    "never written": (lambda v: v["joins"][0][1].append("x"), "is not joined of tensors that lie in it"),
    "without joins": (lambda v: v.pop("joins") and None, "is no part of"),
    "without views": (lambda v: v.pop("views") and None, "has strides, and is neither an input nor"),
    "wide": (
        lambda v: [t.__setitem__(3, [s << 20 for s in t[3]]) for t in v["tensors"] if len(t) > 3] and None,
        "does not lie inside of",
    ),
    "many strides": (
        lambda v: [t.__setitem__(3, [1] * 9) for t in v["tensors"] if len(t) > 3] and None, "has 9 strides"
    ),
    "no sizes": (
        lambda v: [t.__setitem__(3, ["a"]) for t in v["tensors"] if len(t) > 3] and None, "expected a size"
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", VIEWS)
def test_views_that_lie_are_refused(joined: Path, tmp_path: Path, lie: str) -> None:
    change, message = VIEWS[lie]
    rewritten(joined, tmp_path / "net.at", change)
    with pytest.raises(ModelError, match=message):
        load_model(tmp_path / "net.at")


def test_loads_that_leave_their_tensors_are_refused(file: Path, tmp_path: Path) -> None:
    """The proofs of a workload are made again."""
    path = tmp_path / "net.at"

    def change(v: dict[str, Any]) -> None:
        text = json.loads(v["kernels"][0]["text"])
        dag = json.loads(text["workload"])
        stage = dag["dag"]["stages"][0]
        stage["axes"][0][1] += 1
        stage["outputs"][0][1][0] += 1
        _kernel(v, workload=json.dumps(dag))

    rewritten(file, path, change)
    with pytest.raises(ModelError, match="damaged"):
        load_model(path)


def members(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as z:
        return {name: z.read(name) for name in z.namelist()}


def written(path: Path, contents: dict[str, bytes], kind: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as z:
        for name, data in contents.items():
            z.writestr(name, data)
    return path


def npy(value: np.ndarray, version: tuple[int, int] = (1, 0), **options: Any) -> bytes:
    f = io.BytesIO()
    np.lib.format.write_array(f, value, version=version, **options)
    return f.getvalue()


def test_members_that_do_not_belong_are_refused(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.at"
    for name in ("../../evil", "/etc/evil", "weights/../x.npy", "weights/9.npy", "code.py"):
        written(path, members(file) | {name: b"x"})
        with pytest.raises(ModelError, match="which no saved model has"):
            load_model(path)
    assert not (tmp_path.parent / "evil").exists()
    for missing in ("model.json", "weights/0.npy"):
        written(path, {n: d for n, d in members(file).items() if n != missing})
        with pytest.raises(ModelError, match=r"no model\.json|'weights/0\.npy' is missing"):
            load_model(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile's own, of the second member
        with zipfile.ZipFile(written(path, members(file)), "a") as z:
            z.writestr("weights/0.npy", b"")
    with pytest.raises(ModelError, match="twice"):
        load_model(path)


def test_bombs_are_refused_by_what_they_declare(file: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "net.at", members(file), zipfile.ZIP_DEFLATED)
    with pytest.raises(ModelError, match="is compressed"):
        load_model(path)
    data = bytearray(file.read_bytes())
    at = data.rindex(b"PK\x01\x02")  # the last member of the directory declares more than there is
    data[at + 20 : at + 28] = struct.pack("<II", 1 << 31, 1 << 31)
    path.write_bytes(data)
    with pytest.raises(ModelError, match="larger than the file|damaged|no saved model"):
        load_model(path)
    document = json.loads(members(file)["model.json"])
    document["tensors"] = [[n, [1 << 40], d] for n, _, d in document["tensors"]]
    written(path, members(file) | {"model.json": json.dumps(document).encode()})
    with pytest.raises(ModelError):
        load_model(path)


W = np.zeros((16, 16), np.float32)
WEIGHTS = {
    "pickled": (npy(np.array([[print]], object), allow_pickle=True), "is object"),
    "another dtype": (npy(W.astype("float16")), r"is float16\[16, 16\], not float32"),
    "another shape": (npy(W.reshape(4, 64)), r"is float32\[4, 64\]"),
    "column-major": (npy(np.asfortranarray(W)), "is (larger|float32)"),
    "truncated": (npy(W)[:-1], "ends early"),
    "longer": (npy(W) + b"x", "goes on"),
    "much longer": (npy(W) + bytes(1000), "is larger"),
    "no npy": (b"not numpy at all" * 20, "weight 'w0'"),
    "another version": (npy(W, (2, 0)), r"version \(2, 0\)"),
    "empty": (b"", "weight 'w0'"),
    "code": (npy(W).replace(b"False", b"print"), "weight 'w0'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_that_are_none_are_refused(file: Path, tmp_path: Path, case: str) -> None:
    data, message = WEIGHTS[case]
    document = json.loads(members(file)["model.json"])
    member = f"weights/{document['weights'].index('w0')}.npy"
    path = written(tmp_path / "net.at", members(file) | {member: data})
    with pytest.raises(ModelError, match=message):
        load_model(path)


def test_files_that_are_no_models_are_refused(tmp_path: Path, file: Path) -> None:
    for name, data in (("empty", b""), ("text", b"hello"), ("cut", file.read_bytes()[:2000])):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ModelError, match=f"{name} is no saved model, or damaged"):
            load_model(tmp_path / name)
    with pytest.raises(ModelError, match="none cannot be read: No such file"):
        load_model(tmp_path / "none")
    with pytest.raises(ModelError, match="cannot be read"):
        load_model(tmp_path)


@pytest.mark.slow
def test_any_changed_byte_is_refused_or_harmless(file: Path, tmp_path: Path) -> None:
    """Flips of bytes all over the file: an error of ours, or the same numbers."""
    graph, x = layers(2, n=16)
    expected = evaluate(graph, [x])[0]
    data = file.read_bytes()
    rng = np.random.default_rng(0)
    path = tmp_path / "net.at"
    refused = 0
    for at in rng.integers(0, len(data), 150):
        changed = bytearray(data)
        changed[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        try:
            net = load_model(path)
        except ModelError:
            refused += 1
        else:
            np.testing.assert_array_equal(net(x), expected)
    assert refused > 100


def test_too_long_a_document_is_not_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_TEXT", 100)
    with pytest.raises(ModelError, match="at most 100 are read"):
        load_model(file)


# -- memory ----------------------------------------------------------------------------------

CHILD = """
import resource, sys
from autotune.models.saved import load_model
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
load_model(sys.argv[1])  # what loading needs whatever the model is
before = peak()
net = load_model(sys.argv[2])
print(peak() - before, net.program.weights_bytes, net.program.arena_bytes)
"""


@pytest.mark.slow
def test_memory_holds_weights_little_more_than_once(file: Path, tmp_path: Path) -> None:
    graph, _ = layers(10, n=1024)  # 40 MiB
    net = module_of(graph, packed=True)
    net.save(tmp_path / "large.at")
    out = subprocess.run(
        [sys.executable, "-c", CHILD, str(file), str(tmp_path / "large.at")],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    took, weights, arena = map(int, out.split())
    assert weights >= sum(v.nbytes for v in graph.values.values()) == 10 * (4 << 20) + 10 * 4096
    assert took <= 1.2 * weights + arena + (4 << 20)
    assert whole(np.random.default_rng(0), (1,)).size
