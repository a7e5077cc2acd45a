"""Damaged and hostile files: each is imported or refused with ModelError, and no other file is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models as nets
import pytest
from needs import imported
from onnx_mutate import mutated

import autotune as at

onnx = imported("onnx")
from graph_meaning import evaluate  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402


def outcome(data: bytes, islands: bool) -> bool:
    """Whether damaged bytes are imported. Anything but ModelError fails the test."""
    try:
        at.import_onnx(data, islands=islands)
    except at.ModelError as err:
        assert str(err)
        return False
    return True


def survey(seeds: range) -> tuple[int, set[str]]:
    """(how many of the damaged files are imported, the kinds of damage met)."""
    bases = [nets.convolutional(), nets.transformer()]
    good, kinds = 0, set()
    for seed in seeds:
        data, how = mutated(bases, seed)
        kinds.add(how)
        good += outcome(data, islands=bool(seed % 2))
    return good, kinds


@pytest.mark.slow
def test_damaged_files_are_imported_or_refused() -> None:
    good, kinds = survey(range(200))
    assert 10 < good < 150 and kinds == {"flip", "cut", "splice", "fields", "numbers"}


@pytest.mark.soak
def test_many_damaged_files_are_imported_or_refused() -> None:
    good, _ = survey(range(200, 2400))
    assert 110 < good < 1650


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "is empty"),
        (b"\x00", "is no ONNX model"),
        (b"not a model at all", "is no ONNX model"),
        (b"\x89PNG\r\n\x1a\n" * 10, "is no ONNX model"),
        (b"\x08\x0a", "it has no graph"),
    ],
)
def test_what_is_no_model_is_refused(data: bytes, match: str, tmp_path: Path) -> None:
    with pytest.raises(at.ModelError, match=match):
        at.import_onnx(data)
    path = tmp_path / "x.onnx"
    path.write_bytes(data)
    with pytest.raises(at.ModelError, match=rf"x\.onnx.*{match}"):
        at.import_onnx(path)


def test_a_file_that_is_cut_off_is_refused_by_name(tmp_path: Path) -> None:
    data = nets.convolutional().SerializeToString()
    path = tmp_path / "net.onnx"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(at.ModelError, match=r"net\.onnx is no ONNX model, or was cut off"):
        at.import_onnx(path)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(at.ModelError, match=r"^\S*/nowhere\.onnx does not exist; give the path of a model's"):
        at.import_onnx(tmp_path / "nowhere.onnx")
    with pytest.raises(at.ModelError, match="is no file"):
        at.import_onnx(tmp_path)
    with pytest.raises(at.ModelError, match="cannot be read|does not exist|is no file"):
        at.import_onnx("a\0b")


def test_weights_that_are_shorter_than_their_shape_are_refused() -> None:
    net = nets.one("Add", [nets.value("x", [2])], {"w": np.zeros(2, np.float32)})
    t = net.graph.initializer[0]
    t.dims[0] = 2**40
    with pytest.raises(
        at.ModelError, match=r"initializer 'w' has 8 bytes, but float32\[1099511627776\] needs"
    ):
        at.import_onnx(net)
    t.ClearField("raw_data")
    with pytest.raises(at.ModelError, match="initializer 'w' cannot be read"):
        at.import_onnx(net)
    t.dims[0] = -1
    with pytest.raises(at.ModelError, match=r"initializer 'w' has shape \[-1\]"):
        at.import_onnx(net)


# --- data outside the file --------------------------------------------------------------------


def external(folder: Path, location: str, **more: Any) -> Path:
    """A model x + w in ``folder``, whose w lies at ``location``."""
    net = nets.one("Add", [nets.value("x", [4])], {"w": np.arange(4, dtype=np.float32)})
    t = net.graph.initializer[0]
    t.ClearField("raw_data")
    t.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        t.external_data.add(key=key, value=str(value))
    path = folder / "net.onnx"
    path.write_bytes(net.SerializeToString())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder, beside a file that is none of its business."""
    made = tmp_path / "model"
    (made / "sub").mkdir(parents=True)
    values = np.arange(8, dtype=np.float32)
    for place in (made / "w.bin", made / "sub" / "w.bin", tmp_path / "secret.bin"):
        values.tofile(place)
    return made


@pytest.mark.parametrize(
    ("location", "more", "want"),
    [("w.bin", {}, 0), ("sub/w.bin", {"offset": 16}, 4), ("./w.bin", {"offset": 8, "length": 16}, 2)],
)
def test_data_in_the_models_folder_is_read(
    folder: Path, location: str, more: dict[str, int], want: int
) -> None:
    model = at.import_onnx(external(folder, location, **more))
    (got,) = evaluate(model.graph, [np.zeros(4, np.float32)])
    np.testing.assert_array_equal(got, np.arange(want, want + 4))


