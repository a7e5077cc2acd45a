"""Exported models with packed weights and with code for several processors; and under tools that look for
mistakes of memory."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from types import SimpleNamespace
from typing import Any

import needs
import numpy as np
import pytest
import qemu
import state_models as states
from exported import ExportedLibrary
from exported_cases import agree, packing, program, states_of
from model_cases import model_of
from open_graphs import MODELS, size
from test_own_programs import keeping

import autotune as at
from autotune.backends import parse, runnable
from autotune.backends.building import shared_library
from autotune.codegen.runtime.model_tables import WeightPack
from autotune.codegen.simt import cxx
from autotune.models.export_codes import PackedLater
from autotune.models.export_weights import FileWeights, read_weights
from autotune.models.fallback import run_island
from autotune.models.module import Module
from autotune.models.preparation import prepared
from autotune.models.program import Program
from autotune.models.weights import Use
from autotune.run import export_codes
from autotune.run.kernels import default_kernel

if cxx.command() is None:
    needs.missing("c++")


def test_packed_weights_are_stored_packed(tmp_path) -> None:
    net = packing()
    library = ExportedLibrary(net.export(tmp_path, weights="beside"))
    held = {id(a): a for a in net.program.weights.values()}.values()
    assert library.contract["weights"]["bytes"] == sum(-(-a.nbytes // 64) * 64 for a in held)
    for seed in range(3):
        x = np.random.default_rng(seed).integers(-2, 3, (8, 48)).astype("float32")
        agree(net, library, library.make(), [x])


def test_a_part_of_a_weight_is_packed_from_its_first_element_on() -> None:
    value, other = np.arange(20, dtype=np.float32), np.arange(3.0)
    parts = {0: PackedLater(Use("w", 0, 1, 3), 40, "f"), 1: PackedLater(Use("w"), 80, "")}
    program: Any = SimpleNamespace(weights=parts, initial={"s": other})
    code: Any = SimpleNamespace(programs=[program])
    file = FileWeights.of([other, value])
    read = read_weights(file, [{"w": value}], code)
    assert read.packs == (WeightPack(76, 0, 40, "f"), WeightPack(64, 64, 80), WeightPack(0, 192, 24))
    assert read.nbytes == 256 and [read.at[id(x)] for x in (*parts.values(), other)] == [0, 64, 192]


@pytest.fixture
def unpicked(monkeypatch) -> None:
    """Plain loops in the place of first picks for other processors."""

    def plain_loops(kernel: Any, name: str, goal: Any, where: str) -> Any:
        return export_codes._code(kernel, name, goal, at.Trace(), "default")

    monkeypatch.setattr(export_codes, "_first_pick", plain_loops)


@pytest.mark.usefixtures("unpicked")
@pytest.mark.fast("beside")
@pytest.mark.parametrize("weights", ["inside", "beside"])
def test_one_object_has_code_for_several_processors(weights, tmp_path) -> None:
    net = packing()
    with pytest.warns(
        UserWarning, match=r"1 of 1 tasks .* the log has no schedule of the expression of .* for x86-64-v2"
    ):
        files = net.export(tmp_path, weights=weights, targets=["x86-64-v2", "cpu"])
    library = ExportedLibrary(files)
    chosen = library.function("target")
    chosen.restype = ctypes.c_char_p
    assert library.contract["order"] == ["cpu", "x86-64-v2"] and chosen() == b"cpu"
    froms = [[k["schedule_from"] for k in t["kernels"]] for t in library.contract["targets"]]
    assert froms == [["default"], ["kernel"]]
    x = np.random.default_rng(0).integers(-2, 3, (8, 48)).astype("float32")
    one, other = library.make(), library.make()
    agree(net, library, one, [x])
    library.free(one)
    agree(net, library, other, [x + 1])
    library.free(other)
    assert program(tmp_path, "net").startswith("done\n")


@pytest.mark.usefixtures("unpicked")
@pytest.mark.filterwarnings("ignore:.*the log has no schedule:UserWarning")
def test_sets_of_code_have_states_and_sizes(tmp_path) -> None:
    graph = keeping(size(1, 5))
    net = states.untuned(model_of(graph))
    library = ExportedLibrary(net.export(tmp_path, targets=["x86-64-v2"]))
    instance = library.make()
    for n, row in ((1, 0), (3, 1), (5, 4)):
        x = np.random.default_rng(n).integers(0, 3, (n, 4)).astype("float32")
        agree(net, library, instance, [x, np.array([row])], n)
    for s, a in states_of(library, instance).items():
        np.testing.assert_array_equal(a, net.state[s])


@pytest.mark.usefixtures("unpicked")
@pytest.mark.filterwarnings("ignore:.*the log has no schedule:UserWarning")
def test_a_processor_that_runs_none_of_the_code_is_refused(tmp_path) -> None:
    net = states.untuned(model_of(states.counter()))
    library = ExportedLibrary(net.export(tmp_path, targets=["sapphirerapids"]))
    chosen = library.function("target")
    chosen.restype = ctypes.c_char_p
    if chosen() is not None:
        pytest.skip("this processor runs the code of sapphirerapids")
    made = ctypes.c_void_p()
    assert library.function("make")(ctypes.byref(made), None) == library.code("NO_CODE")
    assert made.value is None
    library.free(made)
    assert library.function("reset")(made) == library.code("NO_CODE")


RUNS = {"Haswell": True, "Nehalem": True, "core2duo": False}


@pytest.mark.slow
@pytest.mark.usefixtures("unpicked")
@pytest.mark.filterwarnings("ignore:.*the log has no schedule:UserWarning")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the code is for x86-64")
def test_processors_take_their_set_of_code_or_are_refused(tmp_path) -> None:
    if qemu.X86 is None:
        needs.missing("qemu")
    net = packing()
    net.export(tmp_path, targets=["x86-64-v2", "x86-64-v3"])
    here = program(tmp_path, "net")
    for cpu, runs in RUNS.items():
        command = [str(qemu.X86), "-cpu", cpu, "./program"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == ((0, here) if runs else (1, "")), cpu


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["inside", "beside"])
def test_valgrind_finds_nothing(weights, tmp_path) -> None:
    """It knows no AVX-512, so that the code is for x86-64-v3."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        needs.missing("valgrind")
    target = parse("x86-64-v3", 1)
    if not runnable(target):
        pytest.skip("this processor runs no code for x86-64-v3")
    ready = prepared(model_of(MODELS["columns"].graph()))
    ol = ready.outline(lambda w: None)
    kernels = [default_kernel(w, target) for w in ol.tasks]
    net = Module(
        Program.of(ol, kernels, ready.graph.values.__getitem__, run_island),
        target,
        "net",
        [None] * len(kernels),
    )
    net.export(tmp_path, weights=weights)
    program(tmp_path, "net", "-g")
    command = [valgrind, "-q", "--error-exitcode=9", "--leak-check=full", "./program"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("done\n"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["counter", "columns"])
def test_sanitizers_find_nothing(graph, tmp_path, monkeypatch) -> None:
    """In what runs the model, which is C, while the example calls it."""
    checks = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
    compiler = cxx.command(("gcc", "clang"), "none")
    if compiler is None or compiler[0].endswith("ziglang"):
        needs.missing("gcc")
    monkeypatch.setattr(shared_library, "linker", lambda *_: (*compiler, *checks))
    made = states.counter() if graph == "counter" else MODELS[graph].graph()
    net = states.untuned(model_of(made))
    net.export(tmp_path, weights="beside")
    assert program(tmp_path, "net", *checks).startswith("done\n")
