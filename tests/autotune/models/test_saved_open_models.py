"""Files of models with open sizes: read back as they were, and refused where they lie."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from open_graphs import MODELS, inputs_at
from saved_mutants import closed, opened
from test_open_models import attention, both, close, module_of, size

from autotune.errors import ModelError
from autotune.models.saved import load_model
from autotune.models.saving import WITH_SIZES, WITH_STRIDES


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("open") / "net.at"
    module_of(attention(size(1, 9), size(1, 4, "b"))).save(path)
    return path


def test_a_model_is_read_back_with_its_sizes(file: Path, tmp_path: Path) -> None:
    graph = attention(size(1, 9), size(1, 4, "b"))
    net, back = module_of(graph), load_model(file)
    assert back.program.outline == net.program.outline and back.sizes == {"b": (1, 4), "n": (1, 9)}
    for batch, n in ((1, 1), (3, 5), (4, 9)):
        arrays = both(graph, batch, n)
        close(back(*arrays), list(net(*arrays)))
    back.save(tmp_path / "again.at")
    assert (tmp_path / "again.at").read_bytes() == file.read_bytes()
    copied = pickle.loads(pickle.dumps(back))
    assert copied.sizes == back.sizes


def test_the_version_is_new_only_where_sizes_are_open(file: Path, tmp_path: Path) -> None:
    v, _ = opened(file)
    assert v["version"] == WITH_SIZES > WITH_STRIDES
    from test_open_models import closed_net

    closed_net().save(tmp_path / "closed.at")
    with zipfile.ZipFile(tmp_path / "closed.at") as z:
        v = json.loads(z.read("model.json"))
    assert v["version"] == 1 and "sizes" not in v and not any("sizes" in s for s in v["steps"])


N, B = ["var", "n"], ["var", "b"]
# An output has the open extents b, n and n: the last ones of the document.
LIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another range": (lambda v: v["sizes"][1].__setitem__(2, 8), "is not 9 at the largest size"),
    "from 0 on": (lambda v: v["sizes"][1].__setitem__(1, 0), "the size n is 0 to 9"),
    "two of a name": (lambda v: v["sizes"].append(v["sizes"][0]), "'b' of a size is no identifier"),
    "no name": (lambda v: v["sizes"][0].__setitem__(0, "b;"), "no extent of an input tells the size 'b;'"),
    "told by nothing": (lambda v: v["sizes"][0].__setitem__(4, 2), "no extent of an input tells"),
    "told by an output": (
        lambda v: v["sizes"][0].__setitem__(3, v["outputs"][0]), "no extent of an input tells the size b"
    ),
    "told by nobody": (lambda v: v["sizes"][0].__setitem__(3, "nobody"), "no extent of an input tells"),
    "changed places": (lambda v: v["steps"][0]["sizes"].reverse(), "a step gives the size 'n' to task 0"),
    "none of a step": (lambda v: v["steps"][0].pop("sizes"), "a step gives 0 sizes to task 0, which takes 2"),
    "too many": (lambda v: v["steps"][0]["sizes"].append("n"), "a step gives 3 sizes to task 0"),
    "unknown": (lambda v: v["steps"][0]["sizes"].__setitem__(0, "m"), "a step gives the size 'm' to task 0"),
    "no sizes": (lambda v: (v.pop("sizes"), v.pop("extents")) and None, "a step gives the size 'b'"),
    "no extents": (lambda v: v.pop("extents") and None, "no extent of an input tells the size 'b'"),
    "a fixed output": (lambda v: v["extents"][-1].__setitem__(2, 9), "must depend on one size"),
    "it shrinks": (lambda v: v["extents"][-1].__setitem__(2, ["-", 10, N]), "is below 1 or shrinks"),
    "open twice": (lambda v: v["extents"].append(v["extents"][0]), "is not there, or open twice"),
    "no dimension": (lambda v: v["extents"][-1].__setitem__(1, 7), "is not there, or open twice"),
    "of a weight": (
        lambda v: v["extents"][-1].__setitem__(0, v["weights"][0]), "is neither an input nor an output"
    ),
    "of a load": (lambda v: v["extents"][-1].__setitem__(2, ["load", "x", "int32"]), "no sum, product"),
    "no expression": (lambda v: v["extents"][0].__setitem__(2, "n"), "malformed expression"),
    "of two sizes": (lambda v: v["extents"][-1].__setitem__(2, ["*", N, B]), "must depend on one size"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_files_that_lie_about_sizes_are_refused(file: Path, tmp_path: Path, lie: str) -> None:
    change, said = LIES[lie]
    v, members = opened(file)
    change(v)
    closed(v, members, tmp_path / "lie.at")
    with pytest.raises(ModelError, match=f"is damaged: .*{said}"):
        load_model(tmp_path / "lie.at")


def test_kernels_that_would_leave_what_a_caller_gives_are_refused(tmp_path: Path) -> None:
    """Rows are read and written in place: where a caller gives fewer, no kernel may take more."""
    graph = MODELS["doubled"].graph()
    net = module_of(graph)
    net.save(tmp_path / "net.at")
    close(load_model(tmp_path / "net.at")(*inputs_at(graph, {"n": 3})), [net(*inputs_at(graph, {"n": 3}))])
    v, _ = opened(tmp_path / "net.at")
    assert v["extents"] == [["x", 0, ["*", N, 2]], ["T2", 0, ["*", N, 3]]]
    fewer = {0: ["+", N, 8], 1: ["-", ["*", N, 4], 8]}  # as many at the largest size, 8
    for which, extent in fewer.items():
        v, members = opened(tmp_path / "net.at")
        v["sizes"][0][1] = 3  # from 3 on, so that none is below 1
        v["extents"][which][2] = extent
        closed(v, members, tmp_path / "lie.at")
        if which == 0:  # x has more rows than are read
            load_model(tmp_path / "lie.at")
            continue
        with pytest.raises(ModelError, match="task 0 may go beyond the end of 'T2'"):
            load_model(tmp_path / "lie.at")