@pytest.mark.parametrize(
    "location",
    ["../secret.bin", "sub/../../secret.bin", "/etc/passwd", "..\\secret.bin", "sub/../w.bin", "linked.bin",
     "linked/secret.bin"],
)  # fmt: skip
def test_data_outside_the_models_folder_is_never_read(
    folder: Path, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "linked.bin").symlink_to(folder.parent / "secret.bin")
    (folder / "linked").symlink_to(folder.parent)
    path = external(folder, location)
    opened = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda p, *rest: opened.append(p) or real(p, *rest))
    with pytest.raises(at.ModelError, match="initializer 'w': its data .* lies outside the model's folder"):
        at.import_onnx(path)
    assert opened == [path], "nothing but the model's own file"


# --- caches of hubs: models are links into a folder of blobs ----------------------------------


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The folder of a model in a hub's cache, which is a link into ``blobs``. Its data is w.bin."""
    snapshot = tmp_path / "hub" / "snapshots" / "1f0e" / "onnx"
    blobs = tmp_path / "hub" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    external(snapshot, "w.bin").rename(blobs / "11aa")
    (snapshot / "net.onnx").symlink_to("../../../blobs/11aa")
    np.arange(4, dtype=np.float32).tofile(blobs / "22bb")
    np.arange(9, dtype=np.float32).tofile(tmp_path / "secret.bin")
    return snapshot


def values(model: Path) -> list[float]:
    (got,) = at.import_onnx(model).graph.values.values()
    return [float(x) for x in got]


@pytest.mark.parametrize("layout", ["both are links", "only the model is", "data lies beside the blob"])
def test_models_in_caches_of_hubs_are_read(cache: Path, layout: str) -> None:
    blob = cache.parents[2] / "blobs" / "22bb"
    if layout == "both are links":
        (cache / "w.bin").symlink_to("../../../blobs/22bb")
    else:
        blob.rename(cache / "w.bin" if layout == "only the model is" else blob.parent / "w.bin")
    assert values(cache / "net.onnx") == [0, 1, 2, 3]
    (cache / "again.onnx").symlink_to("net.onnx")  # a link to the link is the same model
    assert values(cache / "again.onnx") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("link", "match"),
    [
        ("/etc/passwd", "lies outside"), ("../../../../secret.bin", "lies outside"),
        ("../../../blobs", "no regular file|cannot be read"), ("chain", "lies outside"),
        ("chained/passwd", "lies outside"), ("w.bin", "cannot be found|is missing"),
        ("pipe", "no regular file"),
        ("../../../blobs/none", "is missing"), ("x" * 300, "cannot be (found|read)|is missing"),
        ("long0", "cannot be (found|read)|lies outside|is missing"), ("/proc/self/environ", "lies outside"),
        ("/dev/zero", "lies outside"),
    ],
)  # fmt: skip
def test_links_out_of_a_cache_are_never_read(
    cache: Path, link: str, match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "chain").symlink_to("chain1")
    (cache / "chain1").symlink_to("../../../blobs/chain2")
    (cache.parents[2] / "blobs" / "chain2").symlink_to("../../secret.bin")
    (cache / "chained").symlink_to("/etc")
    for n in range(100):
        (cache / f"long{n}").symlink_to(f"long{n + 1}" if n < 99 else "/etc/passwd")
    os.mkfifo(cache / "pipe")
    (cache / "w.bin").symlink_to(link)
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda p, *rest, **more: opened.append(str(p)) or real(p, *rest, **more))
    with pytest.raises(at.ModelError, match=rf"initializer 'w'.*({match})"):
        at.import_onnx(cache / "net.onnx")
    assert not any(x in p for p in opened for x in ("secret", "passwd", "environ", "zero"))


@pytest.mark.parametrize("location", ["../blobs/22bb", "../../../blobs/22bb", "blobs/../../secret.bin"])
def test_data_of_a_link_is_named_without_steps_up(cache: Path, location: str) -> None:
    external(cache.parents[2] / "blobs", location).rename(cache.parents[2] / "blobs" / "11aa")
    with pytest.raises(at.ModelError, match="lies outside the model's folder"):
        at.import_onnx(cache / "net.onnx")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are not listed here")
def test_nothing_stays_open_after_a_refusal(folder: Path) -> None:
    path = external(folder, "sub")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(at.ModelError):
            at.import_onnx(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_absolute_paths_are_refused_even_into_the_folder(folder: Path) -> None:
    with pytest.raises(at.ModelError, match="lies outside the model's folder"):
        at.import_onnx(external(folder, str(folder / "w.bin")))


def test_a_link_inside_the_folder_is_read(folder: Path) -> None:
    (folder / "also.bin").symlink_to(folder / "w.bin")
    assert at.import_onnx(external(folder, "also.bin")).graph.values


@pytest.mark.parametrize(
    ("location", "more", "match"),
    [
        ("missing.bin", {}, "its data 'missing.bin' is missing in .*; copy it beside the model"),
        ("", {}, "whose name is ''"),
        ("w.bin\0", {}, "whose name is"),
        ("sub", {}, "is no regular file|cannot be read"),
        ("pipe", {}, "is no regular file"),
        ("loop", {}, "cannot be found|is missing"),
        ("w.bin", {"offset": 20}, "has 32 bytes, but 16 from 20 on are needed"),
        ("w.bin", {"offset": -4}, "16 bytes from -4 on are not"),
        ("w.bin", {"length": 8}, "8 bytes from 0 on are not float32"),
        ("w.bin", {"offset": "x"}, "is no number"),
        ("w.bin", {"offset": 2**70}, "are needed"),
    ],
)
def test_data_that_does_not_fit_is_refused(
    folder: Path, location: str, more: dict[str, Any], match: str
) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    with pytest.raises(at.ModelError, match=rf"net\.onnx: initializer 'w'.*{match}"):
        at.import_onnx(external(folder, location, **more))


def test_data_outside_needs_a_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    data = external(folder, "w.bin").read_bytes()
    for given in (data, onnx.ModelProto.FromString(data)):
        with pytest.raises(at.ModelError, match="lies in another file, 'w.bin'; give the model as a path"):
            at.import_onnx(given)


@pytest.mark.parametrize("inside", ["attribute", "branch", "function"])
def test_only_initializers_of_the_graph_may_lie_outside(
    folder: Path, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnx's evaluator would read the others, from the current directory."""
    monkeypatch.chdir(folder)
    t = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    t.external_data.add(key="location", value="w.bin")
    constant = helper.make_node("Constant", [], ["w"], name="c")
    constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(t)
    add = helper.make_node("Add", ["x", "w"], ["y"], name="a")
    more: dict[str, Any] = {}
    nodes = [constant, add]
    weights = {}
    if inside == "branch":
        graph = helper.make_graph([add], "g", [], [nets.value("y", [4])], [t])
        nodes = [helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph)]
        weights = {"c": np.array(True)}
    elif inside == "function":
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        more = {
            "functions": [helper.make_function("local", "f", ["x"], ["y"], nodes, opsets)],
            "opset_imports": opsets,
        }
        nodes = [helper.make_node("f", ["x"], ["y"], domain="local")]
    net = nets.model(nodes, [nets.value("x", [4])], ["y"], weights, **more)
    path = folder / "net.onnx"
    path.write_bytes(net.SerializeToString())
    for given in (net, path):
        with pytest.raises(
            at.ModelError, match="has data in another file; only initializers of the model's graph"
        ):
            at.import_onnx(given)


def test_sparse_weights_are_refused_by_name() -> None:
    net = nets.one("Add", [nets.value("x", [4])], {"v": np.zeros(4, np.float32)})
    sparse = net.graph.sparse_initializer.add()
    sparse.values.name = "w"
    with pytest.raises(at.ModelError, match="initializer 'w' is sparse, which is not supported"):
        at.import_onnx(net)


def test_two_weights_of_one_name_are_refused() -> None:
    net = nets.one("Add", [nets.value("x", [4])], {"w": np.zeros(4, np.float32)})
    net.graph.initializer.append(net.graph.initializer[0])
    with pytest.raises(at.ModelError, match="two initializers are named 'w'"):
        at.import_onnx(net)


def test_functions_that_call_themselves_are_refused() -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    body = [helper.make_node("f", ["x"], ["y"], domain="local")]
    function = helper.make_function("local", "f", ["x"], ["y"], body, opsets)
    net = nets.model(
        [helper.make_node("f", ["x"], ["y"], domain="local")],
        [nets.value("x", [4])],
        ["y"],
        functions=[function],
        opset_imports=opsets,
    )
    with pytest.raises(at.ModelError, match="Cycle detected in model-local function references"):
        at.import_onnx(net)
